#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bf16 beside our own fp32 and PyTorch's bf16: requests and training steps of GPT-2 small
#
# Sets up build/venv/training with the pinned packages, writes the model below build/bench/models, and
# runs bf16.py; arguments go to it (--record, --rounds N, --only WORD,...). Where the packages
# cannot be had it says so and fails. Needs about 18 GiB of memory.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
here=$source_dir/tests/bench
venv=$build_dir/venv/training
wanted=$here/requirements-training.txt

if ! cmp -s "$wanted" "$venv/requirements.txt"; then
  mkdir -p "$build_dir/venv"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$wanted"; }; then
    echo "bf16.sh: cannot install what $wanted lists: no peer to compare with" >&2
    exit 3
  fi
  cp "$wanted" "$venv/requirements.txt"
fi

case " $* " in *" --record "*) record="--record $here/records" ;; *) record= ;; esac
for word in "$@"; do
  shift
  [ "$word" = --record ] || set -- "$@" "$word"
done
# shellcheck disable=SC2086
exec "$venv/bin/python" -B "$here/bf16.py" --models "$build_dir/bench/models" \
  --library "$build_dir/lib/libonnxpipe.so" $record "$@"

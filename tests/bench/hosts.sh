#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sessions of ONNX Runtime through the adapter: speed by callers, cost of a call, peak memory
#
# Sets up build/venv/bench with the pinned packages, writes the models below build/bench/models, and
# runs hosts.py; arguments go to it (--record, --rounds N, --only callers,calls,memory). Where the packages
# cannot be had it says so and fails.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
here=$source_dir/tests/bench
venv=$build_dir/venv/bench

if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
  mkdir -p "$build_dir/venv"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$here/requirements.txt"; }; then
    echo "hosts.sh: cannot install what $here/requirements.txt lists: no peer to compare with" >&2
    exit 3
  fi
  cp "$here/requirements.txt" "$venv/requirements.txt"
fi

case " $* " in *" --record "*) record="--record $here/records" ;; *) record= ;; esac
for word in "$@"; do
  shift
  [ "$word" = --record ] || set -- "$@" "$word"
done
# shellcheck disable=SC2086
exec "$venv/bin/python" -B "$here/hosts.py" --models "$build_dir/bench/models" \
  --build "$build_dir" $record "$@"

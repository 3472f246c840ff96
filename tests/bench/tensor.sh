#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tensor groups of two ranks: beside two stages, beside one rank of two threads, beside torch's parallelize_module over gloo
#
# Two cores. Sets up build/venv/training as training.sh does, for the models and the peer, and cffi for our own package.
# Arguments go to tensor.py: --record, --rounds N, --model NAME, --only WORD,...; without the packages there is no bench.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
export OPIPE_SOURCE_DIR="$source_dir"
export OPIPE_BUILD_DIR="${OPIPE_BUILD_DIR:-$source_dir/build}"
here=$source_dir/tests/bench
venv=$OPIPE_BUILD_DIR/venv/training
wanted=$here/requirements-training.txt

if ! cmp -s "$wanted" "$venv/requirements.txt"; then
  mkdir -p "$OPIPE_BUILD_DIR/venv"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$wanted"; }; then
    echo "tensor.sh: cannot install what $wanted lists: no model can be written, no peer to compare with" >&2
    exit 3
  fi
  cp "$wanted" "$venv/requirements.txt"
fi
if ! "$venv/bin/python" -c 'import cffi' 2>/dev/null; then
  "$venv/bin/pip" install -q "$(grep '^cffi==' "$source_dir/tests/requirements.txt")"
fi
export PYTHONPATH="$OPIPE_BUILD_DIR/python:$source_dir/tests/cli"
exec "$venv/bin/python" -B "$here/tensor.py" --models "$OPIPE_BUILD_DIR/bench/models" "$@"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# predicted times and memory of two ranks beside measured ones, requests and training
#
# Sets up build/venv/bench as inference.sh does and writes the model below build/bench/models; --record writes
# the table to records/.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
export OPIPE_SOURCE_DIR="$source_dir"
export OPIPE_BUILD_DIR="${OPIPE_BUILD_DIR:-$source_dir/build}"
here=$source_dir/tests/bench
venv=$OPIPE_BUILD_DIR/venv/bench
export OPIPE_BENCH_MODELS="$OPIPE_BUILD_DIR/bench/models"

if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
  mkdir -p "$OPIPE_BUILD_DIR/venv"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$here/requirements.txt"; }; then
    echo "predicted.sh: cannot install what $here/requirements.txt lists: no model can be written" >&2
    exit 3
  fi
  cp "$here/requirements.txt" "$venv/requirements.txt"
fi
PYTHONPATH="$here" "$venv/bin/python" -B "$here/models.py" "$OPIPE_BENCH_MODELS" gpt2_small small >/dev/null
export PYTHONPATH="$source_dir/tests/cli"
exec python3 -B "$here/predicted.py" "$@"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# replicas against stages of a serving stream: the planner's advice beside what was measured, two cores
#
# Sets up build/venv/bench as inference.sh does and writes the models below build/bench/models; --record writes
# the tables to records/. Arguments: --rounds N, --only NAME.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
export OPIPE_SOURCE_DIR="$source_dir"
export OPIPE_BUILD_DIR="${OPIPE_BUILD_DIR:-$source_dir/build}"
here=$source_dir/tests/bench
venv=$OPIPE_BUILD_DIR/venv/bench

if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
  mkdir -p "$OPIPE_BUILD_DIR/venv"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$here/requirements.txt"; }; then
    echo "stream.sh: cannot install what $here/requirements.txt lists: no model can be written" >&2
    exit 3
  fi
  cp "$here/requirements.txt" "$venv/requirements.txt"
fi
export PYTHONPATH="$source_dir/tests/cli"
exec "$venv/bin/python" -B "$here/stream.py" --models "$OPIPE_BUILD_DIR/bench/models" \
  --library "$OPIPE_BUILD_DIR/lib/libonnxpipe.so" "$@"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ranks as processes: beside threads of one process, beside torch pipelining over gloo; a hand-off between processes
#
# Two cores. Sets up build/venv/training as training.sh does, for the models and the peer; where it cannot be had there is no peer.
# Arguments go to processes.py: --record, --rounds N, --model NAME, --only WORD,... The hand-off has real-time priority where the
# system lets us.
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
    echo "processes.sh: cannot install what $wanted lists: no model can be written, no peer to compare with" >&2
    exit 3
  fi
  cp "$wanted" "$venv/requirements.txt"
fi
export PYTHONPATH="$source_dir/tests/cli"
exec "$venv/bin/python" -B "$here/processes.py" --models "$OPIPE_BUILD_DIR/bench/models" "$@"

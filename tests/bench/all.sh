#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# where this machine stands: every row that has an aim, of all benches beside peers, on one page (--quick: 20 minutes)
#
# Arguments go to all.py: --quick, --only PART,..., --record. Each part sets up the peers that it needs, as it does by itself;
# where they cannot be had, the page says so.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
export OPIPE_SOURCE_DIR="$source_dir"
export OPIPE_BUILD_DIR="${OPIPE_BUILD_DIR:-$source_dir/build}"
venv=$OPIPE_BUILD_DIR/venv/bench
wanted=$source_dir/tests/bench/requirements.txt
if ! cmp -s "$wanted" "$venv/requirements.txt"; then
  mkdir -p "$OPIPE_BUILD_DIR/venv"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$wanted"; }; then
    echo "all.sh: cannot install what $wanted lists: no peer to compare with" >&2
    exit 3
  fi
  cp "$wanted" "$venv/requirements.txt"
fi
exec "$venv/bin/python" -B "$source_dir/tests/bench/all.py" "$@"

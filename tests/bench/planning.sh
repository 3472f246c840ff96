#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# planning of seven shapes of large graphs, beside inspecting them; thousands of devices lowered, played, planned for
#
# --record writes the table to records/.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
export OPIPE_SOURCE_DIR="$source_dir"
export OPIPE_BUILD_DIR="${OPIPE_BUILD_DIR:-$source_dir/build}"
export PYTHONPATH="$source_dir/tests/cli"
exec python3 -B "$source_dir/tests/bench/planning.py" "$@"

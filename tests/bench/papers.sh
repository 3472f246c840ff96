#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# the five papers' published figures beside what planners and simulator make of the same configurations
#
# --record writes the table to records/; papers/README.md says the rest.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
export OPIPE_SOURCE_DIR="$source_dir"
export OPIPE_BUILD_DIR="${OPIPE_BUILD_DIR:-$source_dir/build}"
exec python3 -B "$source_dir/tests/bench/papers/papers.py" "$@"

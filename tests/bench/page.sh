#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# pages of 64 ranks x 512 micro-batches: bytes, and frame times in Chromium without a window
#
# --record writes the table to records/ and the pictures of records/page. Needs Debian's chromium; leave the machine alone.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
export OPIPE_SOURCE_DIR="$source_dir"
export OPIPE_BUILD_DIR="${OPIPE_BUILD_DIR:-$source_dir/build}"
export PYTHONPATH="$source_dir/tests/page:$source_dir/tests/cli"
exec python3 -B "$source_dir/tests/bench/page.py" "$@"

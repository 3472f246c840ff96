#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# orders by search beside the best named schedule and what no order beats, over 60 problems
#
# Nothing is timed: the same table on every machine. --record writes it to records/; --moves N: how far
# to look.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
moves=0
record=
while [ $# -gt 0 ]; do
  case $1 in
    --record) record=$source_dir/tests/bench/records/$(date +%Y-%m-%d)-improve.md ;;
    --moves)
      moves=$2
      shift
      ;;
    *)
      echo "usage: improve [--record] [--moves N]" >&2
      exit 2
      ;;
  esac
  shift
done
cmake --build "$build_dir" --target improve_grid >/dev/null
export OPIPE_PLUGIN_PATH="$build_dir/lib/onnx-pipe"
table=$("$build_dir/tests/bench/improve_grid" "$moves")
printf '%s\n' "$table"
[ -z "$record" ] || {
  printf '# Orders by search\n\n%s\n\n%s\n' \
    "Made by \`./dev bench improve --record\`; what the columns and problems are: [README](../improve/README.md)." \
    "$table" >"$record"
  echo "written: $record" >&2
}

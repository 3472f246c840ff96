#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# a tensor from rank to rank: median and percentiles of a hop, transport alone and through a session
#
# 2 ranks on 2 cores (aim: under 2 us), 4 ranks on 2 cores (aim: under 20 us), 2 ranks on 1 core. Cores are the
# first of those allowed. Where the machine has other work the figures are those of shared cores: see the load.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
bench=$build_dir/tests/bench/bench_handoff

# The allowed cores, one a line, from a list like 0,2-5.
cores=$(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' |
  awk -F- '{ last = (NF > 1) ? $2 : $1; for (i = $1; i <= last; i++) print i }')
first=$(echo "$cores" | sed -n 1p)
second=$(echo "$cores" | sed -n 2p)
two=$first${second:+,$second}

echo "load before: $(cut -d' ' -f1-3 /proc/loadavg)"
for round in 1 2 3; do
  echo "round $round"
  taskset -c "$two" "$bench" --ranks 2 "$@"
  taskset -c "$two" "$bench" --ranks 4 "$@"
  taskset -c "$first" "$bench" --ranks 2 "$@"
done
echo "load after: $(cut -d' ' -f1-3 /proc/loadavg)"

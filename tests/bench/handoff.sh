#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# a tensor from rank to rank: median and percentiles of a hop, transport alone and through a session
#
# 2 ranks on 2 cores (aim: under 2 us), 4 ranks on 2 cores (aim: under 20 us), 2 ranks on 1 core. Cores are the
# first of those allowed. On a machine with other work the figures are those of shared cores: see the load printed.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
bench=$build_dir/tests/bench/bench_handoff
first=$(taskset -cp $$ | sed 's/.*: //; s/[,-].*//')
second=$(taskset -cp $$ | sed 's/.*: //' | awk -F'[,-]' '{ print NF > 1 ? $2 : $1 }')
[ "$second" -gt $((first + 1)) ] && case $(taskset -cp $$) in *-*) second=$((first + 1)) ;; esac

echo "load before: $(cut -d' ' -f1-3 /proc/loadavg)"
for round in 1 2 3; do
  taskset -c "$first,$second" "$bench" --ranks 2 "$@"
  taskset -c "$first,$second" "$bench" --ranks 4 "$@"
  taskset -c "$first" "$bench" --ranks 2 "$@"
done
echo "load after: $(cut -d' ' -f1-3 /proc/loadavg)"

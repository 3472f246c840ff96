#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# a tensor from rank to rank: median and percentiles of a hop, transport alone and through a session
#
# 2 ranks on 2 cores (aim: under 2 us), 4 ranks on 2 cores (aim: under 20 us), 2 ranks on 1 core. Cores are the
# first of those allowed. Where the system lets us, the ranks run at real-time priority, so that other work does
# not share their cores; else the figures are those of shared cores: see the load. --record keeps the output below
# records/.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
here=$source_dir/tests/bench
bench=$build_dir/tests/bench/bench_handoff

# The allowed cores, one a line, from a list like 0,2-5.
cores=$(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' |
  awk -F- '{ last = (NF > 1) ? $2 : $1; for (i = $1; i <= last; i++) print i }')
first=$(echo "$cores" | sed -n 1p)
second=$(echo "$cores" | sed -n 2p)
two=$first${second:+,$second}

record=
if [ "${1:-}" = --record ]; then
  record=$here/records/$(date +%Y-%m-%d)-handoff.txt
  shift
fi
alone=
if chrt -f 1 true 2>/dev/null; then alone="chrt -f 1"; fi

measure() {
  echo "$(date +%Y-%m-%d) $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sed -n 1p), kernel $(uname -r)${alone:+, $alone}"
  echo "load before: $(cut -d' ' -f1-3 /proc/loadavg)"
  for round in 1 2 3; do
    echo "round $round"
    $alone taskset -c "$two" "$bench" --ranks 2 "$@"
    $alone taskset -c "$two" "$bench" --ranks 4 "$@"
    $alone taskset -c "$first" "$bench" --ranks 2 "$@"
  done
  echo "load after: $(cut -d' ' -f1-3 /proc/loadavg)"
}

if [ -n "$record" ]; then
  mkdir -p "$here/records"
  measure "$@" | tee "$record"
else
  measure "$@"
fi

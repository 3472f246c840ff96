#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job on a small transformer: plan it, run it whole and in 4 stages, and hold the results
# against the plan's reference and the whole model. Fails when one of them does not hold.
set -eu
cd "$(dirname "$0")/../.."
command=${OPIPE_BUILD_DIR:-$PWD/build}/bin/onnx-pipe
folder=tests/data/demo
model=$folder/model.onnx
shape="--bind batch=4,seq=64"
requests=${OPIPE_DEMO_REQUESTS:-200}
report=$(mktemp)
trap 'rm -f "$report"' EXIT

title() { printf '\n== %s\n' "$*"; }

# run_or_die COMMAND...: leaves the output in $report; shows it and fails when the command does.
run_or_die() {
  status=0
  "$@" >"$report" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    cat "$report"
    echo "demo: status $status from: $*" >&2
    exit 1
  fi
}

title "$model: 8 transformer blocks, cut into 4 stages"
"$command" plan "$model" --stages 4 --threads 1 $shape

title "4 stages against the outputs that came with the model"
run_or_die "$command" run "$folder" --check --stages 4 --threads 1
grep -E '^test_data_set' "$report"

title "4 stages against the plan's reference, and against the whole model"
run_or_die "$command" run "$model" --stages 4 --threads 1 --reference $shape
if ! grep -E "identical to the plan's reference|largest difference" "$report" ||
  ! grep -q "identical to the plan's reference" "$report"; then
  cat "$report"
  echo "demo: the pipeline does not give what its plan's reference gives" >&2
  exit 1
fi

# throughput STAGES: one line on a stream of requests.
throughput() {
  run_or_die "$command" run "$model" --stages "$1" --threads 1 --requests "$requests" $shape
  printf '%s stage%s: ' "$1" "$([ "$1" -eq 1 ] || echo s)"
  grep -E 'requests? in ' "$report"
}
title "a stream of $requests requests of 4 x 64 tokens, one thread per stage, $(getconf _NPROCESSORS_ONLN) cores"
throughput 1
throughput 4

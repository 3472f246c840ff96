#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job on a small transformer: plan it, run it whole and in 4 stages, and hold the results
# against the plan's reference and the whole model. Fails when one of them does not hold.
set -eu
cd "$(dirname "$0")/../.."
command=${OPIPE_BUILD_DIR:-$PWD/build}/bin/onnx-pipe
folder=tests/data/demo
model=$folder/model.onnx
requests=${OPIPE_DEMO_REQUESTS:-64}
report=$(mktemp)
trap 'rm -f "$report"' EXIT

title() { printf '\n== %s\n' "$*"; }

title "the plan of $model in 4 stages"
"$command" plan "$model" --stages 4

title "the outputs that came with the model, from 4 stages"
"$command" run "$folder" --check --stages 4

title "4 stages against the plan's reference and the whole model"
status=0
"$command" run "$model" --stages 4 --reference >"$report" || status=$?
cat "$report"
if [ "$status" -ne 0 ] || ! grep -q "identical to the plan's reference" "$report"; then
  echo "demo: the pipeline does not give the plan's reference (status $status)" >&2
  exit 1
fi

title "throughput, whole: $requests requests"
"$command" run "$model" --stages 1 --threads 1 --requests "$requests"

title "throughput, 4 stages: $requests requests"
"$command" run "$model" --stages 4 --threads 1 --requests "$requests"

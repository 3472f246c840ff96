#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# --fallback from the command line: a model with nodes that the device lacks runs with them on the CPU, and the plan
# says how many and what the copies take; none refuses with node and operator, as train does unasked. On the doubles.
set -u
doubles=$OPIPE_BUILD_DIR/tests/cuda
command=$OPIPE_BUILD_DIR/bin/onnx-pipe
if [ ! -e "$doubles/libcuda.so.1" ]; then
  echo "SKIP: the doubles of CUDA need a C++ compiler at build"
  exit 77
fi
export OPIPE_CUDA_PATH="$doubles" OPIPE_PLUGIN_PATH="$doubles/plugins"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
model=$work/model.onnx
failed=0
"$OPIPE_PYTHON" "$OPIPE_SOURCE_DIR/tests/plugins/backend-cuda/fallback_model.py" "$model" || exit 1

# expect STATUS TEXT ARGUMENT...
expect() {
  wanted=$1 text=$2
  shift 2
  output=$("$command" "$@" 2>&1)
  status=$?
  if [ "$status" -ne "$wanted" ] || ! printf '%s\n' "$output" | grep -qF -- "$text"; then
    printf '%s: status %s, wanted %s with "%s":\n%s\n' "$*" "$status" "$wanted" "$text" "$output"
    failed=1
  fi
}

lacks="rank 0: 2 nodes that cuda:0 lacks run on the CPU, with"
expect 0 "$lacks" run "$model" --device cuda --stages 1 --reference
expect 0 "rank 1: 1 node that cuda:0 lacks runs on the CPU, with" run "$model" --device cuda --stages 2 --reference --fallback cpu
expect 0 "$lacks" plan "$model" --device cuda --stages 1 -o "$work/plan.json"
expect 0 "$lacks" run "$model" --plan "$work/plan.json"
grep -q '"fallback_nodes": 2' "$work/plan.json" || {
  echo "the plan in a file does not say what falls back"
  failed=1
}
expect 3 "refuses 2 of 4 nodes: 'scores' (Einsum)" \
  run "$model" --device cuda --stages 1 --fallback none
expect 3 "refuses 2 of 4 nodes: 'scores' (Einsum)" run "$model" --device cuda,fallback=none --stages 1
expect 2 "no --device other than cpu" run "$model" --device cpu --fallback cpu
expect 2 "--fallback" run "$model" --device cuda --fallback gpu

set -- --loss mse:output=y,target=t --data "x=$work/x.npy" --data "t=$work/t.npy" --batch 2 --steps 2 \
  --optimizer sgd:lr=0.01
expect 3 "'scores' (Einsum): 3 operands, at most 2; nothing runs it instead: training does not fall back unasked" \
  train "$model" --device cuda "$@"
expect 0 "lacks run on the CPU" train "$model" --device cuda --fallback cpu --reference "$@"
exit $failed

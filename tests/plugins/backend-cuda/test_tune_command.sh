#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
# tune from the command line: a table of kernels in the plan's file beside its decisions, whose hash it leaves alone; run and
# train with it; what does not fit is warned of, or with --tuned require refused. On the doubles.
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
model=$OPIPE_SOURCE_DIR/tests/data/demo/model.onnx
plan=$work/plan.json tuned=$work/tuned.json
failed=0

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

# lacks TEXT: the output before does not have it.
lacks() {
  if printf '%s\n' "$output" | grep -qF -- "$1"; then
    printf 'not wanted: "%s" in\n%s\n' "$1" "$output"
    failed=1
  fi
}

decisions() {
  sed -n 's/^  "hash": "\([0-9a-f]*\)".*/\1/p' "$1"
}

expect 0 "2 stages" plan "$model" --device cuda --stages 2 -o "$plan"
expect 0 "written to $tuned" tune "$model" --plan "$plan" --device cuda:0 --runs 4 -o "$tuned"
fit=$(sed -n 's/.*"fit": "\([^"]*\)".*/\1/p' "$tuned")
case $fit in
"Double 0 (sm_"*" processors, cublasLt 13.1.0, 33554432 bytes of workspace") ;;
*)
  echo "choices hold for '$fit'"
  failed=1
  ;;
esac
[ -n "$(decisions "$plan")" ] && [ "$(decisions "$plan")" = "$(decisions "$tuned")" ] || {
  echo "the table changes the hash of the decisions"
  failed=1
}
if grep -q '"algorithm=66' "$tuned" || ! grep -q '"algorithm=31 tile=24' "$tuned"; then
  echo "chosen is what is not steady, or not the fastest:"
  grep '"choice"' "$tuned"
  failed=1
fi

# The device by its uuid; of two that begin alike none is meant.
expect 0 "written to $work/named.json" tune "$model" --plan "$plan" --device cuda:GPU-d0 --runs 4 -o "$work/named.json"
cmp -s "$work/named.json" "$tuned" || {
  echo "the device by its uuid gives another table"
  failed=1
}
expect 3 "device 'cuda:GPU-': 2 of the 2 devices" tune "$model" --plan "$plan" --device cuda:GPU- -o "$work/none.json"

# The plan before its model, or behind it: one of the two is JSON.
for order in "$plan $model" "$model $plan"; do
  rm -f "$work/either.json"
  # shellcheck disable=SC2086 # two words
  expect 0 "written to $work/either.json" tune $order --device cuda:0 --runs 4 -o "$work/either.json"
  cmp -s "$work/either.json" "$tuned" || {
    echo "tune $order gives another table"
    failed=1
  }
done

cp "$plan" "$work/own.json"
expect 0 "written to $work/own.json" tune "$work/own.json" "$model" --device cuda:0 --runs 4
cmp -s "$work/own.json" "$tuned" || {
  echo "the same measurements give another table"
  failed=1
}

expect 0 "chosen by measuring, for $fit" run "$model" --plan "$tuned" --tuned require --reference
lacks "own choice"
expect 3 "the plan has no table of kernels that were chosen by measuring" run "$model" --plan "$plan" --tuned require
expect 0 "output" run "$model" --plan "$plan"
lacks "own choice"

# Another chip, and another library: the table does not fit; one for each does.
expect 0 "written to" tune "$model" --plan "$plan" --device cuda:1 --runs 2 -o "$work/other.json"
expect 0 "rank 1: the plan's table is for 'Double 1" run "$model" --plan "$work/other.json" --reference
OPIPE_CUDA_DOUBLE_PRODUCTS=130200
export OPIPE_CUDA_DOUBLE_PRODUCTS
expect 0 "rank 0: the plan's table is for '$fit', the device is " run "$model" --plan "$tuned"
expect 3 "cublasLt 13.2.0" run "$model" --plan "$tuned" --tuned require
expect 0 "written to" tune "$model" --plan "$tuned" --device cuda:0 --runs 2 -o "$work/both.json"
expect 0 "cublasLt 13.2.0" run "$model" --plan "$work/both.json" --tuned require
unset OPIPE_CUDA_DOUBLE_PRODUCTS
expect 0 "output" run "$model" --plan "$work/both.json" --tuned require

# Choices that were changed by hand.
sed 's/algorithm=31/algorithm=21/' "$tuned" >"$work/changed.json"
expect 3 "they were changed" run "$model" --plan "$work/changed.json"

# Training: products of both passes, and bits of the plan's reference.
set -- --data "text:$OPIPE_SOURCE_DIR/tests/data/text/ferry.txt" --loss cross-entropy:logits=logits,labels=labels,shift=1 \
  --batch 2 --bind seq=16
expect 0 "2 stages" plan "$model" --train --device cuda --stages 2 --microbatches 2 "$@" -o "$work/train.json"
expect 0 "written to" tune "$model" --plan "$work/train.json" --device cuda --runs 2 -o "$work/train.json"
grep -q 'beta=1' "$work/train.json" || {
  echo "no product that adds to a gradient was measured"
  failed=1
}
expect 0 "chosen by measuring" train "$model" --plan "$work/train.json" --tuned require --reference --steps 2 "$@"
lacks "own choice"

# Others than the plan's devices.
expect 0 "2 stages" plan "$model" --device cpu --stages 2 -o "$work/cpu.json"
expect 3 "backend 'cpu' has no kernels to choose by measuring" \
  tune "$model" --plan "$work/cpu.json" --device cpu -o "$work/none.json"
expect 0 "2 stages" plan "$model" --device emulated --stages 2 -o "$work/emulated.json"
expect 3 "backend 'emulated' has no kernels to choose by measuring" \
  tune "$model" --plan "$work/emulated.json" --device emulated -o "$work/none.json"
expect 3 "the plan has no table of kernels that were chosen by measuring" run "$model" --plan "$work/emulated.json" --tuned require
expect 3 "no rank of the plan is on a device of kind 'cpu', rank 0 is on 'cuda'" \
  tune "$model" --plan "$plan" --device cpu -o "$work/none.json"
[ ! -e "$work/none.json" ] || {
  echo "what was refused leaves a file"
  failed=1
}
expect 2 "its plan is needed, --plan FILE" tune "$model" --device cuda
expect 2 "a plan does not say where its model is: 'onnx-pipe tune $plan MODEL'" tune "$plan" --device cuda
expect 2 "both are plans" tune "$plan" "$tuned" --device cuda
expect 2 "neither is a plan" tune "$model" "$model" --device cuda
expect 2 "the first is a plan too" tune "$tuned" --plan "$plan" --device cuda
expect 2 "2 operands were given beside --plan" tune "$plan" "$model" --plan "$plan" --device cuda
expect 2 "0 operands were given" tune --device cuda
expect 0 "tune PLAN MODEL --device" tune --help
expect 2 "one --device KIND[:N] is needed" tune "$model" --plan "$plan"
expect 2 "tuned" run "$model" --tuned perhaps
exit $failed

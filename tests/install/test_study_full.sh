#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A build without partition/study (OPIPE_STUDY=OFF): plans are made, read, run and trained with the bits of their reference;
# what the study answers says that it is not there, with a status; the tests of the ABI pass. Prints both sizes.
# ctest: timeout=1800 label=full serial
set -eu
if [ -n "$OPIPE_SANITIZE" ]; then
  echo "SKIP: the plain build shows it"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
off=$OPIPE_BUILD_DIR/without-study
fail() {
  cat "$folder/log" >&2
  echo "FAILED: $*" >&2
  exit 1
}
run() { # STATUS TEXT ARGUMENTS: the command's status, and what it says
  status=$1 says=$2
  shift 2
  code=0
  "$off/bin/onnx-pipe" "$@" >"$folder/log" 2>&1 || code=$?
  [ "$code" -eq "$status" ] || fail "status $code, not $status: $*"
  grep -q -- "$says" "$folder/log" || fail "does not say '$says': $*"
}

launcher=
command -v ccache >/dev/null && launcher=-DCMAKE_C_COMPILER_LAUNCHER=ccache
cmake -S "$OPIPE_SOURCE_DIR" -B "$off" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER="$OPIPE_CC" -DOPIPE_STUDY=OFF \
  -DOPIPE_CUDA_KERNELS=OFF ${launcher:+"$launcher"} >"$folder/log" 2>&1 || fail "configuring"
tests="abi-test_study abi-test_plan abi-test_infos abi-test_params abi-test_locale abi-test_train abi-test_host"
# shellcheck disable=SC2086
cmake --build "$off" --target onnxpipe onnx-pipe plugins test-plugins $tests >"$folder/log" 2>&1 || fail "building"

demo=$OPIPE_SOURCE_DIR/tests/data/demo/model.onnx
loss=cross-entropy:logits=logits,labels=labels,shift=1
text=text:$OPIPE_SOURCE_DIR/tests/data/text/ferry.txt
small=$OPIPE_SOURCE_DIR/tests/data/small/qdq4
run 0 "" plan "$demo" --stages 2 -o "$folder/run.plan"
run 0 "identical to the plan's reference" run "$demo" --plan "$folder/run.plan" --reference
run 0 "" plan "$small/model.onnx" --stages 2 -o "$folder/small.plan"
run 0 "passed" run "$small" --plan "$folder/small.plan" --check
run 0 "" plan "$demo" --train --data "$text" --loss $loss --ranks 2 --schedule zb-h1 --microbatches 4 --batch 8 -o "$folder/train.plan"
run 0 bit-equal train "$demo" --data "$text" --loss $loss --batch 8 --plan "$folder/train.plan" --steps 2 --reference
run 0 makespan schedule simulate 1f1b --ranks 2 --microbatches 4

without="built without the study"
run 3 "$without" plan "$demo" --stages 2 --improve
run 3 "$without" plan "$demo" --stages 2 --schedule search
run 3 "$without" plan "$demo" --auto --device cpu --device cpu
run 3 "$without" simulate "$folder/run.plan"
run 3 "$without" simulate "$folder/run.plan" --cluster h100
run 3 "$without" schedule simulate search --ranks 2 --microbatches 4
run 3 "$without" schedule draw 1f1b --ranks 2 --microbatches 4 -o "$folder/page.html"

ctest --test-dir "$off" -R '^abi/test_(study|plan|infos|params|locale|train|host)$' --output-on-failure >"$folder/log" 2>&1 || fail "tests of the ABI"
for build in "$OPIPE_BUILD_DIR" "$off"; do
  strip -o "$folder/library" "$build/lib/libonnxpipe.so"
  echo "$(wc -c <"$folder/library") bytes: $build/lib/libonnxpipe.so, stripped"
done

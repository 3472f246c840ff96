#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
# Models through the CUDA backend on its doubles, whole and in two stages on one GPU: outputs as in their data sets,
# bit-equal to the plan's reference, close to the uncut model; in other orders of the device's work by other seeds.
set -u
doubles=$OPIPE_BUILD_DIR/tests/cuda
command=$OPIPE_BUILD_DIR/bin/onnx-pipe
if [ ! -e "$doubles/libcuda.so.1" ]; then
  echo "SKIP: the doubles of CUDA need a C++ compiler at build"
  exit 77
fi
export OPIPE_CUDA_PATH="$doubles"
failed=0
n=0

# run FOLDER ARGUMENT...
run() {
  folder=$1
  shift
  n=$((n + 1))
  output=$(OPIPE_CUDA_DOUBLE_SEED=$n "$command" run "$folder" --plugin "$doubles/plugins" --check --reference "$@" 2>&1)
  status=$?
  if [ "$status" -ne 0 ] || ! printf '%s\n' "$output" | grep -q passed; then
    printf '%s %s: status %s\n%s\n' "$folder" "$*" "$status" "$output"
    failed=1
  fi
}

for name in demo encoder encoder_contrib encoder_decoder encoder_legacy gpt_8block gpt_bf16 gpt_legacy gpt_past gpt_raw \
  llama_8block llama_attention llama_external llama_fp16; do
  run "$OPIPE_SOURCE_DIR/tests/data/$name" --device cuda --stages 2
done
run "$OPIPE_SOURCE_DIR/tests/data/gpt_8block" --device cuda --stages 1 --check-finite
run "$OPIPE_SOURCE_DIR/tests/data/gpt_8block" --device cuda --device cpu --stages 2
run "$OPIPE_SOURCE_DIR/tests/data/gpt_8block" --device cpu --device cuda:1 --stages 3
run "$OPIPE_SOURCE_DIR/tests/data/llama_8block" --device cuda --stages 4 --no-fuse
for folder in "$OPIPE_SHARED_DIR"/models/graphs/gpt2_* "$OPIPE_SHARED_DIR"/models/graphs/llama_* \
  "$OPIPE_SHARED_DIR"/models/gradients/llama; do
  [ -d "$folder/test_data_set_0" ] || continue
  run "$folder" --device cuda --stages 2
done
[ -d "$OPIPE_SHARED_DIR/models/graphs" ] || echo "SKIP: the models of $OPIPE_SHARED_DIR are not here"
exit $failed

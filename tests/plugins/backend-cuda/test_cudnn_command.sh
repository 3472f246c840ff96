#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
# Attention by cuDNN from the command line: training in bf16 takes it, with the bits of the plan's reference on two ranks of
# one GPU; what it refuses is said and done by our own kernels; whether bits may change is a decision. On the doubles.
set -u
doubles=$OPIPE_BUILD_DIR/tests/cuda
command=$OPIPE_BUILD_DIR/bin/onnx-pipe
if [ ! -e "$doubles/libcudnn.so.9" ]; then
  echo "SKIP: the doubles of CUDA need a C++ compiler at build"
  exit 77
fi
export OPIPE_CUDA_PATH="$doubles" OPIPE_PLUGIN_PATH="$doubles/plugins"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
model=$OPIPE_SOURCE_DIR/tests/data/demo/model.onnx
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

set -- --data "text:$OPIPE_SOURCE_DIR/tests/data/text/ferry.txt" --loss cross-entropy:logits=logits,labels=labels,shift=1 \
  --batch 2 --microbatches 2 --bind seq=32 --stages 2 --compute bf16

# A device's options are decisions: plans that differ in them have other hashes.
for options in "" ,deterministic=0 ,cudnn=0 ,sm=64 ,dnn_masks=0; do
  expect 0 "2 stages" plan "$model" --train --device "cuda$options" "$@" -o "$work/plan$options.json"
done
hashes=$(sed -n 's/^  "hash": "\([0-9a-f]*\)".*/\1/p' "$work"/plan*.json | sort -u | wc -l)
[ "$hashes" -eq 5 ] || {
  echo "five plans that differ in their device's options have $hashes hashes"
  failed=1
}

ours="our own kernels, cuDNN: "
expect 0 "bit-equal" train "$model" --device cuda --reference --steps 1 "$@"
printf '%s\n' "$output" | grep -qF "$ours" && {
  printf 'attention was refused:\n%s\n' "$output"
  failed=1
}

# An export whose mask is made in its graph of padded samples, one of them on the left, takes it too.
masked=${OPIPE_SHARED_DIR:-}/models/modern/llama/train/model.onnx
computes="bf16 fp16"
[ -z "${OPIPE_TEST_COVER:-}" ] || computes=bf16
if [ -e "$masked" ]; then
  "$OPIPE_PYTHON" - "$work" <<'END'
import struct
import sys
rows, tokens = 4, 40
mask = [list(int(not (row == 1 and t >= 30) and not (row == 2 and t < 9)) for t in range(tokens)) for row in range(rows)]
ids = [list((row * tokens + t) * 37 % 101 + 1 for t in range(tokens)) for row in range(rows)]
labels = [list(one if seen else -100 for one, seen in zip(*pair)) for pair in zip(ids, mask)]
head = "{'descr': '<i8', 'fortran_order': False, 'shape': (%d, %d), }" % (rows, tokens)
head += " " * (-(len(head) + 11) % 64) + "\n"
for name, data in ("input_ids", ids), ("attention_mask", mask), ("labels", labels):
    with open("%s/%s.npy" % (sys.argv[1], name), "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        file.write(struct.pack("<%dq" % (rows * tokens), *sum(data, [])))
END
  for options in "" ,dnn_masks=0; do
    for compute in $computes; do
      expect 0 "bit-equal" train "$masked" --device "cuda$options" --reference --steps 1 --ranks 2 --compute $compute \
        --data "input_ids=$work/input_ids.npy" --data "attention_mask=$work/attention_mask.npy" --data "labels=$work/labels.npy" \
        --loss cross-entropy:logits=logits,labels=labels,shift=1 --batch 4 --microbatches 2
      printf '%s\n' "$output" | grep -qF "$ours" && {
        printf 'masked attention was refused:\n%s\n' "$output"
        failed=1
      }
      printf '%s\n' "$output" | sed -n 's/^step 1 .* norm *\([0-9.]*\) .*/\1/p' >>"$work/norms-$compute"
    done
  done
  # other kernels, other rounding: the bits of both are the same nowhere
  [ "$(sort -u "$work/norms-bf16" | wc -l)" -eq 2 ] || {
    echo "dnn_masks=0 changed nothing: $(cat "$work/norms-bf16")"
    failed=1
  }
else
  echo "masked attention of an export is left out: there is no $masked"
fi

OPIPE_CUDA_DOUBLE_DNN_REFUSES=1
export OPIPE_CUDA_DOUBLE_DNN_REFUSES
expect 0 "$ours" train "$model" --device cuda --steps 1 "$@"
expect 0 "step 1" train "$model" --device cuda,cudnn=0 --steps 1 "$@"
printf '%s\n' "$output" | grep -qF "$ours" && {
  printf 'cuDNN was asked with cudnn=0:\n%s\n' "$output"
  failed=1
}
exit $failed

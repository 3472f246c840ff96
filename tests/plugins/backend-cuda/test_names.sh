#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Names of GPUs: by number as the driver counts, which is after CUDA_VISIBLE_DEVICES, and by uuid or what one of them
# alone begins with; a MIG slice like any other. On the doubles, three of them.
set -u
doubles=$OPIPE_BUILD_DIR/tests/cuda
command=$OPIPE_BUILD_DIR/bin/onnx-pipe
model=$OPIPE_SOURCE_DIR/tests/data/gpt_raw
if [ ! -e "$doubles/libcuda.so.1" ]; then
  echo "SKIP: the doubles of CUDA need a C++ compiler at build"
  exit 77
fi
export OPIPE_CUDA_PATH="$doubles" OPIPE_PLUGIN_PATH="$doubles/plugins" OPIPE_CUDA_DOUBLE_DEVICES=3
failed=0

# device STATUS TEXT DEVICE [VARIABLE=VALUE...]: what a plan for the device says has TEXT in it.
device() {
  wanted=$1 text=$2 name=$3
  shift 3
  output=$(env "$@" "$command" run "$model" --device "$name" --stages 1 2>&1)
  status=$?
  if [ "$status" -ne "$wanted" ] || ! printf '%s\n' "$output" | grep -qF -- "$text"; then
    printf '%s %s: status %s, wanted %s with "%s":\n%s\n' "$name" "$*" "$status" "$wanted" "$text" "$output"
    failed=1
  fi
}

device 0 ' cuda:2 ' cuda:2
device 0 ' cuda:1 ' cuda:GPU-d10b1e55-0000-0000-0000-000000000001
device 0 ' cuda:2 ' cuda:GPU-d2,memory=100MiB
device 2 "device 'cuda:GPU-d': 3 of the 3 devices of backend 'cuda' have a uuid with this prefix" cuda:GPU-d
device 2 "device 'cuda:GPU-ff': 0 of the 3 devices" cuda:GPU-ff
device 2 "device 'cpu:GPU-d1': 0 of the 1 devices" cpu:GPU-d1
device 0 ' cuda:0 ' cuda:GPU-d2 CUDA_VISIBLE_DEVICES=2,0
device 0 ' cuda:1 ' cuda:GPU-d0 CUDA_VISIBLE_DEVICES=2,0
device 2 'device 2 asked for, there are 2' cuda:2 CUDA_VISIBLE_DEVICES=2,0
device 2 'device 1 asked for, there are 1' cuda:1 CUDA_VISIBLE_DEVICES=GPU-d10b1e55
device 2 'device 0 asked for, there are 0' cuda CUDA_VISIBLE_DEVICES=
device 0 ' cuda:1 ' cuda:MIG-d1 OPIPE_CUDA_DOUBLE_SLICE=1
device 0 ' cuda:0 ' cuda:MIG-d1 OPIPE_CUDA_DOUBLE_SLICE=1 CUDA_VISIBLE_DEVICES=MIG-d10b1e55
exit $failed

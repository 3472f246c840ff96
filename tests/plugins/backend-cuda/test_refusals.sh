#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ctest: always
# What is missing or too old for the CUDA backend is named, with both numbers, by plugins --why and by a run that asks
# for it, and nothing else changes. On the doubles, which take their versions from the environment.
set -u
doubles=$OPIPE_BUILD_DIR/tests/cuda
command=$OPIPE_BUILD_DIR/bin/onnx-pipe
model=$OPIPE_SOURCE_DIR/tests/data/gpt_raw
if [ ! -e "$doubles/libcuda.so.1" ]; then
  echo "SKIP: the doubles of CUDA need a C++ compiler at build"
  exit 77
fi
failed=0
empty=$(mktemp -d) || exit 1
trap 'rm -rf "$empty"' EXIT

# expect STATUS TEXT COMMAND...: its output has TEXT in it.
expect() {
  wanted=$1 text=$2
  shift 2
  output=$("$@" 2>&1)
  status=$?
  if [ "$status" -ne "$wanted" ] || ! printf '%s\n' "$output" | grep -qF -- "$text"; then
    printf 'status %s, wanted %s with "%s":\n%s\n' "$status" "$wanted" "$text" "$output"
    failed=1
  fi
}
refused() {
  text=$1
  shift
  expect 0 "$text" env "$@" "$command" plugins --why --plugin "$doubles/plugins"
  expect 3 "$text" env "$@" "$command" run "$model" --plugin "$doubles/plugins" --device cuda --stages 1
  expect 0 "passed" env "$@" "$command" run "$model" --plugin "$doubles/plugins" --device cpu --check
}

refused 'is of CUDA 12.4, CUDA 13.0 (driver 580) is the least' OPIPE_CUDA_PATH="$doubles" OPIPE_CUDA_DOUBLE_VERSION=12040
refused 'is of CUDA 12.2, CUDA 13.0 (driver 580) is the least' OPIPE_CUDA_PATH="$doubles/old"
refused 'is cublasLt 12.8, 13.0 is the least' OPIPE_CUDA_PATH="$doubles" OPIPE_CUDA_DOUBLE_PRODUCTS=120804
ln -s "$OPIPE_BUILD_DIR/lib/libonnxpipe.so" "$empty/libcuda.so.1"
refused 'cuInit' OPIPE_CUDA_PATH="$empty"
if ! ldconfig -p 2>/dev/null | grep -q libcuda.so.1; then
  refused 'no device: there is no libcuda.so.1' OPIPE_CUDA_PATH=
  refused "'relative' is not an absolute path" OPIPE_CUDA_PATH=relative
fi
for detail in "driver of CUDA 13.0 (13.0 is the least): $doubles/libcuda.so.1" \
  "cublasLt 13.1.2 (13.0 is the least): $doubles/libcublasLt.so.13" \
  "cuDNN 9.19.0 (9.8 is the least): $doubles/libcudnn.so.9" "operators that it lacks run on backend 'cpu'"; do
  expect 0 "$detail" env OPIPE_CUDA_PATH="$doubles" OPIPE_CUDA_DOUBLE_PRODUCTS=130102 \
    "$command" plugins --why --plugin "$doubles/plugins"
done
# cuDNN is missed by nothing: attention runs on our own kernels.
expect 0 "no cuDNN, own kernels do attention: $doubles/libcudnn.so.9 is cuDNN 9.7, 9.8 is the least" \
  env OPIPE_CUDA_PATH="$doubles" OPIPE_CUDA_DOUBLE_DNN=90701 "$command" plugins --why --plugin "$doubles/plugins"
expect 0 "passed" env OPIPE_CUDA_PATH="$doubles" OPIPE_CUDA_DOUBLE_DNN=90701 \
  "$command" run "$model" --plugin "$doubles/plugins" --device cuda --stages 1 --check
rm "$empty/libcuda.so.1"
ln -s "$doubles/libcuda.so.1" "$doubles/libcublasLt.so.13" "$empty"
ln -s "$OPIPE_BUILD_DIR/lib/libonnxpipe.so" "$empty/libcudnn.so.9"
expect 0 "cudnnGetVersion" \
  env OPIPE_CUDA_PATH="$empty" "$command" plugins --why --plugin "$doubles/plugins"
expect 0 '"details": ["driver of CUDA' env OPIPE_CUDA_PATH="$doubles" "$command" plugins --json --plugin "$doubles/plugins"
expect 0 'ok        backend    cuda' env OPIPE_CUDA_PATH="/nowhere:$doubles" "$command" plugins --plugin "$doubles/plugins"
expect 2 'device 5 asked for, there are 2' env OPIPE_CUDA_PATH="$doubles" \
  "$command" run "$model" --plugin "$doubles/plugins" --device cuda:5 --stages 1
# Libraries that are nowhere, whatever this machine has: its dlopen finds none of that name.
if [ -n "${OPIPE_SANITIZE:-}" ]; then
  echo "a sanitizer's own dlopen cannot be replaced: missing libraries are not tried here"
else
  cat >"$empty/hide.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
void *dlopen(const char *file, int flags) {
  void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
  return file != NULL && strstr(file, getenv("HIDDEN")) != NULL ? NULL : next(file, flags);
}
END
  "${OPIPE_CC:-cc}" -shared -fPIC -o "$empty/hide.so" "$empty/hide.c" -ldl || failed=1
  refused 'there is no libcublasLt.so.13 (looked in OPIPE_CUDA_PATH, pip' \
    OPIPE_CUDA_PATH="$doubles" LD_PRELOAD="$empty/hide.so" HIDDEN=libcublasLt
  expect 0 "no cuDNN, own kernels do attention: there is no libcudnn.so.9 (looked in OPIPE_CUDA_PATH, pip" \
    env OPIPE_CUDA_PATH="$doubles" LD_PRELOAD="$empty/hide.so" HIDDEN=libcudnn \
    "$command" plugins --why --plugin "$doubles/plugins"
  expect 0 "passed" env OPIPE_CUDA_PATH="$doubles" LD_PRELOAD="$empty/hide.so" HIDDEN=libcudnn \
    "$command" run "$model" --plugin "$doubles/plugins" --device cuda --stages 1 --check
fi
if readelf -d "$doubles/plugins/opipe-backend-cuda.so" "$OPIPE_BUILD_DIR/lib/libonnxpipe.so" "$command" |
  grep NEEDED | grep -qE 'libcu|nvidia'; then
  echo "a library of CUDA's is needed to load one of ours"
  failed=1
fi
exit $failed

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
# cuDNN itself makes plans of our attention graphs, where it is: no GPU and no driver are needed (plans/). With `all` for more
# shapes and chips.
set -u
program=$OPIPE_BUILD_DIR/tests/cuda-plans/plans
for library in "${OPIPE_CUDNN:-}" /usr/local/cuda/lib64/libcudnn.so.9 /usr/local/cuda/lib/libcudnn.so.9 \
  /usr/lib/x86_64-linux-gnu/libcudnn.so.9 \
  "$OPIPE_SOURCE_DIR"/build/venv/*/lib/python3*/site-packages/nvidia/cudnn/lib/libcudnn.so.9; do
  [ -e "$library" ] && break
done
if [ ! -e "$library" ]; then
  echo "SKIP: there is no libcudnn.so.9 (OPIPE_CUDNN, /usr/local/cuda, the system, build/venv)"
  exit 77
fi
# cuDNN lets go of its parts and not of their memory: leaks of ours are looked for on its double.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
export ASAN_OPTIONS
LD_LIBRARY_PATH=$(dirname "$program"):$(dirname "$library"):${LD_LIBRARY_PATH:-} exec "$program" "$library" "$@"

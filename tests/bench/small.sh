#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# products with weights of 2, 4, 8 bits beside ONNX Runtime's MatMulNBits and the read bandwidth, in alternating turns
#
# ONNX Runtime comes from build/venv/bench (requirements.txt, pinned; installed by kernels.sh). Arguments: --threads N
# (all of 1 and 2 without), --rows 1,16,..., --shapes KxN,..., --forms BITS:BLOCK:LEVEL,..., --seconds S.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
here=$source_dir/tests/bench
venv=$build_dir/venv/bench

threads="1 2"
if [ "${1:-}" = --threads ]; then
  threads=$2
  shift 2
fi

if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
  mkdir -p "$build_dir/venv"
  if ! python3 -m venv "$venv" || ! "$venv/bin/pip" install -q -r "$here/requirements.txt"; then
    echo "small.sh: cannot install what $here/requirements.txt lists: no rows for ONNX Runtime" >&2
    exit 1
  fi
  cp "$here/requirements.txt" "$venv/requirements.txt"
fi

for n in $threads; do
  "$venv/bin/python" -B "$here/small.py" "$build_dir/tests/bench/libopi-bench-kernels.so" --threads "$n" "$@"
done

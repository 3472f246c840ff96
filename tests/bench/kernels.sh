#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# matrix kernels beside ONNX Runtime, OpenBLAS and oneDNN: GFLOP/s by shape, in alternating turns
#
# ONNX Runtime comes from build/venv/bench (requirements.txt, pinned); OpenBLAS and oneDNN are opened where
# they are installed, else their columns stay empty. Arguments: --threads N (all of 1 and 2 without),
# --rows 1,5,..., --shapes KxN,..., --seconds S (per contestant and row).
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
here=$source_dir/tests/bench
venv=$build_dir/venv/bench
shim=$build_dir/tests/bench/libopi-bench-kernels.so

threads="1 2"
if [ "${1:-}" = --threads ]; then
  threads=$2
  shift 2
fi

have_peer=yes
if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
  mkdir -p "$build_dir/venv"
  if python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$here/requirements.txt"; then
    cp "$here/requirements.txt" "$venv/requirements.txt"
  else
    have_peer=no
    echo "kernels.sh: cannot install what $here/requirements.txt lists: no rows for ONNX Runtime" >&2
  fi
fi

for n in $threads; do
  echo "== $n thread(s) against ONNX Runtime"
  if [ "$have_peer" = yes ]; then
    "$venv/bin/python" -B "$here/kernels.py" "$shim" --threads "$n" "$@"
  fi
  echo "== $n thread(s) against OpenBLAS and oneDNN"
  OMP_NUM_THREADS=$n "$build_dir/tests/bench/bench_kernels" --threads "$n"
done

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# products with weights of 2, 4, 8 bits beside ONNX Runtime's MatMulNBits and QDQ and the read bandwidth, in alternating turns
#
# ONNX Runtime comes from build/venv/bench (requirements.txt, pinned). Arguments go to small.py: --threads 1,2, --rows 1,16,...,
# --shapes KxN,..., --forms BITS:BLOCK:LEVEL,..., --seconds S, --quick, --record.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
here=$source_dir/tests/bench
venv=$build_dir/venv/bench

if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
  mkdir -p "$build_dir/venv"
  if ! python3 -m venv "$venv" || ! "$venv/bin/pip" install -q -r "$here/requirements.txt"; then
    echo "small.sh: cannot install what $here/requirements.txt lists: no rows for ONNX Runtime" >&2
    exit 3
  fi
  cp "$here/requirements.txt" "$venv/requirements.txt"
fi

case " $* " in *" --record "*) record="--record $here/records" ;; *) record= ;; esac
for word in "$@"; do
  shift
  [ "$word" = --record ] || set -- "$@" "$word"
done
# shellcheck disable=SC2086
exec "$venv/bin/python" -B "$here/small.py" "$build_dir/tests/bench/libopi-bench-kernels.so" $record "$@"

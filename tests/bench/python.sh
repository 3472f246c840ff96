#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# a request through the package onnxpipe of Python beside the same request in C
#
# Sets up build/venv/test (numpy, cffi) and runs python.py; arguments go to it (--rounds N, --record).
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
python=$build_dir/venv/test/bin/python
if ! "$python" -c 'import numpy, cffi' 2>/dev/null; then
  echo "python.sh: no $python with numpy and cffi (./dev test makes it)" >&2
  exit 3
fi
PYTHONPATH=$build_dir/python exec "$python" -B "$source_dir/tests/bench/python.py" --build "$build_dir" "$@"

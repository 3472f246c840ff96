#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# a step of decoding beside ONNX Runtime and GenAI: an 88M LLaMA as GenAI's builder writes it
#
# Its packages: see with_genai. Arguments go to decode.py: --rounds N, --threads 1,2, --only fp32,int4,1,8, --record.
set -eu
. "$(dirname "$0")/with_genai"
exec "$build_dir/venv/real/bin/python" -B "$here/decode.py" --models "$build_dir/bench/models" \
  --library "$build_dir/lib/libonnxpipe.so" $record "$@"

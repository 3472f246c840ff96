#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generation beside ONNX Runtime GenAI: many sequences, stages, long prompts, shared beginnings, drafts
#
# Its packages: see with_genai. Arguments go to generate.py: --rounds N, --only WORD,..., --record.
set -eu
. "$(dirname "$0")/with_genai"
exec "$build_dir/venv/real/bin/python" -B "$here/generate.py" --models "$build_dir/bench/models" \
  --command "$build_dir/bin/onnx-pipe" $record "$@"

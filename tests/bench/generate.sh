#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generation beside GenAI, llama.cpp and ONNX Runtime: many sequences, stages, long prompts, shared beginnings, drafts
#
# Its packages: see with_genai, and requirements-llama.txt below build/venv/llama (without them, rows say so). Arguments go to
# generate.py: --rounds N, --only WORD,..., --list, --record, --cause ROW=TEXT.
set -eu
. "$(dirname "$0")/with_genai"

venv=$build_dir/venv/llama
missing=
if ! cmp -s "$here/requirements-llama.txt" "$venv/.requirements"; then
  if python3 -m venv "$venv" && "$venv/bin/pip" install -q --only-binary :all: -r "$here/requirements-llama.txt"; then
    cp "$here/requirements-llama.txt" "$venv/.requirements"
  else
    missing="there is no built package of llama.cpp for this Python"
  fi
fi
exec "$build_dir/venv/real/bin/python" -B "$here/generate.py" --models "$build_dir/bench/models" --command "$build_dir/bin/onnx-pipe" \
  --library "$build_dir/lib/libonnxpipe.so" --llama "$venv/bin/python" --llama-packages "$(echo "$venv"/lib/python3*/site-packages)" \
  --llama-missing "$missing" $record "$@"

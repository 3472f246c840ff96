#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# a step of decoding beside ONNX Runtime and GenAI: an 88M LLaMA as GenAI's builder writes it
#
# Its packages are those of tests/real (requirements.txt, genai.txt: 6 GB with torch), in build/venv/real and build/venv/genai.
# Arguments go to decode.py: --rounds N, --threads 1,2, --only fp32,int4,1,8, --record.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
here=$source_dir/tests/bench

for name in real genai; do
  wanted=$source_dir/tests/real/requirements.txt
  [ "$name" = real ] || wanted=$source_dir/tests/real/genai.txt
  venv=$build_dir/venv/$name
  cmp -s "$wanted" "$venv/.requirements" && continue
  mkdir -p "$build_dir/venv"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$wanted"; }; then
    echo "decode.sh: cannot install what $wanted lists: no model can be written" >&2
    exit 3
  fi
  cp "$wanted" "$venv/.requirements"
done

case " $* " in *" --record "*) record="--record $here/records" ;; *) record= ;; esac
for word in "$@"; do
  shift
  [ "$word" = --record ] || set -- "$@" "$word"
done
PYTHONPATH=$(echo "$build_dir"/venv/genai/lib/python3*/site-packages)
export PYTHONPATH HF_HUB_OFFLINE=1
exec "$build_dir/venv/real/bin/python" -B "$here/decode.py" --models "$build_dir/bench/models" \
  --library "$build_dir/lib/libonnxpipe.so" $record "$@"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Trains a small GPT on a short text, cut into 4 stages, then lets it write. Fails when the loss does
# not fall, or when the model that was saved does not write the text's own words.
set -eu
cd "$(dirname "$0")/../.."
build=${OPIPE_BUILD_DIR:-$PWD/build}
command=$build/bin/onnx-pipe
model=tests/data/demo/model.onnx
text=tests/data/text/ferry.txt
steps=${OPIPE_DEMO_STEPS:-300}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

title() { printf '\n== %s\n' "$*"; }
die() {
  echo "demo: $*" >&2
  exit 1
}

# Rows of 64 bytes begin at the same places in every epoch: a text that is repeated begins elsewhere
# each time.
for copy in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
  cat "$text"
done >"$work/text"

title "$model: 8 transformer blocks in 4 stages, one thread each, $(getconf _NPROCESSORS_ONLN) cores; $steps steps of 16 x 64 bytes of $text"
"$command" train "$model" --data "text:$work/text" --loss cross-entropy:logits=logits,labels=labels \
  --optimizer adamw:lr=0.003 --lr-schedule cosine:warmup=10 --clip 1 --batch 16 --shuffle \
  --stages 4 --threads 1 --schedule 1f1b --microbatches 4 --steps "$steps" \
  --save-model "$work/trained.onnx" >"$work/all" || die "training failed"
grep '^step ' "$work/all" >"$work/steps"
awk 'NR % 20 == 1' "$work/steps"
tail -n 1 "$work/steps"
awk 'NR == 1 { first = $4 } END { exit !($4 < first / 2) }' "$work/steps" || die "the loss did not fall to a half"

title "the saved model, in 2 stages, goes on from 'The miller'"
cc=${OPIPE_CC:-cc}
"$cc" -std=c11 -O1 -Iabi/include tests/examples/train.c -ldl -o "$work/write" || die "tests/examples/train.c does not build"
OPIPE_PLUGIN_PATH=${OPIPE_PLUGIN_PATH:-$build/lib/onnx-pipe} \
  "$work/write" "$build/lib/libonnxpipe.so" "$work/trained.onnx" "$text" 2 0 "The miller" >"$work/sample" || die "writing failed"
cat "$work/sample"
words=$(tr -cs 'A-Za-z' '\n' <"$work/sample" | grep -xFc -f "$(tr -cs 'A-Za-z' '\n' <"$text" | sort -u >"$work/words" && echo "$work/words")" || true)
[ "$words" -ge 20 ] || die "only $words words of the text were written"

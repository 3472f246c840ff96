#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# this tree beside an earlier commit of its own: inference, streams, training, hand-off, executor, in turns
#
# ./dev bench against [REV] [--rounds N] [--only WORD,...] [--record]: REV is a commit, HEAD~1 by default. It is built
# (release) from a copy of its files below build/bench/against/. against.py takes the turns.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
here=$source_dir/tests/bench
venv=$build_dir/venv/bench

rev=HEAD~1
case ${1:-} in
  '' | --*) ;;
  *)
    rev=$1
    shift
    ;;
esac
sha=$(git -C "$source_dir" rev-parse --verify --short=10 "$rev^{commit}")
old=$build_dir/bench/against/$sha
if [ ! -x "$old/build/bin/onnx-pipe" ] || [ ! -x "$old/build/tests/bench/bench_handoff" ]; then
  echo "building $sha below build/bench/against/" >&2
  mkdir -p "$old/build"
  git -C "$source_dir" archive "$sha" | tar -x -C "$old"
  {
    { [ ! -x "$old/dev" ] || "$old/dev" deps; } && # what that commit needs, and this one may not
      cmake -S "$old" --preset release &&
      cmake --build "$old/build" &&
      cmake --build "$old/build" --target benches
  } >"$old/build.log" 2>&1 || {
    tail -n 20 "$old/build.log" >&2
    echo "against.sh: $sha does not build (whole log: $old/build.log)" >&2
    exit 3
  }
fi

# The larger models need numpy and onnx; without them only the models of tests/data are measured.
if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
  mkdir -p "$build_dir/venv"
  if python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$here/requirements.txt"; then
    cp "$here/requirements.txt" "$venv/requirements.txt"
  else
    echo "against.sh: no packages to write models with: rows of large models are left out" >&2
  fi
fi
models=
if cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
  models=$build_dir/bench/models
  for name in small gpt2_small; do
    "$venv/bin/python" -B "$here/models.py" "$models" "$name" >/dev/null
  done
fi

case " $* " in *" --record "*) record="--record $here/records" ;; *) record= ;; esac
for word in "$@"; do
  shift
  [ "$word" = --record ] || set -- "$@" "$word"
done
# shellcheck disable=SC2086
exec python3 -B "$here/against.py" "$old/build" "$build_dir" --names "$sha" \
  "$(git -C "$source_dir" describe --always --dirty --abbrev=10)" \
  --data "$source_dir/tests/data" ${models:+--models "$models"} $record "$@"

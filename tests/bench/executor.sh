#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# training steps of 8 ranks that only sleep, against the simulation of their schedules and costs
#
# Builds the example schedule plugin as a host would and measures it with the others; --record writes
# the table to records/.
set -eu
source_dir=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build_dir=${OPIPE_BUILD_DIR:-$source_dir/build}
plugin=$build_dir/bench/opipe-schedule-example.so
mkdir -p "$build_dir/bench"
cc -std=c11 -O2 -shared -fPIC -fvisibility=hidden -I"$source_dir/abi/include" \
  "$source_dir/tests/examples/schedule/plugin.c" -o "$plugin"
case " $* " in *" --record "*) record="--record $source_dir/tests/bench/records" ;; *) record= ;; esac
# shellcheck disable=SC2086
exec python3 -B "$source_dir/tests/bench/executor.py" "$build_dir/bin/onnx-pipe" \
  "$source_dir/tests/data/gpt_8block/model.onnx" --plugin "$plugin" $record

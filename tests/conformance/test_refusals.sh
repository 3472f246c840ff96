#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What is no plugin of the wanted kind ends a conformance program with status 2 and a reason.
set -eu
check=$OPIPE_BUILD_DIR/libexec/onnx-pipe/conformance-schedule
plugins=$OPIPE_BUILD_DIR/lib/onnx-pipe
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# refused FILE TEXT
refused() {
  status=0
  said=$("$check" "$1" 2>&1) || status=$?
  case $status:$said in
    2:*"$2"*) ;;
    *)
      echo "$1: status $status, not 2; '$2' is not in: $said"
      exit 1
      ;;
  esac
}

head -c 3000 "$plugins/opipe-schedule-gpipe.so" >"$folder/half.so"
head -c 30 "$plugins/opipe-schedule-gpipe.so" >"$folder/head.so"
echo text >"$folder/text.so"
refused "$folder/half.so" 'truncated: it has 3000 bytes, its headers need '
refused "$folder/head.so" 'file too short'
refused "$folder/text.so" 'file too short'
refused "$folder/absent.so" 'cannot open shared object file'
refused "$plugins/opipe-transport-local.so" 'another kind of plugin'
refused "$OPIPE_BUILD_DIR/lib/libonnxpipe.so" 'no symbol opipe_plugin_v1'

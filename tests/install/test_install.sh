#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# An installed tree is complete: headers, library, plugins, command, pkg-config file and CMake package, all working from
# where they lie, also after the tree has been moved.
# ctest: timeout=120
set -eu
if [ -n "$OPIPE_SANITIZE" ]; then
  echo "SKIP: foreign projects do not link a library built with $OPIPE_SANITIZE"
  exit 77
fi
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

cmake --install "$OPIPE_BUILD_DIR" --prefix "$prefix/first" >"$prefix/install.log" || {
  cat "$prefix/install.log"
  fail "cmake --install"
}
mv "$prefix/first" "$prefix/usr"
root=$prefix/usr
lib=$(dirname "$(find "$root" -name libonnxpipe.so | head -n 1)")

for header in abi types host backend schedule transport helpers; do
  [ -f "$root/include/opipe/$header.h" ] || fail "opipe/$header.h is not installed"
done
for plugin in "$OPIPE_BUILD_DIR"/lib/onnx-pipe/*.so; do
  [ -f "$lib/onnx-pipe/$(basename "$plugin")" ] || fail "$(basename "$plugin") is not installed"
done
[ -L "$lib/libonnxpipe.so.1" ] || fail "no libonnxpipe.so.1"

# The command finds the library and the plugins beside it, without an option or variable.
env -u OPIPE_PLUGIN_PATH "$root/bin/onnx-pipe" plugins --why >"$prefix/plugins.txt" ||
  fail "the installed command's plugins --why"
grep -q "$lib/onnx-pipe/" "$prefix/plugins.txt" || {
  cat "$prefix/plugins.txt"
  fail "the installed plugins are not those that the command found"
}

# pkg-config, as packagers move trees.
here=$OPIPE_SOURCE_DIR/tests/install/consumer
PKG_CONFIG_PATH=$lib/pkgconfig
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
"$OPIPE_CC" -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/consumer.c" -o "$prefix/by-pkg-config" \
  $(pkg-config --cflags --libs onnxpipe) "-Wl,-rpath,$lib"
"$prefix/by-pkg-config" | grep -q '^version [0-9]' || fail "the program built with pkg-config"

# find_package, and a plugin built with what it brings.
cmake -G Ninja -S "$here" -B "$prefix/consumer" -DCMAKE_PREFIX_PATH="$root" -DCMAKE_C_COMPILER="$OPIPE_CC" \
  >"$prefix/consumer.log" && cmake --build "$prefix/consumer" >>"$prefix/consumer.log" || {
  cat "$prefix/consumer.log"
  fail "the project that uses find_package(onnxpipe)"
}
"$prefix/consumer/consumer" | grep -q '^version [0-9]' || fail "the program built with find_package"
names=$(nm -D --defined-only --format=posix "$prefix/consumer/opipe-schedule-nothing.so" | cut -d' ' -f1)
[ "$names" = opipe_plugin_v1 ] || fail "the plugin built with the package exports: $names"
OPIPE_PLUGIN_PATH=$prefix/consumer "$root/bin/onnx-pipe" plugins --why >"$prefix/why.txt" || true
grep -q 'nothing' "$prefix/why.txt" || fail "the plugin in OPIPE_PLUGIN_PATH is not reported"
echo "installed, moved, used"

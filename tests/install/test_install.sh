#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# An installed tree is complete: headers, library, plugins, command, conformance programs, pages whose links lead
# somewhere, pkg-config file and CMake package, all working from where they lie, also after the tree has been moved or
# copied. A library that was copied alone finds the plugins of the configured installation.
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

# A copy finds its own plugins, though the tree that it was copied from is still there.
cp -R "$root" "$prefix/copy"
env -u OPIPE_PLUGIN_PATH "$prefix/copy/bin/onnx-pipe" plugins --why >"$prefix/copied.txt" || fail "the copied command's plugins --why"
if grep -F "$root/" "$prefix/copied.txt" || ! grep -qF "$prefix/copy/" "$prefix/copied.txt"; then
  fail "the copied tree does not use its own plugins"
fi

# Pages: every relative link leads to something installed.
doc=$root/share/doc/onnxpipe
for page in guide/README.md examples/README.md conformance/README.md plugins/README.md; do
  [ -f "$doc/$page" ] || fail "$page is not installed"
done
find "$root" -name '*.md' >"$prefix/pages.txt"
while read -r page; do
  awk '/^ *```/ { fenced = !fenced } !fenced' "$page" | grep -o '](\([^)# ]*\)[^)]*)' | sed 's/^](//; s/[)#].*//' |
    while read -r target; do
      case $target in *:* | '') continue ;; esac
      [ -e "$(dirname "$page")/$target" ] || echo "${page#"$doc"/}: $target"
    done
done <"$prefix/pages.txt" >"$prefix/broken.txt"
[ ! -s "$prefix/broken.txt" ] || {
  cat "$prefix/broken.txt"
  fail "links of installed pages lead nowhere"
}
grep -q '](../examples/README.md)' "$doc/guide/README.md" || fail "the guide does not lead to the examples"

# Conformance programs, on installed plugins.
check=$root/libexec/onnx-pipe/conformance
"$check-backend" "$lib/onnx-pipe/opipe-backend-cpu.so" >"$prefix/conform.txt" || fail "conformance-backend"
"$check-schedule" "$lib/onnx-pipe/opipe-schedule-gpipe.so" >>"$prefix/conform.txt" || fail "conformance-schedule"
"$check-transport" "$lib/onnx-pipe/opipe-transport-local.so" >>"$prefix/conform.txt" || fail "conformance-transport"
[ "$(grep -c ' 0 failed' "$prefix/conform.txt")" = 3 ] || fail "the installed conformance programs"

# A library copied alone: the build's own link, its configured folder replaced by one that is here.
configured=$(sed -n 's/^CMAKE_INSTALL_PREFIX:[A-Z]*=//p' "$OPIPE_BUILD_DIR/CMakeCache.txt")
object=CMakeFiles/opi_core.dir/abi/registry/discover.c.o
commands() {
  ninja -C "$OPIPE_BUILD_DIR" -t commands "$1" | tail -n 1
}
if [ -f "$OPIPE_BUILD_DIR/build.ninja" ] && command -v ninja >/dev/null; then
  library=$(basename "$(readlink -f "$lib/libonnxpipe.so")")
  mkdir "$prefix/alone"
  cd "$OPIPE_BUILD_DIR"
  commands "$object" | sed "s|$configured/lib|$root/lib|g; s|$object|$prefix/alone.o|g" >"$prefix/compile.sh"
  grep -qF "$root/lib" "$prefix/compile.sh" || fail "the configured folder is not known to the library"
  sh -e "$prefix/compile.sh" || fail "$(cat "$prefix/compile.sh")"
  commands "lib/$library" | sed "s|$object|$prefix/alone.o|; s|-o lib/$library|-o $prefix/alone/libonnxpipe.so.1|" >"$prefix/link.sh"
  sh -e "$prefix/link.sh" || fail "$(cat "$prefix/link.sh")"
  cd "$prefix"
  alone() {
    env -u OPIPE_PLUGIN_PATH LD_LIBRARY_PATH="$prefix/alone" "$root/bin/onnx-pipe" plugins --why >"$prefix/alone.txt" ||
      fail "the library that was copied alone"
  }
  alone # LD_LIBRARY_PATH precedes the installed command's RUNPATH
  grep -qF "$lib/onnx-pipe/opipe-backend-cpu.so" "$prefix/alone.txt" || {
    cat "$prefix/alone.txt"
    fail "a library that was copied alone does not look into the configured folder"
  }
  # A plugin beside the library comes first.
  mkdir "$prefix/alone/onnx-pipe"
  cp "$lib/onnx-pipe/opipe-backend-cpu.so" "$prefix/alone/onnx-pipe"
  alone
  grep -q "^ok.*$prefix/alone/onnx-pipe/opipe-backend-cpu.so" "$prefix/alone.txt" &&
    grep -q "^ok.*$lib/onnx-pipe/opipe-schedule-gpipe.so" "$prefix/alone.txt" || {
    cat "$prefix/alone.txt"
    fail "a plugin beside the library does not come first"
  }
  # One folder by two ways is searched once.
  rm -r "$prefix/alone/onnx-pipe"
  ln -s "$lib/onnx-pipe" "$prefix/alone/onnx-pipe"
  alone
  if grep -q "found before" "$prefix/alone.txt" || ! grep -q '^ok' "$prefix/alone.txt"; then
    fail "the configured folder is searched twice"
  fi
fi

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
minor=$(sed -n 's/^#define OPIPE_ABI_MINOR //p' "$OPIPE_SOURCE_DIR/abi/include/opipe/abi.h")
cmake "-DWANTED=1.$minor" "$prefix/consumer" >"$prefix/consumer.log" 2>&1 || fail "the ABI's own version is refused: $(cat "$prefix/consumer.log")"
for wanted in "1.$((minor + 1))" 2 0.1; do
  if cmake "-DWANTED=$wanted" "$prefix/consumer" >"$prefix/consumer.log" 2>&1; then fail "version $wanted is found, the ABI is 1.$minor"; fi
  grep -q "version: 1.$minor" "$prefix/consumer.log" || fail "version $wanted: $(cat "$prefix/consumer.log")"
done
names=$(nm -D --defined-only --format=posix "$prefix/consumer/opipe-schedule-nothing.so" | cut -d' ' -f1)
[ "$names" = opipe_plugin_v1 ] || fail "the plugin built with the package exports: $names"
OPIPE_PLUGIN_PATH=$prefix/consumer "$root/bin/onnx-pipe" plugins --why >"$prefix/why.txt" || true
grep -q 'nothing' "$prefix/why.txt" || fail "the plugin in OPIPE_PLUGIN_PATH is not reported"
echo "installed, moved, used"

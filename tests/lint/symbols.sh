#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The built library, and every built plugin, exports exactly the names in tests/abi/symbols.txt. Debian's file of symbols has those of
# the library, with its version: the table behind them grows with each minor of the ABI.
set -eu
cd "$(dirname "$0")/../.."
build=${OPIPE_BUILD_DIR:-build/dev}
list=tests/abi/symbols.txt

# check KIND FILE: the exported names of FILE against the lines of KIND.
check() {
  wanted=$(sed -n "s/^$1  *//p" "$list" | sort)
  found=$(nm -D --defined-only --format=posix "$2" | awk '$2 != "A" { sub(/@.*/, "", $1); print $1 }' | sort)
  if [ "$wanted" != "$found" ]; then
    printf '%s exports:\n%s\nwanted:\n%s\n' "$2" "$found" "$wanted"
    return 1
  fi
}

status=0
check library "$build/lib/libonnxpipe.so" || status=1
n_plugins=0
for plugin in "$build"/lib/onnx-pipe/opipe-*.so; do
  [ -f "$plugin" ] || continue
  n_plugins=$((n_plugins + 1))
  check plugin "$plugin" || status=1
done
if [ "$n_plugins" -eq 0 ]; then
  echo "no plugin was built"
  status=1
fi
soname=$(readelf -d "$build/lib/libonnxpipe.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
if [ "$soname" != libonnxpipe.so.1 ]; then
  echo "the library's SONAME is $soname, wanted libonnxpipe.so.1"
  status=1
fi
packaged=abi/debian/libonnxpipe1.symbols
version=$(sed -n 's/^#define OPIPE_VERSION "\(.*\)"/\1/p' abi/include/opipe/abi.h)
found=$(nm -D --defined-only --with-symbol-versions --format=posix "$build/lib/libonnxpipe.so" |
  awk -v version="$version" '{ name = $1; sub(/@@/, "@", name); print " " ($2 == "A" ? name "@" name : name) " " version }' | sort)
wanted=$(sed 1d "$packaged" | sort)
if [ "$(head -n 1 "$packaged")" != "$soname libonnxpipe1 #MINVER#" ] || [ "$wanted" != "$found" ]; then
  printf '%s has:\n%s\nthe library exports:\n%s\n' "$packaged" "$wanted" "$found"
  status=1
fi
if ! readelf -d "$build/lib/libonnxpipe.so" | grep -q NODELETE; then
  echo "the library is not linked with -z nodelete"
  status=1
fi
exit $status

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=180 label=headers
# Every public header compiles alone, as C11 and as C++17, with each compiler that is there, without a warning and without padding in
# any struct: plugins and hosts choose their own compiler. The frozen headers of every minor do the same by gcc as C11 and by clang as
# C++17: they passed all four when they were frozen. Today's headers, and the plugins and hosts of tests/examples, also compile for the
# tables of an older minor. In a cover (OPIPE_TEST_COVER) frozen headers compile together, not alone, today's alone by gcc as C11, as
# C++17 by clang, and as C99 only, and of older minors there is only 0.
set -eu
root=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags="-Wall -Wextra -Wpedantic -Wpadded -Wshadow -Wundef -Werror -fsyntax-only"
count=0
status=0
# units FOLDER: alone, a header in each; together, all of them in one
units() {
  mkdir -p "$work/alone" "$work/together"
  rm -f "$work"/alone/*.c "$work"/together/*.c
  for header in "$1"/opipe/*.h; do
    name=$(basename "$header")
    printf '#include <opipe/%s>\n' "$name" >"$work/alone/$name.c"
    printf '#include <opipe/%s>\n' "$name" >>"$work/together/all.c"
  done
}
for folder in "$root/abi/include" "$root"/tests/abi/v*; do
  [ -d "$folder" ] || continue # no minor is frozen
  units "$folder"
  for tool in gcc clang; do
    command -v "$tool" >/dev/null 2>&1 || continue
    for standard in c11 c++17; do
      case $folder-$tool-$standard in */tests/abi/v*-gcc-c++17 | */tests/abi/v*-clang-c11) continue ;; esac
      language=c
      [ "$standard" = c11 ] || language=c++
      which=alone
      if [ -n "${OPIPE_TEST_COVER:-}" ]; then
        case $folder-$tool-$standard in */abi/include-gcc-c11 | */abi/include-clang-c++17) ;; *) which=together ;; esac
      fi
      for file in "$work/$which"/*.c; do
        # shellcheck disable=SC2086
        "$tool" "-std=$standard" -x $language $flags -I"$folder" "$file" ||
          { echo "$folder, $(basename "$file"): not $standard for $tool" && status=1; }
        count=$((count + 1))
      done
    done
  done
done
compile() { # standard language minor file
  count=$((count + 1))
  gcc "-std=$1" -x "$2" -DOPIPE_TARGET_MINOR="$3" -Wall -Wextra -Werror -fsyntax-only -I"$root/abi/include" "$4" ||
    { echo "$4: not $1 for minor $3" && status=1; }
}
if command -v gcc >/dev/null 2>&1; then
  today=$(sed -n 's/^#define OPIPE_ABI_MINOR //p' "$root/abi/include/opipe/abi.h")
  units "$root/abi/include"
  for minor in $(seq 0 "$today"); do
    which=alone
    if [ -n "${OPIPE_TEST_COVER:-}" ] && [ "$minor" != "$today" ]; then
      [ "$minor" = 0 ] || continue
      which=together
    fi
    for standard in c99 c11 c++11; do
      language=c
      [ "$standard" != c++11 ] || language=c++
      set -- "$work/$which"/*.c
      [ -z "${OPIPE_TEST_COVER:-}" ] || [ "$standard" = c99 ] || set -- "$work/together"/*.c
      for file; do
        compile "$standard" "$language" "$minor" "$file"
      done
    done
    for plugin in "$root"/tests/examples/*/plugin.c; do
      case $plugin in */transport/*) [ "$minor" -ge 5 ] || continue ;; esac # boards came with minor 5
      compile c11 c "$minor" "$plugin"
    done
  done
fi
[ "$count" -gt 0 ] || { echo "SKIP: neither gcc nor clang is installed" && exit 77; }
echo "$count compilations"
exit $status

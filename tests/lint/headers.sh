#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every internal header compiles by itself. (The public ones, frozen or not, are held to more, in tests/abi.)
set -eu
cd "$(dirname "$0")/../.."
build=${OPIPE_BUILD_DIR:-build/dev}
cc=${CC:-gcc}
flags="-std=c11 -D_GNU_SOURCE -fsyntax-only -Wall -Wextra -Wno-missing-field-initializers -Werror -I. -Iabi/include -Iplugins -I$build/generated
  -I$build/generated/loader/wire"
status=0
list=$(python3 tests/lint/lib/tree.py .h)
for header in $list; do
  # *_body.h: kernel text that several sources include after saying what a vector is.
  case $header in tests/examples/* | abi/include/* | tests/abi/v*/* | *_body.h) continue ;; esac
  grep -q "^headers $header " tests/lint/exceptions.txt && continue
  printf '#include "%s"\n' "$header" | $cc $flags -I"$(dirname "$header")" -x c - || {
    echo "$header: does not compile alone"
    status=1
  }
done
exit $status

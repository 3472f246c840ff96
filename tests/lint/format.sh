#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# C sources are as clang-format 14 with .clang-format writes them. To repair: clang-format -i FILE
set -eu
cd "$(dirname "$0")/../.."
formatter=
for name in clang-format-14 clang-format; do
  if command -v "$name" >/dev/null && "$name" --version | grep -q 'version 14\.'; then
    formatter=$name
    break
  fi
done
if [ -z "$formatter" ]; then
  echo "SKIP: clang-format 14 is not installed (other versions format differently)"
  exit 77
fi
status=0
list=$(python3 tests/lint/lib/tree.py .c .h .cpp)
for file in $list; do
  grep -q "^format $file " tests/lint/exceptions.txt && continue
  "$formatter" --dry-run -Werror "$file" 2>/dev/null || {
    echo "$file: not as clang-format writes it"
    status=1
  }
done
exit $status

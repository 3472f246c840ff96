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
# One process for many files: starting it takes longer than formatting a file.
status=0
excepted=$(sed -n 's/^format \([^ ]*\) .*/\1/p' tests/lint/exceptions.txt)
found=$(python3 tests/lint/lib/tree.py .c .h .cpp | grep -vxF "$excepted" |
  xargs -n 64 -P "$(getconf _NPROCESSORS_ONLN)" "$formatter" --dry-run -Werror 2>&1) || status=1
printf '%s' "$found" | sed -n 's/^\([^ :]*\):[0-9].*/\1: not as clang-format writes it/p' | sort -u
if [ "$status" -ne 0 ] && [ -z "$found" ]; then
  echo "$formatter fails"
fi
exit $status

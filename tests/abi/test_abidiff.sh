#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The borders' types against the committed baseline (tests/abi/baseline.abi): slots that moved, vanished or changed their signature
# fail; additions at the end are listed and must come with a new baseline (tests/abi/test_abidiff.sh --write).
set -eu
here=${OPIPE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}/tests/abi
command -v abidw >/dev/null 2>&1 && command -v abidiff >/dev/null 2>&1 || {
  echo "SKIP: abidw and abidiff (abigail-tools) are not installed"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Always gcc, without a sanitizer: the baseline is of the types, not of one build.
root=$(cd "$here/../.." && pwd)
(cd "$root" && gcc -g -std=c11 -shared -fPIC "-fdebug-prefix-map=$root=." -Iabi/include tests/abi/anchors.c -o "$work/libanchors.so")
abidw --no-show-locs --no-comp-dir-path --no-corpus-path --no-architecture "$work/libanchors.so" >"$work/now.abi"
if [ "${1:-}" = --write ]; then
  cp "$work/now.abi" "$here/baseline.abi"
  echo "wrote $here/baseline.abi"
  exit 0
fi
status=0
abidiff "$here/baseline.abi" "$work/now.abi" >"$work/report" || status=$?
[ "$status" -eq 0 ] && {
  echo "the borders are those of the baseline"
  exit 0
}
cat "$work/report"
if [ $((status & 8)) -ne 0 ]; then
  echo "FAILED: an incompatible change (abidiff status $status)"
else
  echo "FAILED: the borders changed (abidiff status $status): explain it in abi/ABI-CHANGES.md and write a new baseline"
fi
exit 1

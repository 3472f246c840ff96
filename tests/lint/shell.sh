#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Shell scripts parse, and as POSIX where they say sh; Python scripts compile.
set -eu
cd "$(dirname "$0")/../.."
status=0
list=$(python3 tests/lint/lib/tree.py .sh)
for file in dev $list; do
  sh -n "$file" || status=1
  if grep -nE '\[\[|(^|[^a-z_-])(local|function) [a-z]|<\(|\$RANDOM|\$\{[a-zA-Z_]+\[' "$file" /dev/null |
    grep -v 'grep -nE'; then
    echo "$file: not POSIX sh"
    status=1
  fi
done
python3 tests/lint/lib/tree.py .py | python3 -c '
import ast, sys
status = 0
for path in sys.stdin.read().split():
    try:
        ast.parse(open(path, encoding="utf-8").read(), path)
    except SyntaxError as error:
        print(f"{path}:{error.lineno}: {error.msg}")
        status = 1
sys.exit(status)' || status=1
exit $status

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Shell scripts parse, and as POSIX where they say sh; Python scripts compile.
set -eu
cd "$(dirname "$0")/../.."
status=0
for file in dev $(git ls-files --cached --others --exclude-standard -- '*.sh'); do
  [ -f "$file" ] || continue
  sh -n "$file" || status=1
  if grep -nE '\[\[|(^|[^a-z_-])(local|function) [a-z]|<\(|\$RANDOM|\$\{[a-zA-Z_]+\[' "$file" /dev/null |
    grep -v 'grep -nE'; then
    echo "$file: not POSIX sh"
    status=1
  fi
done
python=$(command -v python3 || true)
if [ -n "$python" ]; then
  git ls-files --cached --others --exclude-standard -- '*.py' | "$python" -c '
import ast, os, sys
status = 0
for path in sys.stdin.read().split("\n"):
    if path and os.path.isfile(path):
        try:
            ast.parse(open(path, encoding="utf-8").read(), path)
        except SyntaxError as error:
            print(f"{path}:{error.lineno}: {error.msg}")
            status = 1
sys.exit(status)' || status=1
fi
exit $status

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sizes: files of C at most 700 lines, functions at most 100, lines at most 100 columns, nesting at most 5 levels of braces
inside a function, README.md at most 60 lines."""
import re

from lib import tree

FILE_LINES = 700
FUNCTION_LINES = 100
COLUMNS = 100
LEVELS = 5
README_LINES = 60

CONTROL = {"if", "for", "while", "switch", "return", "sizeof", "do", "else"}


def functions(source):
    """Yields (name, first line, lines, deepest level of braces inside) of every function definition."""
    depth = 0
    head = ""
    name = None
    start = 0
    deepest = 0
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for char in line + "\n":
            if char == "{":
                if depth == 0:
                    match = re.search(r"([A-Za-z_]\w*)\s*\([^;{}]*\)\s*(?:__attribute__.*)?$", head.strip(), re.S)
                    name = match.group(1) if match and match.group(1) not in CONTROL and "=" not in head else None
                    start = number
                    deepest = 0
                    if re.search(r'extern\s+"\s*"\s*$', head):
                        head = ""
                        continue
                depth += 1
                deepest = max(deepest, depth - 1)
                head = ""
            elif char == "}":
                depth = max(0, depth - 1)
                if depth == 0 and name:
                    yield name, start, number - start + 1, deepest
                    name = None
                head = ""
            elif char == ";" and depth == 0:
                head = ""
            elif depth == 0:
                head += char


def main():
    report = tree.Report("sizes")
    for path in tree.files(tree.C_ENDINGS):
        source = tree.text(path)
        n_lines = source.count("\n")
        if n_lines > FILE_LINES:
            report.add(path, n_lines, f"{n_lines} lines, at most {FILE_LINES}", "file")
        for number, line in enumerate(source.splitlines(), 1):
            if len(line) > COLUMNS:
                report.add(path, number, f"{len(line)} columns, at most {COLUMNS}", "columns")
        for name, start, lines, deepest in functions(tree.code(source)):
            if lines > FUNCTION_LINES:
                report.add(path, start, f"{name} has {lines} lines, at most {FUNCTION_LINES}", name)
            if deepest > LEVELS:
                report.add(path, start, f"{name} nests {deepest} levels deep, at most {LEVELS}", name)
    for path in tree.files(("README.md",)):
        n_lines = tree.text(path).count("\n")
        if n_lines > README_LINES and "/" in path:
            report.add(path, n_lines, f"{n_lines} lines, at most {README_LINES}")
    report.end()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sizes: files of C at most 700 lines, functions at most 100, lines at most 100 columns."""
from lib import blocks, tree

FILE_LINES = 700
FUNCTION_LINES = 100
COLUMNS = 100


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
        for function in blocks.functions(tree.code(source)):
            lines = function.last.line - function.first.line + 1
            if lines > FUNCTION_LINES:
                report.add(path, function.first.line, f"{function.name} has {lines} lines, at most {FUNCTION_LINES}", function.name)
    report.end()


if __name__ == "__main__":
    main()

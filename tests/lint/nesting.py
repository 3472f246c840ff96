#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nesting: a function has at most 4 control statements (if, else, loops, switch) around any of its statements; the parts of an if-else
chain count once, whether or not they have braces."""
from lib import blocks, tree

LEVELS = 4


def main():
    report = tree.Report("nesting")
    for path in tree.files(tree.C_ENDINGS):
        for function in blocks.functions(tree.code(tree.text(path))):
            deep = max(function.found, key=lambda c: c.level, default=None)
            if deep is not None and deep.level > LEVELS:
                report.add(path, deep.head[0].line, f"{function.name} nests {deep.level} levels deep, at most {LEVELS}", function.name)
    report.end()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Operators: every row of loader/ops that bound graphs can hold says all its columns, and nobody else decides by an operator's name
what it is. Fusions may: they look for patterns of several."""
import re

from lib import tree

FOLDERS = ("loader/", "partition/", "runtime/", "abi/api/")
BY_NAME = ("loader/ops/", "loader/passes/fuse", "loader/wire/")  # the last: names of the format itself
TABLE = re.compile(r"^static const opi_op \w+\[\] = \{(.*?)\};", re.M | re.S)
FAMILY = re.compile(r"^const opi_op_family \w+ =", re.M)
MACRO = re.compile(r"^#define (\w+)\(((?:.*\\\n)*.*\n)", re.M)
COMPARED = re.compile(r"\bstrn?cmp\(([^;{]*?)\)\s*(?:[!=]=|\))")
LISTED = re.compile(r"\bchar \*const \w+(?:\[\w*\])+ = \{(.*?)\};", re.S)
COLUMNS = "OPI_COLUMNS("


def without_comments(source):
    """The source with comments blanked; every line keeps its number."""
    pattern = r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*'
    return re.sub(pattern, lambda m: m.group(0) if m.group(0)[0] == '"' else re.sub(r"[^\n]", " ", m.group(0)), source, flags=re.S)


def rows(source):
    """(offset, text) of every row of the source's tables."""
    for table in TABLE.finditer(source):
        depth, begin = 0, table.start(1)
        for at in range(table.start(1), table.end(1)):
            depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(source[at], 0)
            if source[at] == "," and depth == 0 or at + 1 == table.end(1):
                text = source[begin:at + 1]
                if '"' in text:
                    yield begin + len(text) - len(text.lstrip()), text
                begin = at + 1


def expanded(text, macros):
    """A row with the bodies of the file's own macros that it names."""
    return text + "".join(body for name, body in macros.items() if re.search(rf"\b{name}\(", text))


def line_of(source, offset):
    return source.count("\n", 0, offset) + 1


def function_at(source, offset):
    found = re.findall(r"^[a-z][^;{}\n]*?\b(\w+)\([^;{}]*\) \{$", source[:offset], re.M)
    return found[-1] if found else None


def check_rows(report):
    """Names of all operators."""
    names = set()
    for path in tree.files((".c",)):
        if not path.startswith("loader/ops/"):
            continue
        source = without_comments(tree.text(path))
        macros = {m.group(1): m.group(2) for m in MACRO.finditer(source)}
        if FAMILY.search(source) and not TABLE.search(source):
            report.add(path, line_of(source, FAMILY.search(source).start()), "a family without a table: static const opi_op ops[] = {")
        for offset, text in rows(source):
            name = re.search(r'"([^"]*)"', text).group(1)
            whole = expanded(text, macros)
            names.add(name)
            if re.search(r"\.infer\s*=", whole) and COLUMNS not in whole:
                report.add(path, line_of(source, offset), f"the row of {name} has no OPI_COLUMNS (loader/ops/op.h)", name)
    return names


def check_names(report, names):
    for path in tree.files((".c", ".h")):
        if not path.startswith(FOLDERS) or path.startswith(BY_NAME):
            continue
        source = without_comments(tree.text(path))
        found = [m for m in COMPARED.finditer(source) if re.search(r"\bop\b", m.group(1))]
        found += list(LISTED.finditer(source)) + list(re.finditer(r'\{("\w+")\s*,', source))
        places = {(m.start(1) + n.start(), n.group(1)) for m in found for n in re.finditer(r'"(\w+)"', m.group(1))}
        for offset, name in sorted(places):
            if name in names:
                report.add(path, line_of(source, offset),
                           f"decides by the name {name}: make what it asks a column of the operators' rows",
                           function_at(source, offset))


def main():
    report = tree.Report("operators")
    check_names(report, check_rows(report))
    report.end()


if __name__ == "__main__":
    main()

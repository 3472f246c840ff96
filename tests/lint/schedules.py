#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The core and the command name no schedule of plugins/: what has to be known of one comes from its plugin. Looks at strings (an id, or
an id with options) and at identifiers; comments may name whom they like."""
import re

from lib import tree

CORE = ("loader/", "partition/", "runtime/", "abi/api/", "abi/registry/", "abi/cli/", "abi/include/")
WORDS = {"csv", "interleaved", "sequential"}  # ids that are also words: not looked for in identifiers, nor in the loader's strings
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"((?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def shipped():
    """The ids of all schedules: the lines of ids.txt, or the folder's name."""
    families, folders = {}, set()
    for path in tree.files():
        match = re.match(r"plugins/schedule-([^/]+)/(.*)", path)
        if not match:
            continue
        folders.add(match.group(1))
        if match.group(2) == "ids.txt":
            families[match.group(1)] = tree.text(path).split()
    return {found for name in folders for found in families.get(name, [name])}


def main():
    report = tree.Report("schedules")
    ids = shipped()
    parts = [re.escape(i).replace(r"\-", "_") for i in sorted(ids - WORDS)]
    identifier = re.compile(r"(?<![A-Za-z0-9])(" + "|".join(parts) + r")(?![A-Za-z0-9])", re.I) if parts else None
    for path in tree.files(tree.C_ENDINGS):
        if not path.startswith(CORE):
            continue
        source = tree.text(path)
        for match in TOKEN.finditer(source):
            name = (match.group(1) or "").split(":")[0]
            if name in ids and not (name in WORDS and path.startswith("loader/")):
                report.add(path, source.count("\n", 0, match.start()) + 1, f"names the schedule '{name}'", name)
        for number, line in enumerate(tree.code(source).splitlines(), 1):
            for found in identifier.findall(line) if identifier else []:
                report.add(path, number, f"has a schedule's name in '{found}'", found)
    report.end()


if __name__ == "__main__":
    main()

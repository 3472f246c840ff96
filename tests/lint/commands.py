#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Commands in README and the guides: each stands in a block labelled sh, whose commands tests/install/test_pages*.py run, but for those
that tests/install/pages.txt names with a reason; a verb of ./dev is one of dev's. Every command that pages.txt names is there."""
import os
import re

from lib import fences, tree

# How a line begins that somebody is meant to type.
TYPED = re.compile(r"\s*(\$ |\./|(\w+/)*(bin|examples)/\S+ |[A-Z_]+=\S* \S|(onnx-pipe|cc|c\+\+|gcc|python3?|pip|cmake|ninja|ctest|apt|apt-get|sudo|curl|git|sh|mkdir|cd|cp|"
                   r"dpkg|man) [^:=]*$)")


def text(path):
    return tree.text(path) if os.path.exists(os.path.join(tree.ROOT, path)) else ""


def verbs():
    source = text("dev")
    cases = re.search(r"\ncase \$verb in\n(.*?)\nesac", source, re.S)
    return set(re.findall(r"[a-z]+", " ".join(re.findall(r"^  ([a-z -|]+)\)", cases.group(1), re.M)))) if cases else set()


def named(entries, page, command):
    """Whether pages.txt names it."""
    found = False
    for entry in entries:
        if entry["page"] == page and command.startswith(entry["beginning"]):
            entry["used"] = found = True
    return found


def check_page(report, page, entries, known):
    for first, label, lines in fences.blocks(tree.text(page)):
        if label == "sh":
            for command in fences.commands(lines):
                named(entries, page, command)
        elif label == "python":
            named(entries, page, lines[0])
        elif label == "":
            for number, line in enumerate(lines, first):
                if TYPED.match(line):
                    report.add(page, number, f"a command in a block that is not labelled sh, which no test runs: {line.strip()[:60]}")
        elif label not in ("text", "c"):
            report.add(page, first - 1, f"a block labelled {label}: sh, text, python, c or nothing")
    for number, line in enumerate(tree.text(page).splitlines(), 1):
        for verb in re.findall(r"\./dev ([a-z]+)", line):
            if verb not in known:
                report.add(page, number, f"./dev {verb}, which dev does not know")


def main():
    report = tree.Report("commands")
    entries = []
    for number, how, page, beginning, _ in fences.listed(text(fences.LIST)):
        if how is None:
            report.add(fences.LIST, number, f'not HOW PAGE "BEGINNING" REASON: {beginning}')
        else:
            entries.append({"number": number, "page": page, "beginning": beginning, "used": False})
    known = verbs()
    pages = fences.pages(tree.ROOT)
    for page in pages:
        check_page(report, page, entries, known)
    for entry in entries:
        if not entry["used"]:
            report.add(fences.LIST, entry["number"], f'{entry["page"]} has no command that begins with {entry["beginning"]}')
    report.end()


if __name__ == "__main__":
    main()

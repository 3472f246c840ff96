#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Documents: every relative link leads to a file of the tree, and to a heading in it where it names one; every folder with
sources has a README.md, itself or at most two folders above."""
import os
import re

from lib import tree


def anchors(path):
    """The anchors that a document's headings give."""
    found = set()
    for line in tree.text(path).splitlines():
        match = re.match(r"#+\s+(.*)", line)
        if match:
            words = re.sub(r"[^\w\- ]", "", match.group(1).strip().lower())
            found.add(words.replace(" ", "-"))
    return found


def check_links(report, path):
    fenced = False
    for number, line in enumerate(tree.text(path).splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced:
            continue
        for match in re.finditer(r"\]\(([^)\s]+)\)", line):
            target, _, anchor = match.group(1).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            file = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
            if not os.path.exists(os.path.join(tree.ROOT, file)):
                report.add(path, number, f"links to {target}, which is not there")
            elif anchor and file.endswith(".md") and anchor not in anchors(file):
                report.add(path, number, f"links to #{anchor}, which {file} does not have")


def check_readmes(report):
    folders = {os.path.dirname(path) for path in tree.files((".c", ".h"))}
    for folder in sorted(folders):
        parts = folder.split("/")
        nearest = ["/".join(parts[:n]) for n in range(max(1, len(parts) - 2), len(parts) + 1)]
        if not any(os.path.isfile(os.path.join(tree.ROOT, f, "README.md")) for f in nearest):
            report.add(folder, 0, "no README.md here or in the two folders above")


def main():
    report = tree.Report("links")
    for path in tree.files((".md",)):
        check_links(report, path)
    check_readmes(report)
    report.end()


if __name__ == "__main__":
    main()

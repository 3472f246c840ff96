# SPDX-License-Identifier: Apache-2.0
"""Blocks of code in pages, between lines of ```. Labels: sh: commands, which tests/install/test_pages.py runs; text: what the sh block
before it prints; python; c; none: drawings, and text that nothing here prints."""
import glob
import os
import re

# The pages whose commands are run.
PAGES = ("README.md", "abi/guide/README.md", "abi/guide/*.md")
LIST = "tests/install/pages.txt"
LINE = re.compile(r'(not|full|status=[0-9]+) (\S+) "([^"]*)" (\S.*)')


def pages(root):
    """The pages, relative to the root: README first, and the one that sets up what the others use."""
    found = []
    for pattern in PAGES:
        for path in sorted(glob.glob(os.path.join(root, pattern))):
            path = os.path.relpath(path, root)
            if path not in found:
                found.append(path)
    return found


def blocks(source):
    """(line of its first line, label, its lines) of each."""
    label, first, lines = None, 0, []
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            if label is None:
                label, first, lines = line.strip().strip("`").strip(), number + 1, []
            else:
                yield first, label, lines
                label = None
        elif label is not None:
            lines.append(line)


def commands(lines):
    """The commands of an sh block: continued lines and here-documents belong to the line that begins them; comments alone are none."""
    found = []
    end = None  # of a here-document
    joined = False
    for line in lines:
        if end is not None or joined:
            found[-1] += "\n" + line
        elif line.strip() and not line.lstrip().startswith("#"):
            found.append(line)
        else:
            continue
        if end is not None:
            end = None if line == end else end
        else:
            match = re.search(r"<<'?(\w+)'?", line)
            end = match.group(1) if match else None
        joined = end is None and line.endswith("\\")
    return found


def listed(text):
    """(line, how, page, beginning of a command, reason) of each line of pages.txt; how is None where a line cannot be read."""
    for number, line in enumerate(text.splitlines(), 1):
        if line and not line.startswith("#"):
            match = LINE.fullmatch(line)
            yield (number, *match.groups()) if match else (number, None, None, line, None)

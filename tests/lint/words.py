#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Words that have no place in a finished tree: notes about work to do, code in comments, numbers of issues, paths of one
person's machine, blanks at the ends of lines."""
import re

from lib import tree

NOTE = "TO" + "DO|FIX" + "ME|XX" + "X|HA" + "CK"
WORDS = [
    (re.compile(r"\b(" + NOTE + r")\b"), "a note about work to do"),
    (re.compile(r"not (yet )?implemented( yet)?\b|implement(ed)? later|coming " + "soon", re.I), "a promise"),
    (re.compile(r"\bphase [2-9]\b", re.I), "a promise"),
    (re.compile(r"\bissue #?[0-9]+\b", re.I), "the number of an issue"),
    (re.compile(r"(?<![\w.$}/-])/(work|home|root)/\w"), "a path of one machine"),
    (re.compile(r"[ \t]+$"), "blanks at the end of the line"),
]
TAB = (re.compile(r"\t"), "a tab")
CODE = r"(\w[\w\->.\[\] ]* = .*|\w+\(.*\)|return\b.*);"
COMMENTED_CODE = re.compile(r"^\s*(//\s*" + CODE + r"\s*|/\*\s*" + CODE + r"\s*\*/)$")
ENDINGS = tree.C_ENDINGS + (".py", ".sh", ".cmake", ".txt", ".md", ".json", ".proto", ".in")
SKIPPED = ("tests/data/", "tests/lint/words.py", "tests/lint/selftest.py", "tests/bench/records/", "LICENSE")


def main():
    report = tree.Report("words")
    for path in tree.files():
        if path.startswith(SKIPPED) or not (path.endswith(ENDINGS) or path in ("dev", ".ci/run")):
            continue
        is_c = path.endswith(tree.C_ENDINGS)
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            for pattern, what in WORDS + ([TAB] if is_c else []):
                match = pattern.search(line)
                if match:
                    report.add(path, number, f"{what}: {match.group(0).strip()}")
            if is_c and COMMENTED_CODE.match(line) and "    " not in line.strip():
                report.add(path, number, "code in a comment", "code")
    report.end()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Spelling of docs, comments, names and messages: codespell, of the version in requirements.txt, with british.txt beside its own list of
mistakes. Words that only look like mistakes are listed in exceptions.txt, as PATH:WORD."""
import os
import re
import subprocess
import sys

from lib import tree

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.join(HERE, "..", "..", "build", "venv", "lint", "bin", "python")
ENDINGS = tree.C_ENDINGS + (".py", ".sh", ".cmake", ".txt", ".md", ".json", ".proto", ".in", ".map")
SKIPPED = ("tests/data/", "tests/trained/expected/", "tests/bench/records/", "tests/lint/british.txt", "tests/lint/exceptions.txt",
           "LICENSE")
MISTAKE = re.compile(r"(?:\./)?(.*?):(\d+): (\S+) ==> (.*)$")


def main():
    if not os.path.isfile(PYTHON):
        print("SKIP: codespell is not installed in build/venv/lint")
        sys.exit(77)
    report = tree.Report("spelling")
    paths = [p for p in tree.files() if not p.startswith(SKIPPED) and (p.endswith(ENDINGS) or "." not in os.path.basename(p))]
    done = subprocess.run([PYTHON, "-m", "codespell_lib", "--quiet-level", "34", "-D", "-", "-D", os.path.join(HERE, "british.txt"), *paths],
                          cwd=tree.ROOT, capture_output=True, text=True, check=False)
    found = [MISTAKE.match(line) for line in done.stdout.splitlines()]
    if None in found or (done.returncode != 0) != bool(found):
        print(done.stdout + done.stderr + f"codespell ended with status {done.returncode}")
        sys.exit(1)
    for match in found:
        path, line, word, better = match.groups()
        report.add(path, int(line), f"{word}: perhaps {better}", word)
    report.end()


if __name__ == "__main__":
    main()

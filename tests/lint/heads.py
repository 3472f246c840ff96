#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Heads of files: a licence line first, then, in C, a comment that says what the file is for."""
from lib import tree

ENDINGS = tree.C_ENDINGS + (".py", ".sh", ".cmake", "CMakeLists.txt", ".proto", ".map")
SCRIPTS = ("dev", ".ci/run")


def main():
    report = tree.Report("heads")
    for path in tree.files():
        if not path.endswith(ENDINGS) and path not in SCRIPTS:
            continue
        lines = tree.text(path).splitlines()
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
            report.add(path, 1, "no licence line (SPDX-License-Identifier: Apache-2.0)")
        elif path.endswith((".c", ".h")):
            rest = [line for line in lines[1:] if line.strip()]
            if not rest or not rest[0].lstrip().startswith(("/*", "//")):
                report.add(path, 2, "no comment that says what this file is for")
    report.end()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The second compiler: clang parses every C source of the build with the same warnings as errors, so that the tree stays clean
under both. Nothing is linked."""
import json
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from lib import tree


def command_for(entry, clang):
    """The compile command with clang in place of the compiler, checking only."""
    parts = shlex.split(entry["command"])
    kept = []
    skip = False
    for part in parts[1:]:
        if skip or part in ("-o", "-MF", "-MT", "-c", "-MD"):
            skip = part in ("-o", "-MF", "-MT")
            continue
        kept.append(part)
    return [clang, "-fsyntax-only", "-Werror", "-Wno-unknown-warning-option", *kept]


def main():
    clang = shutil.which("clang") or shutil.which("clang-14")
    build = os.environ.get("OPIPE_BUILD_DIR", os.path.join(tree.ROOT, "build", "dev"))
    listing = os.path.join(build, "compile_commands.json")
    if clang is None or not os.path.isfile(listing):
        print(f"SKIP: no clang, or no {listing}")
        sys.exit(77)
    report = tree.Report("clang")
    with open(listing, encoding="utf-8") as file:
        entries = json.load(file)
    entries = {e["file"]: e for e in entries
               if e["file"].endswith(".c") and not e["file"].startswith(build) and os.path.isfile(e["file"])}

    def check(entry):
        return subprocess.run(command_for(entry, clang), cwd=entry["directory"], capture_output=True, text=True,
                              check=False)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for entry, done in zip(entries.values(), pool.map(check, entries.values())):
            if done.returncode != 0:
                path = os.path.relpath(entry["file"], tree.ROOT)
                report.add(path, 0, "clang refuses it:\n" + done.stderr.strip())
    report.end()


if __name__ == "__main__":
    main()

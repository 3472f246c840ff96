#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The second compiler: clang compiles every C source of the build with the same warnings as errors, so that the tree stays clean
under both. Nothing is linked. Sources that read nothing that differs from where this tree grew from are left out (lib/changed.py), and
ccache knows the others if it is there."""
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from lib import changed, tree


def command_for(entry, clang, out):
    """The compile command with clang in place of the compiler, to an object that nobody needs: parsing alone takes nearly as long."""
    parts = shlex.split(entry["command"])
    first = next(i for i, part in enumerate(parts) if part.startswith("-"))  # before it: ccache, the compiler
    kept = []
    skip = False
    for part in parts[first:]:
        if skip or part in ("-o", "-MF", "-MT", "-MD"):
            skip = not skip and part != "-MD"
            continue
        if not part.startswith(("-O", "-g")):
            kept.append(part)
    if "-c" not in kept:
        kept.append("-c")
    return [*clang, "-O0", "-Werror", "-Wno-unknown-warning-option", *kept, "-MD", "-MF", out + ".d", "-o", out]


def main():
    clang = [path for path in (shutil.which("clang") or shutil.which("clang-14"),) if path]
    build = os.environ.get("OPIPE_BUILD_DIR", os.path.join(tree.ROOT, "build", "dev"))
    listing = os.path.join(build, "compile_commands.json")
    if not clang or not os.path.isfile(listing):
        print(f"SKIP: no clang, or no {listing}")
        sys.exit(77)
    clang = [path for path in (shutil.which("ccache"),) if path] + clang
    report = tree.Report("clang")
    with open(listing, encoding="utf-8") as file:
        entries = json.load(file)
    entries = {e["file"]: e for e in entries
               if e["file"].endswith(".c") and not e["file"].startswith(build) and os.path.isfile(e["file"])}

    named = {os.path.relpath(file, tree.ROOT): entry for file, entry in entries.items()}
    entries = [named[path] for path in changed.reached(named)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:

        def check(numbered):
            number, entry = numbered
            return subprocess.run(command_for(entry, clang, os.path.join(folder, f"{number}.o")), cwd=entry["directory"],
                                  capture_output=True, text=True, check=False)

        for entry, done in zip(entries, pool.map(check, enumerate(entries))):
            if done.returncode != 0:
                path = os.path.relpath(entry["file"], tree.ROOT)
                report.add(path, 0, "clang refuses it:\n" + done.stderr.strip())
    report.end()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Probable bugs: clang-tidy 14 with the checks of .clang-tidy over every C source of the build. In sources of tests its analyzer is left
out; elsewhere it follows calls and paths far only with OPIPE_TIDY=deep, which takes three times as long. Findings that are no bugs are
listed in exceptions.txt, as PATH:CHECK."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from lib import tree  # noqa: E402

SHALLOW = ["--extra-arg=-Xclang", "--extra-arg=-analyzer-config", "--extra-arg=-Xclang", "--extra-arg=mode=shallow"]
CONFIG = os.path.join(HERE, "..", "..", "..", ".clang-tidy")
FINDING = re.compile(r"(/.*?):(\d+):\d+: (?:warning|error): (.*) \[([\w.,-]+)\]$", re.M)


def tool():
    """clang-tidy 14, or None: other versions have other checks."""
    for name in ("clang-tidy-14", "clang-tidy"):
        path = shutil.which(name)
        if path and "version 14." in subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout:
            return path
    return None


def entries(build):
    """One compile command for every C source outside the build folder, the largest first."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        found = {e["file"]: e for e in json.load(file)}
    found = [e for path, e in found.items() if path.endswith(".c") and not path.startswith(build) and os.path.isfile(path)]
    return sorted(found, key=lambda e: os.path.getsize(e["file"]), reverse=True)


def main():
    clang_tidy = tool()
    build = os.environ.get("OPIPE_BUILD_DIR", os.path.join(tree.ROOT, "build", "dev"))
    if clang_tidy is None or not os.path.isfile(os.path.join(build, "compile_commands.json")):
        print(f"SKIP: no clang-tidy 14, or no {build}/compile_commands.json")
        sys.exit(77)
    report = tree.Report("tidy")
    todo = entries(build)
    found = set()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "compile_commands.json"), "w", encoding="utf-8") as file:
            json.dump(todo, file)  # with all commands of a source, each would be run

        def check(entry):
            of_test = os.path.relpath(entry["file"], tree.ROOT).startswith("tests/")
            command = [clang_tidy, "-p", folder, "--quiet", "--config-file=" + CONFIG, "--extra-arg=-Wno-unknown-warning-option"]
            command += ["--checks=-clang-analyzer-*"] if of_test else []
            command += [] if os.environ.get("OPIPE_TIDY") == "deep" else SHALLOW
            return subprocess.run([*command, entry["file"]], capture_output=True, text=True, check=False)

        with ThreadPoolExecutor(max_workers=int(os.environ.get("OPIPE_JOBS", os.cpu_count()))) as pool:
            for entry, done in zip(todo, pool.map(check, todo)):
                ours = {(os.path.relpath(m[0], tree.ROOT), int(m[1]), m[2], m[3]) for m in FINDING.findall(done.stdout)}
                found |= {f for f in ours if not f[0].startswith("..")}
                if done.returncode != 0 and not ours:
                    report.add(os.path.relpath(entry["file"], tree.ROOT), 0, "clang-tidy fails:\n" + done.stderr.strip())
    for path, line, message, check in sorted(found):
        report.add(path, line, f"{message} [{check}]", check)
    report.end()


if __name__ == "__main__":
    main()

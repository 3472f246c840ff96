#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=240
"""Every command of README and the guides, in an installed tree, as the pages say, and what they show of its output, but for numbers.
Left out: what pages.txt names; what it calls full runs in test_pages_full.py. A block is run by one shell; Python's blocks of a page
are one program."""
import os
import re
import subprocess
import sys
import tempfile
import time

SOURCE, BUILD = os.environ["OPIPE_SOURCE_DIR"], os.environ["OPIPE_BUILD_DIR"]
sys.path.insert(0, os.path.join(SOURCE, "tests", "lint"))
from lib import fences  # noqa: E402


def read(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


def how(page, command):
    """not, full, status=N; or run."""
    for _, found, of, beginning, _ in fences.listed(read(fences.LIST)):
        if of == page and command.startswith(beginning):
            return found
    return "run"


def plain(line):
    """A line without what differs from run to run: numbers, units of sizes, widths of columns."""
    line = re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", line)
    return " ".join(re.sub(r"# [KMGT]?i?B\b", "# B", line).split())


class Folder:
    """A folder where / of the pages is: README's tree by links, /tmp, python3 as the tests have it, the installed command."""

    def __init__(self, root):
        self.root = root
        self.readme = os.path.join(root, "tree")
        self.tried = os.path.join(root, "tmp", "try")
        tools = os.path.join(root, "tools")
        for folder in (self.readme, os.path.join(root, "tmp"), tools):
            os.makedirs(folder)
        for name in ("tests", "abi", "plugins"):
            os.symlink(os.path.join(SOURCE, name), os.path.join(self.readme, name))
        os.symlink(BUILD, os.path.join(self.readme, "build"))
        with open(os.path.join(tools, "python3"), "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec "{sys.executable}" -B "$@"\n')
        os.chmod(os.path.join(tools, "python3"), 0o755)
        paths = [tools, os.path.join(self.tried, "prefix", "bin"), os.environ["PATH"]]
        self.environment = dict(os.environ, PATH=":".join(paths), PYTHONDONTWRITEBYTECODE="1")

    def place(self, page):
        """Where the commands of a page are typed: those of the guides where the guides' own page has set it up."""
        return self.readme if page == "README.md" or not os.path.isdir(self.tried) else self.tried

    def run(self, page, command, environment=None):
        command = [*command[:-1], command[-1].replace("/tmp/", self.root + "/tmp/")]  # the page's own text is last
        return subprocess.run(command, cwd=self.place(page), env={**self.environment, **(environment or {})}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=200)


def check_text(where, lines, said):
    lines = [plain(line) for line in lines if line.strip() != "..."]
    said = [plain(line) for line in said.splitlines()]
    for line in lines:
        whole, cut = line, line[:-3] if line.endswith("...") else None
        if not any(each == whole or (cut is not None and each.startswith(cut)) for each in said):
            return f"{where}: the page shows\n  {line}\nbut this was printed:\n  " + "\n  ".join(said[-20:])
    return None


def check_page(folder, page, wanted):
    """Failures of a page whose commands are to be run as `wanted` says: run, or full."""
    failures = []
    program = []
    said = None
    for first, label, lines in fences.blocks(read(page)):
        where = f"{page}:{first}"
        if label == "sh":
            chosen = [(command, how(page, command)) for command in fences.commands(lines)]
            chosen = [(command, kind) for command, kind in chosen if kind == wanted or (wanted == "run" and kind.startswith("status="))]
            said = None
            if not chosen:
                continue
            status = int(chosen[-1][1].partition("=")[2] or 0)
            started = time.monotonic()
            done = folder.run(page, ["sh", "-e", "-c", "\n".join(command for command, _ in chosen)])
            print(f"{where}: {len(chosen)} commands, {time.monotonic() - started:.1f} s")
            if done.returncode != status:
                failures.append(f"{where}: status {done.returncode}, not {status}:\n" + "\n".join(command for command, _ in chosen) + "\n" + done.stdout[-2000:])
            else:
                said = done.stdout
        elif label == "text" and said is not None:
            failures.append(check_text(where, lines, said))
        elif label == "python" and how(page, lines[0]) == wanted:
            program += lines
    if program:
        done = folder.run(page, [sys.executable, "-B", "-c", "\n".join(program)], {"PYTHONPATH": os.path.join(BUILD, "python")})
        if done.returncode != 0:
            failures.append(f"{page}: its Python:\n{done.stdout}")
    return [failure for failure in failures if failure]


def main(wanted):
    if os.environ.get("OPIPE_SANITIZE"):
        print("SKIP: foreign programs do not open a library built with a sanitizer")
        return 77
    packages = ("numpy", "cffi") if wanted == "run" else ("numpy", "torch", "onnxscript")
    try:
        for name in packages:
            __import__(name)
    except ImportError as error:
        print(f"SKIP: commands of the pages: no python3 with {error.name}")
        return 77
    failures = []
    with tempfile.TemporaryDirectory() as root:
        folder = Folder(root)
        if wanted != "run":
            failures += check_page(folder, "abi/guide/README.md", "run")
        for page in fences.pages(SOURCE):
            failures += check_page(folder, page, wanted)
    for failure in failures:
        print("FAILED: " + failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main("run"))

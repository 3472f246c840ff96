# SPDX-License-Identifier: Apache-2.0
"""Shared by the lint scripts: the files of the tree, C source without comments and strings, the list of exceptions,
and the report."""
import os
import re
import subprocess
import sys

ROOT = os.environ.get("OPIPE_LINT_ROOT") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", "..", ".."))
C_ENDINGS = (".c", ".h", ".cpp", ".hpp", ".cu")


def files(endings=None):
    """Paths, relative to the root, of everything that is or will be committed."""
    command = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        found = done.stdout.splitlines()
    else:
        found = []
        for folder, folders, names in os.walk(ROOT):
            folders[:] = [f for f in folders if not f.startswith("build") and f != ".git"]
            found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    found = [f for f in found if os.path.isfile(os.path.join(ROOT, f))]
    return sorted(f for f in found if endings is None or f.endswith(endings))


def text(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def code(source):
    """C source with comments and the contents of literals blanked; every line keeps its number."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''

    def blank(match):
        found = match.group(0)
        if found[0] == "/":
            return re.sub(r"[^\n]", " ", found)
        return found[0] + " " * (len(found) - 2) + found[0]

    return re.sub(pattern, blank, source, flags=re.S)


class Report:
    """Findings of one check. Findings that exceptions.txt names are left out; an exception that matches nothing is
    itself a finding, so that the list cannot outlive its reasons."""

    def __init__(self, check):
        self.check = check
        self.findings = 0
        self.exceptions = {}
        path = os.path.join(ROOT, "tests", "lint", "exceptions.txt")
        with open(path, encoding="utf-8") as file:
            for line in file:
                parts = line.split(None, 2)
                if not parts or line.startswith("#") or parts[0] != check:
                    continue
                if len(parts) < 3:
                    self.add("tests/lint/exceptions.txt", 0, f"no reason given: {line.strip()}")
                    continue
                self.exceptions[parts[1]] = False

    def excepts(self, path, name=None):
        """Whether an exception names this. One that ends in / names all below a folder."""
        folders = [path[:at + 1] for at, char in enumerate(path) if char == "/"]
        for key in (path, f"{path}:{name}", *folders):
            if key in self.exceptions:
                self.exceptions[key] = True
                return True
        return False

    def add(self, path, line, message, name=None):
        """name: what an exception may name besides the path, as path:name."""
        if self.excepts(path, name):
            return
        self.findings += 1
        print(f"{path}:{line}: {message}")

    def end(self):
        for key, used in self.exceptions.items():
            if not used:
                self.findings += 1
                print(f"tests/lint/exceptions.txt: {self.check} {key}: no longer needed")
        sys.exit(1 if self.findings else 0)


if __name__ == "__main__":
    # For shell scripts: tree.py ENDING... lists the files with these endings, one a line.
    FOUND = files(tuple(sys.argv[1:]))
    print("\n".join(FOUND))
    sys.exit(0 if FOUND else 1)

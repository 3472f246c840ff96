# SPDX-License-Identifier: Apache-2.0
"""Files that differ from the commit that this tree grew from: committed since, changed or new. Run as a script: prints the labels of
tests/when.txt whose tests need not run, as one regular expression; with --tests one for the names of those tests that the folders in
question have (./dev test --changed).

The commit is where HEAD left OPIPE_BASE, else the branch that the clone has as origin's, else main. It is unknown without git, where
there is none of these, and where HEAD is that commit itself and nothing differs; with OPIPE_EVERYTHING set nobody asks. Then all
counts as changed."""
import os
import re
import subprocess
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from lib import tree  # noqa: E402

BRANCHES = ("origin/HEAD", "origin/main", "main")
# Whatever these say, it may be about everything that is built.
ABOUT_ALL = re.compile(r"(^|/)CMakeLists\.txt$|\.cmake$|\.map$|^CMakePresets\.json$|^dev$")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.M)


def git(*arguments):
    """Lines of what git says, or None."""
    done = subprocess.run(["git", "-C", tree.ROOT, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else None


def base():
    """The commit, or None."""
    for name in (os.environ.get("OPIPE_BASE"), *BRANCHES):
        if name and git("rev-parse", "--verify", "--quiet", name + "^{commit}"):
            found = git("merge-base", "HEAD", name)
            return found[0] if found else None
    return None


def files():
    """Paths that differ, relative to the root; None: unknown."""
    commit = None if os.environ.get("OPIPE_EVERYTHING") else base()
    if commit is None or git("rev-parse", "--show-toplevel") != [os.path.realpath(tree.ROOT)]:
        return None
    differ = git("diff", "--name-only", "--no-renames", commit)
    new = git("ls-files", "--others", "--exclude-standard")
    if differ is None or new is None or (not differ + new and [commit] == git("rev-parse", "HEAD")):
        return None
    return set(differ + new)


def reached(sources):
    """Returns the sources that may compile otherwise than before: they, or files that they include, differ. Includes are matched by
    the ends of paths, so some are taken in vain, none is left out."""
    differ = files()
    if differ is None or any(ABOUT_ALL.search(path) or path.endswith(".proto") or path.startswith("tests/lint/") for path in differ):
        return list(sources)
    including = {}  # by the last name of a path: who includes it, and by what path
    for path in tree.files(tree.C_ENDINGS):
        for name in INCLUDE.findall(tree.text(path)):
            including.setdefault(os.path.basename(name), []).append((re.sub(r"^(\.\./)+", "", name), path))
    found, todo = set(differ), list(differ)
    while todo:
        path = todo.pop()
        for name, reader in including.get(os.path.basename(path), ()):
            if reader not in found and ("/" + path).endswith("/" + name):
                found.add(reader)
                todo.append(reader)
    return [path for path in sources if path in found]


def idle_labels():
    """Labels of tests/when.txt none of whose paths differs."""
    differ = files()
    if differ is None or any(ABOUT_ALL.search(path) for path in differ):
        return []
    idle = []
    for line in tree.text("tests/when.txt").splitlines():
        label, *paths = line.split()
        if not line.startswith("#") and not any(path.startswith(start) for path in differ for start in paths):
            idle.append(label)
    return idle


# Tests of what differs, by the first rule whose path begins so; a rule without tests: none.
TESTS = (("tests/support/", "."), ("tests/data/", "."), ("tests/lint/", ""), ("tests/fuzz/", ""), ("tests/real/", ""),
         ("tests/README", ""), ("tests/CMakeLists.txt", "."), ("tests/when.txt", "."),
         ("loader/", "^loader/"), ("partition/", "^partition/|^matrix/test_cover"), ("runtime/", "^runtime/|^matrix/"),
         ("plugins/schedule", "^plugins/schedules/|^conformance/schedule"), ("plugins/backend-cpu/", "^plugins/backend-cpu/|^nodes/"),
         ("plugins/", ""), ("abi/cli/", "^cli/|^page/"), ("abi/guide/", "^install/"), ("abi/include/", "^abi/|^install/|^conformance/"),
         ("abi/", "^abi/"))


def tests_of(path):
    """Regular expressions of names."""
    folder = os.path.dirname(path)
    name, ending = os.path.splitext(path)
    if ending == ".md":
        return []
    found = [tests for start, tests in TESTS if path.startswith(start)][:1]
    if ending == ".cmake" or not (found or folder.startswith("tests/")):
        return ["."]
    if not found and os.path.basename(path).startswith("test_"):
        return ["^" + name[len("tests/"):] + "$"]
    if not found:
        return ["^" + folder[len("tests/"):] + "/"]
    if path.startswith("plugins/"):
        found.append("^" + "/".join(path.split("/")[:2]) + "/")
    return [one for one in found if one]


def tests():
    """One regular expression; the digests are always in it."""
    differ = files()
    found = {"."} if differ is None else {"^digests/"}.union(*[tests_of(path) for path in differ])
    return "." if "." in found else "|".join(sorted(found))


if __name__ == "__main__":
    print(tests() if sys.argv[1:] == ["--tests"] else "|".join(idle_labels()))

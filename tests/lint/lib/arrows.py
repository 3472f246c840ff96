# SPDX-License-Identifier: Apache-2.0
"""Arrows between rooms: the calls of a build's objects, the includes of its sources, and the drawings of both in READMEs.

A room is a folder with sources, named from the top folder that it is in; `.` is the top folder's own files. An arrow goes from a room to
another that it calls, whose data it uses, or whose header it includes. A callback goes up: a struct of function pointers that one
room's header defines and a room above fills in."""
import json
import os
import re
import subprocess
from collections import defaultdict

from lib import declared, tree

TOPS = ("loader", "partition", "runtime", "abi")
CODE = ("loader/", "partition/", "runtime/", "abi/api/", "abi/registry/", "abi/cli/")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.M)
FENCE = re.compile(r"^```arrows\n(.*?)^```$", re.M | re.S)
LINE = re.compile(r"([\w./-]+)(?:\s*(->|~>)\s*([\w./-]+(?:\s+[\w./-]+)*))?$")


def room(path, top):
    """The room of a file as the drawing of `top` names it, or None. The drawing of abi has its folders beside the other top folders."""
    parts = path.split("/")
    if top == "abi":
        return parts[1] if parts[0] == "abi" and len(parts) > 2 else parts[0] if parts[0] in TOPS and parts[0] != "abi" else None
    return None if parts[0] != top else "/".join(parts[1:-1]) or "."


def sources():
    """C sources and headers of the library, its public headers and its command."""
    return [p for p in tree.files((".c", ".h")) if p.startswith((*CODE, "abi/include/"))]


# ---- calls ---------------------------------------------------------------------------------------------------------------------


def home_of(build):
    """The source tree that a build folder was configured for."""
    try:
        with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
            return re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", file.read(), re.M).group(1)
    except OSError:
        return tree.ROOT


def objects(build):
    """{source, relative to the root: (object, source of that build)}, generated sources among them."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    home, build, found = os.path.realpath(home_of(build)), os.path.realpath(build), {}
    for entry in commands:
        source = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
        output = re.search(r" -o (\S+)", entry.get("command", ""))
        name = os.path.relpath(source, os.path.join(build, "generated"))
        if name.startswith(".."):
            name = os.path.relpath(source, home)
        if output and name.startswith(CODE):
            found.setdefault(name, (os.path.join(entry["directory"], output.group(1)), source))
    return found


def unbuilt(found):
    """{folder: sources that have no object}: a build may leave some out, as those that only another one needs."""
    left = defaultdict(list)
    for path in sources():
        if path.endswith(".c") and path not in found:
            left[os.path.dirname(path)].append(path)
    return left


def stale(build, found):
    """Why the objects are not those of this tree's sources, or None."""
    newest = 0
    for folder, paths in unbuilt(found).items():
        if all(os.path.dirname(path) != folder for path in found):
            return f"{build} does not build {paths[0]}, nor others of its folder"
    for path, (output, source) in found.items():
        if not os.path.isfile(output) or not os.path.isfile(source):
            return f"{output} is not there"
        built = os.path.getmtime(output)
        newest = max(newest, built)
        if os.path.getmtime(source) > built:
            return f"{output} is older than {source}"
        here = os.path.join(tree.ROOT, path)
        if os.path.isfile(here) and os.path.realpath(here) != source and tree.text(path) != tree.text(source):
            return f"{build} has another {path}"
    for path in sources():
        if path.endswith(".h") and os.path.getmtime(os.path.join(tree.ROOT, path)) > newest and build.startswith(tree.ROOT):
            return f"{build} is older than {path}"
    return None


def calls(build):
    """([(source, source that defines, symbol)], None, sources without an object), or (None, why there are none, [])."""
    if not os.path.isfile(os.path.join(build, "compile_commands.json")):
        return None, f"no build in {build}", []
    found = objects(build)
    reason = stale(build, found)
    if reason:
        return None, reason, []
    of_object = {output: source for source, (output, _) in found.items()}
    done = subprocess.run(["nm", "-A", "-g", "--format=posix", *of_object], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, f"nm failed: {done.stderr.strip()[:200]}", []
    defined, used = {}, []
    for line in done.stdout.splitlines():
        output, rest = line.split(": ", 1)
        symbol, kind = rest.split()[:2]
        source = of_object[output]
        if kind in "Uwv":
            used.append((source, symbol))
        else:
            defined[source.startswith("abi/cli/"), symbol] = source
    if not defined:
        return None, f"the objects of {build} have no symbols", []
    found = []
    for source, symbol in used:
        target = source.startswith("abi/cli/") and defined.get((True, symbol)) or defined.get((False, symbol))
        if target:
            found.append((source, target, symbol))
    return found, None, sorted(sum(unbuilt(set(of_object.values())).values(), []))


# ---- includes and callbacks ------------------------------------------------------------------------------------------------------


def includes(paths, resolve):
    for path in paths:
        for name in INCLUDE.findall(tree.text(path)):
            target = resolve(path, name)
            if target is not None:
                yield path, target, "includes " + target


def callbacks(paths, codes):
    """(header that defines a struct of function pointers, source that fills one in, the struct's name)."""
    tables = {}
    for path in paths:
        if path.endswith(".h") and not path.startswith("abi/"):
            for struct in declared.structs(codes[path]):
                if struct.name and struct.n_functions > 0 and struct.n_functions * 2 >= struct.n_fields:
                    tables[struct.name] = path
    if not tables:
        return
    names = "|".join(sorted(tables))
    filled = re.compile(rf"\b({names})\s+\w+\s*(?:\[\w*\]\s*)?=\s*\{{|\(\s*(?:const\s+)?(?:struct\s+)?({names})\s*\)\s*\{{")
    for path in paths:
        if path.endswith(".c"):
            for name in {one or other for one, other in filled.findall(codes[path])}:
                yield tables[name], path, f"{name} is filled in by {path}"


def between(triples, top):
    """{(room, room): sorted evidence}"""
    found = defaultdict(set)
    for source, target, text in triples:
        a, b = room(source, top), room(target, top)
        if a is not None and b is not None and a != b:
            found[a, b].add(f"{os.path.relpath(source, '' if top == 'abi' else top)}: {text}")
    return {arrow: sorted(why) for arrow, why in found.items()}


# ---- drawings ------------------------------------------------------------------------------------------------------------------


class Drawing:
    """The block of a README. rooms: top first. arrows, callbacks: sets of (room, room). faults: [(line, message)]."""

    def __init__(self, text):
        self.rooms, self.arrows, self.callbacks, self.faults = [], set(), set(), []
        blocks = list(FENCE.finditer(text))
        self.found = bool(blocks)
        for block in blocks:
            first = text.count("\n", 0, block.start()) + 2
            for number, line in enumerate(block.group(1).splitlines(), first):
                self.read(number, line.strip())
        for a, b in sorted(self.arrows):
            if b in self.rooms and self.rooms.index(b) <= self.rooms.index(a):
                self.faults.append((0, f"{a} -> {b} is drawn upward"))

    def read(self, number, line):
        match = LINE.match(line)
        if not line:
            return
        if not match:
            self.faults.append((number, f"not a line of a drawing: {line}"))
            return
        name, kind, targets = match.groups()
        if kind == "~>":
            self.callbacks |= {(name, target) for target in targets.split()}
            return
        if name in self.rooms:
            self.faults.append((number, f"{name} is drawn twice"))
            return
        self.rooms.append(name)
        self.arrows |= {(name, target) for target in (targets or "").split()}

    def position(self, name):
        return self.rooms.index(name) if name in self.rooms else len(self.rooms)


def components(rooms, arrows):
    """Strongly connected sets of rooms, in an order in which arrows between sets go forward."""
    reach = {}
    for start in rooms:
        seen, todo = set(), [start]
        while todo:
            at = todo.pop()
            for a, b in arrows:
                if a == at and b not in seen:
                    seen.add(b)
                    todo.append(b)
        reach[start] = seen
    left, found = sorted(rooms, key=lambda r: (-len(reach[r] | {r}), r)), []
    while left:
        first = left[0]
        together = [r for r in left if r == first or r in reach[first] and first in reach[r]]
        found.append(together)
        left = [r for r in left if r not in together]
    return found


def order(rooms, arrows):
    """Rooms, top first, with few arrows upward: the sets of `components`, and within each single moves while they help."""
    found = []
    for together in components(rooms, arrows):
        inside = [(a, b) for a, b in arrows if a in together and b in together]
        best = sorted(together, key=lambda r: sum(b == r for _, b in inside) - sum(a == r for a, _ in inside))
        improved = True
        while improved:
            improved = False
            for name in sorted(together):
                others = [r for r in best if r != name]
                tries = [others[:at] + [name] + others[at:] for at in range(len(best))]
                better = min(tries, key=lambda t: n_up(t, inside))
                if n_up(better, inside) < n_up(best, inside):
                    best, improved = better, True
        found += best
    return found


def n_up(rooms, arrows):
    at = {name: position for position, name in enumerate(rooms)}
    return sum(at.get(b, len(at)) <= at.get(a, len(at)) for a, b in arrows)


def floors(rooms, arrows):
    """Rooms on the longest way down, arrows upward left out."""
    at, deep = {name: position for position, name in enumerate(rooms)}, {}
    for name in reversed(rooms):
        deep[name] = 1 + max([deep[b] for a, b in arrows if a == name and at.get(b, -1) > at[name]], default=0)
    return max(deep.values(), default=0)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The order of the house: arrows between rooms as READMEs draw them, sizes of structs, headers, rooms and pages, names of types.

Without arguments: checks and prints the table of figures. Musts fail outright. A figure that is an aim may have a ceiling in house.txt, which
may only fall: --write lowers the ceilings to what was reached.
--draw TOP...        prints the block that draws each folder (loader, partition, runtime, abi); arrows upward are left out and named.
--why TOP ROOM ROOM  prints the calls and includes of that arrow.
--words TOP...       prints the sentences that open with What, Of, Those and the like.

A drawing is a block of TOP/README.md that begins with ```arrows. Its lines are `room -> room room`, top first, or `room` alone; the folder's
own files are the room `.`. `room ~> room` draws callbacks: the lower room's header defines a struct of function pointers that the higher
room fills in. Calls come from the objects of OPIPE_BUILD_DIR (build/dev); where that build is missing or old, they are skipped (status 77)."""
import os
import re
import sys
from collections import defaultdict

import includes
from lib import arrows, ceilings, declared, prose, tree

AIMS = {"partition": (30, 8), "runtime": (60, 7)}  # arrows, floors
FIELDS = 35
ASKS = 25
ENTRY_LINES = 150
DISSOLVED = ("state.h", "engine.h")
ROOM_LINES, ROOM_FILES = 8000, 40
PAGE_WORDS, PAGE_COLUMNS, CELL_FILES = 600, 120, 8
CLOCKS = 2  # one, and the search's incremental one
FILE_NAME = re.compile(r"\w\.(?:c|h|cu|cpp|hpp|py|sh|txt|md|json|cmake)\b")
WHOLE = r"(?:[A-Za-z_]\w*(?:\[[^][]*\])?(?:->|\.))+train\b(?!\s*(?:->|\.|\(|\[))"
TRAIN = re.compile(rf"\btrain\s*[!=]=\s*NULL|\bNULL\s*[!=]=\s*(?:{WHOLE}|train\b)|!\s*{WHOLE}|{WHOLE}\s*(?:\?|&&|\|\|)|"
                   rf"(?:&&|\|\||\b(?:if|while)\s*\()\s*{WHOLE}\s*\)|\bopi_(?:plan|session|request|rank|shape|lists|cut)\w*_trains\(")
TOPS_OF_WORDS = ("abi", "loader", "partition", "runtime", "plugins", "tests")
NO_PROSE = ("tests/data/", "tests/abi/v", "tests/bench/records/", "tests/lint/selftest.py", "tests/trained/expected/")


class House:
    """State shared by all checks. codes: C without comments of the library's files. rows: of the table."""

    def __init__(self):
        self.report = tree.Report("house")
        self.ceilings = ceilings.Ceilings(self.report)
        self.paths = arrows.sources()
        self.texts = {p: tree.text(p) for p in self.paths}
        self.codes = {p: tree.code(t) for p, t in self.texts.items()}
        self.rows = []
        build = os.environ.get("OPIPE_BUILD_DIR") or os.path.join(tree.ROOT, "build", "dev")
        self.calls, self.no_calls, self.unbuilt = arrows.calls(build)
        for path in self.unbuilt:
            print(f"{path}: its calls are left out, {build} does not build it")
        self.triples = [(s, t, "calls " + symbol) for s, t, symbol in self.calls or []]
        self.triples += arrows.includes(self.paths, includes.resolve)
        self.callbacks = list(arrows.callbacks(self.paths, self.codes))

    def row(self, what, aim, reached):
        self.rows.append((what, str(aim), str(reached)))

    def tops(self):
        return [top for top in arrows.TOPS if any(p.startswith(top + "/") for p in self.paths)]

    def rooms(self, top):
        return sorted({arrows.room(p, top) for p in self.paths} - {None})


# ---- arrows ----------------------------------------------------------------------------------------------------------------------


def check_drawing(house, top, drawing, found, calls):
    """The drawing of a folder against what there is."""
    path, rooms = top + "/README.md", house.rooms(top)
    if not drawing.found:
        house.report.add(path, 0, f"no drawing of {top}: house.py --draw {top} prints one")
        return
    for line, message in drawing.faults:
        house.report.add(path, line, message)
    for name in rooms:
        if name not in drawing.rooms:
            house.report.add(path, 0, f"the drawing lacks the room {name}")
    drawn = {name for arrow in drawing.arrows | drawing.callbacks for name in arrow} | set(drawing.rooms)
    for name in sorted(drawn - set(rooms)):
        house.report.add(path, 0, f"the drawing has a room {name}, which is not there")
    for (a, b), why in sorted(found.items()):
        if drawing.position(b) <= drawing.position(a):
            house.report.add(path, 0, f"{a} -> {b} goes up: {why[0]} ({len(why)} in all)")
        elif (a, b) not in drawing.arrows:
            house.report.add(path, 0, f"{a} -> {b} is not drawn: {why[0]} ({len(why)} in all)")
    for (a, b), why in sorted(calls.items()):
        if (a, b) not in drawing.callbacks:
            house.report.add(path, 0, f"the callbacks {a} ~> {b} are not drawn: {why[0]}")
    for a, b in sorted(drawing.callbacks - set(calls)):
        house.report.add(path, 0, f"the callbacks {a} ~> {b} are drawn and not there")
    partly = {arrows.room(path, top) for path in house.unbuilt}
    for a, b in sorted(drawing.arrows - set(found)):
        if house.no_calls is None and a not in partly and b not in partly:
            house.report.add(path, 0, f"{a} -> {b} is drawn and not there")


def check_arrows(house):
    for top in house.tops():
        found, rooms = arrows.between(house.triples, top), house.rooms(top)
        calls = {(a, b): why for (a, b), why in arrows.between(house.callbacks, top).items() if top != "abi"}
        page = top + "/README.md"
        drawing = arrows.Drawing(tree.text(page) if os.path.isfile(os.path.join(tree.ROOT, page)) else "")
        check_drawing(house, top, drawing, found, calls)
        ordered = [r for r in drawing.rooms if r in rooms]
        ordered = ordered + [r for r in rooms if r not in ordered] if drawing.found else arrows.order(rooms, found)
        cycles = [c for c in arrows.components(rooms, found) if len(c) > 1]
        if top in AIMS:
            for names in cycles:
                house.report.add(page, 0, f"a cycle: {' '.join(sorted(names))}")
        if house.no_calls:
            house.ceilings.unknown |= {f"arrows:{top}", f"floors:{top}"}
            house.row(f"{top}: arrows / up / floors", "", "not counted: no calls")
            continue
        n, up, deep = len(found) + len(calls), arrows.n_up(ordered, found), arrows.floors(ordered, found)
        mutual = sum((b, a) in found and a < b for a, b in found)
        aim = "%d / 0 / %d" % AIMS[top] if top in AIMS else "- / 0 / -"
        house.row(f"{top}: arrows / up / floors", aim, f"{n} / {up} / {deep}")
        house.row(f"{top}: rooms, in cycles, mutual pairs", "-, 0, 0", f"{len(rooms)}, {sum(map(len, cycles))}, {mutual}")
        if top in AIMS:
            house.ceilings.hold(f"arrows:{top}", n, AIMS[top][0], (page, 0))
            house.ceilings.hold(f"floors:{top}", deep, AIMS[top][1], (page, 0))


def draw(house, top):
    found, rooms = arrows.between(house.triples, top), house.rooms(top)
    ordered = arrows.order(rooms, found)
    print("```arrows")
    for at, name in enumerate(ordered):
        down = [b for b in ordered[at + 1:] if (name, b) in found]
        print(f"{name} -> {' '.join(down)}" if down else name)
    for a, b in sorted(arrows.between(house.callbacks, top) if top != "abi" else ()):
        print(f"{a} ~> {b}")
    print("```")
    for (a, b), why in sorted(found.items()):
        if ordered.index(b) < ordered.index(a):
            print(f"upward, not drawn: {a} -> {b}: {'; '.join(why[:3])} ({len(why)} in all)")


# ---- types and headers -------------------------------------------------------------------------------------------------------------


def check_fields(house):
    most = (0, "none")
    for path in house.paths + [p for p in tree.files((".c", ".h")) if p.startswith("plugins/")]:
        code = house.codes.get(path) or tree.code(tree.text(path))
        for struct in declared.structs(code):
            if struct.n_fields > FIELDS and not house.report.excepts(path, struct.name):
                house.ceilings.hold(f"fields:{struct.name}", struct.n_fields, FIELDS, (path, struct.line))
                most = max(most, (struct.n_fields, struct.name))
    house.row("fields of an internal struct", f"at most {FIELDS}", f"{most[0]} ({most[1]})" if most[0] else f"at most {FIELDS}")


def check_names(house):
    """Types that other files can see have one meaning in the library, and within each plugin; so have the library's prefixes of enums,
    which the enums of one folder may share."""
    libraries = defaultdict(list)
    for path in tree.files((".c", ".h")):
        if path.startswith("plugins/"):
            libraries["/".join(path.split("/")[:2])].append(path)
    libraries["library"] = [p for p in house.paths if not p.startswith("abi/cli/")]
    n_names, n_prefixes, n_local = 0, 0, 0
    for paths in libraries.values():
        names, prefixes = defaultdict(set), defaultdict(list)
        for path in paths:
            code = house.codes.get(path) or tree.code(tree.text(path))
            for name, line in declared.names(code):
                names[name].add((path, line))
            if paths is libraries["library"] and not path.startswith("abi/include/"):
                for prefix, line in declared.prefixes(code):
                    prefixes[prefix].append((path, line))
        for name, places in sorted(names.items()):
            files = sorted({path for path, _ in places})
            if len(files) > 1 and (name.startswith("opi") or any(f.endswith(".h") for f in files)):
                path, line = min(places)
                n_names += not house.report.excepts(path, name)
                house.report.add(path, line, f"the type {name} is also one of {', '.join(files[1:])}", name)
            elif len(files) > 1:
                n_local += paths is libraries["library"]
        for prefix, places in sorted(prefixes.items()):
            path, line = places[0]
            others = [place for place in places if os.path.dirname(place[0]) != os.path.dirname(path)]
            if others and any(p.endswith(".h") for p, _ in places):
                n_prefixes += 1
                house.report.add(path, line, f"the constants {prefix}* are also those of {others[0][0]}:{others[0][1]}", prefix)
    house.row("type names that are two things", 0, n_names)
    house.row("prefixes of enums that are two", 0, n_prefixes)
    house.row("names of types of several files, each its own", 0, n_local)
    house.ceilings.hold("local-types", n_local, 0)


def layer(path):
    parts = path.split("/")
    return parts[1] if parts[0] == "runtime" and len(parts) > 2 else None


def check_headers(house):
    layers = sorted({layer(p) for p in house.paths} - {None})
    longest = 0
    for name in layers:
        entry = f"runtime/{name}/{name}.h"
        if entry not in house.texts:
            house.report.add(f"runtime/{name}", 0, f"no entry header {name}.h")
            continue
        lines = house.texts[entry].count("\n")
        longest = max(longest, lines)
        if lines > ENTRY_LINES:
            house.report.add(entry, lines, f"an entry header of {lines} lines, at most {ENTRY_LINES}")
    for path in house.paths:
        if path.startswith("runtime/") and os.path.basename(path) in DISSOLVED:
            house.report.add(path, 1, "a header of everything: declare things where they belong")
    private = [f"{s}: {t}" for s, t, text in house.triples
               if text.startswith("includes ") and layer(t) and layer(t) != layer(s) and t != f"runtime/{layer(t)}/{layer(t)}.h"]
    house.row("lines of runtime's entry headers", f"at most {ENTRY_LINES}", longest or "none")
    house.row("runtime: includes of a layer's private headers", 0, len(private))
    house.ceilings.hold("private-includes", len(private), 0, found=private)


def check_rooms(house):
    sizes = defaultdict(lambda: [0, 0])
    for path, text in house.texts.items():
        if not path.startswith("abi/include/"):
            folder = os.path.dirname(path)
            sizes[folder][0] += text.count("\n")
            sizes[folder][1] += 1
    for folder, (lines, files) in sorted(sizes.items()):
        if lines > ROOM_LINES or files > ROOM_FILES:
            house.report.add(folder, 0, f"{lines} lines in {files} files, at most {ROOM_LINES} in {ROOM_FILES}")
    of_runtime = [size for folder, size in sizes.items() if folder.split("/")[0] == "runtime"] or [(0, 0)]
    house.row("runtime: largest room, lines / files", f"{ROOM_LINES} / {ROOM_FILES}",
              f"{max(lines for lines, _ in of_runtime)} / {max(files for _, files in of_runtime)}")


def check_asks(house):
    total, n_files = 0, 0
    for path in house.paths:
        if path.startswith(("abi/include/", "abi/cli/")):
            continue
        lines = [f"{path}:{number}" for number, line in enumerate(house.codes[path].splitlines(), 1)
                 if "train" in line for _ in TRAIN.finditer(line)]
        if lines:
            total += len(lines)
            n_files += 1
            house.ceilings.hold(f"asks:{path}", len(lines), 0, (path, 0), lines)
    house.row("questions whether a plan is for training", f"at most {ASKS}", f"{total} in {n_files} files")
    house.ceilings.hold("asks", total, ASKS)


def check_clocks(house):
    """Counts the clocks that house.txt names. One whose file has moved takes the new name by --write."""
    n = 0
    for path in house.ceilings.named("clock"):
        moved = [p for p in house.paths if os.path.basename(p) == os.path.basename(path) and p.split("/")[0] == path.split("/")[0]]
        if path in house.texts or len(moved) == 1:
            n += 1
            house.ceilings.hold(f"clock:{path if path in house.texts else moved[0]}", 1, 0)
        else:
            house.ceilings.unknown.add(f"clock:{path}")
            house.report.add(ceilings.PATH, 0, f"the clock {path} is not there: move or remove its line")
    house.row("clocks over lists or orders, named in house.txt", f"at most {CLOCKS}", n)


# ---- pages and words ---------------------------------------------------------------------------------------------------------------


def check_pages(house):
    words, columns, cells = [], [], []
    for path in tree.files(("README.md",)):
        if "/" not in path or os.path.basename(path) != "README.md":
            continue
        text = tree.text(path)
        n = len(arrows.FENCE.sub("", text).split())
        if n > PAGE_WORDS:
            words.append((n - PAGE_WORDS, f"{path}: {n} words, at most {PAGE_WORDS}"))
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > PAGE_COLUMNS:
                columns.append(f"{path}:{number}: {len(line)} columns, at most {PAGE_COLUMNS}")
            if line.startswith("|"):
                cells += [f"{path}:{number}: a cell of {k} files, at most {CELL_FILES}"
                          for k in (len(set(re.findall(r"[\w*/-]+" + FILE_NAME.pattern[2:], cell))) for cell in line.split("|"))
                          if k > CELL_FILES]
    words.sort(reverse=True)
    house.row(f"READMEs over {PAGE_WORDS} words, and by how many", "0, 0", f"{len(words)}, {sum(n for n, _ in words)}")
    house.row(f"their lines over {PAGE_COLUMNS} columns, cells of many files", "0, 0", f"{len(columns)}, {len(cells)}")
    house.ceilings.hold("readme-words", sum(n for n, _ in words), 0, found=[line for _, line in words])
    house.ceilings.hold("readme-columns", len(columns), 0, found=columns)
    house.ceilings.hold("readme-cells", len(cells), 0, found=cells)


def sentences():
    """{top folder: places} of sentences that open wrongly."""
    found = {top: [] for top in (*TOPS_OF_WORDS, "top")}
    for path in tree.files((*tree.C_ENDINGS, ".md", ".py", ".sh")):
        if path.startswith(NO_PROSE):
            continue
        top = path.split("/")[0]
        for line, sentence in prose.wrong(path, tree.text(path)):
            found[top if top in found else "top"].append(f"{path}:{line}: {sentence}")
    return found


def check_words(house):
    found = sentences()
    for top, lines in found.items():
        house.ceilings.hold(f"words:{top}", len(lines), 0, found=[f"house.py --words {top} names them"])
    house.row("sentences that open with What, Of, Those ...", "fewer", ", ".join(f"{t} {len(l)}" for t, l in found.items() if l) or 0)


def table(house):
    rows = [("what", "aim", "reached"), *house.rows]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for what, aim, reached in rows:
        print(f"{what:<{widths[0]}}  {aim:<{widths[1]}}  {reached}")


def main():
    house = House()
    if sys.argv[1:2] == ["--draw"]:
        for top in sys.argv[2:] or house.tops():
            draw(house, top)
        if house.no_calls:
            print(f"SKIP: calls are left out: {house.no_calls}")
        return
    if sys.argv[1:2] == ["--why"]:
        top, a, b = sys.argv[2:]
        print("\n".join(arrows.between(house.triples, top).get((a, b), ["no such arrow"])))
        return
    if sys.argv[1:2] == ["--words"]:
        found = sentences()
        print("\n".join(line for top in sys.argv[2:] or found for line in found[top]))
        return
    for check in (check_arrows, check_fields, check_names, check_headers, check_rooms, check_asks, check_clocks, check_pages, check_words):
        check(house)
    table(house)
    if sys.argv[1:2] == ["--write"]:
        house.ceilings.write()
        return
    for line in house.ceilings.left():
        print(f"{ceilings.PATH}: {line} (house.py --write)")
    if house.no_calls and not house.report.findings:
        print(f"SKIP: calls were not checked: {house.no_calls}")
        sys.exit(77)
    if house.no_calls:
        print(f"calls were not checked: {house.no_calls}")
    house.report.end()


if __name__ == "__main__":
    main()

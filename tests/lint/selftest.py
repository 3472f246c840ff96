#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks themselves: each is run on a small tree with one fault of every kind and must name them all, and on a clean one and must
be silent."""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SKIPPED = 77
SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n/* Words for a test. */\n"
LONG = "int f(int x) {\n" + "  x++;\n" * 120 + "  return x;\n}\n"
DEEP = ("int g(int x) {\n" + "  if (x) {\n" * 2 + "    for (;;)\n      while (x)\n        HASH_ITER(hh, x, y, z) {\n          x++;\n        }\n" +
        "  }\n" * 2 + "  return x;\n}\n")
CHAIN = ("int h(int x) {\n  for (;;) {\n    if (x) {\n      x = 1;\n" + "    } else if (x > 1) {\n      x = 2;\n" * 6 +
         "    } else {\n      do {\n        switch (x) {\n          case 1:\n            x = (struct s){{{{{1}}}}}.y;\n        }\n" +
         "      } while (x);\n    }\n  }\n}\n")
STYLED = ("int i(int x, int *y) {\n  for (int k = 0; k < x; ++k) {\n    if (y[k++] == 0)\n      *y++ = 1;\n    else\n      y[x--] = 2;\n  }\n" +
          "  while (x) {\n  }\n  if (x) {\n    /* Why. */\n    j();\n  }\n  if (x) {\n    j();\n  } else {\n    j();\n    j();\n  }\n" +
          "#ifdef A\n  if (x) {\n#else\n  if (y) {\n#endif\n    j();\n    j();\n  }\n  do {\n    j();\n  } while (x);\n  return x++;\n}\n")

# check -> (files of the faulty tree, what its report must name)
FAULTY = {
    "banned": ({"loader/wire/a.c": SPDX + "void f(char *p) { sprintf(p, \"x\"); free(p); abort(); pthread_create(p); }\n"},
               ["sprintf", "free", "abort", "opipe_thread_create"]),
    "commands": ({"README.md": "```\ncc -c a.c\n```\n```bash\nls\n```\n```sh\n./dev fly  # see ./dev build\n```\n",
                  "abi/guide/x.md": "```\nbin/onnx-pipe run model.onnx\n  $ ls\nonnx-pipe: run: no model\n```\n",
                  "dev": "verb=$1\ncase $verb in\n  build) verb_build ;;\n  asan | tsan) verb_sanitizer ;;\nesac\n",
                  "tests/install/pages.txt": "# x\nnot README.md \"./dev\" it flies\nnot README.md \"./dev\"\nfull README.md \"ls\" gone\n"},
                 ["README.md:2: a command in a block that is not labelled sh", "README.md:4: a block labelled bash", "README.md:8: ./dev fly",
                  "x.md:2: a command in a block", "x.md:3: a command", "pages.txt:3: not HOW PAGE", "README.md has no command that begins with ls"]),
    "heads": ({"loader/a.c": "int x;\n", "loader/b.c": "/* SPDX-License-Identifier: Apache-2.0 */\nint y;\n"},
              ["loader/a.c:1", "loader/b.c:2"]),
    "includes": ({"loader/a.c": SPDX + '#include "partition/plan/plan.h"\n', "partition/plan/plan.h": SPDX,
                  "loader/ops/b.c": SPDX + '#include "loader/passes/passes.h"\n', "loader/passes/passes.h": SPDX,
                  "plugins/backend-x/p.c": SPDX + '#include "loader/base/base.h"\n', "loader/base/base.h": SPDX,
                  "partition/lists/c.c": SPDX + '#include "partition/memory/m.h"\n#include "partition/plan/plan.h"\n', "partition/memory/m.h": SPDX,
                  "runtime/executor/d.c": SPDX + '#include "runtime/trace/v.h"\n', "runtime/trace/v.h": SPDX},
                 ["loader may not include partition/plan/plan.h", "loader/ops may not include loader/passes/passes.h",
                  "plugins/backend-x may not include loader/base/base.h", "partition/lists may not include partition/memory/m.h",
                  "runtime/executor may not include runtime/trace/v.h"]),
    "kinds": ({"runtime/a.c": SPDX + "int f(const opi_plan *plan) {\n  return opi_plan_rank(plan, 1, 0);\n}\n",
               "runtime/requests/steps.c": SPDX + "int g(const opi_plan *plan) {\n  return opi_plan_rank(plan, 1, 0);\n}\n"},
              ["runtime/a.c:4: takes the first replica"]),
    "links": ({"loader/README.md": "[here](gone.md) [there](README.md#nowhere)\n# Title\n",
               "runtime/x/a.c": SPDX}, ["gone.md", "#nowhere", "runtime/x"]),
    "operators": ({"loader/ops/a.c": SPDX + '#define ROW(name_) \\\n  { OPI_OP(name_), .infer = infer }\nstatic const opi_op ops[] = {\n'
                   '    {OPI_OP("Half"), .infer = infer},\n    ROW("Quarter"),\n    {OPI_OP("Gone"), .lift = lift},\n'
                   '    {OPI_OP("Whole"), .infer = infer, OPI_COLUMNS(NONE)},\n};\nconst opi_op_family opi_ops_a = {ops, 4};\n',
                   "loader/ops/b.c": SPDX + "const opi_op_family opi_ops_b = {rows, 1};\n",
                   "loader/passes/c.c": SPDX + 'int f(const opi_node *node) {\n  return strcmp(node->op, "Whole") == 0;\n}\n',
                   "loader/passes/d.c": SPDX + 'static const char *const list[] = {"x", "Gone"};\n',
                   "partition/e.c": SPDX + 'static const struct kind kinds[] = {{"Half", 1}};\n'},
                  ["row of Half", "row of Quarter", "loader/ops/b.c:3: a family without", "c.c:4: decides by the name Whole",
                   "d.c:3: decides by the name Gone", "e.c:3: decides by the name Half"]),
    "schedules": ({"plugins/schedule-fold/plugin.c": SPDX, "plugins/schedule-fold/ids.txt": "fold-1\nfold-2\n",
                   "plugins/schedule-line/plugin.c": SPDX,
                   "partition/a.c": SPDX + 'const char *const a[] = {"fold-2", "line:chunks=2", "fold"};\nenum { OPI_FOLD_1 };\n'},
                  ["a.c:3: names the schedule 'fold-2'", "a.c:3: names the schedule 'line'", "a.c:4: has a schedule's name"]),
    "nesting": ({"loader/a.c": SPDX + CHAIN + DEEP, "loader/b.c": SPDX + DEEP.replace("(int x)", "(int x, int (*y)(void))")},
                ["loader/a.c:34: g nests 5 levels", "loader/b.c:8: g nests 5 levels"]),
    "sizes": ({"loader/a.c": SPDX + LONG + "//" + "x" * 110 + "\n", "loader/b.c": SPDX + "\n" * 800},
              ["f has 123 lines", "112 columns", "802 lines"]),
    "spelling": ({"loader/a.c": SPDX + "/* May rec" + "ieve. */\nconst char *a = \"unex" + "pectd colo" + "r\";\n",
                  "loader/README.md": "# loader\n\nIts occur" + "ances.\n", "dev": "echo we" + "ired\n"},
                 ["loader/a.c:3: rec" + "ieve", "loader/a.c:4: unex" + "pectd", "loader/a.c:4: colo" + "r", "README.md:3: occur" + "ances",
                  "dev:1: we" + "ired"]),
    "style": ({"loader/a.c": SPDX + "void f(int x, int *y) {\n  if (x) {\n    g();\n  }\n  for (;;)\n    if (x)\n      g();\n" +
               "  if (x)\n    g();\n  else\n    g(1,\n      2);\n  while (x) /* why */ {\n    g(); /* so */\n  }\n  do\n    g();\n  while (x);\n" +
               "  for (int i = 0; i < x; i++, y--) {\n    (*y)++;\n    y[x].z--;\n  }\n}\n"},
              ["a.c:4: the body of if takes one line", "a.c:7: the body of for, or of its else, takes more", "a.c:10: the body of if, or of its else",
               "a.c:12: the body of else, or", "a.c:15: the body of while takes one line", "a.c:18: the body of do, or of its else, takes more",
               "a.c:21: x++ whose value", "a.c:21: x-- whose value", "a.c:22: x++ whose value", "a.c:23: x-- whose value"]),
    "words": ({"loader/a.c": SPDX + "/* TO" + "DO: later */\n// x = f(y);\nint x; \n\tint y;\n",
               "loader/README.md": "see issue 12\n"},
              ["work to do", "code in a comment", "blanks", "a tab", "number of an issue"]),
}
CLEAN = {"loader/a.c": SPDX + "int f(int x) {\n  return x; /* free(x) is said here, not called */\n}\n" + CHAIN + STYLED,
         "loader/ops/b.c": SPDX + 'static const opi_op ops[] = {\n    {OPI_OP("Gone"), .lift = lift},\n'
                           '    {OPI_OP("Whole"), .infer = infer, OPI_COLUMNS(NONE)},\n};\nconst opi_op_family opi_ops_b = {ops, 2};\n',
         "loader/ops/README.md": "# ops\n",
         "plugins/schedule-fold/plugin.c": SPDX, "plugins/schedule-fold/ids.txt": "fold-1\n",
         "plugins/schedule-fold/README.md": "# fold\n",
         "partition/a.c": SPDX + 'const char *const a[] = {"fold", "unfold-1"}; /* as "fold-1" */\n', "partition/README.md": "# partition\n",
         "loader/README.md": "# loader\n\n[top](../README.md#title)\n", "README.md": "# Title\n"}


TIDY = {"loader/a.c": SPDX + "#include <stdlib.h>\n#include <string.h>\nint f(const char *a, const char *b) {\n  char *p = malloc(4);\n"
                      "  free(p);\n  if (strcmp(a, b) == 0);\n    p[0] = 1;\n  return 0;\n}\n"}
TIDY_NAMES = ["loader/a.c:8: potentially unintended semicolon [bugprone-suspicious-semicolon]",
              "loader/a.c:9: Use of memory after it is freed [clang-analyzer-unix.Malloc]"]


def drawn(*lines):
    return "# drawn\n\n```arrows\n" + "\n".join(lines) + "\n```\n"


# A tree in order, and what becomes a fault of it: (name, files that differ, None: it goes, what the report must name). Its objects are built.
IN_ORDER = {
    "loader/README.md": drawn(". -> base", "base"),
    "loader/a.c": SPDX + '#include "loader/base/b.h"\nint opi_a(void);\nint opi_a(void) {\n  return opi_b();\n}\n',
    "loader/base/b.c": SPDX + '#include "loader/base/b.h"\nint opi_b(void) {\n  return 1;\n}\n',
    "loader/base/b.h": SPDX + "int opi_b(void);\nstruct opi_b_calls {\n  int (*call)(void *ctx);\n  void *ctx;\n};\n",
    "runtime/README.md": drawn("line"),
    "runtime/line/line.h": SPDX + "typedef struct opi_line opi_line;\nenum { OPI_END_A = 1, OPI_END_B };\n",
}
FIELDS = "struct opi_wide {\n  int a, *b, c[2];\n  struct {\n    int d, e;\n  } f;\n  int (*g)(int x, int y);\n" + "  int x;\n" * 29 + "%s};\n"
DISORDER = [
    ("a call upward", {"loader/base/b.c": SPDX + "int opi_a(void);\nint opi_b(void);\nint opi_b(void) {\n  return opi_a();\n}\n"},
     ["base -> . goes up: base/b.c: calls opi_a"]),
    ("an undrawn arrow", {"loader/README.md": drawn(".", "base")}, [". -> base is not drawn: a.c: calls opi_b (2 in all)"]),
    ("a drawing of old", {"loader/README.md": drawn(". -> base", "base -> graph", "graph"), "loader/graph/g.h": SPDX},
     ["base -> graph is drawn and not there"]),
    ("a drawing upward", {"loader/README.md": drawn("base -> .", ". -> base")}, [". -> base is drawn upward", ". -> base goes up"]),
    ("a pattern", {"loader/README.md": drawn("* -> *", ". -> base", "base", "base", "ops")},
     ["not a line of a drawing: * -> *", "base is drawn twice", "a room ops, which is not there"]),
    ("a room that is not drawn", {"loader/graph/g.h": SPDX}, ["lacks the room graph"]),
    ("no drawing", {"loader/README.md": "# loader\n"}, ["no drawing of loader"]),
    ("callbacks", {"loader/a.c": IN_ORDER["loader/a.c"] + "const struct opi_b_calls calls = {0};\n"}, ["callbacks base ~> . are not drawn"]),
    ("callbacks of old", {"loader/README.md": drawn(". -> base", "base", "base ~> .")}, ["base ~> . are drawn and not there"]),
    ("a cycle", {"runtime/README.md": drawn("line -> ring", "ring"), "runtime/line/line.h": SPDX + '#include "runtime/ring/ring.h"\n',
                 "runtime/ring/ring.h": SPDX + '#include "runtime/line/line.h"\n'}, ["a cycle: line ring"]),
    ("a type's name twice", {"loader/c.h": SPDX + "struct opi_line {\n  int x;\n};\n", "loader/base/c.h": SPDX + "typedef int opi_line;\n"},
     ["the type opi_line is also one of loader/c.h"]),
    ("a prefix twice", {"loader/c.h": SPDX + "typedef enum opi_way { OPI_END_LEFT, OPI_END_RIGHT } opi_way;\n"},
     ["the constants OPI_END_* are also those of runtime/line/line.h:4"]),
    ("a long header", {"runtime/line/line.h": SPDX + "\n" * 149}, ["line.h:151: an entry header of 151 lines"]),
    ("no entry header", {"runtime/line/line.h": None, "runtime/line/state.h": SPDX}, ["no entry header line.h", "a header of everything"]),
    ("a private header", {"runtime/README.md": drawn("ring -> line", "line"), "runtime/line/own.h": SPDX,
                          "runtime/ring/ring.h": SPDX + '#include "runtime/line/own.h"\n'}, ["private-includes: 1, at most 0"]),
    ("a large room", {"runtime/line/long.h": SPDX + "\n" * 8000, "loader/base/long.h": SPDX + "\n" * 8000},
     ["runtime/line:0: 8006 lines in 2 files", "loader/base:0: 8015 lines in 3 files"]),
    ("36 fields", {"loader/c.h": SPDX + FIELDS % "  int y;\n  int z;\n"}, ["loader/c.h:3: fields:opi_wide: 37, at most 35"]),
    ("a long page", {"loader/README.md": IN_ORDER["loader/README.md"] + "word " * 599 + "\n" + "x" * 121 + "\n| " +
                     " ".join(f"{c}.c" for c in "abcdefghi") + " |\n"},
     ["readme-words: 13, at most 0", "loader/README.md: 613 words", "readme-columns: 2, at most 0", "a cell of 9 files"]),
    ("a question", {"loader/c.h": SPDX + "static inline int c(struct p *x) {\n  return x->train ? 1 : !x->plan->train;\n}\n"},
     ["asks:loader/c.h: 2, at most 0"]),
    ("openings", {"loader/c.c": SPDX + "/* Of that which is kept, three are. What is this?\n * Is it kept, it stays. */\n" +
                  'const char *c = "those that are kept";\n'}, ["words:loader: 4, at most 0"]),
    ("a ceiling", {"tests/lint/house.txt": "words:loader 1\n"}, ["house.txt:1: not NAME CEILING REASON"]),
]


def built(root):
    """Objects of all C sources of this tree, with the compile commands that made them."""
    commands = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(".c"):
                output = os.path.relpath(path, root).replace("/", "-") + ".o"
                commands.append({"directory": root + "/build", "file": path, "command": f"cc -I{root} -o {output} -c {path}"})
    os.makedirs(root + "/build")
    for entry in commands:
        subprocess.run(entry["command"].split(), cwd=entry["directory"], check=True, stderr=subprocess.DEVNULL)
    with open(root + "/build/compile_commands.json", "w", encoding="utf-8") as file:
        json.dump(commands, file)


def partly(root):
    """A build without one of a folder's sources, and without a folder."""
    with open(root + "/build/compile_commands.json", encoding="utf-8") as file:
        commands = [entry for entry in json.load(file) if "left" not in entry["file"]]
    with open(root + "/build/compile_commands.json", "w", encoding="utf-8") as file:
        json.dump(commands, file)


def aged(root):
    built(root)
    os.utime(root + "/loader/a.c", (4e9, 4e9))


def house():
    """How many faults house.py does not see, or sees where none is."""
    cases = [(name, {**IN_ORDER, **files}, built, 1, named) for name, files, named in DISORDER]
    cases += [("a clean tree", {**IN_ORDER}, built, 0, ["loader: arrows / up / floors", "1 / 0 / 2"]),
              ("35 fields", {**IN_ORDER, "loader/c.h": SPDX + FIELDS % ""}, built, 0, []),
              ("no build", {**IN_ORDER}, None, SKIPPED, ["SKIP: calls were not checked: no build in"]),
              ("a source that is not built", {**IN_ORDER, "loader/left.c": SPDX}, lambda root: (built(root), partly(root)), 0,
               ["loader/left.c: its calls are left out"]),
              ("a folder that is not built", {**IN_ORDER, "loader/left/a.c": SPDX}, lambda root: (built(root), partly(root)), 1,
               ["lacks the room left", "calls were not checked", "does not build loader/left/a.c"]),
              ("an old build", {**IN_ORDER}, aged, SKIPPED, ["SKIP: calls were not checked", "is older than"]),
              ("a low figure", {**IN_ORDER, "loader/c.h": SPDX + "/* What is this for. */\n", "tests/lint/house.txt": "words:loader 9 there were more\n"}, built, 0,
               ["words:loader: 1, its ceiling falls from 9"])]
    wrong = 0
    for name, files, prepare, wanted, named in cases:
        status, report = run("house", {path: content for path, content in files.items() if content is not None}, prepare=prepare)
        for text in named:
            if text not in report:
                wrong += 1
                print(f"house, {name}: does not name {text!r}:\n{report}")
        if status != wanted:
            wrong += 1
            print(f"house, {name}: status {status}, not {wanted}:\n{report}")
    status, report = run("house", cases[-1][1], before=["--write"], prepare=built)
    if status != 0 or "falls" in report:
        wrong += 1
        print(f"house --write does not lower a ceiling:\n{report}")
    return wrong


def run(check, files, exceptions="", before=None, prepare=None):
    """Exit status and report of a check on a tree of these files. {ROOT} in a file is where the tree stands. before: arguments of a run of
    the same script before it. prepare: called with the folder of the tree before both."""
    with tempfile.TemporaryDirectory() as root:
        files = dict(files)
        files["tests/lint/exceptions.txt"] = exceptions
        for path, content in files.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(content.replace("{ROOT}", root))
        if prepare:
            prepare(root)
        for arguments in ([] if before is None else [before]) + [[]]:
            done = subprocess.run([sys.executable, os.path.join(HERE, check + ".py"), *arguments], capture_output=True, text=True, check=False,
                                  env={**os.environ, "OPIPE_LINT_ROOT": root, "OPIPE_BUILD_DIR": os.path.join(root, "build")})
        return done.returncode, done.stdout + done.stderr


def compiled(files):
    """These files with the compile commands of their C sources."""
    commands = [{"directory": "{ROOT}", "file": "{ROOT}/" + path, "command": f"cc -c {path}"} for path in files if path.endswith(".c")]
    return {**files, "build/compile_commands.json": json.dumps(commands)}


def main():
    wrong = 0
    FAULTY["slow/tidy"] = (compiled(TIDY), TIDY_NAMES)
    for check, (files, named) in FAULTY.items():
        status, report = run(check, files)
        if status == SKIPPED:
            print(f"{check}: {report.strip()}")
            continue
        for text in named:
            if status != 1 or text not in report:
                wrong += 1
                print(f"{check}: status {status}, does not name {text!r}:\n{report}")
        status, report = run(check, compiled({"loader/a.c": SPDX + "int f(void) {\n  return 1;\n}\n"}) if check == "slow/tidy" else CLEAN)
        if status != 0:
            wrong += 1
            print(f"{check}: status {status} on a clean tree:\n{report}")
    status, report = run("style", FAULTY["style"][0], before=["--fix", "loader"])
    if status != 0:
        wrong += 1
        print(f"style --fix leaves:\n{report}")
    status, report = run("heads", CLEAN, "heads loader/gone.c it was needed once\n")
    if status != 1 or "no longer needed" not in report:
        wrong += 1
        print(f"an exception that is not needed is let pass:\n{report}")
    wrong += house()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

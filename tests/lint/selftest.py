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
SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n/* What this is for. */\n"
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
    "kinds": ({"runtime/a.c": SPDX + "int f(const opi_plan *plan) {\n  return plan->train == NULL ? 0 : opi_plan_rank(plan, 1, 0);\n}\n",
               "runtime/requests/steps.c": SPDX + "int g(const opi_plan *plan) {\n  return plan->train != NULL;\n}\n"},
              ["runtime/a.c:4: asks whether", "runtime/a.c:4: takes the first replica"]),
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
    "sizes": ({"loader/a.c": SPDX + LONG + "//" + "x" * 110 + "\n", "loader/b.c": SPDX + "\n" * 800,
               "loader/README.md": "x\n" * 61},
              ["f has 123 lines", "112 columns", "802 lines", "61 lines"]),
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


def run(check, files, exceptions="", before=None):
    """Exit status and report of a check on a tree of these files. {ROOT} in a file is where the tree stands. before: arguments of a run of
    the same script before it."""
    with tempfile.TemporaryDirectory() as root:
        files = dict(files)
        files["tests/lint/exceptions.txt"] = exceptions
        for path, content in files.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(content.replace("{ROOT}", root))
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
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

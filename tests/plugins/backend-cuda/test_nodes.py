#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=600 always
"""The standard's node tests that must pass (tests/nodes), on the CUDA backend's doubles: which of their
rows the device lacks is the committed table fallback.txt, at most a quarter of them; with the CPU for those
all rows pass.

    test_nodes.py --write    makes the table anew
"""
import collections
import os
import re
import subprocess
import sys
import tempfile

BUILD = os.environ["OPIPE_BUILD_DIR"]
SOURCE = os.environ["OPIPE_SOURCE_DIR"]
SHARED = os.environ.get("OPIPE_SHARED_DIR", "")
NODES = os.path.join(SOURCE, "tests", "nodes")
DOUBLES = os.path.join(BUILD, "tests", "cuda")
TABLE = os.path.join(SOURCE, "tests", "plugins", "backend-cuda", "fallback.txt")
MOST = 0.25  # of the rows


def fetch():
    data = os.path.join(SOURCE, "build", "nodes")
    archive = os.path.join(SHARED, "models/backend_tests/onnx-v1.22.0-backend-test-data.tar.xz")
    command = [sys.executable, os.path.join(NODES, "fetch.py"), data, "--archive", archive]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found = done.stdout.strip() if done.returncode == 0 else ""
    return found if found.endswith("onnx-1.23.2") else None  # the table is of this version


def run(data, options, lists):
    """{row: what was said of it}, of rows that failed; and how many passed."""
    done = subprocess.run(
        [os.path.join(BUILD, "tests", "nodes", "run_nodes"), "-b", "cuda", "-p", os.path.join(DOUBLES, "plugins"),
         "-o", options, "-x", os.path.join(NODES, "names_random.txt"), data, *lists],
        env=dict(os.environ, OPIPE_CUDA_PATH=DOUBLES), capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        print(done.stdout[-2000:], done.stderr[-2000:])
        sys.exit(1)
    failed = dict(re.findall(r"^FAIL (\S+): (.*)$", done.stdout, flags=re.M))
    passed = sum(int(n) for n in re.findall(r": (\d+) passed", done.stdout))
    return failed, passed


def table_of(lacking, n_rows):
    """A line per operator: rows that need the CPU for it, and why the first of them does."""
    rows = collections.defaultdict(list)
    for row, said in sorted(lacking.items()):
        operator, why = re.match(r"node '.*?' \((\w+)\): (.*?); nothing runs it instead", said).groups()
        rows[operator].append((row, why))
    lines = ["# Operators of the rows of tests/nodes that the CUDA backend leaves to the CPU: rows, the first one, why.",
             "# Made by test_nodes.py --write; %d of %d rows." % (len(lacking), n_rows)]
    for operator in sorted(rows):
        row, why = rows[operator][0]
        lines.append("%-24s %3d  %s  %s" % (operator, len(rows[operator]), row, why))
    return "\n".join(lines) + "\n"


def main():
    if not os.path.exists(os.path.join(DOUBLES, "libcuda.so.1")):
        print("SKIP: the doubles of CUDA need a C++ compiler at build")
        return 77
    data = fetch()
    if data is None:
        print("SKIP: the data of the node tests cannot be had")
        return 77
    lists = [os.path.join(NODES, name) for name in ("names_min.txt", "names_further.txt")]
    failed, passed = run(data, "fallback=none", lists)
    lacking = {row: said for row, said in failed.items() if "nothing runs it instead" in said}
    table = table_of(lacking, passed + len(failed))
    if "--write" in sys.argv:
        with open(TABLE, "w", encoding="utf-8") as file:
            file.write(table)
    status = 0
    for row in sorted(set(failed) - set(lacking)):
        print("FAILED: %s: %s" % (row, failed[row]))
        status = 1
    with open(TABLE, encoding="utf-8") as file:
        if file.read() != table:
            print("FAILED: %s is not what is found (test_nodes.py --write):\n%s" % (TABLE, table))
            status = 1
    if len(lacking) > MOST * (passed + len(failed)) or not lacking:
        print("FAILED: %d of %d rows fall back, at most %g of them may" % (len(lacking), passed + len(failed), MOST))
        status = 1
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
        names.write("\n".join(sorted(lacking)) + "\n")
        names.flush()
        failed, passed = run(data, "fallback=cpu", [names.name])
    for row, said in sorted(failed.items()):
        print("FAILED with the CPU: %s: %s" % (row, said))
    print("%d rows fall back, %d of them pass so" % (len(lacking), passed))
    return 1 if failed or passed != len(lacking) else status


if __name__ == "__main__":
    sys.exit(main())

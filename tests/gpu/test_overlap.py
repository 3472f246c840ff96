#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: always
"""overlap.py: shares of time of small traces that were written by hand."""
import json
import os
import sys
import tempfile

from overlap import overlap

failed = []


def lane(rank, name):
    return {"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": name}}


def box(rank, start, end, cat="F", kind=0):
    return {"name": cat, "cat": cat, "ph": "X", "pid": kind, "tid": rank, "ts": start, "dur": end - start}


def expect(what, events, two, busy):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": [lane(0, "rank 0"), lane(1, "rank 1"), lane(2, "rank 0, sums"), *events]}, file)
        try:
            found = overlap(path)
        except ValueError as why:
            found = str(why).rsplit(": ", maxsplit=1)[-1]
    wanted = "no program was measured" if two is None else {"two_at_once": two, "busy": busy}
    same = found == wanted if two is None or isinstance(found, str) else (
        abs(found["two_at_once"] - two) < 1e-9 and len(found["busy"]) == len(busy) and
        all(abs(a - b) < 1e-9 for a, b in zip(found["busy"], busy)))
    if not same:
        failed.append("%s: %s, not %s" % (what, found, wanted))


expect("one after the other", [box(0, 0, 5), box(1, 5, 10)], 0, [0.5, 0.5])
expect("half of the time both", [box(0, 10, 20), box(1, 15, 30), box(0, 25, 30, "B")], 0.5, [0.75, 0.75])
expect("a rank that does nothing", [box(0, 3, 4)], 0, [1, 0])
expect("a rank's own boxes are no two", [box(0, 0, 6), box(0, 4, 8), box(1, 9, 10)], 0, [0.8, 0.1])
expect("sums, updates and the plan do not count",
       [box(0, 0, 4), box(1, 4, 8), box(2, 0, 8, "reduce"), box(0, 4, 80, "update"), box(1, 0, 4, "F", 1)], 0, [0.5, 0.5])
expect("nothing", [box(0, 0, 4, "update")], None, None)
for line in failed:
    print("FAILED:", line)
sys.exit(1 if failed else 0)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processor time of `plan` beside `inspect` of the same file, for seven shapes of graph, of 100,000 nodes and of 200,000: best
of some tries, the verbs in turns.

usage: planning.py [--tries N] [--only SHAPE] [--record]
"""
import argparse
import datetime
import os
import tempfile

import shapes
from command import SOURCE
from test_limits import write

SIZES, SECONDS = (100000, 200000), 100
VERBS = {"inspect": ["inspect"], "1 stage": ["plan", "--stages", "1"], "4 stages": ["plan", "--stages", "4"]}


def measure(path, tries):
    """Least seconds by verb, or why there are none."""
    best = {}
    for _ in range(tries):
        for verb, options in VERBS.items():
            seconds, problem = shapes.processor_seconds([*options, path], 1, SECONDS)
            if problem:
                raise SystemExit(f"{verb} {path}: {problem}")
            best[verb] = min(seconds, best.get(verb, seconds))
    return best


def row_of(shape, tries):
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for n in SIZES:
            times.append(measure(write(folder, f"{n}.onnx", shape(n)), tries))
    cells = [shape.__name__]
    for t in times:
        cells.append(" / ".join(f"{t[verb]:.2f}" for verb in VERBS))
        cells.append(", ".join(f"{t[verb] / t['inspect']:.2f}" for verb in VERBS if verb != "inspect"))
    cells.append(", ".join(f"{times[1][verb] / times[0][verb]:.2f}" for verb in VERBS))
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--only")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    today = datetime.date.today().isoformat()
    lines = [f"# Planning of large graphs, {today}", "",
             f"Seconds of processor time (user and system), best of {args.tries}: inspect / plan with 1 stage / with 4 stages; beside them,",
             "plan over inspect. The last column: 200,000 nodes over 100,000, of the three.", "",
             "| shape | 100,000 nodes | over inspect | 200,000 nodes | over inspect | twice the nodes |", "|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for shape in shapes.PLANNED:
        if args.only in (None, shape.__name__):
            lines.append(row_of(shape, args.tries))
            print(lines[-1], flush=True)
    if args.record:
        with open(os.path.join(SOURCE, "tests", "bench", "records", f"{today}-planning.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

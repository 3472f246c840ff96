#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processor time of `plan` beside `inspect` of the same file, for seven shapes of graph, of 100,000 nodes and of 200,000: best
of some tries, the verbs in turns. And what thousands of devices take: lowered, proven, played, decided by `--auto`.

usage: planning.py [--tries N] [--only SHAPE|devices] [--record]
"""
import argparse
import datetime
import os
import tempfile

import shapes
from command import DONE, SOURCE, run
from test_limits import write

SIZES, SECONDS = (100000, 200000), 100
VERBS = {"inspect": ["inspect"], "1 stage": ["plan", "--stages", "1"], "4 stages": ["plan", "--stages", "4"]}

ORDER = ["interleaved:chunks=4", "--ranks", "64", "--microbatches", "512"]
LOAD = ["--cost", "F=10,I=10,W=10", "--load", "send=25MiB,stash=400MiB,gradient=2GiB,sums=2,tensor=25MiB"]
GPT = ["plan", "--auto", "--hypothetical", "--arch", "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048,type=fp16", "--batch", "1536"]
# Name, most seconds and MiB that it may take (0: no limit), command.
DEVICES = (
    ("64 ranks, 512 micro-batches, 4 chunks: lowered and proven", 5, 0, ["schedule", "check", *ORDER]),
    ("the same, played on 64 devices", 6, 0, ["schedule", "simulate", *ORDER, *LOAD, "--cluster", "selene:nodes=8"]),
    ("the same, tensor groups of 8, 6 copies: 3,072 devices", 10, 2048,
     ["schedule", "simulate", *ORDER, *LOAD, "--cluster", "selene:nodes=384", "--tensor", "8", "--copies", "6"]),
    ("`--auto`: 96 layers on 384 devices", 60, 0, [*GPT, "--cluster", "selene:nodes=48"]),
    ("`--auto`: 96 layers on 3,072 devices", 600, 0, [*GPT, "--cluster", "selene:nodes=384"]),
)


def rows_of_devices():
    """Seconds by the clock and the largest resident set of each, once. The play alone: what the second row has more."""
    before = None
    for what, seconds, mib, command in DEVICES:
        result = run(*command, timeout=2 * seconds + 60)
        if result.status != DONE:
            raise SystemExit(f"{' '.join(command)}: {result.status}: {result.err[-400:]}")
        most = f"{seconds} s" + (f", {mib} MiB" if mib else "")
        late = result.seconds > seconds or 0 < mib < result.peak_mib
        yield f"| {what} | {result.seconds:.2f} | {result.peak_mib} | {most} | {'MISSED' if late else 'held'} |"
        if "played on 64" in what:
            alone = max(result.seconds - before, 0)
            yield f"| of that, the play | {alone:.2f} | | 1 s | {'MISSED' if alone > 1 else 'held'} |"
        before = result.seconds


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

    def add(*more):
        lines.extend(more)
        print("\n".join(more), flush=True)

    for shape in shapes.PLANNED:
        if args.only in (None, shape.__name__):
            add(row_of(shape, args.tries))
    if args.only in (None, "devices"):
        add("", "## Many devices", "", f"By the clock, once, on {os.cpu_count()} cores; the whole command, which starts, reads the cluster and prints.", "",
            "| what | seconds | MiB | at most | |", "|---|---|---|---|---|")
        for row in rows_of_devices():
            add(row)
    if args.record:
        with open(os.path.join(SOURCE, "tests", "bench", "records", f"{today}-planning.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

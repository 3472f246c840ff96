#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests of a small model through the package onnxpipe and in C (bench_hosts.c), one stage on one thread, in alternating turns of one
run: medians of calls, and what Python adds. The aim is for bound tensors: at most 10 us more than C, judged by the best round of each,
since whoever shares the cores adds to the others. Beside it: fresh numpy arrays, fresh objects with __dlpack__, futures, coroutines.

usage: python.py --build DIR [--rounds N] [--record]
exit status: 1 where results differ or the aim is missed
"""
import argparse
import asyncio
import datetime
import os
import statistics
import subprocess
import sys
import time

import numpy as np
import onnxpipe
from inference import machine, quiet, show, spread

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "data", "gpt_8block", "model.onnx")
TOKENS, ROUNDS, TURN_SECONDS, MOST, AIM_US = (1, 8), 25, 0.1, 4000, 10.0
BOUND = "bound tensors"


class Lent:
    """An array behind DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def ways(session, ids):
    """{way: a function of one request}."""
    bound = session.bind({"input_ids": ids})
    loop = asyncio.new_event_loop()

    async def several(n):
        for _ in range(n):
            await session.arun({"input_ids": ids})

    return {
        BOUND: bound.run,
        "fresh numpy arrays": lambda: session.run({"input_ids": ids.copy()}),
        "fresh DLPack tensors": lambda: session.run({"input_ids": Lent(ids.copy())}),
        "submit().result()": lambda: session.submit({"input_ids": ids}).result(),
        "await arun()": lambda: loop.run_until_complete(several(1)),
    }


def turn(run):
    """Median microseconds of a call, of so many as take TURN_SECONDS."""
    times = []
    run()
    end = time.perf_counter() + TURN_SECONDS
    while len(times) < MOST and time.perf_counter() < end:
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


def measure(build, tokens, rounds):
    """{way: [us of each round]}, C first, and whether the ways give the same."""
    program = [os.path.join(build, "tests", "bench", "bench_hosts"), "turns", os.path.join(build, "lib", "libonnxpipe.so"), MODEL, "1", str(tokens)]
    environment = dict(os.environ, OPIPE_PLUGIN_PATH=os.path.join(build, "lib", "onnx-pipe"))
    ids = (np.arange(tokens, dtype=np.int64)[None, :] * 7 + 3) % 300
    plan = onnxpipe.Plan(onnxpipe.Model(MODEL), stages=1, devices=[onnxpipe.Device("cpu", threads=1)], dims={"input_ids.0": 1, "input_ids.1": tokens})
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as c, onnxpipe.Session(plan) as session:

        def in_c():
            c.stdin.write("\n")
            c.stdin.flush()
            return float(c.stdout.readline())

        python = ways(session, ids)
        wanted = session.run({"input_ids": ids})["logits"].copy()
        results = [python[way]() for way in python if way != "await arun()"]
        same = all(np.array_equal(result["logits"], wanted) for result in results)
        found = {"C": [], **{way: [] for way in python}}
        for i in range(rounds):
            quiet()
            turns = [("C", in_c), *((way, lambda run=run: turn(run)) for way, run in python.items())]
            for way, one in turns if i % 2 == 0 else reversed(turns):
                found[way].append(one())
        c.stdin.close()
    return found, same


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    about = machine()
    day = datetime.date.today().isoformat()
    lines = [f"# Through Python, {day}", "", f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}; onnxpipe {onnxpipe.Library().version}, "
             f"Python {sys.version.split()[0]}, numpy {np.__version__}", "",
             f"A call of gpt_8block, 1 stage x 1 thread: us, min / median / max of {args.rounds} rounds; others' load {os.getloadavg()[0]:.1f}. More than C: in each round.", "",
             "| tokens | way | us | more than C |", "|---|---|---|---|"]
    failed = False
    for tokens in TOKENS:
        found, same = measure(args.build, tokens, args.rounds)
        for way, us in found.items():
            more = [mine - its for mine, its in zip(us, found["C"])]
            lines.append(f"| {tokens} | {way} | {show(spread(us), 1)} | {'-' if way == 'C' else show(spread(more), 1)} |")
        added = min(found[BOUND]) - min(found["C"])
        failed = failed or not same or added > AIM_US
        lines += [] if same else [f"{tokens} tokens: results differ"]
        lines.append(f"| {tokens} | aim: {BOUND}, at most {AIM_US:g} us more, best round of each | {added:.1f} | {'held' if added <= AIM_US else 'MISSED'} |")
    print("\n".join(lines))
    if args.record:
        with open(os.path.join(HERE, "records", f"{day}-python.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=1800 label=full
"""Reading, binding and planning grow no faster than the graph, and planning takes a few times what reading and binding
take: graphs of 200,000 nodes against the same of 100,000, in processor time of the command, best of some tries; and a million
initialisers in bounded memory. Twice the nodes of something quadratic take four times as long; the limits leave room for a
machine that others use. Figures: `./dev bench planning`."""
import sys
import tempfile

import shapes
from command import SANITIZED, Count, need_command, run
from test_limits import weights, write

SIZES = (100000, 200000)
MOST_RATIO, MOST_OF_INSPECT, MOST_SECONDS, MOST_MIB = 2.8, 3, 100, 400
MILLION_SECONDS = 3  # of processor time; about 1.2 where nothing else runs
TRIES, ROUNDS = 3, 3  # on a machine that others use, too


def measure(paths, verbs):
    """Processor time of each verb for both sizes; and why there is none, or None."""
    times = {}
    for verb, options in verbs:
        for n in SIZES:
            times[verb, n], problem = shapes.processor_seconds([*options, paths[n]], TRIES, MOST_SECONDS)
            if problem:
                return times, problem
    return times, None


def too_much(times):
    """Which of two limits is exceeded, or None."""
    small, large = SIZES
    for verb in sorted({verb for verb, _ in times}):
        ratio = times[verb, large] / times[verb, small]
        if ratio > MOST_RATIO:
            return f"{verb}: {ratio:.2f} times for twice the nodes, more than {MOST_RATIO}"
        of_inspect = times[verb, large] / times["inspect", large]
        if of_inspect > MOST_OF_INSPECT:
            return f"{verb}: {of_inspect:.2f} times the time of inspect, more than {MOST_OF_INSPECT}"
    return None


def compare(count, folder, shape):
    paths = {n: write(folder, f"{n}.onnx", shape(n)) for n in SIZES}
    verbs = [("inspect", ["inspect"])]
    if shape in shapes.PLANNED:
        verbs += [(f"plan --stages {stages}", ["plan", "--stages", str(stages)]) for stages in (1, 4)]
    for _ in range(ROUNDS):
        times, problem = measure(paths, verbs)
        if problem is None:
            problem = too_much(times)
        if problem is None:
            break
    print(f"{shape.__name__}: " + ", ".join(f"{verb} {n}: {seconds:.2f} s" for (verb, n), seconds in times.items()))
    count.check(shape.__name__, problem)


def million(count, path):
    result = run("inspect", path, timeout=MOST_SECONDS)
    seconds, problem = shapes.processor_seconds(["inspect", path], TRIES, MOST_SECONDS)
    problem = result.broken(MOST_SECONDS, MOST_MIB) or problem
    if problem is None and seconds > MILLION_SECONDS:
        problem = f"{seconds:.2f} s of processor time, more than {MILLION_SECONDS}"
    count.check("a million initialisers", problem)
    print(f"a million initialisers: {seconds or 0:.2f} s, {result.peak_mib} MiB")


def main():
    need_command()
    count = Count()
    if SANITIZED:
        print("SKIP: a sanitizer's processor time says nothing")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        for shape in (*shapes.PLANNED, shapes.constants):
            compare(count, folder, shape)
        million(count, write(folder, "million.onnx", weights(1000000)))
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

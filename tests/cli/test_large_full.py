#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900 label=full serial
"""Reading and binding grow no faster than the graph: graphs of 200,000 nodes against the same of 100,000, in processor
time of the command, best of some tries; and a million initialisers in bounded memory."""
import os
import resource
import struct
import sys
import tempfile

from command import SANITIZED, Count, need_command, run
from test_limits import weights, write
from wire import FLOAT, graph, model, node, tensor, value

MOST_RATIO, MOST_SECONDS, MOST_MIB = 2.3, 100, 400
X, Y = value("x", ["batch", 4]), value("y", ["batch", 4])
ZERO = struct.pack("<4f", 0, 0, 0, 0)


def chain(n):
    return [node("Relu", "x" if i == 0 else f"v{i}", f"v{i + 1}") for i in range(n - 1)] + [node("Relu", f"v{n - 1}", "y")], []


def skips(n):
    """Every node reads the one before it and one from the first half."""
    names = ["x"] + [f"v{i}" for i in range(1, n)] + ["y"]
    return [node("Add", f"{names[i]} {names[i // 2]}", names[i + 1]) for i in range(n)], []


def biased(n):
    """An initialiser for every node."""
    nodes = [node("Add", f"{'x' if i == 0 else f'v{i}'} w{i}", "y" if i == n - 1 else f"v{i + 1}") for i in range(n)]
    return nodes, [tensor(f"w{i}", FLOAT, [4], ZERO) for i in range(n)]


def constants(n):
    """All but the last are folded."""
    nodes = [node("Neg", f"{'c' if i == 0 else f'v{i}'}", f"v{i + 1}") for i in range(n - 1)]
    return [*nodes, node("Add", f"x v{n - 1}", "y")], [tensor("c", FLOAT, [4], ZERO)]


def star(n):
    """One value that everybody reads, and one node that reads everybody."""
    return [*(node("Relu", "x", f"v{i}") for i in range(n - 1)),
            node("Sum", " ".join(f"v{i}" for i in range(n - 1)), "y")], []


def mixed(n):
    """Blocks of a product, a bias, an activation and a residual sum."""
    nodes, inits, last = [], [tensor("m", FLOAT, [4, 4], ZERO * 4)], "x"
    for i in range(n // 4):
        out = "y" if i == n // 4 - 1 else f"r{i}"
        nodes += [node("MatMul", f"{last} m", f"p{i}"), node("Add", f"p{i} b{i}", f"s{i}"),
                  node("Relu", f"s{i}", f"a{i}"), node("Add", f"a{i} {last}", out)]
        inits.append(tensor(f"b{i}", FLOAT, [4], ZERO))
        last = out
    return nodes, inits


def processor_seconds(path, tries):
    best = None
    for _ in range(tries):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = run("inspect", path, timeout=MOST_SECONDS)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        problem = result.broken(MOST_SECONDS, 4096) or (f"status {result.status}: {result.err[-300:]}" if result.status else None)
        if problem:
            return problem, 0
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = spent if best is None else min(best, spent)
    return None, best


def compare(count, folder, shape):
    tries, problem, ratio = 3, None, 0
    paths = []
    for n in (100000, 200000):
        nodes, inits = shape(n)
        paths.append(write(folder, f"{n}.onnx", model(graph(nodes, [X], [Y], inits))))
    for _ in range(3):  # on a machine that others use, too
        times = []
        for path in paths:
            problem, seconds = processor_seconds(path, tries)
            times.append(seconds)
            if problem:
                break
        ratio = times[1] / times[0] if not problem else 0
        if problem or ratio <= MOST_RATIO:
            break
    print(f"{shape.__name__}: {ratio:.2f} times the processor time" if not problem else shape.__name__)
    count.check(shape.__name__, problem or (f"{ratio:.2f} times, more than {MOST_RATIO}" if ratio > MOST_RATIO else None))


def main():
    need_command()
    count = Count()
    if SANITIZED:
        print("SKIP: a sanitizer's processor time says nothing")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        for shape in (chain, skips, biased, constants, star, mixed):
            compare(count, folder, shape)
        result = run("inspect", write(folder, "million.onnx", weights(1000000)), timeout=MOST_SECONDS)
        count.check("a million initialisers", result.broken(MOST_SECONDS, MOST_MIB) or (result.err if result.status else None))
        print(f"a million initialisers: {result.seconds:.1f} s, {result.peak_mib} MiB")
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

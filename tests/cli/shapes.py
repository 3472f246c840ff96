# SPDX-License-Identifier: Apache-2.0
"""Shapes of large graphs: functions from a number of nodes to a model's bytes; and what the command spends on a file."""
import os
import resource
import struct
import sys

from command import DATA, run

sys.path.insert(0, os.path.join(DATA, "attacks"))
from wire import FLOAT, graph, model, node, tensor, value  # noqa: E402

X, Y = value("x", ["batch", 4]), value("y", ["batch", 4])
ZERO = struct.pack("<4f", 0, 0, 0, 0)


def whole(nodes, inits=(), outputs=(Y,)):
    return model(graph(nodes, [X], outputs, inits))


def chain(n):
    return whole([node("Relu", "x" if i == 0 else f"v{i}", f"v{i + 1}") for i in range(n - 1)] + [node("Relu", f"v{n - 1}", "y")])


def skips(n):
    """Every node reads the one before it and one from the first half."""
    names = ["x"] + [f"v{i}" for i in range(1, n)] + ["y"]
    return whole([node("Add", f"{names[i]} {names[i // 2]}", names[i + 1]) for i in range(n)])


def biased(n):
    """An initialiser for every node."""
    nodes = [node("Add", f"{'x' if i == 0 else f'v{i}'} w{i}", "y" if i == n - 1 else f"v{i + 1}") for i in range(n)]
    return whole(nodes, [tensor(f"w{i}", FLOAT, [4], ZERO) for i in range(n)])


def constants(n):
    """All but the last are folded."""
    nodes = [node("Neg", f"{'c' if i == 0 else f'v{i}'}", f"v{i + 1}") for i in range(n - 1)]
    return whole([*nodes, node("Add", f"x v{n - 1}", "y")], [tensor("c", FLOAT, [4], ZERO)])


def gathered(n, last, outputs=(Y,)):
    return whole([*(node("Relu", "x", f"v{i}") for i in range(n - 1)), last(" ".join(f"v{i}" for i in range(n - 1)))], (), outputs)


def star(n):
    """One value that everybody reads, and one node that reads everybody."""
    return gathered(n, lambda names: node("Sum", names, "y"))


def concat(n):
    """The same with a node that keeps them side by side."""
    return gathered(n, lambda names: node("Concat", names, "y", axis=1), [value("y", ["batch", 4 * (n - 1)])])


def outputs(n):
    """Every node makes an output."""
    return whole([node("Relu", "x", f"y{i}") for i in range(n)], (), [value(f"y{i}", ["batch", 4]) for i in range(n)])


def blocks(n):
    """Blocks of a product, a bias, an activation and a residual sum."""
    nodes, inits, last = [], [tensor("m", FLOAT, [4, 4], ZERO * 4)], "x"
    for i in range(n // 4):
        out = "y" if i == n // 4 - 1 else f"r{i}"
        nodes += [node("MatMul", f"{last} m", f"p{i}"), node("Add", f"p{i} b{i}", f"s{i}"),
                  node("Relu", f"s{i}", f"a{i}"), node("Add", f"a{i} {last}", out)]
        inits.append(tensor(f"b{i}", FLOAT, [4], ZERO))
        last = out
    return whole(nodes, inits)


PLANNED = (chain, biased, skips, star, concat, outputs, blocks)


def processor_seconds(arguments, tries, most_seconds):
    """The least of some tries, and why there is none, or None."""
    best = None
    for _ in range(tries):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = run(*arguments, timeout=most_seconds)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        problem = result.broken(most_seconds, 4096) or (f"status {result.status}: {result.err[-300:]}" if result.status else None)
        if problem:
            return None, problem
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = spent if best is None else min(best, spent)
    return best, None

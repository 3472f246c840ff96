#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""GPT-2 small, trained with AdamW on four ranks: caps that a cut by hand fits are met, what a refusal calls the smallest
cap is accepted, and both are found quickly. The weights are a sparse file: planning reads none."""
import os
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in (("..", "cli"), ("..", "data", "attacks"), ("..", "nodes")):
    sys.path.insert(0, os.path.join(HERE, *folder))
from command import DONE, REFUSED, SANITIZED, SOURCE, Count, need_command, run  # noqa: E402
from names import fields, varint  # noqa: E402
from wire import blob, each, num  # noqa: E402

GRAPH, WEIGHTS, DATA_IN = 7, 5, (4, 7, 9, 13)
PAGE, MIB = 4096, 1 << 20
OPTIONS = ["--train", "--loss", "cross-entropy:logits=logits,labels=input_ids", "--optimizer", "adamw:lr=1e-4",
           "--bind", "batch=8", "--bind", "seq=128", "--microbatches", "8", "--ranks", "4"]
BY_HAND = "add_4;add_37;layer_norm_24"
SECONDS = 60 if SANITIZED else 30  # a search that went astray takes minutes


def again(number, value):
    return num(number, value) if isinstance(value, int) else blob(number, value)


def dims_of(tensor):
    for number, value in fields(tensor):
        if number == 1 and isinstance(value, int):
            yield value
        at = 0
        while number == 1 and not isinstance(value, int) and at < len(value):
            size, at = varint(value, at)
            yield size


def without_data(graph):
    """The graph with its empty fp32 weights in a file of zeros, and the file's size."""
    size, out = 0, b""
    for number, value in fields(graph):
        if number == WEIGHTS and not any(n in DATA_IN for n, _ in fields(value)):
            length = 4
            for dim in dims_of(value):
                length *= dim
            places = {"location": "weights", "offset": str(size), "length": str(length)}
            value += each(13, [blob(1, key) + blob(2, text) for key, text in places.items()]) + num(14, 1)
            size += -(-length // PAGE) * PAGE
        out += again(number, value)
    return out, size


def write(folder):
    path = os.path.join(folder, "model.onnx")
    with open(os.path.join(SOURCE, "tests", "bench", "graphs", "gpt2_small.onnx"), "rb") as file:
        model = file.read()
    with open(path, "wb") as file:
        for number, value in fields(model):
            if number == GRAPH:
                value, size = without_data(value)
            file.write(again(number, value))
    with open(os.path.join(folder, "weights"), "wb") as file:
        file.truncate(size)
    return path


def plan(path, schedule, cap, *more):
    """Every rank has a cap of its own."""
    caps = 4 * ["--device", f"cpu,memory={cap}"]
    return run("plan", path, *OPTIONS, "--schedule", schedule, *caps, *more)


def problem_of(result, status):
    broken = result.broken(SECONDS, 4096)
    return broken or (None if result.status == status else f"status {result.status}: {result.err[-300:]}")


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder)
        count.check("by hand", problem_of(plan(path, "1f1b", 860 * MIB, "--cut", BY_HAND), DONE))
        for mib in (900, 880, 860):
            count.check(f"{mib} MiB", problem_of(plan(path, "1f1b", mib * MIB), DONE))
        for schedule in ("1f1b", "zbv", "interleaved:chunks=2", "chimera"):
            refused = plan(path, schedule, 300 * MIB)
            count.check(f"{schedule} in 300 MiB", problem_of(refused, REFUSED))
            stated = re.search(r"smallest cap found feasible is (\d+) bytes", refused.err)
            count.check(f"{schedule}, its smallest cap", None if stated else refused.err[-300:])
            if stated:
                count.check(f"{schedule} in that", problem_of(plan(path, schedule, int(stated.group(1))), DONE))
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

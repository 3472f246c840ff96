#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120 serial
"""A model with 6 GiB of external weights (a sparse file) is inspected in under a second and under
150 MiB: weights are located, not read."""
import os
import sys
import tempfile

from command import DATA, DONE, SANITIZED, Count, need_command, run

sys.path.insert(0, os.path.join(DATA, "attacks"))
from wire import FLOAT, graph, model, node, outside, value  # noqa: E402

WIDTH, LAYERS = 8192, 24
MATRIX = WIDTH * WIDTH * 4


def big(folder):
    nodes, weights, last = [], [], "x"
    for i in range(LAYERS):
        entries = {"location": "w.bin", "offset": str(i * MATRIX), "length": str(MATRIX)}
        weights.append(outside(f"w{i}", FLOAT, [WIDTH, WIDTH], **entries))
        nodes.append(node("MatMul", f"{last} w{i}", f"h{i}", name=f"layer{i}"))
        last = f"h{i}"
    ends = [value("x", ["batch", WIDTH])], [value(last, ["batch", WIDTH])]
    path = os.path.join(folder, "model.onnx")
    with open(path, "wb") as file:
        file.write(model(graph(nodes, *ends, weights)))
    with open(os.path.join(folder, "w.bin"), "wb") as file:
        file.truncate(LAYERS * MATRIX)
    return path


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        path = big(folder)
        run("inspect", path)
        result = run("inspect", path)
    problem = result.broken(10 if SANITIZED else 1, 150)
    if not problem and result.status != DONE:
        problem = f"status {result.status}: {result.err[:300]}"
    count.check(f"6 GiB in {result.seconds:.2f} s and {result.peak_mib} MiB", problem)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

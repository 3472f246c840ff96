#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the model of test_fallback_command.sh, whose products of three operands the CUDA backend lacks, and data to train
it by: fallback_model.py MODEL.onnx."""
import os
import random
import struct
import sys

sys.path.insert(0, os.path.join(os.environ["OPIPE_SOURCE_DIR"], "tests", "data", "attacks"))
from wire import FLOAT, floats, graph, model, node, tensor, value  # noqa: E402

ROWS, DEEP, SAMPLES = 3, 4, 4


def npy(path, shape, numbers):
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }" % (tuple(shape),)
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + floats(*numbers))


def main(path):
    draw = random.Random(7)

    def some(*shape):
        n = 1
        for size in shape:
            n *= size
        return [draw.uniform(-1, 1) for _ in range(n)]

    nodes = [
        node("Mul", "x w", "h", "scaled"),
        node("Einsum", "h h u", "s", "scores", equation="bij,bij,ij->bi"),
        node("Einsum", "s s c", "p", "shares", equation="bi,bi,i->bi"),
        node("Tanh", "p", "y", "squashed"),
    ]
    inits = [tensor("w", FLOAT, [ROWS, DEEP], floats(*some(ROWS, DEEP))),
             tensor("u", FLOAT, [ROWS, DEEP], floats(*some(ROWS, DEEP))),
             tensor("c", FLOAT, [ROWS], floats(*some(ROWS)))]
    with open(path, "wb") as file:
        file.write(model(graph(nodes, [value("x", ["batch", ROWS, DEEP])], [value("y", ["batch", ROWS])], inits)))
    folder = os.path.dirname(path)
    npy(os.path.join(folder, "x.npy"), [SAMPLES, ROWS, DEEP], some(SAMPLES, ROWS, DEEP))
    npy(os.path.join(folder, "t.npy"), [SAMPLES, ROWS], some(SAMPLES, ROWS))


if __name__ == "__main__":
    main(sys.argv[1])

# SPDX-License-Identifier: Apache-2.0
"""A small perceptron, y [batch, 3] of x [batch, 6], and data to train it with. A weight of it is read twice, and
there is a way around a layer."""
import math
import os
import struct
import sys
import tempfile

from command import DATA, Count, need_command

sys.path.insert(0, os.path.join(DATA, "attacks"))
import wire  # noqa: E402

ROWS = 16
FLOAT16, BFLOAT16 = 10, 16


def numbers(n, seed):
    return [math.sin(2.3 * i * i + seed) for i in range(n)]


def packed(kind, values):
    """As a tensor of that type holds them."""
    if kind == FLOAT16:
        return struct.pack(f"<{len(values)}e", *values)
    if kind == BFLOAT16:
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}f", *values)


def weight(name, shape, kind=wire.FLOAT, seed=1.0):
    return wire.tensor(name, kind, shape, packed(kind, [0.4 * x for x in numbers(math.prod(shape), seed)]))


def weights(kind=wire.FLOAT):
    ends = [("fc1.weight", [6, 8]), ("fc1.bias", [8]), ("shared.weight", [8, 8]), ("mid.weight", [8, 8]), ("fc2.weight", [8, 3]),
            ("fc2.bias", [3])]
    return [weight(name, shape, kind, seed) for seed, (name, shape) in enumerate(ends)]


def nodes():
    steps = ["MatMul x fc1.weight", "Add fc1.bias", "Tanh", "MatMul shared.weight", "Relu", "MatMul mid.weight", "Tanh",
             "MatMul shared.weight", "Add h4", "MatMul fc2.weight", "Add fc2.bias"]
    made, before = [], ""
    for i, step in enumerate(steps):
        op, _, inputs = step.partition(" ")
        name = "y" if i == len(steps) - 1 else f"h{i}"
        made.append(wire.node(op, f"{before} {inputs}", name, name))
        before = name
    return made


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)
    return path


def write_model(path, its_nodes=None, its_weights=None, kind=wire.FLOAT, more=b""):
    body = wire.graph(its_nodes or nodes(), [wire.value("x", ["batch", 6], kind)], [wire.value("y", ["batch", 3], kind)],
                      weights(kind) if its_weights is None else its_weights)
    return write(path, wire.model(body, more=more))


def array(name, kind, shape, values):
    """A serialised TensorProto, which holds every type."""
    return wire.tensor(name, kind, shape, packed(kind, values))


def write_data(folder, kind=wire.FLOAT, spoiled=()):
    """`spoiled`: rows of x that are NaN. The arguments that name the files."""
    x = numbers(ROWS * 6, 5.0)
    for row in spoiled:
        x[row * 6] = math.nan
    paths = [write(os.path.join(folder, "x.pb"), array("x", kind, [ROWS, 6], x)),
             write(os.path.join(folder, "t.pb"), array("t", wire.FLOAT, [ROWS, 3], numbers(ROWS * 3, 7.0)))]
    return ["--data", "x=" + paths[0], "--data", "t=" + paths[1], "--loss", "mse:output=y,target=t"]


def check(*parts):
    """Each part with a count and a folder of its own; the exit status."""
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            os.mkdir(os.path.join(folder, part.__name__))
            part(count, os.path.join(folder, part.__name__))
    return count.finish()

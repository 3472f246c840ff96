#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""train --data: the model says which axis of an array holds the samples; an input without the batch is given once, by --data
or by --pin. Micro-batches train as the whole does, and as a model does that has everything along axis 0."""
import json
import os
import random
import struct
import sys
import tempfile

from command import DATA, DONE, REFUSED, SHARED, USAGE, Count, need_command, run

sys.path.insert(0, os.path.join(DATA, "attacks"))
from wire import FLOAT, INT64, floats, graph, longs, model, node, tensor, value  # noqa: E402

SAMPLES, BATCH, PLANES, WIDE, GROUPS = 12, 6, 3, 4, 5
numbers = random.Random(7)
WEIGHTS = [tensor(name, FLOAT, [WIDE, WIDE], floats(*(numbers.uniform(-1, 1) for _ in range(WIDE * WIDE)))) for name in ("a.weight", "b.weight")]
AXES = [tensor("first", INT64, [1], longs(0)), tensor("second", INT64, [1], longs(1))]


def drawn(n):
    return [numbers.uniform(-1, 1) for _ in range(n)]


ROWS = {name: [drawn(WIDE) for _ in range(SAMPLES)] for name in ("x", "t")}
PLACES = [[drawn(WIDE) for _ in range(SAMPLES)] for _ in range(PLANES)]  # [PLANES, SAMPLES, WIDE]
GAIN, HEAT = [drawn(WIDE) for _ in range(GROUPS)], [0.75]


def net(axis):
    """`places` have the batch along `axis`; `gain` [groups, wide] and `heat`, one number, have none."""
    nodes = [node("ReduceSum", "places second" if axis == 0 else "places first", "p", "p", keepdims=0), node("ReduceSum", "gain first", "g", "g", keepdims=0),
             node("Add", "x p", "xp", "xp"), node("Mul", "xp g", "xg", "xg"), node("MatMul", "xg a.weight", "h", "h"), node("Tanh", "h", "th", "th"),
             node("MatMul", "th b.weight", "m", "m"), node("Mul", "m heat", "y", "y")]
    places = ["batch", PLANES, WIDE] if axis == 0 else [PLANES, "batch", WIDE]
    inputs = [value("gain", ["groups", WIDE]), value("places", places), value("x", ["batch", WIDE]), value("heat", [1] if axis == 0 else [])]
    return model(graph(nodes, inputs, [value("y", ["batch", WIDE])], WEIGHTS + AXES), version=17)


def flat(nested):
    return [nested] if isinstance(nested, float) else [number for part in nested for number in flat(part)]


def write_npy(path, shape, content):
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + floats(*flat(content)))
    return path


def train(path, data, *more):
    sources = [part for name, file in data.items() for part in ("--data", f"{name}={file}")]
    return run("train", path, *sources, "--loss", "mse:output=y,target=t", "--batch", str(BATCH), "--steps", "3", "--optimizer", "sgd:lr=0.1",
               "--json", *more)


def steps_of(result):
    return [(step["loss"], step["gradient_norm"]) for step in json.loads(result.out)["steps"]]


def near(a, b):
    return len(a) == len(b) and all(abs(x - y) <= 2e-5 * abs(y) for one, other in zip(a, b) for x, y in zip(one, other))


def expect(count, what, result, wanted):
    good = result.status == DONE and near(steps_of(result), wanted)
    said = f"{result.status}: {result.err[-300:]}" if result.status != DONE else f"{steps_of(result)}, not {wanted}"
    count.check(what, None if good else said)


def refused(count, what, result, status, said):
    good = result.status == status and said in result.err
    count.check(what, None if good else f"{result.status}: {result.err[-300:]}")


def own_model(count, folder):
    path = {axis: os.path.join(folder, f"axis{axis}.onnx") for axis in (0, 1)}
    for axis, name in path.items():
        with open(name, "wb") as file:
            file.write(net(axis))
    turned = [[PLACES[plane][row] for plane in range(PLANES)] for row in range(SAMPLES)]
    file = {name: write_npy(os.path.join(folder, f"{name}.npy"), shape, content) for name, shape, content in (
        ("x", [SAMPLES, WIDE], ROWS["x"]), ("t", [SAMPLES, WIDE], ROWS["t"]), ("gain", [GROUPS, WIDE], GAIN), ("heat", [1], HEAT), ("warm", [], HEAT),
        ("places", [PLANES, SAMPLES, WIDE], PLACES), ("turned", [SAMPLES, PLANES, WIDE], turned),
        ("fewer", [PLANES, SAMPLES - 1, WIDE], [plane[1:] for plane in PLACES]))}
    rest = {name: file[name] for name in ("x", "t", "gain", "heat")}
    other = {**rest, "heat": file["warm"]}
    whole = train(path[0], {"places": file["turned"], **rest}, "--ranks", "1")
    count.check("along axis 0", None if whole.status == DONE else f"{whole.status}: {whole.err[-300:]}")
    if whole.status != DONE:
        return
    wanted = steps_of(whole)
    for way in (["--ranks", "1"], ["--stages", "2", "--microbatches", "3"], ["--stages", "3", "--microbatches", "4"]):
        expect(count, f"along axis 1, {' '.join(way)}", train(path[1], {"places": file["places"], **other}, *way, "--reference"), wanted)
    pinned = {"places": file["places"], "x": file["x"], "t": file["t"]}
    pins = ["--pin", f"gain={file['gain']}", "--pin", "heat=0.75"]
    expect(count, "pinned", train(path[1], pinned, *pins, "--stages", "2", "--microbatches", "2", "--reference"), wanted)
    expect(count, "named", train(path[1], {"places": file["places"], **other}, "--batch-dim", "batch", "--microbatches", "2"), wanted)
    refused(count, "fewer samples", train(path[1], {"places": file["fewer"], **other}), REFUSED,
            f"array 'x': it has {SAMPLES} samples, array 'places' has {SAMPLES - 1}")
    refused(count, "neither given nor pinned", train(path[1], pinned, *pins[:2]), USAGE, "the data has no input 'heat': give it by --data or --pin")


def trial(count):
    folder = os.path.join(SHARED, "trials", "batch_on_axis_1")
    if not os.path.isdir(folder):
        count.skip("../shared/trials/batch_on_axis_1 is not there")
        return
    common = ["train", os.path.join(folder, "model.onnx"), "--data", folder, "--loss", "cross-entropy:logits=logits,labels=labels", "--batch", "6",
              "--steps", "2", "--json"]
    whole = run(*common, "--ranks", "1")
    split = run(*common, "--stages", "2", "--microbatches", "3", "--reference")
    count.check("trial, whole", None if whole.status == DONE else f"{whole.status}: {whole.err[-300:]}")
    if whole.status == DONE:
        expect(count, "trial", split, steps_of(whole))


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        own_model(count, folder)
    trial(count)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=200
"""Losses that the file's graph makes: micro-batches, on ranks and replicas, train on the loss of the whole mini-batch, or the
plan is refused by the node that keeps them from adding up to it. A node that mixes the batch in front of a loss is refused
too; a node that the loss does not need is not."""
import json
import os
import random
import struct
import sys
import tempfile

from command import CHECK_FAILED, DATA, DONE, REFUSED, Count, need_command, run

sys.path.insert(0, os.path.join(DATA, "attacks"))
from wire import FLOAT, INT64, floats, graph, longs, model, node, tensor, value  # noqa: E402

ROWS, IN, WIDE, OUT = 8, 3, 4, 3
numbers = random.Random(5)


def drawn(n):
    return floats(*(numbers.uniform(-1, 1) for _ in range(n)))


WEIGHTS = [tensor("a.weight", FLOAT, [IN, WIDE], drawn(IN * WIDE)), tensor("b.weight", FLOAT, [WIDE, OUT], drawn(WIDE * OUT))]
NET = [node("MatMul", "x a.weight", "p", "p"), node("Tanh", "p", "h", "h"), node("MatMul", "h b.weight", "y", "y")]
SQUARES = [node("Sub", "y t", "d", "d"), node("Mul", "d d", "sq", "sq")]
DATA_OF = {  # name: type, shape of a sample, content
    "x": (FLOAT, [IN], drawn(ROWS * IN)),
    "t": (FLOAT, [OUT], drawn(ROWS * OUT)),
    "far": (FLOAT, [OUT], floats(*[1e25] * (ROWS * OUT))),
    "m": (FLOAT, [], floats(1, 0, 1, 1, 0, 1, 0.5, 0)),
    "l": (INT64, [], longs(2, -1, 0, 1, -1, -1, 1, 2)),
    "k": (INT64, [], longs(0, 1, 2, 2, -1, 1, 0, -1)),
}
SCALARS = {"zero": 0, "two": 2.0, "third": 1 / 3, "temperature": 0.3}
CLASSES = {"classes": [0.5, 2.0, 1.25]}
LONGS = {"ignored": [[], -1], "none": [[], 0], "last": [[1], 1], "front": [[1], 0], "axes": [[1], 0]}


def entropy(labels, out, reduction="mean"):
    return node("SoftmaxCrossEntropyLoss", f"y {labels}", out, out, reduction=reduction, ignore_index=-1)


def reduce(op, x, out):
    return node(op, x, out, out, keepdims=0)


DECOMPOSED = [  # as exporters write a cross entropy out
    node("LogSoftmax", "y", "log", "log", axis=1), node("Equal", "l ignored", "drop", "drop"),
    node("Where", "drop none l", "safe", "safe"), node("Unsqueeze", "safe last", "at", "at"),
    node("GatherElements", "log at", "picked", "picked", axis=1), node("Squeeze", "picked last", "own", "own"),
    node("Neg", "own", "cost", "cost"), node("Where", "drop zero cost", "kept", "kept"), reduce("ReduceSum", "kept", "upper"),
    node("Not", "drop", "valid", "valid"), node("Cast", "valid", "ones", "ones", to=1), reduce("ReduceSum", "ones", "lower"),
    node("Div", "upper lower", "loss", "loss")]
MASKED = [reduce("ReduceMean", "sq", "whole"), node("ReduceMean", "sq", "row", "row", axes=[1], keepdims=0),
          node("Mul", "row m", "rm", "rm"), reduce("ReduceSum", "rm", "upper"), reduce("ReduceSum", "m", "lower")]
QUOTIENT = node("Div", "upper lower", "ratio", "ratio")

# The rows of the batch as a number, n: as TorchScript's exporter writes them, and as dynamo's does.
SCRIPTED = [node("Shape", "x", "shape", "shape"), node("Gather", "shape none", "rows", "rows", axis=0), node("Cast", "rows", "n", "n", to=1)]
DYNAMO = [node("Shape", "x", "shape", "shape", start=0, end=1), node("Squeeze", "shape", "rows", "rows"), node("Cast", "rows", "n", "n", to=1)]
ELEMENTS = [node("Shape", "sq", "shape", "shape"), node("ReduceProd", "shape", "rows", "rows", keepdims=0), node("Cast", "rows", "n", "n", to=1)]
DIVERGENCE = [node("LogSoftmax", "y", "log", "log", axis=1), node("Softmax", "t", "soft", "soft", axis=1), node("Log", "soft", "logt", "logt"),
              node("Sub", "logt log", "ratios", "ratios"), node("Mul", "soft ratios", "kl", "kl"), reduce("ReduceSum", "kl", "e")]
SUM = [*SQUARES, reduce("ReduceSum", "sq", "e")]

# Nodes behind the network, and whether micro-batches of it add up; else the node that is named, or what is said.
LOSSES = {
    "mean": ([*SQUARES, reduce("ReduceMean", "sq", "loss")], None),
    "twice the mean": ([*SQUARES, reduce("ReduceMean", "sq", "e"), node("Mul", "two e", "loss", "loss")], None),
    "mean and mean of weights": ([*SQUARES, reduce("ReduceMean", "sq", "e"), node("Mul", "a.weight a.weight", "ww", "ww"),
                                  reduce("ReduceSum", "ww", "w"), node("Add", "e w", "loss", "loss")], None),
    "sum": ([*SQUARES, reduce("ReduceSum", "sq", "loss")], None),
    "two sums": ([*SQUARES, reduce("ReduceSum", "sq", "e"), entropy("l", "f", "sum"), node("Sub", "f e", "loss", "loss")], None),
    "sums side by side": ([*SQUARES, node("ReduceSum", "sq axes", "e", "e", keepdims=0), node("Mul", "e third", "g", "g"),
                           reduce("ReduceSum", "g", "loss")], None),
    "masked": ([*SQUARES, *MASKED, node("Div", "upper lower", "loss", "loss")], None),
    "masked, scaled": ([*SQUARES, *MASKED, QUOTIENT, node("Div", "ratio two", "n", "n"), node("Neg", "n", "loss", "loss")], None),
    "cross entropy": ([entropy("l", "loss")], None),
    "cross entropy, wrapped": ([entropy("l", "e"), node("Unsqueeze", "e front", "u", "u"), reduce("ReduceSum", "u", "s"),
                                node("Mul", "s third", "loss", "loss")], None),
    "cross entropy, decomposed": (DECOMPOSED, None),
    "cross entropy by sample": ([entropy("l", "e", "none"), reduce("ReduceMean", "e", "loss")], None),
    "root": ([*SQUARES, reduce("ReduceMean", "sq", "e"), node("Sqrt", "e", "loss", "root")], "root"),
    "largest": ([*SQUARES, reduce("ReduceMax", "sq", "loss")], "loss"),
    "two cross entropies": ([entropy("l", "e"), entropy("k", "f"), node("Add", "e f", "loss", "joined")], None),
    "three heads, weighted": ([*SQUARES, entropy("l", "e"), entropy("k", "f"), reduce("ReduceMean", "sq", "g"), node("Mul", "e third", "e3", "e3"),
                               node("Sub", "e3 f", "ef", "ef"), node("Mul", "g two", "g2", "g2"), node("Add", "g2 ef", "loss", "joined")], None),
    "heads side by side": ([entropy("l", "e"), entropy("k", "f"), node("Unsqueeze", "e front", "e1", "e1"), node("Unsqueeze", "f front", "f1", "f1"),
                            node("Concat", "e1 f1", "both", "both", axis=0), reduce("ReduceMean", "both", "loss")], None),
    "weighted classes beside a mean": ([*SQUARES, node("SoftmaxCrossEntropyLoss", "y k classes", "e", "e", reduction="mean", ignore_index=-1),
                                        reduce("ReduceMean", "sq", "f"), node("Add", "e f", "loss", "joined")], None),
    "sum and mean": ([*SQUARES, reduce("ReduceMean", "sq", "e"), reduce("ReduceSum", "sq", "f"), node("Add", "e f", "loss", "joined")], None),
    "ratio and mean": ([*SQUARES, *MASKED, QUOTIENT, node("Add", "ratio whole", "loss", "joined")], None),
    "ratio and cross entropy, and a penalty": ([*SQUARES, *MASKED, QUOTIENT, entropy("l", "e"), node("Add", "ratio e", "re", "re"),
                                                node("Mul", "a.weight a.weight", "ww", "ww"), reduce("ReduceSum", "ww", "w"),
                                                node("Add", "re w", "loss", "joined")], None),
    "a mask's count, clamped": ([*SQUARES, *MASKED, node("Max", "lower two", "most", "most"), node("Div", "upper most", "loss", "loss")], None),
    "a mask's count and a bit": ([*SQUARES, *MASKED, node("Add", "lower third", "more", "more"), node("Div", "upper more", "loss", "loss")], None),
    "a mean over the mask's mean": ([*SQUARES, *MASKED, reduce("ReduceMean", "rm", "all"), reduce("ReduceMean", "m", "part"),
                                     node("Div", "all part", "loss", "loss")], None),
    "nothing where nothing counts": ([*SQUARES, *MASKED, QUOTIENT, node("Greater", "lower zero", "any", "any"),
                                      node("Where", "any ratio zero", "kept", "kept"), node("Add", "kept whole", "loss", "joined")], None),
    "batchmean, scripted": ([*DIVERGENCE, *SCRIPTED, node("Div", "e n", "loss", "loss")], None),
    "batchmean, dynamo's": ([*DIVERGENCE, *DYNAMO, node("Div", "e n", "loss", "loss")], None),
    "distillation": ([*DIVERGENCE, *SCRIPTED, node("Div", "e n", "d", "d"), node("Mul", "d third", "d3", "d3"), entropy("l", "f"),
                      node("Add", "d3 f", "loss", "joined")], None),
    "over all elements": ([*SUM, *ELEMENTS, node("Div", "e n", "loss", "loss")], None),
    "times one over the rows": ([*SUM, *DYNAMO, node("Reciprocal", "n", "part", "part"), node("Mul", "part e", "loss", "loss")], None),
    "a mean times the rows": ([*SQUARES, reduce("ReduceMean", "sq", "e"), *SCRIPTED, node("Mul", "e n", "loss", "loss")], None),
    "rows by sample, then over the rows": ([*SQUARES, node("ReduceSum", "sq last", "row", "row", keepdims=0), reduce("ReduceSum", "row", "e"), *SCRIPTED,
                                            node("Div", "e n", "o", "o"), node("Mul", "two o", "loss", "loss")], None),
    "a ratio beside a sum over the rows": ([*SUM, *MASKED, QUOTIENT, *DYNAMO, node("Div", "e n", "o", "o"), node("Sub", "ratio o", "loss", "joined")], None),
    "a ratio over the rows": ([*SQUARES, *MASKED, node("Max", "lower two", "most", "most"), node("Div", "upper most", "q", "q"), *SCRIPTED,
                               node("Div", "q n", "loss", "loss")], None),
    "a mean over the rows again": ([*SQUARES, reduce("ReduceMean", "sq", "e"), *SCRIPTED, node("Div", "e n", "loss", "again")], "again"),
    "the rows added": ([*SUM, *SCRIPTED, node("Add", "e n", "loss", "more")], "more"),
    "the mask's share of the rows": ([*SQUARES, *MASKED, *SCRIPTED, node("Div", "lower n", "part", "part"), node("Mul", "whole part", "loss", "joined")], "joined"),
    "over the root of the rows": ([*SUM, *SCRIPTED, node("Sqrt", "n", "r", "r"), node("Div", "e r", "loss", "loss")], "constant 'r' depends on the length"),
    "activations over the rows": ([*SCRIPTED, node("Div", "y n", "z", "z"), node("Sub", "z t", "d", "d"), node("Mul", "d d", "sq", "sq"),
                                   reduce("ReduceSum", "sq", "loss")], "attribute 'alpha' depends on the length"),
    "labels over the rows": ([*SCRIPTED, node("Div", "t n", "z", "z"), node("Sub", "y z", "d", "d"), node("Mul", "d d", "sq", "sq"),
                              reduce("ReduceSum", "sq", "loss")], "constant 'n' depends on the length"),
    "a root beside a mean": ([*SQUARES, *MASKED, reduce("ReduceMean", "sq", "e"), node("Sqrt", "e", "r", "root"), node("Add", "r whole", "loss", "joined")], "root"),
    "two means multiplied": ([*SQUARES, reduce("ReduceMean", "sq", "e"), reduce("ReduceMean", "y", "f"), node("Mul", "e f", "loss", "joined")], "joined"),
    "by what is learned": ([*SQUARES, reduce("ReduceSum", "sq", "e"), node("Abs", "y", "ay", "ay"), reduce("ReduceSum", "ay", "f"),
                            node("Div", "e f", "loss", "share")], "share"),
    "scaled by a mean of the batch": ([reduce("ReduceMean", "y", "e"), node("Div", "y e", "z", "mixing"), node("Sub", "z t", "d", "d"),
                                       node("Mul", "d d", "sq", "sq"), reduce("ReduceMean", "sq", "loss")], "mixing"),
    "a softmax along the batch": ([node("Exp", "temperature", "scale", "scale"), node("Softmax", "y", "z", "mixing", axis=0),
                                   node("Mul", "z scale", "zt", "zt"), node("Mul", "zt t", "e", "e"), reduce("ReduceMean", "e", "loss")], "mixing"),
}
WAYS = (["--ranks", "2", "--microbatches", "3"], ["--ranks", "2", "--schedule", "2bw", "--microbatches", "4"],
        ["--stages", "2", "--replicas", "2,1", "--microbatches", "2"])
ROW_BY_ROW = ["--microbatches", "8"]


def write(path, nodes, outputs):
    used = {part.decode() for one in nodes for part in strings_of(one)}
    read = used & DATA_OF.keys()
    inputs = [value(name, ["batch", *shape], kind) for name, (kind, shape, _) in DATA_OF.items() if name in read]
    weights = [tensor(name, FLOAT, [], floats(number)) for name, number in SCALARS.items() if name in used]
    weights += [tensor(name, FLOAT, [len(numbers)], floats(*numbers)) for name, numbers in CLASSES.items() if name in used]
    weights += [tensor(name, INT64, shape, longs(number)) for name, (shape, number) in LONGS.items() if name in used]
    with open(path, "wb") as file:
        file.write(model(graph(nodes, inputs, outputs, WEIGHTS + weights), version=17))
    return sorted(read)


def strings_of(message):
    """The inputs of a node: field 1, whose bodies are shorter than 128 bytes."""
    at, found = 0, []
    while at < len(message) and message[at] == 10:
        found.append(message[at + 2:at + 2 + message[at + 1]])
        at += 2 + message[at + 1]
    return found


def write_npy(folder, name):
    kind, shape, content = DATA_OF[name]
    head = f"{{'descr': '{'<f4' if kind == FLOAT else '<i8'}', 'fortran_order': False, 'shape': ({', '.join(map(str, [ROWS, *shape]))},), }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    path = os.path.join(folder, name + ".npy")
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + content)
    return path


def train(path, folder, names, *more):
    data = [part for name in names for part in ("--data", f"{name}={write_npy(folder, name)}")]
    return run("train", path, *data, "--batch", str(ROWS), "--optimizer", "sgd:lr=0.05", "--steps", "3", "--frozen", "*",
               "--trainable", "?.weight", "--json", *more)


def steps_of(result):
    return [(step["loss"], step["gradient_norm"]) for step in json.loads(result.out)["steps"]]


def near(a, b):
    return len(a) == len(b) and all(abs(x - y) <= 2e-5 * abs(y) for one, other in zip(a, b) for x, y in zip(one, other))


def check(count, folder, name, nodes, odd):
    path = os.path.join(folder, "model.onnx")
    names = write(path, [*NET, *nodes], [value("loss", [])])
    whole = train(path, folder, names, "--ranks", "1")
    count.check(name, None if whole.status == DONE else f"{whole.status}: {whole.err[-300:]}")
    for way in [*WAYS, ROW_BY_ROW] if b"Shape" in b"".join(nodes) else WAYS:
        if whole.status != DONE or (odd is None and "2bw" in way):
            continue
        split = train(path, folder, names, *way, "--reference")
        said = f"{split.status}: {split.err[-300:]}"
        if odd is not None:
            good = split.status == REFUSED and (odd if " " in odd else f"node '{odd}'") in split.err
        else:
            good = split.status == DONE and near(steps_of(split), steps_of(whole))
            said = said if split.status != DONE else f"{steps_of(split)}, whole {steps_of(whole)}"
        count.check(f"{name}, {' '.join(way)}", None if good else said)


def besides(count, folder):
    """Outputs that no loss needs may do with the batch what they like; labels are not shifted along it."""
    path = os.path.join(folder, "besides.onnx")
    nodes = [*NET, reduce("ReduceMean", "y", "all"), node("Sub", "y all", "metric", "metric")]
    names = write(path, nodes, [value("y", ["batch", OUT]), value("metric", ["batch", OUT])])
    attached = ["--loss", "mse:output=y,target=t"]
    both = [train(path, folder, [*names, "t"], *attached, *way) for way in (["--ranks", "1"], WAYS[0])]
    bad = next((f"{one.status}: {one.err[-300:]}" for one in both if one.status != DONE), None)
    count.check("a metric beside the loss", bad or (None if near(steps_of(both[1]), steps_of(both[0])) else "another loss"))
    far = [train(path, folder, [*names, "far"], "--loss", "mse:output=y,target=far", *way)
           for way in (["--ranks", "1"], ["--cut", "y", "--stages", "2"])]
    bad = next((f"{one.status}: {one.err[-300:]}" for one in far if one.status != CHECK_FAILED or "loss inf, gradient norm 5" not in one.err), None)
    count.check("an infinite loss with finite gradients, a metric behind it", bad)
    shifted = train(path, folder, [*names, "l"], "--loss", "cross-entropy:logits=y,labels=l,ignore=-1,shift=1")
    good = shifted.status == REFUSED and "labels are shifted along the tokens, of which 'y' [8, 3] has no axis" in shifted.err
    count.check("labels along the batch", None if good else f"{shifted.status}: {shifted.err[-300:]}")


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for name, (nodes, odd) in LOSSES.items():
            check(count, folder, name, nodes, odd)
        besides(count, folder)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=180
"""Operators that become others when a model is bound, and those that came late: the models of tests/data/forms (and those
of ../shared/trials that hold them) give what onnxruntime gives, whole, in stages and, where the batch is free, in
micro-batches, bit-equal to the plan's reference; and a Scan is trained like the operators that it becomes."""
import math
import os
import sys
import tempfile

from command import DATA, DONE, REFUSED, SHARED, Count, need_command, run
from small import array, numbers, weight, wire, write

FORMS = os.path.join(DATA, "forms")
FIXED = ("scan", "scan_rows")  # no free batch: there are no micro-batches
TRIALS = ("attention_nonpad_causal", "attention_window", "ms_qdq_int4", "newest_opset", "qoperator", "scan")
WAYS = [("--stages", stages, "--microbatches", pieces) for pieces in "12" for stages in "123"]


def wrong(result, *said):
    if result.status != DONE:
        return f"{result.status}: {(result.err or result.out)[-300:]}"
    missing = [text for text in said if text not in result.out]
    return f"does not say {missing}: {result.out[-300:]}" if missing else result.broken(60, 2048)


def check_model(count, name, folder, fixed):
    for way in WAYS[:3] if fixed else WAYS:
        found = wrong(run("run", folder, "--check", "--reference", *way), "identical to the plan's reference", ": passed")
        count.check(f"{name} {' '.join(way)}", found)


def check_trained(count, folder):
    """A weight that every trip of a Scan reads is one parameter."""
    data = []
    for k, (name, shape) in enumerate((("x", (4, 5, 4)), ("x0", (4, 4)), ("t", (4, 5, 3)))):
        path = os.path.join(folder, f"{name}.pb")
        data += ["--data", f"{name}=" + write(path, array(name, wire.FLOAT, shape, numbers(math.prod(shape), k)))]
    model = os.path.join(FORMS, "scan", "model.onnx")
    found = run("train", model, *data, "--loss", "mse:output=v8_0,target=t", "--steps", "3", "--stages", "3", "--microbatches", "2",
                "--reference", "--optimizer", "sgd:lr=0.1")
    count.check("scan trained", wrong(found, "bit-equal", "close"))
    shown = [line for line in run("inspect", model, "--train").out.splitlines() if line.startswith("mix.weight")]
    count.check("one parameter", None if len(shown) == 1 and "trained (tied: 5 uses)" in shown[0] else f"{shown}")


def check_slices(count, folder):
    """A cache that tokens are written into is not cut into token slices: the node is named."""
    nodes = [wire.node("MatMul", "x w.weight", "h", "h"), wire.node("TensorScatter", "cache h where", "kept", "written", axis=1),
             wire.node("ReduceSum", "kept axis", "sum", "sum", keepdims=1), wire.node("Add", "h sum", "y", "y")]
    inputs = [wire.value("x", ["batch", "tokens", 4]), wire.value("cache", ["batch", 16, 4]), wire.value("where", ["batch"], wire.INT64)]
    graph = wire.graph(nodes, inputs, [wire.value("y", ["batch", "tokens", 4])],
                       [wire.tensor("axis", wire.INT64, [1], wire.longs(1)), weight("w.weight", [4, 4])])
    path = write(os.path.join(folder, "cache.onnx"), wire.model(graph, version=24, ir=10))
    count.check("a cache", wrong(run("run", path, "--bind", "tokens=8", "--reference"), "identical to the plan's reference"))
    sliced = run("run", path, "--bind", "tokens=8", "--ranks", "2", "--schedule", "terapipe:slices=2")
    good = sliced.status == REFUSED and "node 'written' (TensorScatter)" in sliced.err and "dimension 1 are written" in sliced.err
    count.check("a cache in token slices", None if good else f"{sliced.status}: {sliced.err[-300:]}")


def main():
    need_command()
    count = Count()
    names = sorted(n for n in os.listdir(FORMS) if os.path.isdir(os.path.join(FORMS, n)))
    for name in names:
        check_model(count, name, os.path.join(FORMS, name), name in FIXED)
    count.check("models", None if len(names) >= 4 else f"only {names}")
    for name in TRIALS:
        folder = os.path.join(SHARED, "trials", name)
        if os.path.isdir(folder):
            check_model(count, f"trial {name}", folder, name in FIXED)
        else:
            count.skip(f"../shared/trials/{name} is not there")
    with tempfile.TemporaryDirectory() as folder:
        check_trained(count, folder)
        check_slices(count, folder)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

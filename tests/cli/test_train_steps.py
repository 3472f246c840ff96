#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""train: what is said of a step that fails: its number, what is wrong with its data, labels that do not count;
how many rows and steps there are."""
import json
import os
import struct

import small
import wire
from command import CHECK_FAILED, REFUSED, USAGE, run
from test_train import npy
from test_train_safety import GPT, wrong

BATCH = ["--batch", "4", "--steps", "3", "--optimizer", "sgd:lr=0.1"]
LABELLED = ["--loss", "cross-entropy:logits=logits,labels=labels"]
ROWS, SEQ = 12, 16


def numbers(count, folder):
    """The step's own, in a resumed run too, whichever session looks at it."""
    model = small.write_model(os.path.join(folder, "model.onnx"))
    saved = os.path.join(folder, "saved")
    count.check("a checkpoint", wrong(run("train", model, *small.write_data(folder), *BATCH, "--save", saved)))
    data = small.write_data(folder, spoiled=[14])
    for more in ([], ["--check-finite"], ["--check-finite", "--stages", "2", "--microbatches", "2"]):
        how = ["train", model, *data, *BATCH, "--steps", "4", *more]
        first = run(*how)
        count.check(f"a run {' '.join(more)}", wrong(first, CHECK_FAILED, "forward, step 4, micro-batch ", "is NaN"))
        second = run(*how, "--resume", saved)
        count.check(f"resumed {' '.join(more)}", wrong(second, CHECK_FAILED, "forward, step 4, micro-batch ", "is NaN"))


def write_ids(folder, name, values):
    path = os.path.join(folder, name + ".npy")
    small.write(path, npy((ROWS, SEQ), "<i8", struct.pack(f"<{len(values)}q", *values)))
    return ["--data", f"{name}={path}"]


def wrong_data(count, folder):
    """An index out of range is no value that is not finite, with the check or without it."""
    ids = [i * 7 % 50 for i in range(ROWS * SEQ)]
    labels = write_ids(folder, "labels", ids)
    ids[5 * SEQ] = 1 << 20
    data = [*write_ids(folder, "input_ids", ids), *labels, *LABELLED]
    for more in ([], ["--check-finite"], ["--check-finite", "--stages", "2", "--microbatches", "2"]):
        result = run("train", GPT, *data, *BATCH, "--json", *more)
        problem = wrong(result, REFUSED, "step 2", "index 1048576 is outside")
        count.check(f"an index {' '.join(more)}", problem or ("it has an answer" if result.out else None))
    spoiled = small.write_data(folder, spoiled=[6])
    model = small.write_model(os.path.join(folder, "model.onnx"))
    result = run("train", model, *spoiled, *BATCH, "--check-finite", "--json")
    problem = wrong(result, CHECK_FAILED, "is NaN")
    if not problem and json.loads(result.out)["not_finite"] != 1:
        problem = result.out[-200:]
    count.check("a NaN", problem)


def unlabelled(count, folder):
    ids = [i * 7 % 50 for i in range(ROWS * SEQ)]
    labels = ids[: 4 * SEQ] + [-100] * 4 * SEQ + ids[8 * SEQ :]
    data = [*write_ids(folder, "input_ids", ids), *write_ids(folder, "labels", labels), *LABELLED]
    result = run("train", GPT, *data, *BATCH)
    said = "step 2: all labels of the mini-batch are ignored (ignore=-100)"
    count.check("a mini-batch without labels", wrong(result, CHECK_FAILED, said))


def amounts(count, folder):
    data = small.write_data(folder)
    model = small.write_model(os.path.join(folder, "model.onnx"))
    path = os.path.join(folder, "plan.json")
    problem = wrong(run("plan", model, "--train", "--loss", "mse:output=y,target=t", "--batch", "6", "-o", path))
    result = run("train", model, *data[:4], "--plan", path, "--json")
    problem = problem or wrong(result)
    if not problem:
        rows = [step["count"] / 3 for step in json.loads(result.out)["steps"]]
        problem = None if rows == [6, 6] else f"rows {rows}"
    count.check("the rows of a plan", problem)
    many = run("train", model, *data, "--steps", "99999999999999")
    count.check("too many steps", wrong(many, REFUSED, "out of memory for the reports of 99999999999999 steps"))
    total = run("train", model, *data, *BATCH, "--lr-schedule", "constant:total=3")
    count.check("a constant rate's total", wrong(total, USAGE, "constant: it takes warmup, not 'total'"))
    for ratio, n in (("0.5", 1), ("graph", 0)):
        result = run("train", model, *data, *BATCH, "--dropout", ratio, "--reference")
        problem = wrong(result)
        said = result.err.count("warning: --dropout 0.5: the model has no Dropout\n")
        count.check(f"--dropout {ratio}", problem or (None if said == n else result.err or "nothing said"))
    dropped = wire.node("Dropout", "h9", "dropped", "dropped")
    nodes = [*small.nodes()[:-1], dropped, wire.node("Add", "dropped fc2.bias", "y", "y")]
    result = run("train", small.write_model(os.path.join(folder, "dropout.onnx"), nodes), *data, *BATCH, "--dropout", "0.5")
    count.check("--dropout 0.5 of a model with one", wrong(result) or (result.err if "Dropout" in result.err else None))
    count.check("its warmup", wrong(run("train", model, *data, *BATCH, "--lr-schedule", "constant:warmup=2")))


if __name__ == "__main__":
    raise SystemExit(small.check(numbers, wrong_data, unlabelled, amounts))

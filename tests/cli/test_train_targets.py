#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""train: what it writes at the end: models whose weights lie in branches, or beside the file; one place
for two targets; what comes of the others when one fails."""
import os

import small
import wire
from command import REFUSED, USAGE, run
from test_train_safety import content, wrong

STEPS = ["--steps", "2", "--batch", "8", "--optimizer", "sgd:lr=0.1", "--microbatches", "2"]
BIAS = small.weight("branch.bias", [3])


def branch(name, weights=()):
    return wire.subgraph(wire.graph([wire.node("Add", "y0 branch.bias", name, "add")], [], [wire.blob(1, name)], weights))


def in_a_branch(folder):
    """A weight in both branches of an If, and nowhere in the main graph."""
    nodes = small.nodes()
    nodes[-1] = wire.node("Add", "h9 fc2.bias", "y0", "last")
    one = wire.tensor("yes", wire.BOOL, [], b"\x01")
    nodes.append(wire.node("If", "yes", "y", "if", then_branch=branch("a", [BIAS]), else_branch=branch("b", [BIAS])))
    return small.write_model(os.path.join(folder, "branch.onnx"), nodes, [*small.weights(), one])


def saved_in_branches(count, folder):
    data = small.write_data(folder)
    model = in_a_branch(folder)
    saved = os.path.join(folder, "saved.onnx")
    result = run("train", model, *data, *STEPS, "--save-model", saved)
    count.check("a weight in a branch", wrong(result) or (None if os.path.exists(saved) else "nothing was written"))
    count.check("the same, trained on", wrong(run("train", saved, *data, *STEPS)))


def beside(count, folder):
    """Two models whose weights go to files of one name."""
    data = small.write_data(folder)
    shapes = {"fc1.weight": [6, 8], "fc1.bias": [8], "shared.weight": [8, 8], "mid.weight": [8, 8],
              "fc2.weight": [8, 3], "fc2.bias": [3]}
    offset, outside, raw = 0, [], b""
    for name, shape in shapes.items():
        values = small.packed(wire.FLOAT, [0.3 * x for x in small.numbers(shape[0] * (shape + [1])[1], offset)])
        outside.append(wire.outside(name, wire.FLOAT, shape, location="w.bin", offset=str(offset),
                                    length=str(len(values))))
        offset, raw = offset + len(values), raw + values
    small.write(os.path.join(folder, "w.bin"), raw)
    model = small.write_model(os.path.join(folder, "model.onnx"), its_weights=outside)
    out = os.path.join(folder, "out")
    os.mkdir(out)
    first, second = (os.path.join(out, name) for name in ("first.onnx", "second.onnx"))
    count.check("a first model", wrong(run("train", model, *data, *STEPS, "--save-model", first)))
    before = content(out)
    result = run("train", model, *data, *STEPS, "--save-model", second)
    problem = wrong(result, REFUSED, "w.bin, which is there already and is no part of " + second)
    if not problem and ("step 1 " in result.out or content(out) != before):
        problem = "it was trained first, or something was written"
    count.check("a second one beside it", problem)
    problem = wrong(run("train", first, *data, *STEPS, "--save", os.path.join(folder, "checkpoint")))
    problem = problem or wrong(run("train", model, *data, *STEPS, "--steps", "3", "--save-model", first))
    if not problem and content(out).keys() != before.keys():
        problem = f"files: {sorted(content(out))}"
    count.check("the first one again", problem)


def one_place(count, folder):
    data = small.write_data(folder)
    model = small.write_model(os.path.join(folder, "model.onnx"))
    path, link = os.path.join(folder, "same"), os.path.join(folder, "link")
    os.symlink(folder, link)
    other = os.path.join(link, "same")
    for first, second, where in (("--save-model", "--save-gradients", path), ("--save", "--save-model", other),
                                 ("--save-gradients", "--trace", f"{folder}/./same")):
        result = run("train", model, *data, *STEPS, first, path, second, where)
        problem = wrong(result, USAGE, f"{first} and {second} would both write {where}")
        count.check(f"{first} and {second}", problem or (result.out or None) or ("written" if os.path.exists(path) else None))
    result = run("train", model, *data, *STEPS, "--save-model", path, "--save-gradients", path + "2", "--trace", "/dev/null")
    count.check("places of their own", wrong(result))


def others(count, folder):
    """One target fails at the end: the rest are written."""
    data = small.write_data(folder)
    model = small.write_model(os.path.join(folder, "model.onnx"))
    paths = {option: os.path.join(folder, option[2:]) for option in ("--save", "--save-model", "--save-gradients")}
    result = run("train", model, *data, *STEPS, "--trace", "/dev/full", *(part for pair in paths.items() for part in pair))
    problem = wrong(result, REFUSED, "/dev/full")
    lacking = [option for option, path in paths.items() if not os.path.exists(path)]
    count.check("a trace that cannot be written", problem or (f"not written: {lacking}" if lacking else None))


def checkpoints(count, folder):
    """One that is there is replaced by the run that resumes it, and by --overwrite; it is looked at before anything is
    computed."""
    data = small.write_data(folder)
    model = small.write_model(os.path.join(folder, "model.onnx"))
    wide = small.write_model(os.path.join(folder, "wide.onnx"), its_weights=small.weights()[:-1] + [small.weight("fc2.bias", [1])])
    saved, link = os.path.join(folder, "saved"), os.path.join(folder, "link")
    count.check("a first run", wrong(run("train", model, *data, *STEPS, "--save", saved)))
    os.symlink(saved, link)
    os.mkdir(os.path.join(folder, "other"))
    before = content(saved)
    for what, place in ((model, saved), (wide, saved), (model, saved + "/."), (model, link)):
        for more in ([], ["--save-every", "1"], ["--resume", os.path.join(folder, "other")]):
            result = run("train", what, *data, *STEPS, "--save", place, *more)
            problem = wrong(result, REFUSED, f"--save {place}: the folder holds a checkpoint", f"--resume {place} ", "--overwrite ")
            computed = result.out or ("it was written" if content(saved) != before else None)
            count.check(f"{os.path.basename(what)} into {os.path.relpath(place, folder)} {' '.join(more)}", problem or computed)
    spoilt = os.path.join(folder, "spoilt")
    os.mkdir(spoilt)
    small.write(os.path.join(spoilt, "manifest.json"), b'{"format": "onnx-pipe checkp')
    count.check("a damaged one", wrong(run("train", model, *data, *STEPS, "--save", spoilt), REFUSED, "holds a checkpoint"))
    for more in (["--resume", saved], ["--resume", link], ["--overwrite"]):
        before = content(saved)
        problem = wrong(run("train", model, *data, *STEPS, "--save", saved, *more))
        count.check(" ".join(more[:1]), problem or ("nothing was saved" if content(saved) == before else None))
    count.check("--overwrite alone", wrong(run("train", model, *data, *STEPS, "--overwrite"), USAGE, "--save DIR"))


if __name__ == "__main__":
    raise SystemExit(small.check(saved_in_branches, beside, one_place, others, checkpoints))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""train --reference: runs that write over the checkpoint they go on from, models of half types, steps that
are skipped."""
import json
import os

import small
from command import CHECK_FAILED, run
from test_train_safety import COMMON, GPT, wrong

TWO = ["--stages", "2", "--microbatches", "2", "--batch", "8"]


def verdict(result, spoiled=False):
    """None where both comparisons hold."""
    problem = wrong(result)
    if problem:
        return problem
    report = json.loads(result.out)
    if not (report["reference"]["identical"] and report["reference"]["close"]):
        return str(report["reference"])
    skipped = [step["skipped"] for step in report["steps"]]
    return None if any(skipped) == spoiled else f"skipped: {skipped}"


def resumed(count, folder):
    """With moments, two versions of the weights, and another position in the data."""
    for i, way in enumerate((["--optimizer", "adamw:lr=0.003"], ["--optimizer", "sgd:lr=0.05,momentum=0.9", "--schedule", "2bw"])):
        saved, other = (os.path.join(folder, f"{name}{i}") for name in ("saved", "other"))
        how = ["train", GPT, *COMMON, "--shuffle", "--stages", "2", *way, "--steps", "3", "--json"]
        problem = wrong(run(*how, "--save", saved)) or wrong(run(*how, "--save", other))
        name = " ".join(way)
        count.check(f"a checkpoint, {name}", problem)
        over = run(*how, "--resume", saved, "--save", saved, "--save-every", "1", "--reference")
        apart = run(*how, "--resume", other, "--reference")
        problem = verdict(over) or verdict(apart)
        if not problem:
            losses = [[step["loss"] for step in json.loads(result.out)["steps"]] for result in (over, apart)]
            problem = None if losses[0] == losses[1] else str(losses)
        count.check(f"over the folder that it goes on from, {name}", problem)
    moved = run("train", GPT, *COMMON, "--shuffle", "--stages", "2", "--optimizer", "adamw:lr=0.003", "--steps", "2",
                "--json", "--resume", os.path.join(folder, "other0"), "--seed", "9", "--reference")
    problem = verdict(moved)
    said = moved.err.count("the position in the data is recomputed")
    count.check("another seed", problem or (None if said == 1 else f"said {said} times: {moved.err}"))


def half_models(count, folder):
    """Judged by the types that the file has, whatever --compute says."""
    for kind, name in ((small.FLOAT16, "fp16"), (small.BFLOAT16, "bf16")):
        model = small.write_model(os.path.join(folder, name + ".onnx"), kind=kind)
        data = small.write_data(folder, kind)
        for more in ([], ["--compute", name]):
            result = run("train", model, *data, "--stages", "3", "--microbatches", "3", "--batch", "8", "--optimizer",
                         "sgd:lr=0.1", "--steps", "4", "--json", *more, "--reference")
            count.check(f"a model of {name} {' '.join(more)}", verdict(result))


def skipped(count, folder):
    """Steps that neither run applied are left out, the last one too."""
    model = small.write_model(os.path.join(folder, "model.onnx"))
    data = small.write_data(folder, spoiled=[9])
    for steps in ("3", "4"):
        how = ["train", model, *data, *TWO, "--optimizer", "adam:lr=0.01", "--steps", steps, "--go-on"]
        count.check(f"{steps} steps, every second one NaN", verdict(run(*how, "--json", "--reference"), True))
        text = run(*how, "--reference")
        problem = wrong(text)
        if not problem and ("norm nan" not in text.out or "-nan" in text.out):
            problem = text.out[-500:]
        count.check(f"{steps} steps, as text", problem)
    result = run("train", model, *data, *TWO, "--optimizer", "adam:lr=0.01", "--reference")
    count.check("without --go-on", wrong(result, CHECK_FAILED, "step 2: "))
    scaled = run("train", model, *small.write_data(folder), *TWO, "--compute", "fp16", "--optimizer", "sgd:lr=0.1",
                 "--json")
    problem = wrong(scaled)
    if not problem:
        report = json.loads(scaled.out)["steps"]
        problem = None if all(step["loss_scale"] == 65536 for step in report) else str(report)
    count.check("loss scales", problem)


if __name__ == "__main__":
    raise SystemExit(small.check(resumed, half_models, skipped))

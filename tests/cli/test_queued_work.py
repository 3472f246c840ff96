#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=200
"""Sessions on devices that do their work later: weights are read as the last step left them, and nothing is freed while
queued work uses it, with queues of every length. The emulated device logs what is read or freed too early."""
import glob
import os

from command import DATA, DONE, SOURCE, run
from small import check

LATER = "emulated:16,async=1,time_us=300"
SLOW = "emulated:16,async=1,time_us=3000"
EARLY = "of an object that queued work uses"


def outcome(count, what, *args):
    """The result, which has the device's word that nothing was touched too early."""
    result = run(*args)
    problem = result.broken(100, 1024)
    if problem is None and result.status == DONE and EARLY in result.err:
        problem = result.err
    count.check(what, problem)
    return result


def contents(folder):
    """The files below the folder, by name."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "**"), recursive=True)):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def weights_that_are_read(count, folder):
    """--save-model reads every weight behind the last step; --reference compares what both sessions hold."""
    model = os.path.join(DATA, "gpt_8block", "model.onnx")
    data = ["--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=8", "--loss",
            "cross-entropy:logits=logits,labels=labels,shift=1"]
    saved = {}
    for device in ("cpu", LATER):
        for ranks in ("1", "2", "3"):
            target = os.path.join(folder, f"{device[:3]}{ranks}")
            os.mkdir(target)
            result = outcome(count, f"{device} on {ranks}", "train", model, *data, "--optimizer", "adamw:lr=0.01", "--batch", "4",
                             "--microbatches", "2", "--steps", "3", "--ranks", ranks, "--device", device, "--reference",
                             "--save-model", os.path.join(target, "m.onnx"))
            count.check(f"{device} on {ranks} is done", result.err if result.status != DONE else None)
            saved[device, ranks] = contents(target)
    for ranks in ("1", "2", "3"):
        same = saved["cpu", ranks] and saved["cpu", ranks] == saved[LATER, ranks]
        count.check(f"the model of {ranks} ranks", None if same else f"differs: {sorted(saved['cpu', ranks])}")


def memory_that_is_freed(count, folder):
    """A session whose queue is too short for what it queues fails, and waits for its device before it frees."""
    model = os.path.join(DATA, "gpt_8block", "model.onnx")
    refused = 0
    for length in (1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 40, 80):
        result = outcome(count, f"a queue of {length}", "run", model, "--bind", "batch=16", "--bind", "seq=8", "--microbatches", "16",
                         "--ranks", "2", "--requests", "12", "--device", f"{SLOW},queue={length}")
        if result.status != DONE:
            refused += 1
            named = str(length) in result.err and EARLY not in result.err
            count.check(f"the error of a queue of {length}", None if named else result.err)
    count.check("some queues are too short, not all", None if 0 < refused < 16 else f"{refused} of 16")


if __name__ == "__main__":
    raise SystemExit(check(weights_that_are_read, memory_that_is_freed))

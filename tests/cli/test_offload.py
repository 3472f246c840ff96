#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""train and plan --offload: bits of the reference, the host's memory in the plan and its file, caps that decide, refusals by name."""
import json
import os
import sys
import tempfile

from command import DATA, DONE, REFUSED, SOURCE, USAGE, Count, need_command, run

MODEL = os.path.join(DATA, "gpt_8block", "model.onnx")
TRAIN = [MODEL, "--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=8", "--loss",
         "cross-entropy:logits=logits,labels=input_ids", "--batch", "8", "--stages", "2", "--microbatches", "8"]
EMULATED = ["--device", "emulated,async=1,host_bandwidth=1e9"]
REFUSALS = [
    (["--offload", "*"], "computes in the host's memory"),
    ([*EMULATED, "--offload", "nothing.like.it"], "'nothing.like.it' matches none of the "),
    ([*EMULATED, "--offload", "*", "--schedule", "chimera:concat=halving", "--microbatches", "4"], "halves"),
    ([*EMULATED, "--offload", "*", "--offload-memory", "1KiB"], "exceeds their cap of 1024"),
]


def holds(count, name, true, found):
    count.check(name, "" if true else found)


def refused(count, name, words, text):
    result = run("plan", *TRAIN, "--train", *words)
    holds(count, name, result.status in (REFUSED, USAGE) and text in result.err, f"status {result.status}: {result.err[-300:]}")


def plan(count, name, folder, *words):
    """The plan's file, and what its text says."""
    path = os.path.join(folder, "plan.json")
    result = run("plan", *TRAIN, "--train", *words, "-o", path)
    if result.status != DONE:
        count.check(name, f"status {result.status}: {result.err[-300:]}")
        return {}, ""
    with open(path, encoding="utf-8") as file:
        return json.load(file), result.out


def check_training(count):
    result = run("train", *TRAIN, *EMULATED, "--offload", "*", "--steps", "2", "--schedule", "1f1b", "--reference")
    problem = result.broken(60, 1024)
    if not problem and (result.status != DONE or "plan's reference bit-equal" not in result.out):
        problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
    count.check("train, 1f1b", problem)


def check_caps(count, folder):
    """A shared cap between what is needed with and without."""
    without, _ = plan(count, "without", folder, *EMULATED)
    everything, said = plan(count, "all", folder, *EMULATED, "--offload", "*")
    if not without or not everything:
        return
    bytes_of = [sum(rank["total_bytes"] for rank in p["memory"]) for p in (without, everything)]
    holds(count, "all", "offloads of " in said and bytes_of[1] < bytes_of[0] and "offload" not in without
                and all(rank["offload_bytes"] > 0 for rank in everything["memory"]), f"{bytes_of}: {said[-300:]}")
    cap = (bytes_of[0] + bytes_of[1]) // 2
    some, _ = plan(count, "auto", folder, *EMULATED, "--offload", "auto", "--memory", str(cap))
    names = [len(p.get("offload", {}).get("tensors", [])) for p in (some, everything)]
    holds(count, "auto", 0 < names[0] < names[1], f"{names[0]} of {names[1]} tensors under {cap} bytes")
    small = [*EMULATED, "--offload", "auto", "--memory", str(bytes_of[1] // 4)]
    refused(count, "a cap too small", small, "with all stashes offloaded: ")


def main():
    need_command()
    count = Count()
    check_training(count)
    with tempfile.TemporaryDirectory() as folder:
        check_caps(count, folder)
    for words, text in REFUSALS:
        refused(count, " ".join(words), words, text)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

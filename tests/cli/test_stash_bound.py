#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=200
"""Where a rank's memory does not hold the stashes of a schedule's usual order, 1f1b keeps fewer
micro-batches; with the same losses, down to one micro-batch. Schedules that ignore the bound are
refused with the numbers."""
import json
import os
import re

from command import DATA, DONE, REFUSED, SOURCE, Count, need_command, run

MODEL = os.path.join(DATA, "gpt_8block", "model.onnx")
ARGUMENTS = ["--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=16", "--loss",
             "cross-entropy:logits=logits,labels=input_ids", "--batch", "8", "--microbatches", "8",
             "--cut", "add_13;add_25;add_38", "--steps", "2", "--json"]


def train(schedule, memory):
    """Rank 0 has a cap, the others have none; the cut is given, so that no other one helps."""
    return run("train", MODEL, *ARGUMENTS, "--schedule", schedule, "--device", f"cpu,memory={memory}",
               "--device", "cpu")


def losses(result):
    return [step["loss"] for step in json.loads(result.out)["steps"]]


def need(schedule):
    """Bytes of rank 0 in all, and of its stashes."""
    found = re.search(r"rank 0 \(stage 0\) needs (\d+) bytes .*stashes (\d+)", train(schedule, "64KiB").err)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def main():
    need_command()
    count = Count()
    whole = train("1f1b", "1GiB")
    least, one = need("1f1b")  # its order that keeps one micro-batch
    most, eight = need("gpipe")
    numbers = f"1f1b {least} with {one}, gpipe {most} with {eight}"
    count.check("prediction", None if most - eight + one // 2 < least < most and 7 * one < eight else numbers)
    for keep in (1, 2, 3):  # of the 4 that the first stage of 4 keeps; 4096: slots between stages
        bound = train("1f1b", least + (keep - 1) * (eight // 8 + 4096))
        name = f"1f1b, room for {keep} micro-batches"
        problem = bound.broken(60, 1024)
        if not problem and bound.status != DONE:
            problem = f"status {bound.status}: {bound.err[:300]}"
        if not problem and losses(bound) != losses(whole):
            problem = f"{losses(bound)}, not {losses(whole)}"
        count.check(name, problem)
    for schedule, memory in (("1f1b", least - 1), ("gpipe", most - 1), ("sequential", least // 2)):
        result = train(schedule, memory)
        good = result.status == REFUSED and "exceeds its cap of" in result.err
        count.check(f"{schedule}, {memory} bytes", None if good else f"{result.status}: {result.err[:300]}")
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

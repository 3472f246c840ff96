#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=200
"""Where a rank's memory does not hold the stashes of a schedule's usual order, 1f1b keeps fewer
micro-batches; with the same losses, down to one micro-batch. What takes no notice is refused with
the numbers."""
import json
import os
import re

from command import DATA, DONE, REFUSED, SOURCE, Count, need_command, run

MODEL = os.path.join(DATA, "gpt_8block", "model.onnx")
ARGUMENTS = ["--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=16", "--loss",
             "cross-entropy:logits=logits,labels=input_ids", "--batch", "8", "--microbatches", "8",
             "--stages", "4", "--steps", "2", "--json"]


def train(schedule, memory):
    """Rank 0 has a cap, the others have none."""
    return run("train", MODEL, *ARGUMENTS, "--schedule", schedule, "--device", f"cpu,memory={memory}",
               "--device", "cpu")


def losses(result):
    return [step["loss"] for step in json.loads(result.out)["steps"]]


def need(schedule):
    """Bytes of rank 0 in all, and of its stashes."""
    found = re.search(r"rank 0 needs (\d+) bytes .*stashes (\d+)", train(schedule, "64KiB").err)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def main():
    need_command()
    count = Count()
    whole = train("1f1b", "1GiB")
    total, stash = need("1f1b")
    count.check("prediction", None if total > stash > 0 else f"no numbers: {whole.err[:300]}")
    for keep in (3, 2, 1):  # of the 4 that the first stage of 4 keeps
        bound = train("1f1b", total - stash * (4 - keep) // 4)
        name = f"1f1b, room for {keep} micro-batches"
        problem = bound.broken(60, 1024)
        if not problem and bound.status != DONE:
            problem = f"status {bound.status}: {bound.err[:300]}"
        if not problem and losses(bound) != losses(whole):
            problem = f"{losses(bound)}, not {losses(whole)}"
        count.check(name, problem)
    small = train("1f1b", total - stash)
    count.check("room for none", None if small.status == REFUSED and "too many" in small.err
                else f"status {small.status}: {small.err[:300]}")
    gpipe = train("gpipe", total)
    count.check("gpipe", None if gpipe.status == REFUSED and "too many" in gpipe.err
                else f"status {gpipe.status}: {gpipe.err[:300]}")
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

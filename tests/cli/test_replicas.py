#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=200
"""train and run --replicas: copies of every kind of pipeline, and replicas of single stages that cut
micro-batches between them, bit-equal to the plan's reference and close to the uncut model; and what
cannot be replicated."""
import os

from command import DATA, DONE, REFUSED, SOURCE, USAGE, Count, need_command, run

MODEL = os.path.join(DATA, "gpt_8block", "model.onnx")
ARGUMENTS = ["--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=16", "--loss",
             "cross-entropy:logits=logits,labels=input_ids", "--batch", "8", "--steps", "3",
             "--optimizer", "sgd:lr=0.01,momentum=0.9"]
SCHEDULES = [("gpipe", 2, 5), ("1f1b", 4, 6), ("interleaved", 4, 8), ("looped-bfs", 4, 3), ("chimera", 2, 7),
             ("2bw", 2, 6)]
CUT = [("1f1b", "2,1", 4), ("zb-h1", "1,3", 2), ("interleaved", "2,1", 4), ("gpipe", "2,1,2", 3), ("2bw", "1,2", 4)]
REFUSALS = [
    (["--replicas", "2,1", "--stages", "3"], USAGE, "replicas of 2 stages"),
    (["--replicas", "2,1", "--ranks", "4"], REFUSED, "take 3 ranks, not 4"),
    (["--replicas", "2,1", "--schedule", "chimera"], REFUSED, "2 replicas and 1 token slices of its own"),
    (["--replicas", "3,1", "--microbatches", "4"], REFUSED, "3 replicas, which cut a micro-batch of 2 rows"),
    (["--replicas", "2,2,2", "--stages", "2"], USAGE, "3 numbers for 2 stages"),
    (["--replicas", "0", "--stages", "2"], USAGE, "from 1 to 4096"),
    (["--replicas", "2,", "--stages", "2"], USAGE, "from 1 to 4096"),
    (["--replicas", "4", "--stages", "2", "--microbatches", "3"], REFUSED, "4 replicas"),
    (["--replicas", "2", "--stages", "2", "--microbatches", "3", "--schedule", "2bw"], REFUSED, "2 stages"),
]


FORWARD = [("gpipe", 2, 4), ("1f1b", 4, 3), ("interleaved", 4, 5), ("chimera", 2, 2), ("zbv", 4, 4), ("gpipe", 2, 1), ("1f1b", 3, 1), ("zbv", 4, 1)]
RUN_REFUSALS = [
    (["--replicas", "2", "--ranks", "5", "--microbatches", "4"], REFUSED, "2 replicas of the pipeline cannot share 5"),
    (["--replicas", "2,1", "--stages", "2"], USAGE, "--replicas 2,1: a plan for inference"),
]


def check_run(count):
    """Streams of requests, beside the plan's reference and the uncut model."""
    base = ["run", MODEL, "--bind", "batch=5,seq=8", "--requests", "6"]
    for schedule, stages, microbatches in FORWARD:
        for replicas in ("2", ",".join(["2"] * stages)):
            result = run(*base, "--schedule", schedule, "--stages", str(stages), "--microbatches", str(microbatches),
                         "--replicas", replicas, "--reference")
            problem = result.broken(60, 1024)
            if not problem and (result.status != DONE or "identical to the plan's reference" not in result.out):
                problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
            count.check(f"run, {schedule}, {stages} stages, replicas {replicas}", problem)
    for arguments, status, text in RUN_REFUSALS:
        result = run(*base, *arguments)
        good = result.status == status and text in result.err
        count.check("run " + " ".join(arguments), None if good else f"{result.status}: {result.err[:300]}")


def main():
    need_command()
    count = Count()
    check_run(count)
    for schedule, stages, microbatches in SCHEDULES:
        for replicas in ("2", ",".join(["3"] * stages)):
            result = run("train", MODEL, *ARGUMENTS, "--schedule", schedule, "--stages", str(stages),
                         "--microbatches", str(microbatches),
                         "--replicas", replicas, "--reference")
            problem = result.broken(60, 1024)
            if not problem and (result.status != DONE or "bit-equal" not in result.out):
                problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
            count.check(f"{schedule}, {stages} stages, replicas {replicas}", problem)
    for schedule, replicas, microbatches in CUT:
        result = run("train", MODEL, *ARGUMENTS, "--schedule", schedule, "--microbatches", str(microbatches),
                     "--replicas", replicas, "--reference")
        problem = result.broken(60, 1024)
        if not problem and (result.status != DONE or "bit-equal" not in result.out):
            problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
        count.check(f"{schedule}, replicas {replicas}", problem)
    for arguments, status, text in REFUSALS:
        result = run("train", MODEL, *ARGUMENTS, *arguments)
        good = result.status == status and text in result.err
        count.check(" ".join(arguments), None if good else f"{result.status}: {result.err[:300]}")
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

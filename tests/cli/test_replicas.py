#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=200
"""train and run --replicas: copies of every kind of pipeline, and replicas of single stages that cut
micro-batches between them, bit-equal to the plan's reference and close to the uncut model; and what
cannot be replicated."""
import json
import os
import tempfile

from command import DATA, DONE, REFUSED, SOURCE, USAGE, Count, need_command, run

MODEL = os.path.join(DATA, "gpt_8block", "model.onnx")
ARGUMENTS = ["--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=16", "--loss",
             "cross-entropy:logits=logits,labels=input_ids", "--batch", "8", "--steps", "3",
             "--optimizer", "sgd:lr=0.01,momentum=0.9"]
SCHEDULES = [("gpipe", 2, 5), ("1f1b", 4, 6), ("interleaved", 4, 8), ("looped-bfs", 4, 3), ("chimera", 2, 7),
             ("2bw", 2, 6)]
CUT = [("search", "2,1", 4), ("1f1b", "2,1", 4), ("zb-h1", "1,3", 2), ("interleaved", "2,1", 4), ("gpipe", "2,1,2", 3), ("2bw", "1,2", 4)]
REFUSALS = [
    (["--replicas", "2,1", "--stages", "3"], USAGE, "replicas of 2 stages"),
    (["--replicas", "2,1", "--ranks", "4"], REFUSED, "take 3 ranks, not 4"),
    (["--replicas", "2,1", "--schedule", "chimera"], REFUSED, "2 replicas of its own"),
    (["--replicas", "3,1", "--microbatches", "4"], REFUSED, "3 replicas, which cannot share a micro-batch of 2 rows"),
    (["--replicas", "2,2,2", "--stages", "2"], USAGE, "3 numbers for 2 stages"),
    (["--replicas", "0", "--stages", "2"], USAGE, "from 1 to 4096"),
    (["--replicas", "2,", "--stages", "2"], USAGE, "from 1 to 4096"),
    (["--replicas", "4", "--stages", "2", "--microbatches", "3"], REFUSED, "4 replicas"),
    (["--replicas", "2", "--stages", "2", "--microbatches", "3", "--schedule", "2bw"], REFUSED, "2 stages"),
]


FORWARD = [("gpipe", 2, 4), ("1f1b", 4, 3), ("interleaved", 4, 5), ("chimera", 2, 2), ("zbv", 4, 4), ("gpipe", 2, 1), ("1f1b", 3, 1), ("zbv", 4, 1)]
RUN_REFUSALS = [
    (["--replicas", "2", "--ranks", "5", "--microbatches", "4"], REFUSED, "2 replicas of the pipeline cannot share 5"),
    (["--replicas", "2,1", "--stages", "3"], USAGE, "replicas of 2 stages"),
    (["--replicas", "2,1", "--ranks", "4"], REFUSED, "take 3 ranks, not 4"),
    (["--replicas", "1,3", "--microbatches", "2"], REFUSED, "stage 1 has 3 replicas, which cannot share a micro-batch of 2 rows"),
]
# Schedule, replicas, micro-batches: of 5 rows, which 2 and 3 do not divide.
FORWARD_CUT = [("gpipe", "2,1", 2), ("1f1b", "1,2", 2), ("sequential", "2,1", 2), ("gpipe", "3,1,2", 1), ("interleaved", "2,1", 2),
               ("looped-bfs", "1,2", 2), ("terapipe:slices=2", "2,1", 2)]


# Ranks and micro-batches of a copy, which the options of the command that say them must not change.
FILE = "0F0,0F1,(0F2;0I0)OVERLAP_F_B,0W0,0B1,0B2\n1F0,(1F1;1I0)OVERLAP_F_B,1W0,(1F2;1B1)OVERLAP_F_B,1B2\n"
SAID = [[], ["--ranks", "4"], ["--microbatches", "6"], ["--ranks", "4", "--microbatches", "6"], ["--stages", "2"]]


def check_file(count):
    """Copies of the pipeline, and replicas of its stages, under the order of a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "order.csv")
        with open(path, "w", encoding="utf-8") as file:
            file.write(FILE)
        rows = [(["--replicas", "2", *said], 4, 6) for said in SAID]
        rows += [(["--replicas", "2,2"], 4, 6), (["--replicas", "3"], 6, 9), (["--replicas", "2,1"], 3, 3)]
        for arguments, ranks, microbatches in rows:
            for command in (["train", MODEL, *ARGUMENTS, "--batch", "18"],
                            ["run", MODEL, "--bind", "batch=18,seq=8", "--requests", "3"]):
                result = run(*command, "--schedule", "file:" + path, *arguments, "--reference")
                want = f"on {ranks} ranks, schedule csv, {microbatches} micro-batches"
                problem = result.broken(60, 1024)
                if not problem and (result.status != DONE or want not in result.out):
                    problem = f"status {result.status}: {(result.err or result.out)[:300]}"
                count.check(f"{command[0]}, a file, {arguments}", problem)


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


def problem_of(result, text):
    problem = result.broken(60, 1024)
    if not problem and (result.status != DONE or text not in result.out):
        problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
    return problem


def check_times(count, plan):
    """Predictions: stages take what they take without replicas, those of a stage share that, and nothing is faster
    than its bound."""
    def written(*arguments):
        result = run("plan", MODEL, "--bind", "batch=6,seq=8", "--microbatches", "2", "--threads", "1", *arguments, "-o", plan)
        with open(plan, encoding="utf-8") as file:
            return json.load(file) if result.status == DONE else {}

    whole = written("--stages", "1")
    work = sum(stage["time_ns"] for stage in whole["stages"])
    for replicas in ("2,1", "1,3", "1,2,1", "3,1"):
        cut, shares = written("--replicas", replicas), [int(n) for n in replicas.split(",")]
        times = [stage["time_ns"] for stage in cut["stages"]]
        ranks = [time / n for time, n in zip(times, shares)]
        good = (abs(sum(times) / work - 1) < 1e-6 and cut["interval_ns"] >= 2 * cut["bound_ns"] * (1 - 1e-9)
                and abs(cut["interval_ns"] / (2 * max(ranks)) - 1) < 0.05)  # fmt: skip
        count.check(f"times, replicas {replicas}", None if good else f"{times} of {work}: {cut['interval_ns']}, bound {cut['bound_ns']}")


def check_cut_run(count, scratch):
    """Replicas of single stages: streams, data sets, the plan's file, what is played of it; a batch
    that nobody gave has a row for each; models whose samples mix are refused by node."""
    same = "identical to the plan's reference"
    for schedule, replicas, microbatches in FORWARD_CUT:
        result = run("run", MODEL, "--bind", "batch=5,seq=8", "--requests", "6", "--schedule", schedule, "--microbatches",
                     str(microbatches), "--replicas", replicas, "--reference")
        count.check(f"run, {schedule}, replicas {replicas}", problem_of(result, same))
    for name in ("gpt_8block", "encoder", "encoder_decoder", "gpt_past", "llama_fp16", "odd/batch_turned", "odd/batch_picked",
                 "odd/output_is_input"):
        folder = os.path.join(DATA, *name.split("/"))
        result = run("run", folder, "--replicas", "2,1", "--check", "--reference")
        count.check(f"run --check of {name}, replicas 2,1", problem_of(result, same))
    result = run("run", MODEL, "--bind", "batch=6,seq=8", "--replicas", "2,1", "--microbatches", "2", "--improve", "--reference")
    count.check("run --improve, replicas 2,1", problem_of(result, same))
    for m in ("1", "3"):
        result = run("run", MODEL, "--replicas", "1,2", "--microbatches", m, "--reference")
        count.check(f"run, {m} micro-batches of no given rows", problem_of(result, f"batch={2 * int(m)}"))
    plan, html = os.path.join(scratch, "plan.json"), os.path.join(scratch, "plan.html")
    result = run("plan", MODEL, "--bind", "batch=7,seq=8", "--replicas", "2,1", "--microbatches", "2", "-o", plan)
    count.check("plan", problem_of(result, "2+1 replicas of the stages, which cut micro-batches between them"))
    for arguments in ([], ["--bind", "batch=7,seq=8"], ["--bind", "batch=3,seq=5", "--requests", "4"]):
        result = run("run", MODEL, "--plan", plan, "--reference", *arguments)
        count.check("run --plan " + " ".join(arguments), problem_of(result, same))
    result = run("run", MODEL, "--plan", plan, "--bind", "batch=1,seq=8")
    good = result.status == REFUSED and "stage 0 has 2 replicas, which cannot share a micro-batch of 1 row" in result.err
    count.check("run --plan of one row", None if good else f"{result.status}: {result.err[:300]}")
    result = run("simulate", plan, "--html", html)
    count.check("simulate", problem_of(result, "devices              3"))
    check_times(count, os.path.join(scratch, "times.json"))
    result = run("plan", "explain", plan, plan)
    count.check("plan explain", problem_of(result, "2,1"))
    for name, node in (("batch_mean", "over_rows"), ("batch_folded", "mix_rows"), ("batch_counted", "numbered")):
        result = run("run", os.path.join(DATA, "odd", name), "--replicas", "2,1")
        good = result.status == REFUSED and f"node '{node}'" in result.err
        count.check(f"run of {name}", None if good else f"{result.status}: {result.err[:300]}")
    result = run("run", os.path.join(DATA, "odd", "batch_picked"), "--replicas", "2,1", "--cut", "index")
    good = result.status == REFUSED and "tensor 'index' of node 'index' holds positions among its rows" in result.err
    count.check("run with positions cut", None if good else f"{result.status}: {result.err[:300]}")


def main():
    need_command()
    count = Count()
    check_run(count)
    check_file(count)
    with tempfile.TemporaryDirectory() as scratch:
        check_cut_run(count, scratch)
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

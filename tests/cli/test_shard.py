#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""train --shard optimizer: losses, norms, weights and moments are, to the bit, those of a run whose replicas all have the whole state, and
those of the plan's reference; a checkpoint does not say who had which part; the optimizer's memory is shared out."""
import filecmp
import json
import os
import re
import tempfile

from command import DATA, DONE, SOURCE, USAGE, Count, need_command, run
from equal import figures, launched
from team_jobs import TRAIN as DEMO

MODEL = os.path.join(DATA, "gpt_8block", "model.onnx")
TRAIN = ["train", MODEL, "--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=8", "--loss",
         "cross-entropy:logits=logits,labels=input_ids", "--batch", "6", "--json"]
SGD, ADAMW = ["--optimizer", "sgd:lr=0.01,momentum=0.9"], ["--optimizer", "adamw:lr=0.001,decay=0.1"]
CASES = [
    ("gpipe", "2", [*SGD, "--stages", "2", "--microbatches", "2"]),
    ("1f1b", "3", [*ADAMW, "--clip", "0.05", "--stages", "1", "--microbatches", "3"]),
    ("1f1b", "2,1", [*ADAMW, "--clip", "0.05", "--microbatches", "3"]),
    ("chimera", None, [*ADAMW, "--ranks", "2", "--microbatches", "2"]),
    ("2bw", "2", [*ADAMW, "--stages", "2", "--microbatches", "4"]),
    ("gpipe", "2", [*ADAMW, "--compute", "bf16", "--stages", "2", "--microbatches", "2"]),
    ("1f1b", "2", [*ADAMW, "--clip", "0.05", "--tensor", "2", "--stages", "1", "--microbatches", "2"]),
]


def said(result):
    return [(s["loss"], s["gradient_norm"]) for s in json.loads(result.out[result.out.index("{"):result.out.rindex("}") + 1])["steps"]]


def tensors(folder):
    """The data files of a checkpoint: what kind, and where."""
    return {re.sub(r"-\d+", "", name): os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors")}


def differ(one, other):
    a, b = tensors(one), tensors(other)
    if len(a) != 2 or set(a) != set(b):
        return f"{sorted(a)}, {sorted(b)}"
    unlike = [name for name in a if not filecmp.cmp(a[name], b[name], shallow=False)]
    return f"{unlike} differ" if unlike else None


def check_case(count, scratch, n, schedule, replicas, arguments):
    folders, results = [], []
    for shard in ("none", "optimizer"):
        folders.append(os.path.join(scratch, f"{n}-{shard}"))
        words = [*TRAIN, *arguments, "--schedule", schedule, *(["--replicas", replicas] if replicas else [])]
        results.append(run(*words, "--steps", "2", "--shard", shard, "--save", folders[-1]))
    what = f"{schedule}, replicas {replicas}, {' '.join(arguments)}"
    problem = next((f"{r.status}: {r.err[:300]}" for r in results if r.broken(60, 1024) or r.status != DONE), None)
    if not problem:
        problem = f"{said(results[0])}, {said(results[1])}" if said(results[0]) != said(results[1]) else differ(*folders)
    count.check(what, problem)
    reference = run(*[w for w in words if w != "--json"], "--steps", "2", "--shard", "optimizer", "--reference")
    good = reference.status == DONE and "bit-equal" in reference.out
    count.check(what + ", beside the reference", None if good else f"{reference.status}: {(reference.err or reference.out)[-300:]}")
    return folders


def check_resume(count, scratch, folders):
    """Both checkpoints, of two replicas, go on in three, then in one, with and without --shard."""
    at = list(folders)
    for replicas in (3, 1):
        for i, shard in ((0, "none"), (1, "optimizer")):
            to = os.path.join(scratch, f"resumed-{replicas}-{i}")
            result = run(*TRAIN, *SGD, "--stages", "1", "--microbatches", "3", "--replicas", str(replicas), "--steps", "1", "--shard", shard,
                         "--resume", at[i], "--save", to)
            count.check(f"resume, {replicas} replicas, {shard}", None if result.status == DONE else f"{result.status}: {result.err[:300]}")
            at[i] = to
        count.check(f"resumed in {replicas} replicas", differ(*at))


def check_plan(count, scratch):
    """The plan says it, a file keeps it, and the optimizer takes less."""
    bytes_of = {}
    for shard in ("none", "optimizer"):
        path = os.path.join(scratch, shard + ".json")
        result = run("plan", MODEL, "--train", "--bind", "batch=6,seq=8", "--loss", "cross-entropy:logits=logits,labels=input_ids", *ADAMW,
                     "--stages", "1", "--replicas", "3", "--microbatches", "3", "--shard", shard, "-o", path)
        count.check(f"plan --shard {shard}", None if result.status == DONE else f"{result.status}: {result.err[:300]}")
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
        bytes_of[shard] = [rank["optimizer_bytes"] for rank in plan["memory"]]
    again = run(*TRAIN[:2], "--data", TRAIN[3], "--plan", path, "--steps", "1")
    count.check("train --plan", None if again.status == DONE else f"{again.status}: {again.err[:300]}")
    whole, shared = bytes_of["none"], bytes_of["optimizer"]
    good = len(shared) == 3 and sum(shared) < 0.36 * sum(whole)
    count.check("a third of the state for each", None if good else f"{whole}, {shared}")


def check_processes(count, scratch):
    """Replicas in two processes: what they save goes on as what threads save does."""
    words = [*DEMO, "--json", *ADAMW, "--clip", "0.1", "--stages", "1", "--replicas", "2", "--steps"]
    threads, processes = (os.path.join(scratch, name) for name in ("threads", "processes"))
    one = run(*words, "2", "--save", threads)
    status, text = launched(2, [*words, "2", "--shard", "optimizer", "--save", processes])
    problem = None if one.status == DONE and status == DONE else f"{one.status}, {status}: {one.err}{text[-300:]}"
    problem = problem or (None if figures(text) == figures(one.out) else f"{figures(one.out)}, {figures(text)}")
    for folder in (threads, processes):
        again = run(*words, "1", "--resume", folder, "--save", folder + "-again")
        problem = problem or (None if again.status == DONE else f"{again.status}: {again.err[:300]}")
    count.check("two processes", problem or differ(threads + "-again", processes + "-again"))


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as scratch:
        made = [check_case(count, scratch, n, *case) for n, case in enumerate(CASES)]
        check_resume(count, scratch, made[0])
        check_plan(count, scratch)
        check_processes(count, scratch)
    for words, status, text in ((["--shard", "weights"], USAGE, "none|optimizer"),):
        result = run(*TRAIN, *words)
        good = result.status == status and text in result.err
        count.check(" ".join(words), None if good else f"{result.status}: {result.err[:300]}")
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

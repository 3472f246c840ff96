#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=240
"""train: learning rates over resumed runs and plans from files, what a plan settles, labels that no source
has, what the JSON says of runs that end early, times of steps."""
import json
import os
import signal
import subprocess
import tempfile
import time

from command import CHECK_FAILED, COMMAND, DATA, DONE, REFUSED, SOURCE, USAGE, Count, need_command, run

GPT = os.path.join(DATA, "demo", "model.onnx")
TEXT = ["--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=16", "--batch", "4"]
LOSS = ["--loss", "cross-entropy:logits=logits,labels=labels,shift=1"]
RATE = 0.01
COMMON = [*TEXT, *LOSS, "--optimizer", f"sgd:lr={RATE}", "--stages", "1"]


def wrong(result, status=DONE, *texts):
    problem = result.broken(100, 2048)
    if problem:
        return problem
    if result.status != status:
        return f"status {result.status}, expected {status}: {(result.err or result.out)[-300:]}"
    lacking = [text for text in texts if text not in result.err]
    return f"not said: {lacking}: {result.err[-300:]}" if lacking else None


def rates_of(result):
    return [step["lr"] for step in json.loads(result.out)["steps"]]


def close(a, b):
    return len(a) == len(b) and all(abs(x - y) < 1e-7 for x, y in zip(a, b))


def rates(count, folder):
    """Linear from lr to 0: at step k of n, lr (1 - k / n)."""
    saved, path = os.path.join(folder, "saved"), os.path.join(folder, "plan.json")
    linear = ["--lr-schedule", "linear"]
    first = run("train", GPT, *COMMON, *linear, "--steps", "4", "--save", saved, "--json")
    problem = wrong(first)
    if not problem and not close(rates_of(first), [RATE * (1 - k / 4) for k in range(4)]):
        problem = str(rates_of(first))
    count.check("a run", problem)
    second = run("train", GPT, *COMMON, *linear, "--steps", "4", "--resume", saved, "--json")
    problem = wrong(second)
    if not problem and not close(rates_of(second), [RATE * (1 - k / 8) for k in range(4, 8)]):
        problem = str(rates_of(second))
    count.check("a run that goes on", problem)
    shape = ["--train", *COMMON, "-o", path]
    for kind in ("linear", "cosine:warmup=1"):
        result = run("plan", GPT, *shape, "--lr-schedule", kind)
        problem = wrong(result, USAGE, "--lr-schedule " + kind, "total=N or --steps N")
        count.check(f"plan, {kind}", problem or ("it was written" if os.path.exists(path) else None))
    for more in (["--lr-schedule", "linear:total=5"], ["--lr-schedule", "linear", "--steps", "5"]):
        problem = wrong(run("plan", GPT, *shape, *more))
        if not problem:
            result = run("train", GPT, *TEXT, "--plan", path, "--steps", "3", "--json")
            problem = wrong(result)
            if not problem and not close(rates_of(result), [RATE * (1 - k / 5) for k in range(3)]):
                problem = str(rates_of(result))
        count.check(f"plan, {' '.join(more)}", problem)
    count.check("plan, constant", wrong(run("plan", GPT, *shape, "--lr-schedule", "constant:warmup=3")))


def settled(count, folder):
    """The plan's loss opens the data; its seed is that of the run; others are refused."""
    path = os.path.join(folder, "plan.json")
    problem = wrong(run("plan", GPT, "--train", *COMMON, "--seed", "5", "-o", path))
    count.check("a plan", problem)
    steps = ["--steps", "2", "--json"]
    want = run("train", GPT, *COMMON, "--seed", "5", "--shuffle", *steps)
    losses = [] if wrong(want) else [s["loss"] for s in json.loads(want.out)["steps"]]
    for more in ([], LOSS, ["--seed", "5"], ["--loss", "cross-entropy:logits=logits"]):
        result = run("train", GPT, *TEXT, "--plan", path, "--shuffle", *more, *steps)
        problem = wrong(result)
        if not problem and [s["loss"] for s in json.loads(result.out)["steps"]] != losses:
            problem = "other losses"
        count.check(f"train --plan {' '.join(more)}", problem)
    for more in (["--loss", "output:logits"], ["--seed", "6"], ["--seed", "0"],
                 ["--loss", "cross-entropy:logits=logits,smoothing=0.1"],
                 ["--loss", "cross-entropy:logits=logits,shift=0"]):
        count.check(f"train --plan {' '.join(more)}",
                    wrong(run("train", GPT, *TEXT, "--plan", path, *more, *steps), USAGE, "already settles " + more[0]))
    for seed in (2**63, 2**64 - 2):
        problem = wrong(run("plan", GPT, "--train", *COMMON, "--seed", str(seed), "-o", path))
        saved = os.path.join(folder, "saved")
        problem = problem or wrong(run("train", GPT, *TEXT, "--plan", path, "--shuffle", *steps, "--save", saved, "--overwrite"))
        problem = problem or wrong(run("train", GPT, *TEXT, "--plan", path, "--shuffle", *steps, "--resume", saved))
        count.check(f"--seed {seed}", problem)


def labels(count):
    """Missing: usage, before anything is printed."""
    data = ["--data", "text:" + os.path.join(SOURCE, "README.md")]
    ids = os.path.join(DATA, "demo", "test_data_set_0", "input_0.pb")
    result = run("train", GPT, "--data", f"input_ids={ids}", *LOSS, "--stages", "1")
    count.check("no labels", wrong(result, USAGE, "'labels'") or (result.out or None))
    result = run("train", GPT, *data, "--bind", "seq=16", "--loss", "mse:output=logits", "--stages", "1")
    count.check("no target", wrong(result, USAGE, "target=NAME") or (result.out or None))


def globs(count):
    """One that matches nothing is said once, though the plan, its reference and the uncut model are each a session. No trained model is
    saved."""
    decay = ["--no-decay", "*offset*", "--no-decay", "*bias*"]
    for more in ([], ["--reference"]):
        result = run("train", GPT, *COMMON, "--steps", "1", *decay, *more)
        problem = wrong(result, DONE, "warning: no_decay '*offset*' matches none of 100 trained parameters\n")
        count.check(" ".join(decay + more), problem or (None if result.err.count("warning: ") == 2 else result.err))


def reports(count, folder):
    """The JSON of runs that end before their last step, and of comparisons."""
    diverges = ["--optimizer", "sgd:lr=1e25", "--steps", "6"]
    result = run("train", GPT, *TEXT, *LOSS, "--stages", "1", *diverges, "--check-finite", "--json")
    problem = wrong(result, CHECK_FAILED)
    if not problem:
        report = json.loads(result.out)
        if report["not_finite"] != 1 or "node '" not in (report["stopped"] or ""):
            problem = f"{report['not_finite']}, {report['stopped']}"
    count.check("--check-finite", problem)
    result = run("train", GPT, *COMMON, "--steps", "2", "--reference", "--json")
    problem = wrong(result)
    if not problem:
        report = json.loads(result.out)["reference"]
        if not (report["identical"] and report["close"] and report["plan"]["loss"] == 0 and
                report["uncut"]["gradients"] <= 1 and report["uncut"]["weights"] <= 1):
            problem = str(report)
    count.check("--reference", problem)
    path = os.path.join(folder, "out")
    with open(path, "wb") as out:
        process = subprocess.Popen([COMMAND, "train", GPT, *COMMON, "--steps", "1000000", "--json", "--save",
                                    os.path.join(folder, "saved"), "--save-every", "2"], stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=subprocess.DEVNULL)
        for _ in range(600):
            if process.poll() is not None or os.path.exists(os.path.join(folder, "saved", "manifest.json")):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    problem = None
    if process.returncode != 143 or report["stopped"] != "SIGTERM" or not report["steps"]:
        problem = f"status {process.returncode}, stopped {report['stopped']}"
    count.check("SIGTERM", problem)


def seconds(count):
    """No step takes no time, whenever its end is seen (nothing computes one in 50 us); all of them are no more than the run."""
    begun = time.monotonic()
    result = run("train", GPT, *COMMON, "--steps", "40", "--json")
    most = time.monotonic() - begun
    problem = wrong(result)
    if not problem:
        times = [step["seconds"] for step in json.loads(result.out)["steps"]]
        if min(times) < 5e-5 or sum(times) > most:
            problem = f"{min(times)} to {max(times)} s, {sum(times)} of {most}"
    count.check("times of steps", problem)


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for part in (rates, settled, reports):
            own = os.path.join(folder, part.__name__)
            os.mkdir(own)
            part(count, own)
    labels(count)
    globs(count)
    seconds(count)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

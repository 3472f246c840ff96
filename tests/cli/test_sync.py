#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=200 serial
"""Where sums over replicas run: Chimera's sync=end, eager and eager-opt, in the trace of a step on
emulated devices. Every sum begins where the lowered schedule puts it, eager ones lie over later
programs of their rank, results do not change, and a step of eager is over sooner where sums take
time and the rank would stand still."""
import json
import os
import re
import tempfile

from command import DATA, DONE, SANITIZED, SOURCE, Count, need_command, run

MODEL = os.path.join(DATA, "gpt_8block", "model.onnx")
RANKS, MICRO = 4, 4
CUT = ["--cut", "add_13;add_25;add_38"]  # stages of like size: the planner would spare the slow link
SHAPE = ["--ranks", str(RANKS), "--microbatches", str(MICRO)]
TRAIN = ["--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=8", "--loss",
         "cross-entropy:logits=logits,labels=labels,shift=1", "--optimizer", "sgd:lr=0.1", "--batch",
         str(MICRO), "--steps", "3", "--json"]
SLEEPS = "emulated,compute={},forward_us=20000,backward_input_us=20000,backward_weight_us=20000"
SYNCS = ("end", "eager", "eager-opt")
# sums of a rank share its bandwidth: some tens of milliseconds a stage
SLOW = "emulated:latency_us=500,bandwidth=800000"


def placed(sync):
    """{(rank, stage, replica): computes of the rank before its REDUCE} of the lowered schedule."""
    result = run("schedule", "lower", f"chimera:sync={sync}", *SHAPE, "--format", "json")
    if result.status != DONE:
        raise RuntimeError(result.err)
    places = {}
    for rank, actions in enumerate(json.loads(result.out)["actions"]):
        before = 0
        for action in actions:
            reduce = re.fullmatch(r"(\d+)(?:@(\d+))?REDUCE", action)
            if reduce:
                places[(rank, int(reduce[1]), int(reduce[2] or 0))] = before
            before += bool(re.fullmatch(r"\d+(@\d+)?[FBIW]\d+.*", action))
    return places


def train(sync, folder, compute, transport):
    """The losses, the best step in seconds, and the last step's boxes."""
    path = os.path.join(folder, f"{sync}.json")
    result = run("train", MODEL, *TRAIN, *SHAPE, *CUT, "--schedule", f"chimera:sync={sync}", "--device",
                 SLEEPS.format(compute), "--transport", transport, "--trace", path)
    problem = result.broken(120, 1024)
    if problem or result.status != DONE:
        raise RuntimeError(problem or result.err[-400:])
    steps = json.loads(result.out)["steps"]
    with open(path, encoding="utf-8") as file:
        events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
    return [step["loss"] for step in steps], min(step["seconds"] for step in steps), events


def traced(events):
    """The same as placed, from a trace; and how many sums lie over a later program of their rank."""
    places, over = {}, 0
    for rank in range(RANKS):
        programs = [(e["ts"], e["ts"] + e["dur"]) for e in events
                    if e["tid"] == rank and e["cat"] not in ("update", "reduce")]
        for e in events:
            if e["cat"] != "reduce" or e["tid"] != RANKS + rank:
                continue
            stage, replica = re.fullmatch(r"reduce stage (\d+)(?:, replica (\d+))?", e["name"]).groups()
            places[(rank, int(stage), int(replica or 0))] = sum(
                end <= e["ts"] + 0.01 for _, end in programs)
            over += any(e["ts"] < end and start < e["ts"] + e["dur"] for start, end in programs)
    return places, over


def differences(have, want):
    return "; ".join(f"rank, stage, replica {key}: behind {have.get(key)} programs, not {want[key]}"
                     for key in want if have.get(key) != want[key])


def main():
    need_command()
    count = Count()
    losses, seconds, sums_over = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for sync in SYNCS:
            try:
                losses[sync], _, _ = train(sync, folder, "on", "emulated:latency_us=200")
                _, seconds[sync], events = train(sync, folder, "off", SLOW)
                want = placed(sync)
                have, sums_over[sync] = traced(events)
                count.check(f"{sync}: {len(want)} sums", None if len(want) == 2 * RANKS else "not 8")
                count.check(f"{sync}: as planned", differences(have, want))
            except RuntimeError as error:
                count.check(sync, str(error))
    if len(seconds) < len(SYNCS):
        return count.finish()
    print(f"best step {seconds}; sums over later programs {sums_over}")
    for sync in SYNCS[1:]:
        count.check(f"losses of {sync}", None if losses[sync] == losses["end"] else losses[sync])
        count.check(f"{sync} overlaps", None if sums_over[sync] > 0 else "no sum lies over a program")
        if SANITIZED:
            continue
        # The model saves some 90 and 45 ms.
        count.check(f"{sync} is over sooner", None if seconds[sync] < seconds["end"] - 0.02
                    else f"{seconds[sync]} s, {seconds['end']} s with sync=end")
    count.check("sync=end", f"{sums_over['end']} lie over a program" if sums_over["end"] else None)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

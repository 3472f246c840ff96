#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=200 serial
"""train and run --trace on devices with a clock of their own: boxes are as the device had them, to the nanosecond, not as the
host saw them; the trace says so of every rank, and that a device without such a clock is timed by the host."""
import json
import os
import re
import tempfile

from command import DATA, DONE, SOURCE, Count, need_command, run

MODEL = os.path.join(DATA, "gpt_8block", "model.onnx")
RANKS, MICRO, PROGRAM_US = 2, 4, 10000
TIMES = f"forward_us={PROGRAM_US},backward_input_us={PROGRAM_US // 2},backward_weight_us={PROGRAM_US // 2}"
TRAIN = ["train", MODEL, "--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=8", "--loss",
         "cross-entropy:logits=logits,labels=labels,shift=1", "--optimizer", "sgd:lr=0.1", "--batch", str(MICRO),
         "--steps", "2", "--ranks", str(RANKS), "--microbatches", str(MICRO), "--schedule", "1f1b"]
RUN = ["run", MODEL, "--bind", "batch=4", "--bind", "seq=8", "--stages", str(RANKS), "--microbatches", str(MICRO)]
NAME = re.compile(r"([FB]) stage (\d+), micro-batch (\d+)")
CLOSE_US = 0.002  # three digits are printed


def traced(path, *arguments):
    result = run(*arguments, "--trace", path)
    problem = result.broken(120, 1024)
    if problem or result.status != DONE:
        raise RuntimeError(problem or result.err[-400:])
    with open(path, encoding="utf-8") as file:
        return json.load(file)["traceEvents"]


def clocks(events, kind=0):
    return [e["args"].get("clock") for e in events
            if e["name"] == "thread_name" and e["pid"] == kind and e["tid"] < RANKS]


def programs(events):
    return {(m[1], int(m[2]), int(m[3])): (e["ts"], e["ts"] + e["dur"], e["tid"]) for e in events
            for m in [NAME.fullmatch(e["name"])] if m and e["ph"] == "X" and e["pid"] == 0}


def order(events, trains):
    """An error in a device's order, or None."""
    boxes = programs(events)
    if len(boxes) != RANKS * MICRO * (2 if trains else 1):
        return f"{len(boxes)} boxes"
    lanes = {rank: sorted(b for b in boxes.values() if b[2] == rank) for rank in range(RANKS)}
    for rank, lane in lanes.items():
        if any(a[1] > b[0] + CLOSE_US for a, b in zip(lane, lane[1:])):
            return f"boxes of rank {rank} lie over each other"
    for (name, stage, m), (start, _, _) in boxes.items():
        reads = [("F", stage - 1, m)] if name == "F" else [("F", stage, m), ("B", stage + 1, m)]
        if any(key in boxes and boxes[key][1] > start + CLOSE_US for key in reads):
            return f"{name} of stage {stage}, micro-batch {m} begins before what it reads"
    for e in events:
        if e["ph"] == "X" and e["pid"] == 0 and e["cat"] == "update" and e["ts"] + CLOSE_US < lanes[e["tid"]][-1][1]:
            return f"the update of rank {e['tid']} begins before its last program is done"
    if not any(a[0] < b[1] - CLOSE_US and b[0] < a[1] - CLOSE_US for a in lanes[0] for b in lanes[1]):
        return "no two ranks run at once"
    return None


def exact(events):
    """A run takes what the device's options say from when it was queued, and the host sees its end some microseconds later: no
    box is shorter, and of those that begin with the end of another one some take just that. Not all: a run that was queued
    while the one before it ended has the moment between them in its box."""
    lanes = {}
    for box in programs(events).values():
        lanes.setdefault(box[2], []).append(box)
    behind = []
    for lane in lanes.values():
        end_before = None
        for start, end, _ in sorted(lane):
            if end - start < PROGRAM_US - CLOSE_US:
                return f"a box takes {end - start:.3f} us"
            if end_before is not None and abs(start - end_before) <= CLOSE_US:
                behind.append(end - start)
            end_before = end
    return None if any(length <= PROGRAM_US + CLOSE_US for length in behind) else f"boxes behind others take {behind} us"


def check(count, name, path, trains, device, want):
    try:
        events = traced(path, *(TRAIN if trains else RUN), "--device", device)
    except RuntimeError as error:
        count.check(name, str(error))
        return
    count.check(f"{name}: whose clock", None if clocks(events) == [want] * RANKS and clocks(events, 1) == [None] * RANKS
                else f"{clocks(events)}, {clocks(events, 1)}")
    count.check(f"{name}: in order", order(events, trains))
    if want == "device":
        count.check(f"{name}: as the device had it", exact(events))


def words(count, folder, device, clock):
    """The picture and the page say it too."""
    for form, pattern in (("svg", rf">{clock} clock</tspan>"), ("html", rf'"clock": ?"{clock}"')):
        path = os.path.join(folder, f"trace.{form}")
        result = run(*RUN, "--device", device, "--trace", path)
        with open(path, encoding="utf-8") as file:
            text = file.read() if result.status == DONE else ""
        n = len(re.findall(pattern, text))
        count.check(f"{device.split(',', maxsplit=1)[0]}, {form}", None if n == RANKS else f"{n} lanes say {clock}: {result.err[-200:]}")


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        for kind in ("emulated", "emulated:16,async=1"):
            device = f"{kind.split(',', maxsplit=1)[0]},{TIMES}" + (",async=1" if "async" in kind else "")
            for trains in (True, False):
                check(count, f"{'train' if trains else 'run'} on {kind}", path, trains, device, "device")
        words(count, folder, f"emulated,{TIMES}", "device")
        words(count, folder, "cpu", "host")
        events = traced(path, *RUN, "--device", "cpu", "--device", f"emulated,{TIMES}")
        count.check("a device of each", None if clocks(events) == ["host", "device"] else f"{clocks(events)}")
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run --trace: one box for every program of the last request, measured and planned."""
import json
import os
import tempfile
import xml.etree.ElementTree as ElementTree

from command import DATA, DONE, Count, need_command, run

GPT = os.path.join(DATA, "gpt_legacy", "model.onnx")
PLANS = (["--stages", "2", "--bind", "batch=4", "--microbatches", "4"],
         ["--stages", "3", "--bind", "batch=5", "--microbatches", "2", "--requests", "7"],  # 3 and 2 rows
         ["--stages", "4", "--ranks", "2", "--schedule", "zbv", "--bind", "batch=3", "--microbatches", "3"])


def boxes_of(path, kind):
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    return [e for e in events if e["ph"] == "X" and e["pid"] == kind]


def problem_of(arguments, path):
    result = run("run", GPT, *arguments, "--trace", path)
    if result.status != DONE:
        return f"status {result.status}: {result.err[-300:]}"
    n_stages, n_microbatches = int(arguments[1]), int(arguments[arguments.index("--microbatches") + 1])
    names = sorted(f"F stage {s}, micro-batch {m}" for s in range(n_stages) for m in range(n_microbatches))
    for kind in (0, 1):
        boxes = boxes_of(path, kind)
        if sorted(e["name"] for e in boxes) != names:
            return f"kind {kind}: {sorted(e['name'] for e in boxes)}"
        if min(e["ts"] for e in boxes) != 0:
            return f"kind {kind} begins at {min(e['ts'] for e in boxes)}"
        for rank in {e["tid"] for e in boxes}:
            lane = sorted((e["ts"], e["dur"]) for e in boxes if e["tid"] == rank)
            if any(a[0] + a[1] > b[0] + 0.01 for a, b in zip(lane, lane[1:])):
                return f"kind {kind}: boxes of rank {rank} lie over each other"
        ends = {e["name"]: e["ts"] + e["dur"] for e in boxes}
        for e in boxes:
            stage, m = int(e["name"].split()[2].rstrip(",")), e["name"].split()[-1]
            if stage > 0 and e["ts"] + 0.01 < ends[f"F stage {stage - 1}, micro-batch {m}"]:
                return f"kind {kind}: {e['name']} begins before its input is there"
    return None


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        for arguments in PLANS:
            count.check(" ".join(arguments), problem_of(arguments, path))
        picture = os.path.join(folder, "trace.svg")
        result = run("run", GPT, *PLANS[0], "--trace", picture)
        problem = result.err if result.status != DONE else None
        if not problem and not ElementTree.parse(picture).getroot().tag.endswith("svg"):
            problem = "no picture"
        count.check("a picture", problem)
        away = os.path.join(folder, "nowhere", "trace.json")
        result = run("run", GPT, *PLANS[0], "--trace", away)
        count.check("a target that cannot be written", None if result.status != DONE and away in result.err
                    and "per second" not in result.out else f"status {result.status}: {result.out}{result.err}")
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

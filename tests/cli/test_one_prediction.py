#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""A plan has one predicted time and one number of bytes a rank: in its file, as it is printed, simulated, compared, and on
its page."""
import json
import os
import re

from command import DATA, DONE, SOURCE, run
from small import check

MODEL = os.path.join(DATA, "demo", "model.onnx")
TRAIN = ["--train", "--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=16", "--loss",
         "cross-entropy:logits=logits,labels=labels,shift=1", "--batch", "8"]
PLANS = {
    "requests": ["--stages", "2"],
    "micro-batches": ["--stages", "3", "--bind", "batch=4", "--microbatches", "4"],
    "copies": ["--stages", "2", "--replicas", "2", "--bind", "batch=4", "--microbatches", "4"],
    "a tie over stages": [*TRAIN, "--ranks", "2", "--schedule", "1f1b", "--microbatches", "4"],
    "clipped": [*TRAIN, "--ranks", "3", "--schedule", "zb-h1", "--microbatches", "4", "--clip", "1"],
    "sums over replicas": [*TRAIN, "--ranks", "2", "--replicas", "2", "--microbatches", "4"],
    "two directions": [*TRAIN, "--ranks", "2", "--schedule", "chimera", "--microbatches", "4"],
    "two versions": [*TRAIN, "--ranks", "2", "--schedule", "2bw", "--microbatches", "4"],
}


def page_of(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return json.loads(re.search(r'<script [^>]*type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL).group(1))


def same(count, name, found, wanted):
    near = len(found) == len(wanted) and all(abs(f - w) <= 1e-9 * abs(w) for f, w in zip(found, wanted))
    count.check(name, None if near else f"{found}, not {wanted}")


def look(count, folder, name, arguments):
    file, html, other = (os.path.join(folder, part) for part in ("p.json", "p.html", "s.html"))
    made = run("plan", MODEL, *arguments, "-o", file, "--html", html)
    count.check(name, None if made.status == DONE else made.err[-300:])
    with open(file, encoding="utf-8") as text:
        plan = json.load(text)
    times = [plan["request_ns"], plan["interval_ns"]]
    total = [rank["total_bytes"] for rank in plan["memory"]]
    printed = re.search(r"predicted \([a-z ]*\): ([0-9.]+) ms", made.out).group(1)
    trains = arguments[0] == "--train"
    step = times[1] if trains else times[0]
    count.check(f"{name}, printed", None if printed == f"{step * 1e-6:.3f}" else f"{printed} for {step}")
    simulated = json.loads(run("simulate", file, "--json").out)
    same(count, f"{name}, simulated", [simulated["request_ns"], simulated["interval_ns"], simulated["step_ns"]], [*times, step])
    same(count, f"{name}, simulated bytes", [rank["total_bytes"] for rank in simulated["ranks"]], total)
    lines = run("simulate", file).out
    count.check(f"{name}, simulated lines", None if f"step (ms)            {step * 1e-6:.6g}\n" in lines else lines[:300])
    run("simulate", file, "--html", other)
    for path in (html, other):
        page = page_of(path)
        same(count, f"{name}, {path[-6:]}", [page["plan"]["request_ns"], page["plan"]["interval_ns"]], times)
        same(count, f"{name}, {path[-6:]}, bytes", [rank["total_bytes"] for rank in page["plan"]["ranks"]], total)
        track = page["tracks"][0]
        same(count, f"{name}, {path[-6:]}, figures", [track["figures"]["step_ns"]], [step])
        same(count, f"{name}, {path[-6:]}, figures' bytes", [rank["total_bytes"] for rank in track["figures"]["ranks"]], total)
    explained = {cost["what"]: cost["a"] for cost in json.loads(run("plan", "explain", file, file, "--json").out)["costs"]}
    same(count, f"{name}, explained", [explained["request_ns"], explained["step_ns"]], times)
    same(count, f"{name}, explained bytes", [explained["fullest_bytes"], explained["all_bytes"]], [max(total), sum(total)])


def everywhere(count, folder):
    for name, arguments in PLANS.items():
        look(count, folder, name, arguments)


def stages_of_a_rank(count, _):
    """Stages that a rank has are listed, and no stage is without a node."""
    said = run("plan", MODEL, "--ranks", "2", "--schedule", "interleaved:chunks=3", "--microbatches", "2", "--bind", "batch=2").out
    found = [line.split()[1] for line in said.splitlines()[2:4]]
    count.check("stages of ranks", None if found == ["0,2,4", "1,3,5"] else str(found))
    most = int(re.search(r"than the model has nodes: (\d+)", run("plan", MODEL, "--stages", "2000").err).group(1))
    more = run("plan", MODEL, "--stages", str(most + 1))
    count.check("more stages than nodes", None if more.status != DONE and f"{most + 1} stages" in more.err else more.err)
    count.check("as many", None if run("plan", MODEL, "--stages", str(most)).status == DONE else "refused")


if __name__ == "__main__":
    raise SystemExit(check(everywhere, stages_of_a_rank))

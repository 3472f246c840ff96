#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tensor group of two ranks with one thread each: one request beside two stages and beside one rank of two threads; training beside the
same; both beside torch's parallelize_module over gloo. The time of a plan of 8 ranks and 64 micro-batches.

A way is a process: a turn of it runs some requests, one at a time, or steps; set-up is left out. Ways take turns in alternating order; a
round's ratio is that of its turns. The gain of two threads over one on this machine bounds that of two ranks.

usage: tensor.py --models DIR [--model NAME] [--rounds N] [--only request,training,plan] [--record]
exit status: 1 where a way of ours failed; an aim that was missed is only said
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import time

import models
from command import COMMAND, SOURCE
from inference import machine, show, verdicts_text
from processes import TEXT, Command, race_of

HERE = os.path.dirname(os.path.abspath(__file__))
SEQ, ROWS, MICRO, STEPS, REQUESTS = 128, 4, 2, 2, 10  # MICRO: micro-batches of a step
GROUP, STAGES, THREADS, ONE, TORCH = ("tensor group of 2", "2 stages x 1 thread", "1 rank x 2 threads", "1 rank x 1 thread",
                                      "torch parallelize_module, 2 processes")
AIM_STAGES, AIM_GAIN, AIM_THREADS, AIM_TRAINING, AIM_TORCH, AIM_PLAN = 0.57, 1.07, 0.93, 0.90, 1.3, 2.0


def engine(job):
    return Command([sys.executable, "-B", os.path.join(HERE, "tensor_engines.py"), json.dumps(job)], lambda said: said["seconds"])


def requests(args, path):
    def pipe(stages, tensor, threads):
        return engine({"engine": "pipe", "model": args.model, "path": path, "rows": 1, "seq": SEQ, "stages": stages, "tensor": tensor,
                       "threads": threads, "count": REQUESTS})
    peer = engine({"engine": "torch", "what": "request", "model": args.model, "rows": 1, "seq": SEQ, "micro": 1, "count": REQUESTS})
    return {GROUP: pipe(1, 2, 1), STAGES: pipe(2, 1, 1), THREADS: pipe(1, 1, 2), ONE: pipe(1, 1, 1), TORCH: peer}


def training(args, path):
    def train(*words):
        own = ["train", path, "--data", "text:" + TEXT, "--loss", "cross-entropy:logits=logits,labels=labels,shift=1", "--batch", str(ROWS),
               "--bind", f"seq={SEQ}", "--microbatches", str(MICRO), "--optimizer", "adamw:lr=0.0001", "--steps", str(STEPS + 1), "--json", *words]
        return Command([COMMAND, *own], lambda said: [step["seconds"] for step in said["steps"][1:]])
    peer = engine({"engine": "torch", "what": "step", "model": args.model, "rows": ROWS, "seq": SEQ, "micro": ROWS // MICRO, "count": STEPS})
    return {GROUP: train("--stages", "1", "--tensor", "2", "--device", "cpu,threads=1"),
            THREADS: train("--stages", "1", "--device", "cpu,threads=2"), TORCH: peer}


def ratio_of(race, fast, slow):
    """Speed of `fast` over that of `slow`: (min, median, max), and clean rounds; None: one of them failed."""
    return race.ratio(fast, slow) if fast in race.alive and slow in race.alive else None


def table(args, title, race):
    lines = [f"## {title}, {args.model}", "", "| way | ms, min / median / max | clean rounds |", "|---|---|---|"]
    for label in race.alive:
        lines.append(f"| {label} | {show([1e3 * t for t in race.times(label)], 1)} | {race.clean(label)[1]} of {len(race.turns[label])} |")
    return [*lines, *(f"| {label} | {reason} | |" for label, reason in race.errors.items()), ""]


def judge(race, title, aims):
    judged = []
    for other, aim in aims:
        found = ratio_of(race, GROUP, other)
        if found is not None:
            ratio, clean, rounds = found
            judged.append((f"{title}: {GROUP} over {other}, {show(ratio, 3)}, {clean} of {rounds} rounds clean", ratio[1], aim, ratio[1] >= aim))
    return judged


def measure(args, path, title):
    """Lines of the record, what is judged, and whether all of ours is well."""
    request = title == "one request"
    race = race_of(requests(args, path) if request else training(args, path))
    race.run("runs", REQUESTS if request else STEPS, args.rounds)
    lines, aims = table(args, title, race), [(THREADS, AIM_THREADS if request else AIM_TRAINING), (TORCH, AIM_TORCH)]
    gain = ratio_of(race, THREADS, ONE) if request else None
    if gain is not None:
        most = max(AIM_STAGES, AIM_GAIN / gain[0][1])
        aims.insert(0, (STAGES, 1 / most))
        lines += [f"Two threads of a rank are {show(gain[0], 3)} times as fast as one; so the group may take {most:.3f} of the time of two stages.", ""]
    race.close()
    return lines, judge(race, title, aims), not [label for label in race.errors if label != TORCH]


def planning(args, path):
    """A training plan of 8 ranks in groups of 2, 64 micro-batches, from the file to the plan."""
    words = [COMMAND, "plan", path, "--train", "--data", "text:" + TEXT, "--loss", "cross-entropy:logits=logits,labels=labels,shift=1", "--ranks", "8",
             "--tensor", "2", "--schedule", "1f1b", "--microbatches", "64", "--batch", "64", "--bind", f"seq={SEQ // 4}"]
    seconds = []
    for _ in range(args.rounds):
        start = time.perf_counter()
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - start)
        if done.returncode != 0:
            return ["## a plan", "", (done.stderr or done.stdout).strip()[:500], ""], [], False
    best = min(seconds)
    lines = ["## a plan of 8 ranks in tensor groups of 2, 64 micro-batches", "", f"{show([best, sorted(seconds)[len(seconds) // 2], max(seconds)], 2)} s", ""]
    return lines, [("a plan of 8 ranks, 64 micro-batches, s (best)", best, AIM_PLAN, best < AIM_PLAN)], True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", required=True)
    parser.add_argument("--model", choices=["gpt2_small", "small"], default="gpt2_small")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    today, about, good, judged = datetime.date.today().isoformat(), machine(), True, []
    lines = [f"# Tensor groups, {today}", "", f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}; load before {os.getloadavg()[0]:.1f}. "
             f"{args.rounds} rounds, {REQUESTS} requests of 1x{SEQ} or {STEPS} steps of {ROWS}x{SEQ} in {MICRO} micro-batches a turn.", ""]
    path = models.write(args.models, args.model)
    parts = {"request": lambda: measure(args, path, "one request"), "training": lambda: measure(args, path, "training"),
             "plan": lambda: planning(args, path)}
    for name, part in parts.items():
        if args.only and name not in args.only.split(","):
            continue
        more, found, well = part()
        lines += more
        judged += found
        good = good and well
        print("\n".join(more), flush=True)
    verdicts = verdicts_text(judged)
    print("\n".join(verdicts))
    if args.record:
        with open(os.path.join(SOURCE, "tests", "bench", "records", f"{today}-tensor.md"), "w", encoding="utf-8") as file:
            file.write("\n".join([*lines, *verdicts]) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

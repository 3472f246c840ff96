#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ranks as processes, over shared memory and over UCX by TCP: beside two ranks as threads of one process, and beside
torch.distributed.pipelining over gloo. A message from process to process; a session that follows process 0.

The command's own clock counts: seconds of its steps, or of its stream of requests, set-up left out. Ways take turns in alternating
order; a round's ratio is that of its turns. Rounds in which others took more than 8 % of a core are left out, unless fewer than three
would be left.

usage: processes.py --models DIR [--model NAME] [--rounds N] [--only WORD,...] [--record]
exit status: 1 where a way failed or losses differ; an aim that was missed is only said
"""
import argparse
import datetime
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import models
from command import BUILD, COMMAND, SOURCE
from engines import Worker, busy_seconds
from inference import Race, machine, show, verdicts_text

ROWS, SEQ, MICRO = 8, 128, 8
STEPS, REQUESTS = 3, 24  # of a turn
THREADS, PROCESSES, UCX, TORCH = "2 threads of a process", "2 processes", "2 processes, UCX over TCP", "torch pipelining, 2 processes"
AIM_THREADS, AIM_UCX, AIM_TORCH, AIM_HANDOFF_US, AIM_FOLLOW_US = 0.97, 0.93, 1.4, 2.0, 30.0
TEXT = os.path.join(SOURCE, "tests", "data", "text", "ferry.txt")


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Command:
    """A way that is a command: a turn runs it once. As a Worker of engines.py."""

    def __init__(self, words, seconds_of):
        self.words, self.seconds_of = words, seconds_of
        self.error, self.peak_mib, self.said = None, 0, None

    def turn(self, _what, _count):
        busy, own, wall = busy_seconds(), children_seconds(), time.perf_counter()
        done = subprocess.run(self.words, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - wall
        others = busy_seconds() - busy - (children_seconds() - own)
        if done.returncode != 0:
            raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1][:200])
        self.said = json.loads(re.sub(r"(?m)^\[rank 0\] ", "", done.stdout))
        self.peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        return self.seconds_of(self.said), max(0.0, others / wall)

    def close(self):
        pass


def both(words, seconds_of):
    """The same words by threads and by processes. Peak memory is that of the largest process so far."""
    own = ["--ranks", "2", "--device", "cpu,threads=1", "--json"]
    return {THREADS: Command([COMMAND, *words, *own], seconds_of),
            PROCESSES: Command([COMMAND, "launch", "-n", "2", "--", *words, *own], seconds_of),
            UCX: Command([COMMAND, "launch", "-n", "2", "--", *words, *own, "--transport", "ucx:together=1"], seconds_of)}


def training(path, schedule):
    words = ["train", path, "--data", "text:" + TEXT, "--loss", "cross-entropy:logits=logits,labels=labels,shift=1", "--batch", str(ROWS),
             "--bind", f"seq={SEQ}", "--microbatches", str(MICRO), "--optimizer", "adamw:lr=0.0001", "--schedule", schedule, "--steps", str(STEPS)]
    return both(words, lambda said: [step["seconds"] for step in said["steps"][1:]])


def serving(path):
    words = ["run", path, "--bind", "batch=1", "--bind", f"seq={SEQ}", "--requests", str(REQUESTS)]
    return both(words, lambda said: [said["seconds"] / said["requests"]])


def losses(command):
    return [step["loss"] for step in command.said["steps"]] if command.said and "steps" in command.said else None


def race_of(ways):
    race = Race({})
    race.workers = ways
    race.errors = {label: way.error for label, way in ways.items() if way.error}
    race.alive = [label for label in ways if label not in race.errors]
    race.turns = {label: [] for label in race.alive}
    return race


def measure(args, name, ways):
    """Lines of the record, what is judged, and whether all is well."""
    race = race_of(ways)
    race.run("runs", STEPS - 1, args.rounds)
    lines = [f"## {name}, {args.model}", "", "| way | ms a step or request, min / median / max | clean rounds |", "|---|---|---|"]
    for label in race.alive:
        lines.append(f"| {label} | {show([1e3 * t for t in race.times(label)], 1)} | {race.clean(label)[1]} of {len(race.turns[label])} |")
    lines += [f"| {label} | {reason} | |" for label, reason in race.errors.items()]
    judged = []
    for way, other, aim in ((PROCESSES, THREADS, AIM_THREADS), (UCX, THREADS, AIM_UCX), (PROCESSES, TORCH, AIM_TORCH)):
        if way in race.alive and other in race.alive:
            ratio, clean, rounds = race.ratio(way, other)
            judged.append((f"{name}: {way} over {other}, {show(ratio, 3)}, {clean} of {rounds} rounds clean", ratio[1], aim, ratio[1] >= aim))
    race.close()
    same = losses(ways[THREADS]) == losses(ways[PROCESSES]) == losses(ways[UCX])
    if not same:
        lines.append("\nLosses DIFFER between threads and processes.")
    own_errors = [label for label in race.errors if label != TORCH]
    return [*lines, ""], judged, same and not own_errors


def handoff():
    """Lines, and the median of a message of 4 KiB from process to process, in microseconds."""
    program = os.path.join(BUILD, "tests", "bench", "bench_processes")
    alone = ["chrt", "-f", "1"] if subprocess.run(["chrt", "-f", "1", "true"], capture_output=True, check=False).returncode == 0 else []
    environment = dict(os.environ, OPIPE_PLUGIN_PATH=os.path.join(BUILD, "lib", "onnx-pipe"))
    lines, medians = ["## hand-off between two processes, by the transport's own calls", "", "```"], []
    for over in ([], ["--ucx"]):
        for n_bytes in (64, 4096, 8192):
            done = subprocess.run([*alone, program, *over, "--bytes", str(n_bytes)], capture_output=True, text=True, env=environment, check=False)
            lines.append((done.stdout or done.stderr).strip())
            found = re.search(r"median (\d+) ns", done.stdout)
            medians.append(int(found[1]) / 1e3 if found else float("inf"))
    us = medians[1]
    return [*lines, "```", ""], [("hand-off of 4 KiB, median us", us, AIM_HANDOFF_US, us < AIM_HANDOFF_US)], us != float("inf")


def following():
    """Lines, and what a submit at process 0 takes longer where the other process follows; both kinds of session take turns in one team."""
    program = os.path.join(BUILD, "tests", "bench", "bench_follow")
    done = subprocess.run([program], capture_output=True, text=True, check=False, env=dict(os.environ, OPIPE_SOURCE_DIR=SOURCE, OPIPE_BUILD_DIR=BUILD))
    found = [[float(n) for n in row] for row in re.findall(r"(?m)^submit (\S+) followed (\S+)  request (\S+) followed (\S+)$", done.stdout)]
    title = ["## a session that is followed, of two processes, one request at a time", ""]
    if done.returncode != 0 or not found:
        return [*title, (done.stderr or done.stdout).strip()[:500], ""], [], False
    names = ("submit, called by both", "submit, followed", "request until its result, called by both", "request until its result, followed")
    lines = ["| us, medians of rounds | min / median / max |", "|---|---|"]
    lines += [f"| {name} | {show([min(column), statistics.median(column), max(column)], 1)} |" for name, column in zip(names, zip(*found))]
    more = [statistics.median(row[at + 1] - row[at] for row in found) for at in (0, 2)]
    lines += ["", f"In the same round a followed submit takes {more[0]:.1f} us more, its request {more[1]:.1f} us more, by the medians of {len(found)} rounds.", ""]
    return [*title, *lines], [("following a submit, us", more[0], AIM_FOLLOW_US, more[0] < AIM_FOLLOW_US)], True


def torch_way(args, path, scratch):
    job = {"engine": "torch-pipe", "model": args.model, "rows": ROWS, "seq": SEQ, "stages": 2, "micro": MICRO, "schedule": "1F1B", "path": path,
           "save_at_end": os.path.join(scratch, "torch.npy")}
    return Worker(job)


def links():
    """The cluster that `profile` describes, with the links between processes."""
    done = subprocess.run([COMMAND, "launch", "-n", "2", "--", "profile", "--cluster"], capture_output=True, text=True, check=False)
    text = re.sub(r"(?m)^\[rank 0\] ", "", done.stdout if done.returncode == 0 else done.stderr)
    return ["## profile --cluster, of 2 processes", "", "```", text.strip()[:2000], "```", ""], [], done.returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", required=True)
    parser.add_argument("--model", choices=["gpt2_small", "small"], default="gpt2_small")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    today, about, good, judged = datetime.date.today().isoformat(), machine(), True, []
    lines = [f"# Ranks as processes, {today}", "", f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}; load before "
             f"{os.getloadavg()[0]:.1f}. {args.rounds} rounds, {STEPS - 1} steps or {REQUESTS} requests a turn, {ROWS}x{SEQ} in {MICRO} micro-batches "
             "(serving: 1 row); a rank has one thread.", ""]
    path = models.write(args.models, args.model)

    with tempfile.TemporaryDirectory() as scratch:

        def pipeline():
            return measure(args, "1F1B", {**training(path, "1f1b"), TORCH: torch_way(args, path, scratch)})

        parts = {"1f1b": pipeline, "chimera": lambda: measure(args, "Chimera", training(path, "chimera")),
                 "serving": lambda: measure(args, "serving", serving(path)), "handoff": handoff, "follow": following, "links": links}
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
        with open(os.path.join(SOURCE, "tests", "bench", "records", f"{today}-processes.md"), "w", encoding="utf-8") as file:
            file.write("\n".join([*lines, *verdicts]) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two builds of this project in turns: is the new one as fast as the old one?

Every turn is a process of its own that prints its own figure (requests per second, seconds of a
step, nanoseconds of a hop), so that start-up does not count. The order of the two turns round every
round. A round gives one ratio, old time over new time: above 1 the new build is faster. Shown are the
median of both and of the ratios, and the ratio of both sides' best turns, which others' load moves less.

usage: against.py OLD_BUILD NEW_BUILD --names OLD NEW --data DIR [--models DIR] [--rounds N]
                  [--only WORD,...] [--record DIR]
exit status: 3 when a command fails
"""
import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys

TURN_SECONDS = 1.0
TEXT = os.path.abspath(__file__)
LOSS = "cross-entropy:logits=logits,labels=labels,shift=1"


def call(*words):
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    if said.returncode != 0:
        why = said.stderr.strip() or f"status {said.returncode}"
        raise RuntimeError(f"{' '.join(words)}: {why}")
    return said.stdout


def undisturbed():
    """Words before a command that let nobody's work between, where that is allowed."""
    probe = subprocess.run(["chrt", "-f", "1", "true"], capture_output=True, check=False)
    return ["chrt", "-f", "1"] if probe.returncode == 0 else []


class Stream:
    """Seconds per request of a stream; `n` requests fill a turn."""

    def __init__(self, model, *options):
        self.model, self.options, self.n, self.words = model, options, 0, undisturbed()

    def once(self, build, n):
        text = call(*self.words, f"{build}/bin/onnx-pipe", "run", self.model, "--requests", str(n), "--json", *self.options)
        return 1.0 / json.loads(text)["requests_per_s"]

    def turn(self, build):
        if self.n == 0:
            few = max(4, int(0.1 * TURN_SECONDS / self.once(build, 4)))  # cold: says only how many are warm
            self.n = max(few, int(TURN_SECONDS / self.once(build, few)))
        return self.once(build, self.n)


class Training:
    """Median seconds of a step; the first, which touches memory, does not count."""

    def __init__(self, model, *options):
        self.model, self.options, self.n = model, options, 0

    def once(self, build, n):
        text = call(
            f"{build}/bin/onnx-pipe", "train", self.model, "--data", f"text:{TEXT}", "--loss", LOSS,
            "--optimizer", "adamw:lr=1e-4", "--steps", str(n), "--json", *self.options,
        )
        return statistics.median(step["seconds"] for step in json.loads(text)["steps"][1:])

    def turn(self, build):
        if self.n == 0:
            few = max(4, min(100, int(0.2 * TURN_SECONDS / self.once(build, 3))))
            self.n = max(few, min(1000, int(TURN_SECONDS / self.once(build, few))))
        return self.once(build, self.n)


class Handoff:
    """Median seconds of a hop through a session, at real-time priority where that is allowed."""

    def __init__(self, ranks):
        allowed = sorted(os.sched_getaffinity(0))[:2]
        self.words = [*undisturbed(), "taskset", "-c", ",".join(str(core) for core in allowed)]
        self.ranks = ranks

    def turn(self, build):
        program = f"{build}/tests/bench/bench_handoff"
        text = call(*self.words, program, "--ranks", str(self.ranks))
        return float(re.search(r"^session .* median (\d+) ns", text, re.M).group(1)) * 1e-9


class Executor:
    """Best step of 8 ranks that only sleep, over its simulation."""

    def __init__(self, data, schedule, *options):
        self.model, self.schedule, self.options = f"{data}/gpt_8block/model.onnx", schedule, options

    def turn(self, build):
        times = "forward_us=5e3,backward_input_us=5e3,backward_weight_us=5e3"
        text = call(
            f"{build}/bin/onnx-pipe", "train", self.model, "--data", f"text:{TEXT}", "--bind", "seq=8",
            "--loss", LOSS, "--optimizer", "sgd:lr=0", "--batch", "32", "--microbatches", "32",
            "--ranks", "8", "--schedule", self.schedule, "--device", f"emulated,compute=off,{times}",
            "--steps", "4", "--json", *self.options,
        )
        return min(step["seconds"] for step in json.loads(text)["steps"])


class TrainingHop:
    """Mean step in which micro-batches go one by one through 2 ranks and back, by hops; programs take no time.

    A host that learns of several steps at once sees the later ones take none: only their sum counts.
    """

    MICROBATCHES = 256

    def __init__(self, data):
        self.model, self.words = f"{data}/gpt_8block/model.onnx", undisturbed()

    def turn(self, build):
        n = str(self.MICROBATCHES)
        text = call(
            *self.words, f"{build}/bin/onnx-pipe", "train", self.model, "--data", f"text:{TEXT}", "--bind", "seq=8",
            "--loss", LOSS, "--optimizer", "sgd:lr=0", "--batch", n, "--microbatches", n, "--ranks", "2",
            "--schedule", "sequential", "--device", "emulated,compute=off,time_us=0", "--steps", "200", "--json",
        )
        later = json.loads(text)["steps"][1:]
        return sum(step["seconds"] for step in later) / len(later) / (2 * self.MICROBATCHES)


def rows(args):
    """name: what takes turns."""
    tiny = f"{args.data}/gpt_8block/model.onnx"
    found = {
        "inference tiny, 1 stage x 1 thread": Stream(tiny, "--stages", "1", "--threads", "1"),
        "stream tiny, 2 stages x 1 thread": Stream(tiny, "--stages", "2", "--threads", "1"),
        "stream tiny, 4 stages, 4 micro-batches": Stream(
            tiny, "--stages", "4", "--threads", "1", "--microbatches", "4", "--bind", "batch=4"),
        "training tiny, 1 rank": Training(tiny, "--batch", "8", "--bind", "seq=64"),
        "training tiny, 1f1b 2 ranks, clip": Training(
            tiny, "--batch", "8", "--bind", "seq=64", "--microbatches", "8", "--ranks", "2",
            "--schedule", "1f1b", "--clip", "1"),
        "training tiny, 2bw 2 ranks": Training(
            tiny, "--batch", "8", "--bind", "seq=64", "--microbatches", "8", "--ranks", "2", "--schedule", "2bw"),
        "executor 1f1b": Executor(args.data, "1f1b"),
        "executor zbv": Executor(args.data, "zbv"),
        "hand-off 2 ranks": Handoff(2),
        "hand-off 4 ranks": Handoff(4),
        "hand-off in training, 2 ranks": TrainingHop(args.data),
    }
    if args.models:
        small, gpt2 = f"{args.models}/small.onnx", f"{args.models}/gpt2_small.onnx"
        one, two = ("--stages", "1", "--threads", "1"), ("--stages", "2", "--threads", "1")
        small_dims, gpt2_dims = ("--bind", "batch=1,seq=64"), ("--bind", "batch=1,seq=128")
        found["inference small 1x64, 1 thread"] = Stream(small, *one, *small_dims)
        found["inference gpt2_small 1x128, 1 thread"] = Stream(gpt2, *one, *gpt2_dims)
        found["inference gpt2_small 1x128, 2 threads"] = Stream(
            gpt2, "--stages", "1", "--threads", "2", *gpt2_dims)
        found["stream gpt2_small 1x128, 2 stages x 1 thread"] = Stream(gpt2, *two, *gpt2_dims)
        found["training small 8x64, 1 rank"] = Training(small, "--batch", "8", "--bind", "seq=64")
    words = [word for word in args.only.split(",") if word]
    return {name: row for name, row in found.items() if not words or any(w in name for w in words)}


def race(row, builds, rounds):
    """[(old seconds, new seconds)] of every round."""
    pairs = []
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        times = [0.0, 0.0]
        for side in order:
            times[side] = row.turn(builds[side])
        pairs.append(tuple(times))
    return pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--names", nargs=2, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--models", default="")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", help="folder for YYYY-MM-DD-against.md")
    args = parser.parse_args()
    today = datetime.date.today().isoformat()
    lines = [
        f"# {args.names[1]} against {args.names[0]}, {today}",
        "",
        f"{len(os.sched_getaffinity(0))} cores, others' load {os.getloadavg()[0]:.1f}; {args.rounds} rounds in turns; "
        "ratio: old time / new time, above 1 the new build is faster",
        "",
        "| row | old, median | new, median | ratio of rounds, median | ratio of the best turns |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows(args).items():
        pairs = race(row, (args.old, args.new), args.rounds)
        old, new = (statistics.median(times) for times in zip(*pairs))
        best = min(old for old, _ in pairs) / min(new for _, new in pairs)
        unit, scale = ("us", 1e6) if new < 1e-3 else ("ms", 1e3)
        lines.append(
            f"| {name} | {old * scale:.3f} {unit} | {new * scale:.3f} {unit} | "
            f"{statistics.median(a / b for a, b in pairs):.3f} | {best:.3f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    text = "\n".join(lines) + "\n"
    print(text)
    if args.record:
        with open(os.path.join(args.record, f"{today}-against.md"), "w", encoding="utf-8") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, KeyError, ValueError) as error:
        print(f"against.py: {error}", file=sys.stderr)
        sys.exit(3)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replicas against stages of a serving stream on two cores: what `plan --auto=throughput` says, by the devices' rates and by
measured times of the nodes, beside requests per second of both, in alternating turns of one run.

usage: stream.py --models DIR --library FILE [--rounds N] [--only NAME] [--record]
exit status: 1 where a way failed, where results differ, or where the advice by measured times names the slower one by more than 2 %
"""
import argparse
import datetime
import os
import re
import sys
import tempfile

import numpy as np

import models
from command import SOURCE, run
from inference import Race, machine, show

MODELS = {"small": {"batch": 1, "seq": 64}, "gpt2_small": {"batch": 1, "seq": 128}}
REPLICAS, STAGES = "2 replicas x 1 thread", "2 stages x 1 thread"
WAYS = {"1 stage x 1 thread": (1, 1, 1), "1 stage x 2 threads": (1, 1, 2), REPLICAS: (1, 2, 1), STAGES: (2, 1, 1)}
TURN_SECONDS, LEAST, MOST, SECONDS, OFF = 2.0, 12, 2000, 1800, 0.02
SAYS = re.compile(r"replicas +(\d+) cop\w+ .*: ([\d.]+) ms between requests, the stages ([\d.]+) ms; (.*)")


def advice(path, dims, more):
    """(ms between requests of replicas, of stages, what is said) by the planner."""
    bind = ",".join(f"{name}={n}" for name, n in dims.items())
    result = run("plan", path, "--auto=throughput", *["--device", "cpu,threads=1"] * 2, "--bind", bind, *more, timeout=SECONDS)
    found = SAYS.search(result.out)
    if result.status != 0 or found is None:
        raise SystemExit(f"plan {path}: {(result.err or result.out).strip()[-400:]}")
    return float(found[2]), float(found[3]), found[4]


def measure(args, name, dims, scratch):
    """The race, its requests in a turn, and whether all ways give the same."""
    path = models.write(args.models, name)
    jobs = {}
    for i, (label, (stages, replicas, threads)) in enumerate(WAYS.items()):
        jobs[label] = {"engine": "pipe", "model": name, "dims": dims, "path": path, "library": args.library, "stages": stages,
                       "replicas": replicas, "threads": threads, "save": os.path.join(scratch, f"{name}-{i}.npy")}
    race = Race(jobs)
    count = LEAST
    if REPLICAS in race.alive:
        count = max(LEAST, min(MOST, int(TURN_SECONDS * LEAST / race.one(REPLICAS, "stream", LEAST)[0])))
    race.run("stream", count, args.rounds)
    results = [np.load(job["save"]) for label, job in jobs.items() if label in race.alive]
    race.close()
    return race, count, all(np.array_equal(results[0], other) for other in results)


def report(name, dims, said, race, count, same):
    """Lines of the record, and whether all is well."""
    lines = [f"## {name}, {'x'.join(str(n) for n in dims.values())}, {count} requests a turn", "",
             "| way | ms between requests, min / median / max | requests per second | clean rounds | peak MiB |", "|---|---|---|---|---|"]
    for label in race.alive:
        times = [1e3 * t / count for t in race.times(label)]
        lines.append(f"| {label} | {show(times, 3)} | {1e3 / times[1]:.2f} | {race.clean(label)[1]} of {len(race.turns[label])} | "
                     f"{race.workers[label].peak_mib} |")
    lines += [f"| {label} | {reason} | | | |" for label, reason in race.errors.items()]
    if race.errors:
        return lines, False
    ratio, clean, rounds = race.ratio(REPLICAS, STAGES)
    lines += ["", "| planner | replicas, ms | stages, ms | replicas over stages | it says |", "|---|---|---|---|---|"]
    lines += [f"| {how} | {replicas:.3f} | {stages:.3f} | {stages / replicas:.3f} | {words} |" for how, (replicas, stages, words) in said.items()]
    ours, theirs = (1e3 * race.times(label)[1] / count for label in (REPLICAS, STAGES))
    lines.append(f"| measured | {ours:.3f} | {theirs:.3f} | **{ratio[1]:.3f}** ({show(ratio, 3)}), {clean} of {rounds} rounds clean | |")
    replicas, stages, _ = said["by measured times"]
    misled = ratio[1] < 1 - OFF if replicas < stages else ratio[1] > 1 + OFF and stages > replicas * (1 - OFF)
    lines += ["", f"Results of all ways: {'the same bits' if same else 'DIFFERENT'}.{' The advice names the slower way.' if misled else ''}"]
    return lines, same and not misled


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    today, about, good = datetime.date.today().isoformat(), machine(), True
    lines = [f"# Replicas against stages of a stream, {today}", "", f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}; others' load "
             f"{os.getloadavg()[0]:.1f}. Ways take turns, {args.rounds} rounds; a round in which others took", "more than 8 % of a core does not count "
             "where three clean ones remain. The planner: `plan --auto=throughput` with two devices of one thread.", ""]
    with tempfile.TemporaryDirectory() as scratch:
        for name, dims in MODELS.items():
            if args.only not in ("", name):
                continue
            path = models.write(args.models, name)
            said = {"by rates": advice(path, dims, []), "by measured times": advice(path, dims, ["--measure"])}
            more, well = report(name, dims, said, *measure(args, name, dims, scratch))
            good = good and well
            lines += [*more, ""]
            print("\n".join(more), flush=True)
    if args.record:
        with open(os.path.join(SOURCE, "tests", "bench", "records", f"{today}-stream.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

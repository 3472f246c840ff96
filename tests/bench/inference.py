#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inference of onnx-pipe beside ONNX Runtime's: the same files, alternating turns in one run.

Ratios are speeds of onnx-pipe over those of the other: above 1 it is faster. Every round gives one
ratio (of the medians of the two turns); shown are the smallest, the median and the largest. A race
goes on until it has N clean rounds (7), at most for twice as many: rounds in which other processes took
more than 8 % of a core are left out where three clean ones remain; the column `clean` tells.

Aims of a row are judged by its median. A record is written after every row.

usage: inference.py --models DIR --library FILE [--rounds N] [--requests N] [--only WORD,...] [--peer-only]
                    [--record DIR]
exit status: 1 when an engine fails or an aim is missed
"""
import argparse
import datetime
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import models
from engines import Worker, busy_seconds

CLEAN = 0.08
TURN_SECONDS = 0.4
ROUNDS_MOST = 2  # as many times the rounds that are wanted, where few of them are clean
REQUESTS = 32
# The layer before which a hand would cut: half of the multiplications, the head included.
CUT_LAYER, LAYERS = 9, 12
# Model, free dimensions, and what speed over ONNX Runtime's is asked for with one and with two threads.
SINGLE = [
    ("gpt2_small", {"batch": 1, "seq": 128}, 1.10),
    ("gpt2_small", {"batch": 4, "seq": 128}, 1.10),
    ("bert_base", {"batch": 1, "seq": 128}, 1.10),
    ("small", {"batch": 1, "seq": 64}, 1.10),
    ("small_past", {"batch": 1, "seq": 1, "past": 64}, 1.10),
    ("resnet50", {"batch": 1}, 1.05),
    ("mobilenet_v3", {"batch": 1}, 1.05),
    ("wav2vec2", {"batch": 1, "samples": 16000}, 1.0),
    ("moe_block", {"batch": 1, "seq": 64}, 1.0),
    ("bert_base-int8", {"batch": 1, "seq": 128}, 1.0),
    ("gpt2_small-int8", {"batch": 1, "seq": 128}, 1.0),
]
AIM_STREAM = 1.0  # two stages of a thread beside the best other way of ours to use two cores


def spread(values):
    return min(values), statistics.median(values), max(values)


def show(values, digits=2):
    return " / ".join(f"{value:.{digits}f}" for value in values)


def quiet(limit=5.0):
    """Waits until the machine idles, at most `limit` seconds."""
    end = time.time() + limit
    while time.time() < end:
        before, start = busy_seconds(), time.time()
        time.sleep(0.1)
        if (busy_seconds() - before) / (time.time() - start) < CLEAN:
            return


def verdicts_text(found):
    """A table of (what, found, aim, held); held may be the reason why there is no verdict."""
    lines = ["| aim | found | wanted | |", "|---|---|---|---|"]
    for what, value, aim, held in found:
        said = held if isinstance(held, str) else "held" if held else "MISSED"
        lines.append(f"| {what} | {value:.3g} | {aim:.3g} | {said} |")
    return lines if found else []


class Race:
    """Workers that take turns; rounds of them give {label: [(median seconds, others), ...]}."""

    def __init__(self, jobs):
        self.workers = {label: Worker(job) for label, job in jobs.items()}
        self.errors = {label: w.error for label, w in self.workers.items() if w.error}
        self.alive = [label for label in self.workers if label not in self.errors]
        self.turns = {label: [] for label in self.alive}

    def one(self, label, what, count):
        quiet()
        seconds, others = self.workers[label].turn(what, count)
        return statistics.median(seconds), others

    def run(self, what, count, rounds):
        """Until so many were clean, or there were ROUNDS_MOST times as many."""
        for number in range(ROUNDS_MOST * rounds):
            if number >= rounds and (not self.alive or self.clean(*self.alive)[1] >= rounds):
                break
            # The first of one round is the last of the next.
            for label in self.alive[:: 1 if number % 2 == 0 else -1]:
                try:
                    self.turns[label].append(self.one(label, what, count))
                except RuntimeError as reason:
                    self.errors[label] = str(reason)
                    self.alive.remove(label)

    def clean(self, *labels):
        """Indices of the rounds that count, and how many were clean."""
        rounds = range(len(self.turns[labels[0]]))
        good = [i for i in rounds if all(self.turns[label][i][1] < CLEAN for label in labels)]
        return (good if len(good) >= 3 else list(rounds)), len(good)

    def times(self, label):
        keep, _ = self.clean(label)
        return spread([self.turns[label][i][0] for i in keep])

    def ratio(self, fast, slow):
        """Speed of `fast` over that of `slow`, round by round."""
        keep, good = self.clean(fast, slow)
        pairs = [(self.turns[slow][i][0], self.turns[fast][i][0]) for i in keep]
        return spread([a / b for a, b in pairs]), good, len(self.turns[fast])

    def close(self):
        for worker in self.workers.values():
            worker.close()


def difference(paths):
    """Largest difference of the two saved outputs over the largest number."""
    a, b = (np.load(path) for path in paths)
    return float(np.abs(a - b).max() / np.abs(b).max())


def single_row(args, name, dims, threads, aim, scratch):
    path = models.write(args.models, name)
    base = {"model": name, "dims": dims, "path": path, "threads": threads}
    saved = {engine: os.path.join(scratch, f"{engine}.npy") for engine in ("pipe", "ort")}
    jobs = {"ort": dict(base, engine="ort", save=saved["ort"])}
    if not args.peer_only:
        jobs["pipe"] = dict(base, engine="pipe", stages=1, library=args.library, save=saved["pipe"])
    race = Race(jobs)
    row = {
        "model": name,
        "shape": "x".join(str(v) for v in dims.values()),
        "threads": threads,
        "aim": aim,
        "errors": race.errors,
    }
    if race.alive:
        first = race.one(race.alive[0], "runs", 2)[0]
        count = max(1, min(500, int(TURN_SECONDS / first)))
        race.run("runs", count, args.rounds)
        row["ms"] = {label: [1e3 * t for t in race.times(label)] for label in race.alive}
        row["peak_mib"] = {label: race.workers[label].peak_mib for label in race.alive}
    if len(race.alive) == 2:
        row["ratio"], row["clean"], row["rounds"] = race.ratio("pipe", "ort")
        row["difference"] = difference([saved["pipe"], saved["ort"]])
    race.close()
    return row


def stream_rows(args, name, dims):
    """All ways to serve a stream of requests with two cores, in one race."""
    path = models.write(args.models, name)
    halves, tensor = models.cut(args.models, name, CUT_LAYER, LAYERS)
    base = {"model": name, "dims": dims, "path": path}
    jobs = {
        "ort 1 thread": dict(base, engine="ort", threads=1),
        "ort 2 threads": dict(base, engine="ort", threads=2),
        "ort 2 callers x 1 thread": dict(base, engine="callers", threads=2),
        "ort cut by hand, 2 x 1 thread": dict(
            base, engine="cut", threads=1, path=halves, tensor=tensor
        ),
    }
    if not args.peer_only:
        pipe = dict(base, engine="pipe", library=args.library)
        jobs["1 stage x 1 thread"] = dict(pipe, stages=1, threads=1)
        jobs["1 stage x 2 threads"] = dict(pipe, stages=1, threads=2)
        jobs["2 stages x 1 thread"] = dict(pipe, stages=2, threads=1)
        jobs["2 replicas x 1 thread"] = dict(pipe, stages=1, replicas=2, threads=1)
    race = Race(jobs)
    race.run("stream", args.requests, args.rounds)
    ways = {label: [args.requests / t for t in reversed(race.times(label))] for label in race.alive}
    ratios = {}
    if "2 stages x 1 thread" in race.alive:
        others = [label for label in race.alive if label != "2 stages x 1 thread"]
        ratios = {label: race.ratio("2 stages x 1 thread", label) for label in others}
    peaks = {label: race.workers[label].peak_mib for label in race.alive}
    race.close()
    return {
        "model": name,
        "requests": args.requests,
        "requests_per_second": ways,
        "ratios": ratios,
        "peak_mib": peaks,
        "errors": race.errors,
    }


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = [line.split(":", 1) for line in file if ":" in line]
    about = {key.strip(): value.strip() for key, value in lines}
    flags = about.get("flags", "").split()
    isa = [f for f in ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16") if f in flags]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    name = f"{about.get('model name', platform.machine())} family {about.get('cpu family', '?')}"
    return {
        "cpu": f"{name} model {about.get('model', '?')}",
        "cores": len(os.sched_getaffinity(0)),
        "isa": isa,
        "memory_gib": round(memory, 1),
        "kernel": platform.release(),
    }


def versions(args):
    import onnxruntime

    found = {"onnxruntime": onnxruntime.__version__, "python": platform.python_version()}
    if not args.peer_only:
        sys.path.insert(0, os.path.join(models.HERE, "..", "examples"))
        import host_numpy

        found["onnx-pipe"] = host_numpy.Library(args.library).version
        command = ["git", "-C", models.HERE, "describe", "--always", "--dirty"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        found["commit"] = said.stdout.strip() or "unknown"
    return found


def single_text(row):
    head = f"| {row['model']} | {row['shape']} | {row['threads']} |"
    if not row.get("ms"):
        return f"{head} {row['errors']} |"
    cells = [
        show(row["ms"][label], 3) if label in row["ms"] else row["errors"].get(label, "-")
        for label in ("pipe", "ort")
    ]
    if "ratio" not in row:
        return f"{head} {cells[0]} | {cells[1]} | - | - | - |"
    return (
        f"{head} {cells[0]} | {cells[1]} | **{row['ratio'][1]:.2f}** ({show(row['ratio'])}) | "
        f"{row['clean']}/{row['rounds']} | {row['difference']:.0e} |"
    )


def stream_text(row):
    lines = [
        f"### A stream of {row['requests']} requests, {row['model']} 1x128, two cores",
        "",
        "| way | requests/s min / median / max | 2 stages x 1 thread over it | clean | peak MiB |",
        "|---|---|---|---|---|",
    ]
    for label, values in row["requests_per_second"].items():
        ratio = row["ratios"].get(label)
        cell = (
            f"**{ratio[0][1]:.2f}** ({show(ratio[0])}) | {ratio[1]}/{ratio[2]}"
            if ratio
            else "- | -"
        )
        lines.append(f"| {label} | {show(values)} | {cell} | {row['peak_mib'][label]} |")
    lines += [f"| {label} | {reason} | - | - | - |" for label, reason in row["errors"].items()]
    return "\n".join(lines)


HEAD = (
    "| model | shape | threads | onnx-pipe ms min / median / max | ONNX Runtime ms | speed ratio |"
    " clean | difference |\n|---|---|---|---|---|---|---|---|"
)


def report(record):
    about, found = record["machine"], record["versions"]
    lines = [
        f"# Inference, {record['date']}",
        "",
        f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}, "
        f"{about['memory_gib']} GiB; " + ", ".join(f"{k} {v}" for k, v in found.items()),
        "",
    ]
    if record["single"]:
        lines += [HEAD, *(single_text(row) for row in record["single"]), ""]
    lines += [stream_text(row) + "\n" for row in record["stream"]]
    lines += verdicts_text(verdicts(record))
    return "\n".join(lines) + "\n"


def verdicts(record):
    """(subject, found, aim, held) of every row that has an aim and was measured."""
    found = []
    for row in record["single"]:
        if row["aim"] is not None and "ratio" in row:
            what = f"{row['model']} {row['shape']} t{row['threads']}: speed over ONNX Runtime's"
            speed = row["ratio"][1]
            found.append((what, speed, row["aim"], speed >= row["aim"]))
    for row in record["stream"]:
        ours = [row["ratios"][label][0][1] for label in ("1 stage x 2 threads", "2 replicas x 1 thread") if label in row["ratios"]]
        if ours:
            what = f"stream, {row['model']}: 2 stages x 1 thread over the best of 1 x 2 threads and 2 replicas"
            found.append((what, min(ours), AIM_STREAM, min(ours) >= AIM_STREAM))
    return found


def kind_of(word):
    """The kind of a word that chooses rows: threads (t1), a shape (4x128), or a name."""
    if re.fullmatch(r"t\d+", word):
        return "threads"
    return "shape" if re.fullmatch(r"\d+(x\d+)+", word) else "name"


def wanted(args, text):
    """Words of one kind are alternatives; a row has one of each kind that is asked for, as whole words."""
    words = args.only.split(",") if args.only else []
    padded = f" {text.replace(',', ' ')} "
    kinds = {kind_of(word): False for word in words}
    for word in words:
        kinds[kind_of(word)] |= f" {word} " in padded
    return all(kinds.values())


def progress(text):
    if sys.stderr.isatty():
        print(f"measured: {text}", file=sys.stderr, flush=True)


def keep(args, record, text, name):
    """Writes what there is so far, so that a run that is stopped leaves its rows."""
    if not args.record:
        return
    os.makedirs(args.record, exist_ok=True)
    stem = os.path.join(args.record, f"{record['date']}-{name}")
    with open(stem + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    with open(stem + ".json", "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.write("\n")


def stop(*_):
    raise KeyboardInterrupt


def until_stopped(measure, args, record):
    """measure(args, record); when it is interrupted or terminated, the rows that `record` has by then are all there is."""
    signal.signal(signal.SIGTERM, stop)
    try:
        measure(args, record)
    except KeyboardInterrupt:
        print("interrupted: what follows was measured before", file=sys.stderr)
    return record


def measure(args, record):
    with tempfile.TemporaryDirectory() as scratch:
        for name, dims, aim in SINGLE:
            for threads in (1, 2):
                text = f"{name} {'x'.join(map(str, dims.values()))} t{threads}"
                if wanted(args, text):
                    row = single_row(args, name, dims, threads, aim, scratch)
                    record["single"].append(row)
                    keep(args, record, report(record), "inference")
                    progress(text)
    if wanted(args, "stream"):
        record["stream"].append(stream_rows(args, "gpt2_small", {"batch": 1, "seq": 128}))
        keep(args, record, report(record), "inference")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", required=True, help="where the models are, or are made")
    parser.add_argument("--library", default="", help="libonnxpipe.so")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of a turn of the stream")
    parser.add_argument(
        "--only", help="words: rows of these names, shapes and threads, e.g. `gpt2_small,4x128,t1` or `stream`"
    )
    parser.add_argument("--peer-only", action="store_true", help="ONNX Runtime alone")
    parser.add_argument("--record", help="folder for YYYY-MM-DD-inference.md and .json")
    args = parser.parse_args()
    record = {"date": datetime.date.today().isoformat(), "machine": machine(), "versions": versions(args), "single": [], "stream": []}
    until_stopped(measure, args, record)
    print(report(record))
    failed = any(row["errors"] for row in record["single"] + record["stream"])
    return 1 if failed or not all(held for *_, held in verdicts(record)) else 0


if __name__ == "__main__":
    sys.exit(main())

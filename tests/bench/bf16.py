#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bf16 beside our own fp32 and PyTorch's bf16: requests of GPT-2 small, and its training step (--compute bf16).

The same weights and tokens on both sides; a file in bf16 is the graph of the bench with all of its floats in bf16, logits
turned to fp32 at the end, as PyTorch's are. Turns alternate (inference.py). Our requests are judged by the fastest of
PyTorch's ways to run one (weights in bf16, compiled, autocast); our step by the eager one under autocast.

Aims hold on processors that have instructions for bf16; what is found on others is shown without a verdict.

usage: bf16.py --models DIR --library FILE [--rounds N] [--only inference,training,4x128,t1,...] [--record DIR]
exit status: 1 when a contestant fails or an aim is missed
"""
import argparse
import datetime
import os
import sys
import tempfile

import models
from inference import TURN_SECONDS, Race, difference, keep, machine, progress, show, until_stopped, verdicts_text, wanted
from training import races, run_race, text_of, versions

MODEL = "gpt2_small"
SHAPES = [{"batch": 1, "seq": 128}, {"batch": 4, "seq": 128}]
OURS, WIDE = "onnx-pipe bf16", "onnx-pipe fp32"
AIMS = {"inference": {"own": 1.4, "peer": 1.1}, "training": {"own": 1.4, "peer": 1.4}}
TILES = {"1x128": 1.3, "4x128": 1.5}  # over PyTorch's best, where the processor has AMX
NO_INSTRUCTIONS = "this processor has no bf16 instructions"


def has_bf16(about):
    return any(flag in about["isa"] for flag in ("avx512_bf16", "amx_bf16"))


# ---- requests ----


def request_jobs(args, dims, threads, scratch):
    torch = {"engine": "torch-run", "model": MODEL, "dims": dims, "threads": threads, "way": "weights"}
    pipe = {"engine": "pipe", "model": MODEL, "dims": dims, "threads": threads, "stages": 1, "library": args.library}
    saved = [os.path.join(scratch, f"{name}.npy") for name in ("wide", "narrow")]
    jobs = {
        "torch bf16": torch,
        "torch bf16, compiled": dict(torch, compile=True),
        "torch autocast": dict(torch, way="autocast"),
        WIDE: dict(pipe, path=models.write(args.models, MODEL), save=saved[0]),
        OURS: dict(pipe, path=models.write(args.models, f"{MODEL}-bf16"), save=saved[1]),
    }
    return jobs, saved


def request_row(args, dims, threads, scratch):
    jobs, saved = request_jobs(args, dims, threads, scratch)
    race = Race(jobs)
    row = {"shape": "x".join(map(str, dims.values())), "threads": threads, "errors": race.errors, "ratio": {}}
    if race.alive:
        slowest = max(race.one(label, "runs", 2)[0] for label in race.alive)
        race.run("runs", max(1, int(TURN_SECONDS / slowest)), args.rounds)
    row["ms"] = {label: [1e3 * t for t in race.times(label)] for label in race.alive}
    row["peak_mib"] = {label: race.workers[label].peak_mib for label in race.alive}
    if OURS in race.alive:
        row["ratio"] = {label: race.ratio(OURS, label) for label in race.alive if label != OURS}
    if OURS in race.alive and WIDE in race.alive:
        row["difference"] = difference(saved)
    race.close()
    return row


def request_text(row):
    lines = [
        f"## requests, {MODEL} {row['shape']}, {row['threads']} thread{'s' * (row['threads'] > 1)}", "",
        "| contestant | ms min / median / max | speed of onnx-pipe bf16 over it | clean | peak MiB |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for label, ms in row["ms"].items():
        ratio = row["ratio"].get(label)
        cell = f"**{ratio[0][1]:.2f}** ({show(ratio[0])}) | {ratio[1]}/{ratio[2]}" if ratio else "- | -"
        lines.append(f"| {label} | {show(ms)} | {cell} | {row['peak_mib'][label]} |")
    lines += [f"| {label} | {reason} | - | - | - |" for label, reason in row["errors"].items()]
    if "difference" in row:
        lines += ["", f"bf16 differs from fp32 by {row['difference']:.1e} of the largest logit."]
    return "\n".join(lines) + "\n"


# ---- steps ----


def step_jobs():
    """The step of training.py, in bf16."""
    jobs = races(MODEL)["unsplit fp32"]
    torch, ours = jobs["torch, whole batch"], jobs["onnx-pipe, whole batch"]
    return {
        "torch bf16": dict(torch, bf16=True),
        "torch bf16, compiled": dict(torch, bf16=True, compile=True),
        WIDE: ours,
        OURS: dict(ours, compute="bf16"),
    }


# ---- the record ----


def judged(record, kind, what, own, peer, shape=""):
    """The verdicts of a row: (subject, found, aim, held) for its two ratios, each None where there is none."""
    aims = dict(AIMS[kind])
    if "amx_bf16" in record["machine"]["isa"] and shape in TILES:
        aims["peer"] = TILES[shape]
    for name, ratio, of in (("own", own, "our fp32"), ("peer", peer, "PyTorch's bf16")):
        if ratio is not None:
            speed, aim = ratio[0][1], aims[name]
            yield f"{what}: speed over {of}", speed, aim, speed >= aim if has_bf16(record["machine"]) else NO_INSTRUCTIONS


def verdicts(record):
    found = []
    for row in record["inference"]:
        peers = [ratio for label, ratio in row["ratio"].items() if label.startswith("torch")]
        best = min(peers, key=lambda ratio: ratio[0][1]) if peers else None
        what = f"requests {row['shape']} t{row['threads']}"
        found += judged(record, "inference", what, row["ratio"].get(WIDE), best, row["shape"])
    for row in record["training"]:
        pairs = {(a, b): ratio for a, b, *ratio in row["pairs"]}
        found += judged(record, "training", "training step", pairs.get((OURS, WIDE)), pairs.get((OURS, "torch bf16")))
    return found


def report(record):
    about, found = record["machine"], ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    lines = [f"# bf16, {record['date']}", "", f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}, "
             f"{about['memory_gib']} GiB; {found}", ""]  # fmt: skip
    if not has_bf16(about):
        lines += [f"No verdicts: {NO_INSTRUCTIONS}.", ""]
    lines += [request_text(row) for row in record["inference"]]
    lines += [text_of(MODEL, "training step", row) for row in record["training"]]
    return "\n".join(lines + verdicts_text(verdicts(record))) + "\n"


def measure(args, record):
    with tempfile.TemporaryDirectory() as scratch:
        for dims in SHAPES:
            for threads in (1, 2):
                text = f"inference {MODEL} {'x'.join(map(str, dims.values()))} t{threads}"
                if wanted(args, text):
                    record["inference"].append(request_row(args, dims, threads, scratch))
                    keep(args, record, report(record), "bf16")
                    progress(text)
        if wanted(args, f"training {MODEL} 8x128 t2"):
            args.model = MODEL
            pairs = [(OURS, WIDE), (OURS, "torch bf16"), (OURS, "torch bf16, compiled")]
            record["training"].append(run_race(args, step_jobs(), scratch, pairs))
            keep(args, record, report(record), "bf16")
            progress("training")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", required=True, help="where the models are, or are made")
    parser.add_argument("--library", required=True, help="libonnxpipe.so")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="words: inference, training, shapes, threads")
    parser.add_argument("--record", help="folder for YYYY-MM-DD-bf16.md and .json")
    args = parser.parse_args()
    record = {"date": datetime.date.today().isoformat(), "machine": machine(), "versions": versions(args), "inference": [], "training": []}
    until_stopped(measure, args, record)
    print(report(record))
    failed = any(row["errors"] for row in record["inference"] + record["training"])
    return 1 if failed or any(held is False for *_, held in verdicts(record)) else 0


if __name__ == "__main__":
    sys.exit(main())

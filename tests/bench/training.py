#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of onnx-pipe beside PyTorch's: one model, the same weights and tokens, AdamW.

Contestants of a race take turns of one step in alternating order, each in a process that idles
meanwhile; a round's ratio is that of its two turns. Rounds in which other processes took a part of
the machine are left out, unless fewer than three would be left. The losses of the steps that both
made must agree.

usage: training.py --models DIR --library FILE [--model NAME] [--rounds N] [--only WORD,...]
                   [--record DIR]
"""
import argparse
import datetime
import os
import subprocess
import sys
import tempfile

import numpy as np

import models
from inference import Race, keep, machine, progress, show, until_stopped, verdicts_text, wanted

ROWS, SEQ, MICRO = 8, 128, 8
ONE_RANK, TWO_RANKS = "onnx-pipe, 1 rank x 2 threads", "onnx-pipe, zb-h1, 2 ranks x 1 thread"
AIM_RANKS, AIM_COMPILED = 0.95, 1.4


def races(model):
    """name -> {label: job}; the first label of a race is what the others are compared with."""
    base = {"model": model, "rows": ROWS, "seq": SEQ}
    torch = dict(base, engine="torch", threads=2)
    ours = dict(base, engine="pipe-train", stages=1, threads=2, schedule="gpipe", micro=1)
    halves = dict(base, engine="torch-pipe", stages=2, micro=MICRO)
    pipe = dict(base, engine="pipe-train", stages=2, threads=1, micro=MICRO)
    return {
        "unsplit fp32": {
            "torch, whole batch": torch,
            "torch, 8 micro-batches": dict(torch, micro=MICRO),
            "onnx-pipe, whole batch": ours,
            "onnx-pipe, 8 micro-batches": dict(ours, micro=MICRO),
        },
        "unsplit fp32, compiled": {
            "torch compiled, whole batch": dict(torch, compile=True),
            "onnx-pipe, whole batch": ours,
        },
        # Two races: the memory of all at once would be too much for small machines.
        "2 ranks x 1 thread, GPipe and 1F1B": {
            "torch pipelining 1F1B": dict(halves, schedule="1F1B"),
            "torch pipelining GPipe": dict(halves, schedule="GPipe"),
            "onnx-pipe gpipe": dict(pipe, schedule="gpipe"),
            "onnx-pipe 1f1b": dict(pipe, schedule="1f1b"),
        },
        "2 ranks x 1 thread, Chimera and ZB-H1": {
            "torch pipelining 1F1B": dict(halves, schedule="1F1B"),
            "onnx-pipe chimera": dict(pipe, schedule="chimera"),
            "onnx-pipe zb-h1": dict(pipe, schedule="zb-h1"),
        },
        "two cores, one rank or two": {
            ONE_RANK: ours,
            TWO_RANKS: dict(pipe, schedule="zb-h1"),
        },
    }


def run_race(args, jobs, scratch, pairs=()):
    """Times, ratios to the first contestant, and how far the losses are from its losses; ratios of `pairs` of
    labels, where both lived."""
    path = models.write(args.models, args.model)
    made = {}
    for number, (label, job) in enumerate(jobs.items()):
        saved = os.path.join(scratch, f"{number}.npy")
        made[label] = dict(job, path=path, library=args.library, save_at_end=saved)
    race = Race(made)
    race.run("runs", 1, args.rounds)
    alive = race.alive
    row = {
        "ms": {label: [1e3 * t for t in race.times(label)] for label in alive},
        "peak_mib": {label: race.workers[label].peak_mib for label in alive},
        "errors": race.errors,
        "ratio": {label: race.ratio(label, alive[0]) for label in alive[1:]},
        "first": alive[0] if alive else None,
        "pairs": [(a, b, *race.ratio(a, b)) for a, b in pairs if a in alive and b in alive],
    }
    race.close()
    losses = {label: np.load(made[label]["save_at_end"]) for label in alive}
    row["losses"] = {label: [float(x) for x in losses[label][:4]] for label in alive}
    row["loss_gap"] = {
        label: float(np.abs(losses[label] - losses[alive[0]]).max()) for label in alive[1:]
    }
    return row


def text_of(model, name, row):
    tokens = ROWS * SEQ
    lines = [
        f"### {name}, {model} {ROWS}x{SEQ}",
        "",
        f"| contestant | ms a step min / median / max | tokens/s | speed over {row['first']} | clean |"
        " peak MiB | largest loss gap |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, ms in row["ms"].items():
        ratio = row["ratio"].get(label)
        speed = f"**{ratio[0][1]:.2f}** ({show(ratio[0])}) | {ratio[1]}/{ratio[2]}" if ratio else "- | -"
        gap = f"{row['loss_gap'][label]:.0e}" if label in row["loss_gap"] else "-"
        rate = f"{1e3 * tokens / ms[1]:.0f}"
        lines.append(f"| {label} | {show(ms, 0)} | {rate} | {speed} | {row['peak_mib'][label]} | {gap} |")
    lines += [f"| {label} | {reason} | - | - | - | - | - |" for label, reason in row["errors"].items()]
    return "\n".join(lines) + "\n"


def verdicts(found):
    """Returns (what, found, aim, held) of the races that have an aim."""
    judged = []
    for name, label, aim in (("unsplit fp32, compiled", "onnx-pipe, whole batch", AIM_COMPILED), ("two cores, one rank or two", TWO_RANKS, AIM_RANKS)):
        ratio = found.get(name, {}).get("ratio", {}).get(label)
        if ratio:
            what = f"a training step, {label}: speed over {found[name]['first']}"
            judged.append((what, ratio[0][1], aim, ratio[0][1] >= aim))
    return judged


def versions(args):
    import torch

    sys.path.insert(0, os.path.join(models.HERE, "..", "examples"))
    import host_numpy

    command = ["git", "-C", models.HERE, "describe", "--always", "--dirty"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return {
        "torch": torch.__version__,
        "onnx-pipe": host_numpy.Library(args.library).version,
        "commit": said.stdout.strip() or "unknown",
    }


def report(args, record):
    about = record["machine"]
    found = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    head = (f"# Training, {record['date']}\n\n{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}, {about['memory_gib']} GiB; "
            f"{found}\n")  # fmt: skip
    races_text = [text_of(args.model, name, row) for name, row in record["races"].items()]
    return "\n".join([head, *races_text, *verdicts_text(verdicts(record["races"]))])


def measure(args, record):
    with tempfile.TemporaryDirectory() as scratch:
        for name, jobs in races(args.model).items():
            if wanted(args, name):
                record["races"][name] = run_race(args, jobs, scratch)
                keep(args, record, report(args, record) + "\n", "training")
                progress(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", required=True, help="where the models are, or are made")
    parser.add_argument("--library", required=True, help="libonnxpipe.so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", choices=["gpt2_small", "small"], default="gpt2_small")
    parser.add_argument("--only", help="words; races whose name has one")
    parser.add_argument("--record", help="folder for YYYY-MM-DD-training.md and .json")
    args = parser.parse_args()
    record = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(args),
        "races": {},
    }
    until_stopped(measure, args, record)
    print(report(args, record))
    return 1 if any(row["errors"] for row in record["races"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())

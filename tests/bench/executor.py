#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How close the executor comes to its own simulation: ranks that only sleep.

Every rank is an emulated device whose programs take modelled times, to absolute deadlines: 5 ms a
forward and 10 ms a backward of a whole rank's stages. 8 ranks, 32 micro-batches, schedules as
`schedule show` prints them; the best of the steps against the makespan that `schedule simulate`
gives for the same file. Needs no core to speak of: what is measured is waiting and waking up.

usage: executor.py COMMAND MODEL.onnx [--plugin FILE.so] [--record DIR]     exit status: 1 above 3 %
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile

RANKS, MICRO, STEPS, LIMIT = 8, 32, 5, 1.03
FORWARD_US, BACKWARD_US = 5000, 10000
LOSS = "cross-entropy:logits=logits,labels=labels,shift=1"
# name: stages per rank
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved:chunks=2": 2, "chimera": 1, "zb-h1": 1, "zbv": 2}


def call(command, *arguments):
    said = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise RuntimeError(said.stderr.strip() or f"{arguments[0]} ended with {said.returncode}")
    return said.stdout


def measure(args, name, chunks, folder, plugin=None):
    """Simulated and best measured milliseconds of a step."""
    half = BACKWARD_US // 2 // chunks
    forward = FORWARD_US // chunks
    extra = ["--plugin", plugin] if plugin else []
    order = os.path.join(folder, "order.txt")
    with open(order, "w", encoding="utf-8") as file:
        shape = ["--ranks", str(RANKS), "--microbatches", str(MICRO)]
        file.write(call(args.command, "schedule", "show", name, *shape, "--format", "text", *extra))
    cost = f"F={forward / 1e3},I={half / 1e3},W={half / 1e3}"
    simulated = json.loads(call(args.command, "schedule", "simulate", order, "--cost", cost, "--json"))
    device = (
        f"emulated,compute=off,forward_us={forward},backward_input_us={half},"
        f"backward_weight_us={half}"
    )
    text = call(
        args.command, "train", args.model, "--data", f"text:{os.path.abspath(__file__)}",
        "--bind", "seq=8", "--loss", LOSS, "--optimizer", "sgd:lr=0", "--batch", str(MICRO),
        "--microbatches", str(MICRO), "--ranks", str(RANKS), "--schedule", f"file:{order}",
        "--device", device, "--steps", str(STEPS), "--json",
    )
    return simulated["makespan"], 1e3 * min(step["seconds"] for step in json.loads(text)["steps"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--plugin", help="a schedule plugin of its own, with id 'example'")
    parser.add_argument("--record", help="folder for YYYY-MM-DD-executor.md")
    args = parser.parse_args()
    rows = {name: (chunks, None) for name, chunks in SCHEDULES.items()}
    if args.plugin:
        rows["example"] = (1, args.plugin)
    today, worst = datetime.date.today().isoformat(), 0.0
    lines = [
        f"# Executor against simulation, {today}",
        "",
        f"{RANKS} ranks on {os.cpu_count()} cores, {MICRO} micro-batches, forward "
        f"{FORWARD_US / 1e3:g} ms and backward {BACKWARD_US / 1e3:g} ms a rank, best of {STEPS} steps",
        "",
        "| schedule | simulated ms | measured ms | ratio |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, (chunks, plugin) in rows.items():
            simulated, measured = measure(args, name, chunks, folder, plugin)
            worst = max(worst, measured / simulated)
            lines.append(f"| {name} | {simulated:.1f} | {measured:.1f} | {measured / simulated:.3f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if args.record:
        with open(os.path.join(args.record, f"{today}-executor.md"), "w", encoding="utf-8") as file:
            file.write(text)
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, KeyError) as error:
        print(f"executor.py: {error}", file=sys.stderr)
        sys.exit(3)

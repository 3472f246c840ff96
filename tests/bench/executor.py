#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How close the executor comes to its own simulation: ranks that only sleep.

Every rank is an emulated device whose programs take modelled times, to absolute deadlines. 8 ranks,
32 micro-batches, 5 ms a forward and 10 ms a backward of a rank's stages; schedules as
`schedule show` prints them; the best of the steps against the makespan that `schedule simulate`
gives for the same file and costs. Four cases: all stages alike; messages that take 1 ms
(transport `emulated`); a light first, a heavy middle and a heavy last stage; both. Everything else
that a step does (inputs, sums, norm, update) is real and in the measured time. Needs no core to
speak of: what is measured is waiting and waking up, so others' work on the cores counts in; on a busy
machine `chrt -f 1 ./dev bench executor` keeps it out, and the record says so.

usage: executor.py COMMAND MODEL.onnx [--plugin FILE.so] [--only TEXT] [--record DIR]
exit status: 1 above 3 %
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile

RANKS, MICRO, STEPS, LIMIT = 8, 32, 5, 1.03
FORWARD_MS, INPUT_MS, WEIGHT_MS, MESSAGE_MS = 5.0, 5.0, 5.0, 1.0
LIGHT, HEAVY, LAST = 0.6, 1.5, 1.3  # of a stage, in the unequal cases
LOSS = "cross-entropy:logits=logits,labels=labels,shift=1"
# name: stages per rank
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved:chunks=2": 2, "chimera": 1, "zb-h1": 1, "zbv": 2}
# name: messages take time, stages differ
CASES = {
    "alike": (False, False),
    "1 ms messages": (True, False),
    "unequal stages": (False, True),
    "both": (True, True),
}


def call(command, *arguments):
    said = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise RuntimeError(said.stderr.strip() or f"{arguments[0]} ended with {said.returncode}")
    return said.stdout


def times(ms, chunks, unequal):
    """Milliseconds of every stage."""
    n = RANKS * chunks
    weights = [1.0] * n
    if unequal:
        weights[0], weights[n // 2], weights[-1] = LIGHT, HEAVY, LAST
    return [ms / chunks * weight for weight in weights]


def listed(values, scale=1.0):
    return "+".join(f"{value * scale:g}" for value in values)


def measure(args, name, chunks, plugin, case, folder):
    """Simulated and best measured milliseconds of a step."""
    messages, unequal = CASES[case]
    forward, backward, weight = (
        times(ms, chunks, unequal) for ms in (FORWARD_MS, INPUT_MS, WEIGHT_MS)
    )
    cost = f"F={listed(forward)},I={listed(backward)},W={listed(weight)}"
    given = ["--cost", cost]
    if messages:
        cost += f",comm={MESSAGE_MS:g}"
    extra = ["--plugin", plugin] if plugin else []
    order = os.path.join(folder, "order.txt")
    with open(order, "w", encoding="utf-8") as file:
        shape = ["--ranks", str(RANKS), "--microbatches", str(MICRO), "--cost", cost]
        file.write(call(args.command, "schedule", "show", name, *shape, "--format", "text", *extra))
    simulated = json.loads(call(args.command, "schedule", "simulate", order, "--cost", cost, "--json"))
    device = (
        f"emulated,compute=off,forward_us={listed(forward, 1e3)},"
        f"backward_input_us={listed(backward, 1e3)},backward_weight_us={listed(weight, 1e3)}"
    )
    transport = f"emulated:latency_us={MESSAGE_MS * 1e3:g}" if messages else "local"
    # A plugin's own order is asked for again; the others may look at costs, and so come as a file.
    schedule = name if plugin else f"file:{order}"
    text = call(
        args.command, "train", args.model, "--data", f"text:{os.path.abspath(__file__)}",
        "--bind", "seq=8", "--loss", LOSS, "--optimizer", "sgd:lr=0", "--batch", str(MICRO),
        "--microbatches", str(MICRO), "--ranks", str(RANKS), "--schedule", schedule, *extra,
        "--device", device, "--transport", transport, *given, "--steps", str(STEPS), "--json",
    )
    return simulated["makespan"], 1e3 * min(step["seconds"] for step in json.loads(text)["steps"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--plugin", help="a schedule plugin of its own, with id 'example'")
    parser.add_argument("--only", default="", help="rows that contain this text: 'zbv', '1 ms'")
    parser.add_argument("--record", help="folder for YYYY-MM-DD-executor.md")
    args = parser.parse_args()
    schedules = {name: (chunks, None) for name, chunks in SCHEDULES.items()}
    if args.plugin:
        schedules["example"] = (1, args.plugin)
    today, worst = datetime.date.today().isoformat(), 0.0
    priority = ", at real-time priority" if os.sched_getscheduler(0) in (
        os.SCHED_FIFO, os.SCHED_RR) else ""
    lines = [
        f"# Executor against simulation, {today}",
        "",
        f"{RANKS} ranks on {os.cpu_count()} cores (others' load {os.getloadavg()[0]:.1f}{priority}), {MICRO} "
        f"micro-batches, forward {FORWARD_MS:g} ms and backward {INPUT_MS + WEIGHT_MS:g} ms a rank, "
        f"best of {STEPS} steps; messages {MESSAGE_MS:g} ms; unequal: the first stage takes {LIGHT:g}, "
        f"the middle one {HEAVY:g}, the last {LAST:g} times as long",
        "",
        "| schedule | case | simulated ms | measured ms | ratio |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            for name, (chunks, plugin) in schedules.items():
                row = f"| {name} | {case} |"
                if args.only not in row:
                    continue
                simulated, measured = measure(args, name, chunks, plugin, case, folder)
                worst = max(worst, measured / simulated)
                lines.append(f"{row} {simulated:.1f} | {measured:.1f} | {measured / simulated:.3f} |")
                print(lines[-1], file=sys.stderr, flush=True)
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

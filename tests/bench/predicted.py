#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured: `plan --measure` of gpt2_small on two ranks of one thread, requests and training steps under
four schedules; seven rounds each, their medians and their spread; memory to the byte.

usage: predicted.py [--model NAME] [--only TEXT] [--record]
exit status: 1 where a case is off by more than 8 %, the mean by more than 5 %, or a byte is wrong
"""
import argparse
import datetime
import json
import os
import sys

from command import SOURCE, run

CASE_LIMIT, MEAN_LIMIT, SECONDS = 0.08, 0.05, 1800
DEVICES = ["--device", "cpu,threads=1", "--device", "cpu,threads=1", "--stages", "2"]
LOSS = ["--train", "--loss", "cross-entropy:logits=logits,labels=input_ids,shift=1", "--optimizer", "adamw:lr=0.0001",
        "--data", "text:" + os.path.join(SOURCE, "tests", "data", "text", "ferry.txt"), "--batch", "8"]
TRAINED = {"gpipe": "2", "1f1b": "2", "zb-h1": "2", "interleaved:chunks=2": "4"}  # schedule: stages


def cases(length):
    """Name and options of each row."""
    yield "1 request at a time", ["--auto=latency", *DEVICES, "--bind", f"batch=1,seq={length}"]
    yield "stream of requests", ["--auto=throughput", *DEVICES, "--bind", f"batch=1,seq={length}"]
    for schedule, stages in TRAINED.items():
        yield schedule, [*LOSS, "--bind", f"seq={length}", *DEVICES[:-1], stages, "--ranks", "2", "--schedule", schedule, "--microbatches", "4"]


def measure(model, options):
    result = run("plan", model, *options, "--measure", "--json", timeout=SECONDS)
    if result.status != 0:
        raise SystemExit(f"plan {' '.join(options)}: {result.err.strip()[-400:]}")
    return next(row for row in json.loads(result.out)["measured"] if row["best"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="gpt2_small")
    parser.add_argument("--length", type=int, default=128, help="tokens")
    parser.add_argument("--only", default="")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    model = os.path.join(os.environ["OPIPE_BENCH_MODELS"], args.model + ".onnx")
    today, off, wrong = datetime.date.today().isoformat(), [], 0
    lines = [f"# Predicted against measured, {today}", "",
             f"`plan --measure` of {args.model}, {args.length} tokens, 2 ranks of 1 thread; training: 8 samples, 4 micro-batches, AdamW. Seven rounds,",
             f"their median and their spread; others' load {os.getloadavg()[0]:.1f}.", "",
             "| case | predicted ms | measured ms | least to most | predicted over measured | bytes of the fullest rank |", "|---|---|---|---|---|---|"]
    for name, options in cases(args.length):
        if args.only not in name:
            continue
        row = measure(model, options)
        off.append(row["predicted_ms"] / row["measured_ms"] - 1)
        wrong += row["predicted_bytes"] != row["session_bytes"]
        both = f"{row['session_bytes']:,}" + ("" if row["predicted_bytes"] == row["session_bytes"] else f", predicted {row['predicted_bytes']:,}")
        lines.append(f"| {name} | {row['predicted_ms']:.1f} | {row['measured_ms']:.1f} | {min(row['rounds_ms']):.1f} to "
                     f"{max(row['rounds_ms']):.1f} | {1 + off[-1]:.3f} | {both} |")
        print(lines[-1], file=sys.stderr, flush=True)
    mean = sum(abs(x) for x in off) / len(off)
    lines += ["", f"Off by {mean * 100:.1f} % in the mean, {max(abs(x) for x in off) * 100:.1f} % at most."]
    print("\n".join(lines))
    if args.record:
        with open(os.path.join(SOURCE, "tests", "bench", "records", f"{today}-predicted.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return 1 if wrong or mean > MEAN_LIMIT or max(abs(x) for x in off) > CASE_LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())

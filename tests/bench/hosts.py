#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sessions of ONNX Runtime whose graph is ours, beside those of its own CPU provider.

Speed: `session.run` of GPT-2 small, one caller and four, alternating turns of processes of their own; ratios are
speeds of ours over the other's, a round each (inference.py). Calls: a small model through the adapter, through the
library alone and by ONNX Runtime's own provider, in C (bench_hosts.c); the adapter's cost is the first less the
second. Memory: VmHWM of fresh processes in C, each with one session.

usage: hosts.py --models DIR --build DIR [--rounds N] [--only callers,calls,memory] [--model NAME] [--record DIR]
exit status: 1 when an engine fails or a target is missed
"""
import argparse
import datetime
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile

import numpy as np

import models
from engines import feeds, in_threads
from inference import CLEAN, Race, difference, machine, quiet, show, spread, verdicts_text, versions

DIMS = {"batch": 1, "seq": 128}
EP_NAME = "OnnxPipeExecutionProvider"
REQUESTS = 16
TRIES = 12
TARGETS = {"one caller": 1.0, "four callers": 1.05, "us": 30.0, "memory": 1.1, "difference": 1e-5}
ROWS = "Which sessions race was written down before any was timed; a target is judged by the best of ours over the best of the other's."
SMALL = os.path.join(models.HERE, "..", "data", "gpt_8block", "model.onnx")


# ---- engines: run by engines.py in processes of their own ----


class Own:
    """session.run with ONNX Runtime's CPU provider; `threads` of a run, `callers` of a stream."""

    def __init__(self, job):
        self.inputs, self.callers = feeds(job["model"], job["dims"]), job["callers"]
        self.session = self.open(job)

    def open(self, job):
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = job["threads"]
        return ort.InferenceSession(job["path"], options, providers=["CPUExecutionProvider"])

    def run(self):
        return self.session.run(None, self.inputs)

    def result(self):
        return self.run()[0]

    def stream(self, count):
        def calls():
            for _ in range(count // self.callers):
                self.run()

        in_threads(*[calls] * self.callers)

    def close(self):
        pass


class Inside(Own):
    """The same with our provider, which takes the whole graph or fails."""

    def open(self, job):
        import onnxruntime as ort

        ort.register_execution_provider_library("onnx-pipe", job["adapter"])
        devices = [d for d in ort.get_ep_devices() if d.ep_name == EP_NAME]
        options = ort.SessionOptions()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options.add_provider_for_devices(devices[:1], job["options"])
        if job["as_it_is"]:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return ort.InferenceSession(job["path"], options)


ENGINES = {"own": Own, "inside": Inside}

# ---- speed ----


class Patient(Race):
    """A turn that others disturbed is taken again, up to TRIES times."""

    def one(self, label, what, count):
        for _ in range(TRIES):
            quiet()
            seconds, others = self.workers[label].turn(what, count)
            if others < CLEAN:
                break
        return statistics.median(seconds), others


def callers_row(args, callers, others, ours):
    """One race: {label: job} of ONNX Runtime's, and ours."""
    path = models.write(args.models, args.model)
    base = {"model": args.model, "dims": DIMS, "path": path, "callers": callers, "module": "hosts"}
    with tempfile.TemporaryDirectory() as scratch:
        saved = [os.path.join(scratch, f"{i}.npy") for i in range(2)]
        jobs = {f"onnxruntime, {n} of a run": dict(base, engine="own", threads=n) for n in others}
        jobs[next(iter(jobs))]["save"] = saved[0]
        for options, as_it_is in ours:
            label = "onnx-pipe, " + (", ".join(f"{k}={v}" for k, v in options.items()) or "no options")
            label += ", graph as it is" if as_it_is else ""
            adapter = os.path.join(args.build, "lib", "libopipe-ort-ep.so")
            jobs[label] = dict(base, engine="inside", options=options, as_it_is=as_it_is, adapter=adapter, save=saved[1])
        race = Patient(jobs)
        away = difference(saved) if all(map(os.path.exists, saved)) else None
    what, count = ("runs", 3) if callers == 1 else ("stream", REQUESTS)
    race.run(what, count, args.rounds)
    per_run = 1 if callers == 1 else REQUESTS
    row = {"callers": callers, "errors": race.errors, "difference": away, "ms": {}, "ratios": {}}
    for label in race.alive:
        row["ms"][label] = [1e3 * t / per_run for t in race.times(label)]
    for label in race.alive:
        if label.startswith("onnx-pipe"):
            rivals = [other for other in race.alive if other.startswith("onnxruntime")]
            row["ratios"][label] = {other: race.ratio(label, other) for other in rivals}
    race.close()
    return row


# ---- calls and memory, in C ----


def runtime():
    """onnxruntime's library beside its Python package."""
    import onnxruntime

    found = glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi", "libonnxruntime.so.*"))
    if not found:
        raise RuntimeError("no libonnxruntime.so beside the onnxruntime package")
    return found[0]


def in_c(args, *words):
    command = [os.path.join(args.build, "tests", "bench", "bench_hosts"), *words]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {said.stderr.strip()}")
    return said.stdout.splitlines()


def calls_row(args, seq):
    """Microseconds of a call, {way: [min, median, max]}, and of inside less alone."""
    adapter, library = (os.path.join(args.build, "lib", f"lib{name}.so") for name in ("opipe-ort-ep", "onnxpipe"))
    lines = in_c(args, "call", runtime(), adapter, library, SMALL, "1", str(seq), str(args.rounds))
    rounds = [json.loads(line) for line in lines]
    row = {"seq": seq, "us": {way: spread([r[way] for r in rounds]) for way in rounds[0]}}
    row["cost"] = spread([r["inside"] - r["alone"] for r in rounds])
    return row


def memory_row(args, name):
    """MiB at the peak, {way: [min, median, max]} of three processes each."""
    path = models.write(args.models, name)
    adapter, library = (os.path.join(args.build, "lib", f"lib{name}.so") for name in ("opipe-ort-ep", "onnxpipe"))
    ways = {"alone": [library], "as_it_is": [runtime(), adapter], "inside": [runtime(), adapter], "own": [runtime()]}
    dims = [str(n) for n in DIMS.values()]
    row = {"model": name, "mib": {}}
    for way, files in ways.items():
        kib = [int(in_c(args, "peak", way, *files, path, *dims)[0]) for _ in range(3)]
        row["mib"][way] = spread([n / 1024 for n in kib])
    row["ratio"] = {way: row["mib"][way][1] / row["mib"]["alone"][1] for way in ("inside", "as_it_is")}
    return row


# ---- tables ----


def verdicts(record):
    """(subject, found, target, held) of every target that was measured."""
    found = []
    for row in record["callers"]:
        name = "one caller" if row["callers"] == 1 else "four callers"
        # Ours at its best against the other at its best.
        best = [min(r[0][1] for r in ratios.values()) for ratios in row["ratios"].values() if ratios]
        if best:
            found.append((f"{name}: times the speed of onnxruntime", max(best), TARGETS[name], max(best) >= TARGETS[name]))
        if row["difference"] is not None:
            limit = TARGETS["difference"]
            found.append((f"{name}: difference", row["difference"], limit, row["difference"] <= limit))
    for row in record["calls"]:
        cost = row["cost"][1]
        found.append((f"a call, {row['seq']} tokens: us more than alone", cost, TARGETS["us"], cost < TARGETS["us"]))
    for row in record["memory"]:
        for way, ratio in row["ratio"].items():
            what = f"{row['model']}: peak over that alone" + (", graph as it is" if way == "as_it_is" else "")
            found.append((what, ratio, TARGETS["memory"], ratio <= TARGETS["memory"]))
    return found


def callers_text(row, name):
    lines = [
        f"## {name} 1x128, session.run, {row['callers']} caller{'s' * (row['callers'] > 1)}",
        "",
        ROWS,
        "",
        "| session | ms a run, min / median / max | speed of onnx-pipe over it |",
        "|---|---|---|",
    ]
    for label, ms in row["ms"].items():
        cells = [
            f"{own[11:]}: **{r[label][0][1]:.3f}** ({show(r[label][0])}; {r[label][1]}/{r[label][2]} clean)"
            for own, r in row["ratios"].items()
            if label in r
        ]
        lines.append(f"| {label} | {show(ms, 1)} | {'; '.join(cells) or '-'} |")
    lines += [f"| {label} | {reason} | - |" for label, reason in row["errors"].items()]
    return "\n".join(lines)


def report(record):
    about, found = record["machine"], record["versions"]
    lines = [
        f"# Inside ONNX Runtime, {record['date']}",
        "",
        f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}, "
        f"{about['memory_gib']} GiB; " + ", ".join(f"{k} {v}" for k, v in found.items()),
        "",
    ]
    lines += [callers_text(row, record["model"]) + "\n" for row in record["callers"]]
    if record["calls"]:
        lines += [
            "## A call of gpt_8block, 1 stage x 1 thread, us (min / median / max of rounds)",
            "",
            "| tokens | through the adapter | library alone | the adapter's cost | onnxruntime's own, 1 thread |",
            "|---|---|---|---|---|",
        ]
        for row in record["calls"]:
            us = row["us"]
            lines.append(
                f"| {row['seq']} | {show(us['inside'], 1)} | {show(us['alone'], 1)} | **{row['cost'][1]:.1f}** "
                f"({show(row['cost'], 1)}) | {show(us['own'], 1)} |"
            )
        lines.append("")
    if record["memory"]:
        lines += [
            "## Peak memory of a process with one session (VmHWM, MiB)",
            "",
            "| model | library alone | inside onnxruntime | over alone | inside, graph as it is (ORT_DISABLE_ALL) | over alone | its own provider |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in record["memory"]:
            mib = {way: show(values, 1) for way, values in row["mib"].items()}
            over = {way: f"**{ratio:.3f}**" for way, ratio in row["ratio"].items()}
            cells = [mib["alone"], mib["inside"], over["inside"], mib["as_it_is"], over["as_it_is"], mib["own"]]
            lines.append(f"| {row['model']} 1x128 | {' | '.join(cells)} |")
        lines.append("")
    lines += verdicts_text(verdicts(record))
    return "\n".join(lines) + "\n"


def measure(args):
    wanted = args.only.split(",") if args.only else ["callers", "calls", "memory"]
    record = {"date": datetime.date.today().isoformat(), "model": args.model, "machine": machine()}
    record.update(versions=versions(args), callers=[], calls=[], memory=[])
    if "memory" in wanted:
        record["memory"].append(memory_row(args, args.model))
    if "calls" in wanted:
        record["calls"] += [calls_row(args, seq) for seq in (1, 8)]
    if "callers" in wanted:
        one, two = {"stages": "1", "threads": "2"}, {"stages": "2", "threads": "1"}
        copies = {"stages": "1", "replicas": "2", "threads": "1"}
        record["callers"].append(callers_row(args, 1, [2], [(one, False), (one, True), ({}, False)]))
        record["callers"].append(callers_row(args, 4, [2, 1], [(two, False), (two, True), (copies, False), ({}, False)]))
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", required=True, help="where the models are, or are made")
    parser.add_argument("--build", required=True, help="build tree")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", help="some of callers,calls,memory")
    parser.add_argument("--model", default="gpt2_small", help="one of graphs/ that makes logits of input_ids alone")
    parser.add_argument("--record", help="folder for YYYY-MM-DD-hosts.md")
    args = parser.parse_args()
    args.library, args.peer_only = os.path.join(args.build, "lib", "libonnxpipe.so"), False
    record = measure(args)
    text = report(record)
    print(text)
    if args.record:
        os.makedirs(args.record, exist_ok=True)
        with open(os.path.join(args.record, f"{record['date']}-hosts.md"), "w", encoding="utf-8") as file:
            file.write(text)
    failed = any(row["errors"] for row in record["callers"])
    return 1 if failed or not all(held for *_, held in verdicts(record)) else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every row that has an aim, of all benches beside peers, on one page that names the machine.

A part is a bench of this folder, run by its own script with fewer rows or rounds where --quick asks for at most 20 minutes; a part
that has used its minutes is ended, and the rows that it printed by then count. Aims are read from what a part prints: tables of
verdicts, and rows with a verdict of their own.

usage: all.py [--quick] [--only PART,...] [--record]
exit status: 1 when a part fails or an aim is missed
"""
import argparse
import datetime
import os
import signal
import subprocess
import sys
import time

from inference import machine

HERE = os.path.dirname(os.path.abspath(__file__))
# Part: title, minutes that --quick gives it, words that it gets then, words without --quick.
PARTS = {
    "inference": ("Requests beside ONNX Runtime", 6, ["--rounds", "3", "--requests", "8"], []),
    "kernels": ("Products in fp32 beside ONNX Runtime and the machine's limits", 2,
                ["--rows", "1,16,64,128,512", "--shapes", "768x3072,3072x768", "--seconds", "0.3"], ["--rows", "1,16,64,128,512"]),
    "small": ("Weights of few bits", 4, ["--no-models", "--shapes", "2048x2048", "--seconds", "0.05"],
              ["--no-models", "--shapes", "2048x8192,3072x3072", "--seconds", "0.2"]),
    "models": ("Models in 8 bits beside ONNX Runtime", 1, ["--only-models", "--seconds", "0.2"], ["--only-models"]),
    "decode": ("A step of decoding beside ONNX Runtime and GenAI", 2, ["--rounds", "3"], ["--threads", "1,2"]),
    "generate": ("Generation beside GenAI", 4, ["--rounds", "1", "--only", "one core,drafts"], ["--rounds", "3"]),
    "bf16": ("bf16 beside PyTorch", 3, ["--rounds", "2"], []),
    "training": ("Training beside PyTorch compiled, and two ranks beside one", 3, ["--rounds", "2", "--only", "compiled,cores"],
                 ["--only", "compiled,cores"]),
}  # fmt: skip
SCRIPTS = {"models": "small"}  # of parts that are named otherwise
NEEDS = {"bf16": ({"avx512_bf16", "amx_bf16"}, "this processor has no bf16 instructions")}


def rows_of(text):
    """(row, found, wanted, verdict) of what a part printed."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if len(cells) < 4 or cells[-1] not in ("held", "MISSED"):
            continue
        if len(cells) == 4:
            found.append(tuple(cells))
        else:  # threads, what, ..., "AIM FOUND, wanted WANTED", verdict
            aim, wanted = cells[-2].rsplit(", wanted ", 1)
            name, value = aim.rsplit(" ", 1)
            found.append((f"{', '.join(cells[1:3])}, t{cells[0]}: {name}", value, wanted, cells[-1]))
    return found


def ended(process):
    """Ends a part that is late: it prints what it has, or is killed."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        out, _ = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
    return out


def run_part(name, words, seconds):
    """Returns (what it printed, how it ended or None). Its processes are a group, which ends with its time."""
    script = os.path.join(HERE, f"{SCRIPTS.get(name, name)}.sh")
    with subprocess.Popen(["sh", script, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            out = ended(process)
            return out, f"ended after its {seconds / 60:.0f} minutes: the rows below are those that it had"
    if process.returncode not in (0, 1):
        said = (err or out).strip().splitlines()
        return out, f"status {process.returncode}: {said[-1][:200] if said else 'nothing was said'}"
    return out, None


def page_of(parts):
    about = machine()
    verdicts = [row[3] for _, _, rows, _, _ in parts for row in rows]
    lines = [
        f"# Where this machine stands, {datetime.date.today().isoformat()}", "",
        f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}, {about['memory_gib']} GiB; others' load at the end "
        f"{os.getloadavg()[0]:.1f}", "", f"{verdicts.count('held')} held, {verdicts.count('MISSED')} MISSED", "",
    ]  # fmt: skip
    for name, title, rows, reason, seconds in parts:
        lines += [f"## {title}", "", f"`./dev bench {SCRIPTS.get(name, name)}`, {seconds:.0f} s{'. ' + reason if reason else ''}", ""]
        if rows:
            lines += ["| row | found | wanted | |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows), ""]
    return "\n".join(lines), "MISSED" in verdicts


def measure(args):
    wanted, isa, parts = args.only.split(",") if args.only else list(PARTS), set(machine()["isa"]), []
    for name in wanted:
        if name not in PARTS:
            raise SystemExit(f"all.py: no part {name}; there are {', '.join(PARTS)}")
        title, minutes, quick, whole = PARTS[name]
        needs, reason = NEEDS.get(name, (isa, ""))
        if needs.isdisjoint(isa) and needs:
            parts.append((name, title, [], reason, 0.0))
            continue
        start = time.monotonic()
        out, late = run_part(name, quick if args.quick else whole, 60 * minutes if args.quick else None)
        parts.append((name, title, rows_of(out), late, time.monotonic() - start))
        print(f"{name}: {len(parts[-1][2])} rows, {parts[-1][4]:.0f} s{', ' + late if late else ''}", file=sys.stderr, flush=True)
    return parts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="at most 20 minutes")
    parser.add_argument("--only", help=f"parts: {', '.join(PARTS)}")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    parts = measure(args)
    page, missed = page_of(parts)
    print(page)
    if args.record:
        path = os.path.join(HERE, "records", f"{datetime.date.today().isoformat()}-all.md")
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
    return 1 if missed or any(not rows and reason and seconds for _, _, rows, reason, seconds in parts) else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Facts, checks and measurements of a GPU; runs inside a bundle (./dev gpu bundle), with nothing but Python 3.8.

    gpu.py facts|correct|train|infer|all   the part's lines that the record does not have yet of this bundle
    gpu.py lease                           lines of all parts, those first that never ran, as far as --seconds go (560)
    gpu.py record                          the record as a page: DATE-gpu.md beside record.json
    gpu.py lines                           what lines there are, and the seconds that each may take

    --again        lines that the record has, too
    --only LINE    this line alone (repeatable)
    --seconds N    the most that all of it may take
    --jobs N       programs of `correct` at once (1)
    --out DIR      where the record is, instead of beside this file

Every line has a result of its own in record.json as soon as it is there: a part that was cut short goes on where it was, and the
line that was cut off says so. A line that was not run says so, and why. Status 0: every line asked for ran well, and every aim was
held; 1: not; 3: none could run, as without a device.
"""
import argparse
import os
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bundle_kit  # noqa: E402
import correct  # noqa: E402
import facts  # noqa: E402
import infer  # noqa: E402
import record as records  # noqa: E402
import train  # noqa: E402
from bundle_kit import Clock, Failed, NotRun, device_missing  # noqa: E402

PARTS = {"facts": (facts.LINES, 120), "correct": (correct.LINES, 480), "train": (train.LINES, 1920), "infer": (infer.LINES, 480)}
LINES = {part: lines for part, (lines, _) in PARTS.items()}
LEAST_S = 5  # a line that has less left is not begun


def verdict(line, value):
    """ok, or whether the aims that the value has a figure of are held."""
    aims = {name: least for name, least in line.wanted.items() if isinstance(value, dict) and isinstance(value.get(name), (int, float))}
    if not aims or bundle_kit.SMALL:
        return "ok"
    return "held" if all(value[name] >= least for name, least in aims.items()) else "MISSED"


def run_line(line, seconds):
    began = time.monotonic()
    try:
        value = line.run(Clock(min(line.seconds, seconds)))
        status = verdict(line, value)
    except (NotRun, Failed) as why:
        status = "not run" if isinstance(why, NotRun) else "failed"
        value = {"why": str(why), **why.said} if why.said else str(why)
    except Exception as why:  # whatever it is, the lines behind it are run
        status, value = "failed", "%s: %s" % (type(why).__name__, why)
    return {"status": status, "value": value, "seconds": round(time.monotonic() - began, 1), "at": records.now(),
            "commit": bundle_kit.manifest()["commit"], "gpu": bundle_kit.gpu()}


def skipped(why):
    return {"status": "not run", "value": why, "seconds": 0, "at": records.now()}


def run_lines(todo, record, seconds, missing):
    """todo: [(part, Line)], in this order; seconds: what all of them have."""
    clock = Clock(seconds)
    for part, line in todo:
        if missing and line.device:
            result = skipped("no device: " + missing)
        elif clock.left() < LEAST_S:
            result = skipped("the %d s were over" % seconds)
        else:
            record.begin(part, line.name)
            result = run_line(line, clock.left())
        record.put(part, line.name, result)
        text = records.text_of(result["value"])
        print("%-8s %-34s %-8s %s" % (part, line.name, result["status"], text if len(text) <= 400 else text[:400] + " ..."))
        sys.stdout.flush()


def of_part(part, record, given):
    """The part's lines that are asked for and not there."""
    todo = []
    for line in LINES[part]:
        if given.only and line.name not in given.only:
            continue
        if not given.again and record.is_done(part, line.name, bundle_kit.manifest()["commit"]):
            print("%-8s %-34s is in the record" % (part, line.name))
        else:
            todo.append((part, line))
    return todo


def by_need(todo, record):
    """Lines that never had a result, those that failed or were cut off, those of other bundles; of equal need the shortest first, so
    that a short lease has the most of them."""
    order = {"not run": 0, "failed": 1, "cut off": 2}
    return sorted(todo, key=lambda one: (order.get(record.get(one[0], one[1].name)["status"], 3), one[1].seconds))


def parse():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what", choices=[*PARTS, "all", "lease", "record", "lines"])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--out", default=HERE)
    parser.add_argument("--only", metavar="LINE", action="append")
    parser.add_argument("--jobs", type=int, default=bundle_kit.JOBS)
    return parser.parse_args()


def say_lines():
    for part, (lines, limit) in PARTS.items():
        print("%s (%d s):" % (part, limit))
        for line in lines:
            print("    %-36s %4d s%s" % (line.name, line.seconds, "".join(", %s >= %s" % pair for pair in line.wanted.items())))
    return 0


def end_for(status):
    """A signal ends the line that runs, its program with it, and the page is still written."""
    def handler(number, _):
        raise SystemExit(status + number)
    return handler


def main():
    given = parse()
    if given.what == "lines":
        return say_lines()
    os.makedirs(given.out, exist_ok=True)
    bundle_kit.JOBS, bundle_kit.LOG = max(1, given.jobs), given.out
    print("bundle of commit %s" % bundle_kit.manifest()["commit"])
    record = records.Record(given.out)
    if given.what == "record":
        print(records.page(record, LINES))
        return 0
    signal.signal(signal.SIGTERM, end_for(128))
    asked = [given.what] if given.what in PARTS else list(PARTS)
    missing = device_missing()
    try:
        if given.what == "lease":
            todo = [one for part in asked for one in of_part(part, record, given)]
            run_lines(by_need(todo, record), record, given.seconds or 560, missing)
        else:
            ends = Clock(given.seconds or sum(PARTS[part][1] for part in asked))
            for part in asked:
                run_lines(of_part(part, record, given), record, min(ends.left(), given.seconds or PARTS[part][1]), missing)
    finally:
        path = records.page(record, LINES)
    states = [record.get(part, line.name)["status"] for part in asked for line in LINES[part] if not given.only or line.name in given.only]
    n_ok = sum(state in ("ok", "held") for state in states)
    print("%d ok, %d failed, %d missed, %d not run; %s" % (n_ok, states.count("failed"), states.count("MISSED"),
                                                        states.count("not run") + states.count("cut off"), path))
    if missing:
        print("no device: " + missing)
        return 3
    return 1 if "failed" in states or "MISSED" in states else 0


if __name__ == "__main__":
    sys.exit(main())

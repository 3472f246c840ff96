#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is to be known, shown and measured on a GPU; runs inside a bundle (./dev gpu bundle), with nothing but Python 3.8.

    gpu.py facts|correct|train|infer|all   the part's lines that the record does not have yet; --again: all of them;
                                           --jobs N: programs of `correct` at once (1)
    gpu.py record                          the record as a page: DATE-gpu.md beside record.json
    gpu.py lines                           what lines there are

Every line has a result of its own in record.json, beside this file or in --out DIR, as soon as it is there: a part that was
cut short goes on where it was. A line that was not run says so, and why. Status 0: every line asked for ran well; 1: one
failed; 3: none could run, as without a device.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bundle_kit  # noqa: E402
import correct  # noqa: E402
import facts  # noqa: E402
import speed  # noqa: E402
from bundle_kit import Failed, NotRun, device_missing  # noqa: E402

PARTS = {"facts": (facts.LINES, 120), "correct": (correct.LINES, 480), "train": (speed.TRAIN, 1920), "infer": (speed.INFER, 480)}
NEEDS_NO_DEVICE = {"machine", "versions", "peers"}


class Record:
    """record.json: {"started", "lines": {part: {name: {"status", "value", "seconds", "at"}}}}"""

    def __init__(self, folder):
        self.path = os.path.join(folder, "record.json")
        self.data = {"started": now(), "lines": {}}
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as file:
                self.data = json.load(file)

    def get(self, part, name):
        return self.data["lines"].get(part, {}).get(name, {"status": "not run", "value": "not asked for"})

    def put(self, part, name, result):
        self.data["lines"].setdefault(part, {})[name] = result
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            json.dump(self.data, file, indent=1)
        os.replace(self.path + ".new", self.path)


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def run_line(function, left):
    """The result of a line; `left`: seconds that its part has."""
    began = time.monotonic()
    try:
        status, value = "ok", function(left)
    except NotRun as why:
        status, value = "not run", str(why)
    except Failed as why:
        status, value = "failed", str(why)
    except subprocess.TimeoutExpired as late:
        status, value = "failed", "not done after %d s: %s" % (late.timeout, os.path.basename(str(late.cmd[0])))
    return {"status": status, "value": value, "seconds": round(time.monotonic() - began, 1), "at": now()}


def run_part(part, record, again, seconds, only):
    lines, limit = PARTS[part]
    lines = [line for line in lines if only in (None, line[0])]
    limit = seconds or limit
    missing = device_missing()
    began = time.monotonic()
    for name, function in lines:
        if not again and record.get(part, name)["status"] == "ok":
            print("%-8s %-28s is in the record" % (part, name))
            continue
        left = limit - (time.monotonic() - began)
        if missing and name not in NEEDS_NO_DEVICE:
            result = {"status": "not run", "value": "no device: " + missing, "seconds": 0, "at": now()}
        elif left <= 0:
            result = {"status": "not run", "value": "the part's %d s were over" % limit, "seconds": 0, "at": now()}
        else:
            result = run_line(function, left)
        record.put(part, name, result)
        print("%-8s %-28s %-8s %s" % (part, name, result["status"], text_of(result["value"])))
        sys.stdout.flush()


def text_of(value):
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 400 else text[:400] + " ..."


def page(record):
    with open(os.path.join(HERE, "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    date = record.data["started"][:10]
    out = ["# %s: on a GPU" % date, "", "Commit %s; by `gpu.py` of its bundle." % manifest["commit"], ""]
    for part, (lines, _) in PARTS.items():
        out += ["## %s" % part, "", "| line | result | |", "|---|---|---|"]
        for name, _ in lines:
            result = record.get(part, name)
            out.append("| %s | %s | %s |" % (name, result["status"], text_of(result["value"]).replace("|", "\\|").replace("\n", " ")))
        out.append("")
    path = os.path.join(os.path.dirname(record.path), date + "-gpu.md")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out))
    return path


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what", choices=[*PARTS, "all", "record", "lines"])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--out", default=HERE)
    parser.add_argument("--only", metavar="LINE")
    parser.add_argument("--jobs", type=int, default=bundle_kit.JOBS)
    given = parser.parse_args()
    if given.what == "lines":
        for part, (lines, limit) in PARTS.items():
            print("%s (%d s): %s" % (part, limit, ", ".join(name for name, _ in lines)))
        return 0
    os.makedirs(given.out, exist_ok=True)
    bundle_kit.JOBS = max(1, given.jobs)
    record = Record(given.out)
    if given.what == "record":
        print(page(record))
        return 0
    asked = list(PARTS) if given.what == "all" else [given.what]
    for part in asked:
        run_part(part, record, given.again, given.seconds, given.only)
    states = [record.get(part, name)["status"] for part in asked for name, _ in PARTS[part][0] if given.only in (None, name)]
    print("%d ok, %d failed, %d not run; %s" % (states.count("ok"), states.count("failed"), states.count("not run"), page(record)))
    missing = device_missing()
    if missing:
        print("no device: " + missing)
        return 3
    return 1 if "failed" in states else 0


if __name__ == "__main__":
    sys.exit(main())

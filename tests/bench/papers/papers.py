#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The papers' published figures beside what planners and simulator make of the same configurations.

papers.py [--only WORD,...] [--clusters FOLDER] [--json] [--record] [--fit MACHINE] [--uses]

Configurations are data: MACHINE.json here (README.md says what is in them). Exit status 1: a row that
is said to be met is not, or one that is said not to be is.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys

import figures
import fitting

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MACHINES = ["piz-daint", "config-a", "p3.16xlarge", "selene", "auto"]


def load(machines=None):
    """The data files, in order."""
    return [json.loads((HERE / (name + ".json")).read_text()) for name in machines or MACHINES]


def evaluate(data, answers):
    """[figures.Result] of every row of a data file."""
    return [figures.result(row, answers) for row in data["rows"]]


HEAD = ["row", "what", "published", "tag", "ours", "deviation", "within", ""]


def table(results):
    """Markdown."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(r.cells()) + " |" for r in results]
    return "\n".join(lines)


def reasons(results):
    """The reasons of rows that are not met."""
    return ["- %s (%s): %s" % (r.row["id"], r.row["what"], r.row["why"]) for r in results if "why" in r.row]


def leave_one_out(data, engine):
    """A line: how far off each calibration row is when the constants are fitted without it."""
    errors = fitting.leave_one_out(data, engine)
    if not errors:
        return None
    mean = sum(abs(e) for _, e in errors) / len(errors)
    return "%s: %d constants on %d calibration rows; left out one at a time they are %.1f %% off on average (%s)" % (
        data["machine"],
        len(data["constants"]),
        len(errors),
        100 * mean,
        ", ".join("%s %+.1f %%" % (name, 100 * e) for name, e in errors),
    )


def summary(results):
    """A line of counts; calibration rows are not counted."""
    counted = [r for r in results if r.verdict in ("met", "not met")]
    met = sum(r.verdict == "met" for r in counted)
    return "%d of %d targets met; %d calibration rows, %d baselines and plans beside" % (
        met,
        len(counted),
        sum(r.verdict == "calibrates" for r in results),
        sum(r.verdict == "" for r in results),
    )


def check(results):
    """Rows whose data say something else than what came out."""
    wrong = []
    for r in results:
        if r.verdict == "not met" and "why" not in r.row:
            wrong.append("%s (%s): not met, and nothing says why" % (r.row["id"], r.row["what"]))
        if r.verdict == "met" and "why" in r.row:
            wrong.append("%s (%s): met, but the data say why it cannot be" % (r.row["id"], r.row["what"]))
    return wrong


def commit():
    """The tree's commit, for records."""
    found = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", help="machines, comma-separated: " + ", ".join(MACHINES))
    parser.add_argument("--clusters", help="folder of cluster files instead of the project's own")
    parser.add_argument("--json", action="store_true", help="results as JSON")
    parser.add_argument("--record", action="store_true", help="also to tests/bench/records/")
    parser.add_argument("--fit", metavar="MACHINE", help="print constants fitted to its calibration rows")
    parser.add_argument("--uses", action="store_true", help="how many rows each constant moves")
    options = parser.parse_args()
    engine = figures.Engine(options.clusters)
    if options.fit:
        (data,) = load([options.fit])
        for name, old, new in fitting.fit(data, engine):
            print("%-40s %12.6g -> %12.6g" % (name, old, new))
        return 0
    files = load(options.only.split(",") if options.only else None)
    results, lines = [], []
    for data in files:
        results += evaluate(data, engine.answers(data))
        line = leave_one_out(data, engine)
        lines += [line] if line else []
        if options.uses:
            lines += ["  %s moves %d rows" % use for use in fitting.uses(data, engine)]
    if options.json:
        print(json.dumps([r.plain() for r in results], indent=1))
        return 0
    text = "\n".join([table(results), "", summary(results), ""] + lines + ["", "Not met:"] + reasons(results))
    print(text)
    if options.record:
        today = datetime.date.today().isoformat()
        path = ROOT / "tests/bench/records" / (today + "-papers.md")
        path.write_text("# papers, %s, commit %s\n\n`./dev bench papers`\n\n%s\n" % (today, commit(), text))
    wrong = check(results)
    for line in wrong:
        print("papers.py: " + line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=60
"""The trial itself, without packages and models: its table and what makes it fail, what is kept and tried again, an end in time."""
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import trial  # noqa: E402
from command import Count, Result  # noqa: E402

GOOD = {"ms": {"pipe": 1.5, "ort": 2.0}, "ratio": [0.7, 0.75, 0.8], "mib": {"pipe": 10, "ort": 20}, "file_mib": 3.5, "clean": False}


def result(name, verdicts=None, **more):
    return {"name": name, "family": name.split("-")[0], "mixes": False, "verdicts": verdicts or ["ok"] * len(trial.COLUMNS), "race": GOOD, "version": "v1", **more}


def tables(count):
    rows = [result("gpt2-dynamo"), result("bert-legacy", ["ok", "WRONG: far off", "late: more than 60 s", "ok", "refused: mixes", "refused: mixes", "ok"]),
            result("clip_logits-dynamo", ["ok"] * 4 + ["refused: mixes", "refused: mixes", "ok"], mixes=True), {"name": "mixtral-legacy", "family": "mixtral", "not_made": "no", "version": "v2"},
            result("clip_logits-legacy", ["ok", "ok", "refused: else"] + ["ok"] * 4, mixes=True), result("opt-legacy", race={"why": "no kernel"})]
    lines, wrong, lacking, tried = trial.report(rows, "T")
    text = "\n".join(lines)
    count.check("wrong, lacking, tried", None if (wrong, lacking, tried) == (1, ["bert", "clip_logits"], {"gpt2", "bert", "clip_logits", "opt"}) else f"{wrong} {lacking} {tried}")
    table = [line for line in lines if line.startswith("|")]
    count.check("as many cells in each row", None if len({line.count("|") for line in table}) == 1 else text)
    for part in ("| 1.50 | 2.00 | 0.75 (0.70 to 0.80) ~ | 10 | 20 | 3.5 |", "- bert-legacy, 2 stages: WRONG: far off", "3 stages: late", "- mixtral-legacy: not made: no",
                 "beside ONNX Runtime: no kernel", "5 files of 4 families, of ", "clip_logits-legacy, 3 stages: refused", "1 wrong", "By v1, v2."):
        count.check("says " + part, None if part in text else text)
    count.check("a refusal of mixed samples is right", None if "clip_logits-dynamo," not in text else text)


def verdicts(count):
    limits = trial.Limits(False)
    for status, err, wanted in ((0, "", "ok"), (3, "no such operator", "refused: no such operator"), (None, "", "late: more than 60 s"), (1, "off", "WRONG: status 1: off"),
                                (-11, "", "WRONG: ended with -11: "), (0, "ERROR: LeakSanitizer: 3", "WRONG: ERROR: LeakSanitizer: 3: ERROR: LeakSanitizer: 3")):
        found = trial.verdict(Result(status, "", err, 1.0, 10), limits)
        count.check(f"status {status}", None if found == wanted else f"{found}, not {wanted}")


class Fake(trial.Trial):
    """A trial of files that are there already; counts what it tries."""

    def __init__(self, folder, again=False):
        self.root, self.results, self.again, self.limits, self.tried = folder, os.path.join(folder, "results"), again, trial.Limits(False), []
        os.makedirs(self.results, exist_ok=True)

    def files(self, family, exports):
        yield f"{family}-dynamo", None
        yield f"{family}-legacy", "an exporter's reason"


def kept(count, folder):
    for name in ("gpt2-dynamo", "bert-dynamo"):
        os.makedirs(os.path.join(folder, name))
        with open(os.path.join(folder, name, "meta.json"), "w", encoding="utf-8") as file:
            file.write('{"mixes": false}')
    calls = []
    before, trial.one_file = trial.one_file, lambda path, meta, limits: calls.append(os.path.basename(path)) or {"verdicts": ["ok"] * len(trial.COLUMNS), "race": GOOD}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            Fake(folder).family("bert", False)
            count.check("a table of a part", None if trial.report(Fake(folder).all(), "T")[3] == {"bert"} else str(Fake(folder).all()))
            for again, wanted in ((False, ["bert-dynamo", "gpt2-dynamo"]), (True, ["bert-dynamo", "gpt2-dynamo"] * 2)):
                for family in ("gpt2", "bert"):
                    Fake(folder, again).family(family, False)
                count.check(f"again: {again}", None if sorted(calls) == sorted(wanted) else str(calls))
        order = [one["name"] for one in Fake(folder).all()]
        count.check("in the order of families", None if order == ["gpt2-dynamo", "gpt2-legacy", "bert-dynamo", "bert-legacy"] else str(order))
    finally:
        trial.one_file = before


def made(count, folder):
    """Only what is neither there nor tried is made."""
    calls = []
    before, trial.said_in = trial.said_in, lambda command, *_: calls.append(command[-1]) or subprocess.CompletedProcess(command, 0, "NOT EXPORTED: no", "")
    try:
        for again, wanted in ((False, ["legacy"]), (True, ["dynamo", "legacy"])):  # gpt2-dynamo is there, bert-dynamo was tried
            one = Fake(folder, again)
            one.environment = {}
            shutil.rmtree(os.path.join(folder, "bert-dynamo"), ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(folder, "results", "bert-legacy.json"))
            found = list(trial.Trial.files(one, "bert", True))
            count.check(f"made, again: {again}", None if calls == wanted and found[1] == ("bert-legacy", "no") else f"{calls} {found}")
            calls.clear()
        list(trial.Trial.files(Fake(folder), "opt", False))
        count.check("nothing is made of what is kept", None if not calls else str(calls))
    finally:
        trial.said_in = before


def in_time():
    """Seconds until a command is over that leaves a child behind which holds its output."""
    start, late = time.monotonic(), False
    try:
        trial.said_in(["sh", "-c", "sleep 300 & echo $!; wait"], 0.2)
    except subprocess.TimeoutExpired:
        late = True
    return time.monotonic() - start, late


def commands(count):
    said = trial.said_in(["sh", "-c", "echo out; echo err >&2; sleep 300 & echo $!; exit 3"], 60)
    child = int(said.stdout.split()[1])
    count.check("what it says", None if (said.returncode, said.stderr) == (3, "err\n") and said.stdout.startswith("out\n") else str(said))
    gone = ended(child)
    count.check("what it has started ends with it", None if gone else f"{child} runs on")
    seconds, late = in_time()
    count.check("in time", None if late and seconds < 30 else f"{seconds:.1f} s, {late}")


def ended(process):
    """Soon: a process without a parent that waits is for init to collect."""
    for _ in range(100):
        try:
            with open(f"/proc/{process}/stat", encoding="ascii") as file:
                if file.read().rsplit(")", 1)[1].split()[0] in "ZX":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def ends(count, folder):
    """A step that takes too long is reported as late, and so are all steps behind it."""
    limits = trial.Limits(False)
    limits.file = -1
    before, trial.beside = trial.beside, lambda path, limits: {"why": "not here"}
    try:
        found = trial.one_file(folder, {"variant": "int8", "mixes": False}, limits)
    finally:
        trial.beside = before
    count.check("late, a variant not trained", None if [v.split(":")[0] for v in found["verdicts"]] == ["late"] * (len(trial.COLUMNS) - 1) + ["-"] else str(found))


def main():
    count, folder = Count(), tempfile.mkdtemp()
    try:
        count.check("families are found", None if len(set(trial.families())) >= trial.FAMILIES_WANTED else str(trial.families()))
        tables(count)
        verdicts(count)
        kept(count, folder)
        made(count, folder)
        ends(count, folder)
        commands(count)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

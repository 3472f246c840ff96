#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trial of every family (./dev real): family by family, exports what families.py lists with both exporters, makes of some what
variants.py makes, and runs each file whole, in 2, 3 and 4 stages against the plan's stages and the uncut model, in 2 and 4
micro-batches (of the first data set: of one sample), and trained for two steps (variants are not); then its time and its peak memory beside ONNX Runtime's.

Results of a file are kept in ROOT/results and not tried again, so that a trial that is cut off goes on where it was; the table is written
after each file, into ROOT/table.md. ROOT is build/real, with --wide build/real-wide.

A value is right or wrong, never refused by chance: the trial fails when any is wrong, when files of more than 3 families are
refused where samples do not read each other, and when fewer than 45 families were tried (not with --only).

usage: trial.py [--only NAME,...] [--wide] [--kept] [--again] [--minutes N] [--record]
  --wide     as wide as users' models are, two layers
  --kept     exports nothing, takes what is there
  --again    tries again what was tried
  --minutes  begins no family after so long
  --record   writes the table to tests/bench/records/DATE-real.md (-real-wide.md)
"""
import argparse
import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cli"))
from command import BUILD, DONE, REFUSED, SOURCE, need_command, run  # noqa: E402
import test_microbatches as forms  # noqa: E402

PYTHON = os.path.join(SOURCE, "build", "venv", "real", "bin", "python")
SPLIT = ("2 micro-batches", "4 micro-batches")
COLUMNS = ["whole", "2 stages", "3 stages", "4 stages", *SPLIT, "trained"]
EXPORTERS = ("dynamo", "legacy")
FAMILIES_WANTED, REFUSED_MOST = 45, 3
VARIED = """gpt2-dynamo gpt2_cache-dynamo llama-dynamo qwen2-dynamo phi3-dynamo opt-legacy bert-dynamo
roberta-dynamo distilbert-legacy t5-dynamo vit-legacy resnet-legacy""".split()
# A value half way between two codes falls to either side by its last bit: by as much do outputs of
# ONNX Runtime differ when a weight of a norm is moved by one unit in the last place (0.017; wide
# 0.48, and 0.092 where what is in between is rounded to half precision).
TOLERANCE = {"int8": ["--atol", "0.05"]}
TOLERANCE_WIDE = {"int8": ["--atol", "0.5"], "fp16": ["--atol", "0.15"]}


class Limits:
    """Seconds: of a command, of an export, of all that is tried of a file."""

    def __init__(self, wide):
        self.command, self.export, self.file = (600, 1200, 1800) if wide else (60, 600, 240)
        self.mib = 16384 if wide else 4096
        self.tolerance = TOLERANCE_WIDE if wide else TOLERANCE
        self.training = ["--clip", "1"] if wide else []  # random weights of a wide ResNet make gradients of 1e14


# ---- one file ----


def verdict(result, limits):
    """'ok', 'late', 'refused: why' or 'WRONG: what'."""
    if result.status is None:
        return f"late: more than {limits.command} s"
    problem = result.broken(limits.command, limits.mib)
    if problem is None and result.status == DONE:
        return "ok"
    text = " ".join((result.err or result.out).split())
    if problem is None and result.status == REFUSED:
        return "refused: " + text[:200]
    return f"WRONG: {problem or 'status %s' % result.status}: {text[-200:]}"


def commands(folder, meta, limits):
    """The commands of COLUMNS; None: this file is not tried so."""
    loose = limits.tolerance.get(meta.get("variant"), [])
    if meta.get("gap_to_torch", 0) > 1e-3:  # fp32 is as far from fp64: 4e-4 (ONNX Runtime), 8e-4 (torch) of a wide T5
        loose = loose or ["--atol", "0.002"]
    check = ["run", folder, "--check", *loose, "--threads", "1"]
    yield check
    for stages in ("2", "3", "4"):
        yield [*check, "--reference", "--stages", stages]
    for number in ("2", "4"):
        yield [*check, "--reference", "--stages", "2", "--microbatches", number]
    if "variant" in meta:
        yield None
        return
    yield ["train", os.path.join(folder, "model.onnx"), "--steps", "2", "--reference", "--threads", "1", "--stages", "2",
           "--optimizer", "sgd:lr=0.05", *limits.training, *forms.training_data(folder, meta, 0)]  # fmt: skip


def said_in(command, seconds, environment=None):
    """The output of a command, which ends in time with all that it has started (TimeoutExpired). Its output goes through files: what it
    leaves behind holds up nobody."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True)
        try:
            process.wait(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return subprocess.CompletedProcess(command, process.returncode, *texts)


def beside(folder, limits):
    """Time and memory beside ONNX Runtime's, or why there are none."""
    library = os.path.join(BUILD, "lib", "libonnxpipe.so")
    command = [PYTHON, "-B", os.path.join(HERE, "race.py"), folder, "--library", library]
    try:
        said = said_in(command, limits.command)
    except subprocess.TimeoutExpired:
        return {"why": f"more than {limits.command} s"}
    if said.returncode != 0:
        return {"why": " ".join((said.stderr or said.stdout).split())[-200:]}
    return json.loads(said.stdout.splitlines()[-1])


def one_file(folder, meta, limits):
    """{"verdicts": one for each of COLUMNS, "race": ...}; ends in time."""
    start, verdicts = time.monotonic(), []
    for command in commands(folder, meta, limits):
        if command is None:
            verdicts.append("-")
        elif time.monotonic() - start > limits.file:
            verdicts.append(f"late: {limits.file} s were over")
        else:
            verdicts.append(verdict(run(*command, timeout=limits.command), limits))
    return {"verdicts": verdicts, "race": beside(folder, limits), "seconds": round(time.monotonic() - start, 1)}


# ---- all of them ----


def families():
    """Names of families.py, in its order; the package need not be there."""
    with open(os.path.join(HERE, "families.py"), encoding="utf-8") as file:
        return re.findall(r'^    "(\w+)": \w+\(', file.read().split("\nFAMILIES = {", 1)[1], re.M)


class Trial:
    def __init__(self, wide, again=False):
        self.root = os.path.join(SOURCE, "build", "real-wide" if wide else "real")
        self.results, self.again, self.limits = os.path.join(self.root, "results"), again, Limits(wide)
        self.environment = {**os.environ, **({"REAL_WIDE": "1"} if wide else {})}
        os.makedirs(self.results, exist_ok=True)

    def path(self, name):
        return os.path.join(self.results, name + ".json")

    def kept(self, name):
        if not os.path.exists(self.path(name)):
            return None
        with open(self.path(name), encoding="utf-8") as file:
            return json.load(file)

    def is_done(self, name):
        return self.kept(name) is not None and not self.again

    def keep(self, name, result):
        with open(self.path(name) + ".part", "w", encoding="utf-8") as file:
            json.dump({**result, "name": name, "version": version()}, file, indent=1)
        os.rename(self.path(name) + ".part", self.path(name))

    def make(self, name, script, *arguments):
        """Makes a file that is not there, unless it was tried. Returns the script's output, line by line, or the reason where it takes too
        long."""
        if self.there(name) or self.is_done(name):
            return ""
        command = [PYTHON, os.path.join(HERE, script), self.root, *arguments]
        try:
            said = said_in(command, self.limits.export, self.environment)
        except subprocess.TimeoutExpired:
            return f"NOT MADE: more than {self.limits.export} s"
        return said.stdout + said.stderr[-300:]

    def files(self, family, exports):
        """(name, why it is not there or None) of a family's files."""
        for exporter in EXPORTERS:
            name = f"{family}-{exporter}"
            said = self.make(name, "export.py", "--only", family, "--exporter", exporter) if exports else ""
            yield name, None if self.there(name) else reason(said)
            if name not in VARIED or not self.there(name):
                continue
            for kind in ("extended", "int8", "fp16", "nbits"):
                said = self.make(f"{name}-{kind}", "variants.py", "--only", name, "--kinds", kind) if exports else ""
                yield f"{name}-{kind}", None if self.there(f"{name}-{kind}") else reason(said)

    def there(self, name):
        return os.path.exists(os.path.join(self.root, name, "meta.json"))

    def family(self, family, exports):
        for name, why in self.files(family, exports):
            if self.is_done(name):
                continue
            if why is not None:
                self.keep(name, {"family": family, "not_made": why})
            else:
                folder = os.path.join(self.root, name)
                with open(os.path.join(folder, "meta.json"), encoding="utf-8") as file:
                    meta = json.load(file)
                self.keep(name, {"family": family, "mixes": meta["mixes"], **one_file(folder, meta, self.limits)})
            print(row_of(self.kept(name)), flush=True)

    def all(self):
        """Results by the order of families, then of their files."""
        order = {name: i for i, name in enumerate(families())}
        found = [self.kept(name[:-5]) for name in sorted(os.listdir(self.results)) if name.endswith(".json")]
        return sorted(found, key=lambda one: (order.get(one["family"], len(order)), one["name"]))


def reason(said):
    found = re.search(r"NOT (?:MADE|EXPORTED): (.*)", said)
    return found[1] if found else " ".join(said.split())[-200:] or "it is not there"


def version():
    said = subprocess.run(["git", "-C", SOURCE, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


# ---- the table ----


def short(text):
    return text.split(":")[0]


def row_of(one):
    if "not_made" in one:
        return f"| {one['name']} | not made |" + " |" * (len(COLUMNS) + 5)
    race, cells = one["race"], [short(v) for v in one["verdicts"]]
    if "why" in race:
        cells += ["-"] * 6
    else:
        noisy = "" if race["clean"] else " ~"
        cells += [f"{race['ms']['pipe']:.2f}", f"{race['ms']['ort']:.2f}", f"{race['ratio'][1]:.2f} ({race['ratio'][0]:.2f} to {race['ratio'][2]:.2f}){noisy}"]
        cells += [f"{race['mib'][engine]:.0f}" for engine in ("pipe", "ort")] + [f"{race['file_mib']:.1f}"]
    return f"| {one['name']} | " + " | ".join(cells) + " |"


def notes_of(one):
    """The faults of a file's results, and for each whether it is wrong, or lacks something."""
    if "not_made" in one:
        yield f"- {one['name']}: not made: {one['not_made']}", False, False
        return
    for column, text in zip(COLUMNS, one["verdicts"]):
        mixed = one["mixes"] and column in SPLIT and text.startswith("refused")
        if text not in ("ok", "-") and not mixed:
            yield f"- {one['name']}, {column}: {text}", text.startswith("WRONG"), True
    if "why" in one["race"]:
        yield f"- {one['name']}, beside ONNX Runtime: {one['race']['why']}", False, False


def machine():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        model = re.search(r"model name\s*: (.*)", file.read())
    return f"{model[1].strip() if model else os.uname().machine}, {os.cpu_count()} cores"


def report(results, title):
    """Lines; how many are wrong; families that lack something; families tried."""
    head = ["file", *COLUMNS, "ms", "ONNX Runtime", "time over its", "MiB", "ONNX Runtime", "file"]
    lines = [f"# {title}", "", machine(), "", "Of whole runs of the first data set, 2 threads, 5 rounds in turns: milliseconds, our time over ONNX Runtime's (least to most; ~: others",
             "took more than 8 % of a core), and MiB that a process took at most beside its interpreter and modules.", "",
             "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]  # fmt: skip
    lines += [row_of(one) for one in results]
    notes = [note for one in results for note in notes_of(one)]
    wrong = sum(1 for _, bad, _ in notes if bad)
    lacking = sorted({one["family"] for one in results for _, _, lacks in notes_of(one) if lacks})
    tried = {one["family"] for one in results if "not_made" not in one}
    of = len(set(families()))
    lines += ["", *[text for text, _, _ in notes], "",
              f"{sum('not_made' not in one for one in results)} files of {len(tried)} families, of {of} that there are; {wrong} wrong; not all of {len(lacking)} "
              f"families: {', '.join(lacking) or 'none'}. By {', '.join(sorted({one['version'] for one in results})) or 'none'}."]  # fmt: skip
    return lines, wrong, lacking, tried


def write(path, lines, root):
    """Without the place of this machine where files lie."""
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write("".join(line.replace(root + os.sep, "") + "\n" for line in lines))
    os.rename(path + ".part", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only")
    for name in ("wide", "kept", "again", "record"):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    args = parser.parse_args()
    need_command()
    if not os.path.exists(PYTHON):
        sys.exit("build/venv/real with torch and transformers is not there")
    trial, start = Trial(args.wide, args.again), time.monotonic()
    today = datetime.date.today().isoformat()
    kind = "real-wide" if args.wide else "real"
    paths = [os.path.join(trial.root, "table.md")] + ([os.path.join(SOURCE, "tests", "bench", "records", f"{today}-{kind}.md")] if args.record else [])
    names = [name for name in families() if not args.only or name in args.only.split(",")]
    title = f"Files as users export them{', as wide as theirs' if args.wide else ''}, {today}"
    for name in names:
        if time.monotonic() - start > 60 * args.minutes:
            print(f"{args.minutes:g} minutes are over: the rest is for another time")
            break
        trial.family(name, not args.kept)
        for path in paths:
            write(path, report(trial.all(), title)[0], trial.root)
    lines, wrong, lacking, tried = report([one for one in trial.all() if one["family"] in names], title)
    print("\n".join(lines[-2:]))
    few = not args.only and len(tried) < FAMILIES_WANTED
    return 1 if wrong or len(lacking) > REFUSED_MOST or few else 0


if __name__ == "__main__":
    sys.exit(main())

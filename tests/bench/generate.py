#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generation beside its peers, and beside itself: an 88M LLaMA as GenAI's builder writes it, random weights.

A contest has turns, each a process of its own (generate_turns.py): our command gets all requests at once. Turns alternate; a round
gives one ratio, and the median of the rounds is judged. Rounds in which other processes took more than 8 % of a core are left out where
three others remain. The contest of the trace, whose rounds take minutes, has three rounds at most unless --only names it alone.

A record can be made in pieces: rows of the same day and machine are kept, and those of contests that run again are replaced. --cause
writes the cause of a row that misses beside it, without a run.

Run by build/venv/real's Python with build/venv/genai's packages on PYTHONPATH (generate.sh sees to it).

usage: generate.py --models DIR --command FILE [--library FILE] [--rounds N] [--only WORD,...] [--record DIR] [--cause ROW=TEXT] [--list]
exit status: 1 when an engine fails or an aim is missed
"""
import argparse
import datetime
import glob
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import decode  # noqa: E402
from engines import busy_seconds  # noqa: E402
from generate_turns import FORMS, WORDS, folder_of, ours, theirs  # noqa: E402
from inference import CLEAN, Race, keep, machine, quiet, show, spread, until_stopped, verdicts_text  # noqa: E402

ONE = ["--stages", "1", "--device", "cpu,threads=1"]
TWO = ["--stages", "2", "--device", "cpu,threads=1"]  # a rank has the device named last
PAST, BUFFER, STEP_SECONDS = 64, 256, 0.4


# ---- requests ----


def prompt_of(rng, n):
    return [int(i) for i in rng.integers(3, WORDS, n)]


def request(ids, tokens, at=0.0, **more):
    return {"ids": ids, "at": at, "max_tokens": tokens, "min_tokens": tokens, **more}


def alike(n, prompt, tokens):
    rng = np.random.default_rng(n + prompt)
    return [request(prompt_of(rng, prompt), tokens) for _ in range(n)]


def trace():
    """64 requests, log-uniform: prompts of 16 to 1,024 ids, answers of 16 to 256 tokens."""
    rng = np.random.default_rng(64)
    with open(os.path.join(HERE, "generate_trace.json"), encoding="utf-8") as file:
        return [request(prompt_of(rng, prompt), tokens) for prompt, tokens in json.load(file)]


def entering(with_prompt):
    """8 sequences that generate, and a prompt of 2,048 ids that enters between them."""
    found = alike(8, 16, 256)
    if with_prompt:
        found.append(request(prompt_of(np.random.default_rng(5), 2048), 1, at=1.0))
    return found


def shared(apart_s):
    """Two sequences with 1,024 ids in common, the second after the first has ended."""
    ids = prompt_of(np.random.default_rng(6), 1024)
    return [request(ids + [5], 2), request(ids + [6], 2, at=apart_s)]


# ---- contests ----


@dataclass
class Ratio:
    """Figure `of` over figure `over`: at least `aim`, or at most."""

    name: str
    of: str
    over: str
    aim: float
    at_most: bool = False


@dataclass
class Contest:
    key: str
    turns: list  # {label: how}; how(args, scratch) -> ({figure: number}, {fact: text}, tokens or None)
    ratios: list
    rounds: int = 0  # at most, among other contests; 0: as many as are asked for
    same_tokens: tuple = field(default=())  # figures' turns whose tokens must be equal


def speed(label, form, requests, options):
    """Tokens per second of our command."""

    def turn(args, scratch):
        found = ours(args, form, requests, options, scratch)
        drafts = found["generation"]
        facts = {"accepted drafts": f"{drafts['accepted']} of {drafts['drafted']}"} if drafts["drafted"] else {}
        tokens = [answer["ids"] for line in found["requests"] for answer in line["answers"]]
        return {label: found["tokens_per_s"]}, {"tokens/s": f"{found['tokens_per_s']:.1f}", **facts}, tokens

    return turn


def peer(label, engine, form, requests, **more):
    def turn(args, scratch):
        found = theirs(args, engine, form, requests, scratch, **more)
        return {label: found["tokens_per_s"]}, {"tokens/s": f"{found['tokens_per_s']:.1f}"}, found.get("ids")

    return turn


def first_tokens(labels, requests, options, per_s):
    """Times to the requests' first tokens in ms, or one over them."""

    def turn(args, scratch):
        found = ours(args, "fp32", requests, options, scratch)
        times = [line["first_ms"] for line in found["requests"]]
        figures = {label: 1 / ms if per_s else ms for label, ms in zip(labels, times)}
        return figures, {f"{label}, ms": f"{ms:.1f}" for label, ms in zip(labels, times)}, None

    return turn


def gaps(label, with_prompt, options):
    """99 % of the times between tokens of sequences that generate."""

    def turn(args, scratch):
        found = ours(args, "fp32", entering(with_prompt), options, scratch)
        facts = {"between tokens, ms, 50 % and 99 %": f"{found['between_ms']['p50']:.1f}, {found['between_ms']['p99']:.1f}"}
        if with_prompt:
            facts["the prompt's own time, ms"] = f"{found['requests'][-1]['first_ms']:.0f}"
        return {label: found["between_ms"]["p99"]}, facts, None

    return turn


def steps(args, form, scratch):
    """Seconds of a decode step with states: keys and values that grow, and a shared buffer, in one race."""
    jobs = {}
    path = os.path.join(folder_of(args.models, form), "model.onnx")
    for label, past in (("grown", PAST), ("shared buffer", BUFFER)):
        inputs, dims = decode.feeds(path, 1, past, PAST + 1)
        given = os.path.join(scratch, f"{label}.npz")
        np.savez(given, **inputs)
        jobs[label] = {"path": path, "dims": dims, "threads": 1, "stages": 1, "inputs": given, "model": form, "engine": "pipe",
                       "library": args.library}  # fmt: skip
    race = Race(jobs)
    if race.errors:
        race.close()
        raise RuntimeError("; ".join(f"{label}: {reason}" for label, reason in race.errors.items()))
    first = race.one("grown", "runs", 2)[0]
    race.run("runs", max(1, min(500, int(STEP_SECONDS / first))), 1)
    found = {label: race.times(label)[1] for label in jobs}
    race.close()
    return found, {f"{label}, ms": f"{1e3 * s:.2f}" for label, s in found.items()}, None


def of_form(form):
    """Contests beside peers."""
    one, eight, sixteen = alike(1, 64, 96), alike(8, 64, 64), alike(16, 64, 64)
    return [
        Contest(f"one-{form}", [speed("ours", form, one, ONE), peer("genai", "genai", form, one, threads=1, batch=1),
                                peer("ort", "ort", form, one, threads=1)],
                [Ratio(f"one sequence, one core, {form}, over GenAI", "ours", "genai", 1.0),
                 Ratio(f"one sequence, one core, {form}, over a loop around ONNX Runtime", "ours", "ort", 1.1)]),
        Contest(f"eight-{form}", [speed("ours", form, eight, ONE), peer("genai", "genai", form, eight, threads=1, batch=8),
                                  peer("llama", "llama", form, eight, threads=1)],
                [Ratio(f"8 sequences, one core, {form}, over GenAI", "ours", "genai", 1.0),
                 Ratio(f"8 sequences, one core, {form}, over llama.cpp", "ours", "llama", 1.4)]),
        Contest(f"stages-{form}", [speed("ours", form, sixteen, TWO), peer("genai", "genai", form, sixteen, threads=2, batch=16),
                                   peer("llama", "llama", form, sixteen, threads=2)],
                [Ratio(f"16 sequences, 2 stages x 1 thread, {form}, over GenAI with 2 threads", "ours", "genai",
                       1.0 if form == "fp32" else 1.15),
                 Ratio(f"16 sequences, 2 stages x 1 thread, {form}, over llama.cpp's server with 2 threads", "ours", "llama", 1.3)]),
    ]  # fmt: skip


def drafts(key, name, requests, aim):
    return Contest(key, [speed("drafts", "fp32", requests, ["--drafts", "ngram", *ONE]), speed("none", "fp32", requests, ONE)],
                   [Ratio(f"{name}, drafts over none", "drafts", "none", aim)], same_tokens=("drafts", "none"))  # fmt: skip


def contests():
    long = alike(1, 2048, 2)
    found = [contest for form in FORMS for contest in of_form(form)]
    found.append(Contest("trace", [speed("ours", "fp32", trace(), ["--sequences", "16", *TWO]),
                                   peer("genai", "genai", "fp32", trace(), threads=2, batch=8)],
                         [Ratio("a trace of 64 requests, 2 stages x 1 thread, over GenAI's static batches of 8", "ours", "genai", 1.5)],
                         rounds=3))  # fmt: skip
    eased = ["--gap", "2", *ONE]
    found.append(Contest("gap", [gaps("with", True, eased), gaps("without", False, eased)],
                         [Ratio("99 % of the times between tokens of 8 sequences while a prompt of 2,048 enters, over those without it",
                                "with", "without", 2.0, at_most=True)]))  # fmt: skip
    found.append(Contest("prompt", [first_tokens(["2 stages"], long, TWO, True), first_tokens(["1 stage"], long, ONE, True)],
                         [Ratio("a prompt of 2,048, 2 stages over 1", "2 stages", "1 stage", 1.7)]))  # fmt: skip
    found.append(Contest("prefix", [first_tokens(["first", "second"], shared(20.0), ONE, False)],
                         [Ratio("1,024 shared ids: the second sequence's first token over the first's", "second", "first", 0.05,
                                at_most=True)]))  # fmt: skip
    found.append(drafts("drafts-repeats", "repetitive text", [request([7, 8, 9] * 16, 128)], 1.5))
    plain = [request(prompt_of(np.random.default_rng(8), 48), 128, temperature=1.0, seed=4)]
    found.append(drafts("drafts-plain", "text without repeats", plain, 0.97))
    for form in FORMS:
        found.append(Contest(f"buffer-{form}", [lambda args, scratch, form=form: steps(args, form, scratch)],
                             [Ratio(f"time of a decode step with states, {form}: a shared buffer of {BUFFER} over one that grows",
                                    "shared buffer", "grown", 1.05, at_most=True)]))  # fmt: skip
    return found


def chosen(args):
    """Contests of a key, or of the word before its dash, or with a word in a row's name."""
    words = args.only.split(",") if args.only else []

    def wanted(contest):
        return any(w in (contest.key, contest.key.split("-")[0]) or any(w in r.name for r in contest.ratios) for w in words)

    return [contest for contest in contests() if not words or wanted(contest)]


# ---- rounds ----


def one_turn(turn, args, scratch):
    """A turn's findings, and how much of a core other processes took meanwhile."""
    quiet()
    busy, wall, own = busy_seconds(), time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    found = turn(args, scratch)
    wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
    mine = after.ru_utime - own.ru_utime + after.ru_stime - own.ru_stime
    return (*found, max(0.0, (busy_seconds() - busy - mine) / wall))


def measure_contest(args, contest, scratch):
    row = {"key": contest.key, "figures": {}, "facts": {}, "others": [], "errors": {}}
    tokens, broken, began = {}, set(), time.monotonic()
    most = args.rounds if args.only == contest.key else contest.rounds or args.rounds
    for number in range(min(args.rounds, most)):
        others = 0.0
        order = range(len(contest.turns))
        for i in order if number % 2 == 0 else reversed(order):
            if i in broken:
                continue
            try:
                figures, facts, ids, load = one_turn(contest.turns[i], args, scratch)
            except (RuntimeError, OSError, KeyError, ValueError) as reason:
                broken.add(i)
                row["errors"][str(i)] = str(reason)
                continue
            for label, figure in figures.items():
                row["figures"].setdefault(label, []).append(figure)
                row["facts"][label if len(contest.turns) > 1 else contest.key] = facts
                tokens[label] = ids
            others = max(others, load)
        row["others"].append(others)
    pair = [tokens.get(label) for label in contest.same_tokens]
    if len(pair) == 2 and None not in pair and pair[0] != pair[1]:
        row["errors"]["tokens"] = "drafts changed tokens"
    row["minutes"] = (time.monotonic() - began) / 60
    row["ratios"] = [ratio_of(row, ratio) for ratio in contest.ratios]
    return row


def ratio_of(row, ratio):
    """The rounds' ratios, without those of loaded rounds where three others are left."""
    found = {"name": ratio.name, "aim": ratio.aim, "at_most": ratio.at_most, "rounds": []}
    of, over = (row["figures"].get(label, []) for label in (ratio.of, ratio.over))
    if len(of) != len(row["others"]) or len(over) != len(of):
        found["error"] = "; ".join(row["errors"].values()) or "no figures"
        return found
    if "tokens" in row["errors"]:
        found["error"] = row["errors"]["tokens"]
    every = range(len(of))
    clean = [i for i in every if row["others"][i] < CLEAN]
    found["clean"] = len(clean)
    found["rounds"] = [of[i] / over[i] for i in (clean if len(clean) >= 3 else every)]
    return found


# ---- the record ----


def held(ratio):
    median = statistics.median(ratio["rounds"])
    return median <= ratio["aim"] if ratio["at_most"] else median >= ratio["aim"]


def judged(record):
    return [ratio for row in record["rows"] for ratio in row["ratios"] if ratio["rounds"] and "error" not in ratio]


def verdicts(record):
    return [(r["name"] + " (at most)" * r["at_most"], statistics.median(r["rounds"]), r["aim"], held(r)) for r in judged(record)]


def row_text(ratio, causes):
    wanted = f"{'<=' if ratio['at_most'] else '>='} {ratio['aim']:g}"
    if not ratio["rounds"] or "error" in ratio:
        return f"| {ratio['name']} | {wanted} | - | - | - | {ratio.get('error', 'no rounds')} |"
    values = spread(ratio["rounds"])
    cause = causes.get(ratio["name"], "" if held(ratio) else "to be found")
    digits = 2 if values[1] >= 0.1 else 4
    return (f"| {ratio['name']} | {wanted} | **{values[1]:.{digits}f}** ({show(values, digits)}) | {ratio['clean']}/{len(ratio['rounds'])} | "
            f"{'held' if held(ratio) else 'MISSED'} | {cause} |")  # fmt: skip


def report(record):
    about = record["machine"]
    lines = [f"# Generation, {record['date']}", "", f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}; LLaMA of 88M", "",
             "| row | wanted | median (min / median / max) | clean rounds | | cause, or why there is no figure |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    lines += [row_text(ratio, record["causes"]) for row in record["rows"] for ratio in row["ratios"]]
    lines += ["", "| contest | minutes | side | last round |", "|---|---|---|---|"]
    for row in record["rows"]:
        for label, facts in row["facts"].items():
            said = "; ".join(f"{name} {value}" for name, value in facts.items())
            lines.append(f"| {row['key']} | {row['minutes']:.1f} | {label} | {said} |")
    return "\n".join([*lines, "", *verdicts_text(verdicts(record))]) + "\n"


def fresh(args):
    """The record of this day and machine as far as it is made, else an empty one."""
    record = {"date": datetime.date.today().isoformat(), "machine": machine(), "rows": [], "causes": {}}
    path = os.path.join(args.record, f"{record['date']}-generate.json") if args.record else ""
    if args.record and not os.path.exists(path) and args.cause:
        found = sorted(glob.glob(os.path.join(args.record, "*-generate.json")))
        path = found[-1] if found else path
    if args.record and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            before = json.load(file)
        if args.cause or before["machine"] == record["machine"]:
            return before
    return record


def put(record, row):
    """The contest's new row, at its place among the others."""
    order = {contest.key: i for i, contest in enumerate(contests())}
    rows = [old for old in record["rows"] if old["key"] != row["key"]] + [row]
    record["rows"] = sorted(rows, key=lambda each: order.get(each["key"], len(order)))


def measure(args, record):
    with tempfile.TemporaryDirectory() as scratch:
        for contest in chosen(args):
            row = measure_contest(args, contest, scratch)
            put(record, row)
            keep(args, record, report(record), "generate")
            print(f"{contest.key}: {row['minutes']:.1f} min", file=sys.stderr, flush=True)


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", help="where the models are, or are made")
    parser.add_argument("--command", help="onnx-pipe")
    parser.add_argument("--library", default="", help="libonnxpipe.so")
    parser.add_argument("--llama", default="", help="a Python that has xllamacpp")
    parser.add_argument("--llama-packages", default="", help="where gguf is installed")
    parser.add_argument("--llama-missing", default="", help="why there is none")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="contests (--list), or words in names of rows: 'one core', trace, drafts ...")
    parser.add_argument("--list", action="store_true", help="contests and their rows")
    parser.add_argument("--record", help="folder for YYYY-MM-DD-generate.md and .json")
    parser.add_argument("--cause", action="append", default=[], metavar="ROW=TEXT", help="the cause of a row that misses; runs nothing")
    return parser.parse_args()


def main():
    args = options()
    if args.list:
        for contest in contests():
            print(contest.key, *(f"  {ratio.name}" for ratio in contest.ratios), sep="\n")
        return 0
    record = fresh(args)
    if args.cause:
        known = {ratio["name"] for row in record["rows"] for ratio in row["ratios"]}
        for name, _, text in (cause.partition("=") for cause in args.cause):
            if name not in known:
                raise SystemExit(f"generate.py: no row '{name}' in the record")
            record["causes"][name] = text
        keep(args, record, report(record), "generate")
    else:
        until_stopped(measure, args, record)
    print(report(record))
    failed = any(row["errors"] for row in record["rows"])
    return 1 if failed or not all(each for *_, each in verdicts(record)) else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""Ranks on one device have one memory: what they need is added up, under a cap that is given, or under what the device has
in all. A cap moves cuts and orders, the device's own memory only refuses. Devices apart are apart."""
import json
import os

from command import BUILD, DATA, DONE, REFUSED, SOURCE, run
from small import check

MODEL = os.path.join(DATA, "gpt_8block", "model.onnx")
TWO = ["plan", MODEL, "--bind", "batch=4", "--bind", "seq=8", "--stages", "2", "--json"]
TRAIN = ["plan", os.path.join(DATA, "demo", "model.onnx"), "--train", "--data", "text:" + os.path.join(SOURCE, "README.md"),
         "--bind", "seq=64", "--loss", "cross-entropy:logits=logits,labels=labels,shift=1", "--batch", "8", "--microbatches", "8", "--ranks", "4",
         "--schedule", "1f1b", "--json"]
PLUGIN = ["--plugin", os.path.join(BUILD, "tests", "plugins", "opipe-backend-impaired.so")]


def needs(result):
    return [rank["total_bytes"] for rank in json.loads(result.out)["memory"]]


def expect(count, what, result, status, *texts):
    missing = [text for text in texts if text not in result.err + result.out]
    wrong = result.status != status or missing
    count.check(what, f"status {result.status}, without {missing}: {result.err[-400:]}" if wrong else None)
    return result


def has(n_bytes, *arguments):
    """Where the device says to have so much."""
    os.environ["OPIPE_HAS"] = str(n_bytes)
    result = run(*arguments)
    del os.environ["OPIPE_HAS"]
    return result


def caps(count, _):
    free = run(*TWO)
    one, two = needs(free)
    both = one + two
    for name, cap in (("--memory", "{}"), ("--device", "cpu,memory={}"), ("--device", "cpu:0,memory={}")):
        expect(count, f"{name}, the sum", run(*TWO, name, cap.format(both)), DONE)
        less = expect(count, f"{name}, a byte less", run(*TWO, name, cap.format(both - 1)), DONE)  # the tied table in one stage
        count.check(f"{name}, a cut moved", None if less.status == DONE and sum(needs(less)) < both else less.err)
        each = max(one, two)
        expect(count, f"{name}, each alone fits", run(*TWO, name, cap.format(each)), REFUSED, "device cpu:0: ranks 0 and 1 need",
               f"{both} bytes", f"exceeds its cap of {each}", f"by {both - each} bytes; a cap of {both} bytes is enough")
        expect(count, f"{name}, a cut that is given", run(*TWO, "--cut", "add_25", name, cap.format(each)), REFUSED, "need", "together")
    said = run(*[word for word in TWO if word != "--json"], "--memory", str(both)).out
    count.check("the table", None if "cpu:0: one cap for 2 ranks, which need" in said else said)
    apart = [["--device", f"cpu,memory={one}", "--device", f"cpu,memory={two}"],  # a part of the device for each
             ["--device", "emulated:0", "--device", "emulated:1", "--memory", str(max(one, two))]]
    for words in apart:
        expect(count, words[1], run(*TWO, *words), DONE)
    expect(count, "of one of two", run(*TWO, "--cut", "add_25", "--device", "cpu,memory=64KiB", "--device", "cpu"), REFUSED, "rank 0 (stage 0) needs")


def own(count, _):
    """No cut is moved for it, and nothing is decided by it."""
    command = [*TWO, *PLUGIN, "--device", "impaired"]
    free = run(*command)
    both = sum(needs(free))
    same = has(both, *command)
    count.check("enough is no decision", None if same.status == DONE and same.out == free.out else same.err[-300:])
    for n_bytes in (both - 1, max(needs(free))):
        expect(count, f"{n_bytes} bytes", has(n_bytes, *command), REFUSED, "device impaired:0: ranks 0 and 1 need", f"{both} bytes",
               f"({n_bytes} bytes) that it has in all by {both - n_bytes} byte")
    given = [*TWO, *PLUGIN, "--device", f"impaired,memory={both}"]
    expect(count, "a cap is in its place", has(4096, *given), DONE)
    half = [*TWO, *PLUGIN, "--device", "impaired", "--device", f"impaired,memory={both}"]
    expect(count, "a cap of one rank", has(both - 1, *half), REFUSED, "that it has in all by 1 byte")
    table = has(both, *[word for word in command if word != "--json"]).out.splitlines()[2]
    count.check("the table's cap", None if f"{both / 1024:.1f} KiB" in table else table)


def moved(count, folder):
    """A schedule keeps less, and the cut moves, for the sum."""
    free = run(*TRAIN)
    both = sum(needs(free))
    for share in (0.97, 0.85):
        cap = int(both * share)
        result = expect(count, f"{share} of the sum", run(*TRAIN, "--memory", str(cap)), DONE)
        found = sum(needs(result)) if result.status == DONE else None
        count.check(f"{share} of the sum, found", None if found is not None and found <= cap else f"{found} of {cap}")
    plan = os.path.join(folder, "plan.json")
    with open(plan, "w", encoding="utf-8") as file:
        file.write(result.out)
    count.check("the file", None if '"memory_with": 0' in result.out else result.out[:400])
    for cap, status in ((cap, DONE), (found - 1, REFUSED)):  # read again, it holds for the sum
        with open(plan, "w", encoding="utf-8") as file:
            file.write(result.out.replace(f'"memory_bytes": {int(both * share)}', f'"memory_bytes": {cap}'))
        trained = run("train", *TRAIN[1:2], *TRAIN[3:5], *TRAIN[7:11], "--plan", plan, "--steps", "1")
        expect(count, f"trained within {cap}", trained, status, *(["exceeds its cap"] if status == REFUSED else []))


if __name__ == "__main__":
    raise SystemExit(check(caps, own, moved))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trial of every family (./dev real): exports what families.py lists with both exporters, then runs
each file whole, in 2, 3 and 4 stages against the plan's stages and the uncut model, in 2 micro-batches,
and trains it for two steps; of some, also what variants.py makes of them (not trained). Prints a
table and writes it into build/real/table.md.

A value is right or wrong, never refused by chance: the trial fails when any is wrong, when files
of more than 3 families are refused where samples do not read each other, and when fewer than 45
families were exported (not with --only).

usage: trial.py [--only NAME,...] [--kept]      --kept: exports nothing, takes what is there
"""
import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cli"))
from command import REFUSED, SOURCE, DONE, need_command, run  # noqa: E402
import test_microbatches as forms  # noqa: E402

ROOT = os.path.join(SOURCE, "build", "real")
COLUMNS = ["whole", "2 stages", "3 stages", "4 stages", "2 micro-batches", "trained"]
FAMILIES_WANTED, REFUSED_MOST = 45, 3
VARIED = """gpt2-dynamo gpt2_cache-dynamo llama-dynamo qwen2-dynamo opt-legacy bert-dynamo
roberta-dynamo distilbert-legacy t5-dynamo vit-legacy""".split()
# A value half way between two codes falls to either side by its last bit: by as much do outputs of
# ONNX Runtime differ when a weight of a norm is moved by one unit in the last place (0.017).
TOLERANCE = {"int8": ["--atol", "0.05"]}


def verdict(result):
    """'ok', 'refused: why' or 'WRONG: what'."""
    problem = result.broken(120, 4096)
    if problem is None and result.status == DONE:
        return "ok"
    text = " ".join((result.err or result.out).split())
    if problem is None and result.status == REFUSED:
        return "refused: " + text[:200]
    return f"WRONG: {problem or 'status %s' % result.status}: {text[-200:]}"


def one_file(folder, meta):
    """A verdict for each of COLUMNS, and the peak of memory of the whole run in MiB."""
    loose = TOLERANCE.get(meta.get("variant"), [])
    check = ["run", folder, "--check", *loose, "--threads", "1"]
    whole = run(*check)
    found = [verdict(whole)]
    for stages in ("2", "3", "4"):
        found.append(verdict(run(*check, "--reference", "--stages", stages)))
    found.append(verdict(run(*check, "--reference", "--stages", "2", "--microbatches", "2")))
    if "variant" in meta:
        return [*found, "-"], whole.peak_mib
    model = os.path.join(folder, "model.onnx")
    data = forms.training_data(folder, meta, 0)
    found.append(
        verdict(
            run("train", model, "--steps", "2", "--reference", "--threads", "1", "--stages", "2",
                "--optimizer", "sgd:lr=0.05", *data)
        )
    )  # fmt: skip
    return found, whole.peak_mib


def export(names):
    python = os.path.join(SOURCE, "build", "venv", "real", "bin", "python")
    if not os.path.exists(python):
        sys.exit("build/venv/real with torch and transformers is not there")
    only = ["--only", names] if names else []
    subprocess.run([python, os.path.join(HERE, "export.py"), ROOT, *only], check=True)
    there = [n for n in VARIED if os.path.exists(os.path.join(ROOT, n, "meta.json"))]
    varied = ["--only", ",".join(there)]
    if there:
        subprocess.run([python, os.path.join(HERE, "variants.py"), ROOT, *varied], check=True)


def short(text):
    return text.split(":")[0]


def row_of(name, found, peak):
    return f"| {name} | " + " | ".join(short(one) for one in found) + f" | {peak} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only")
    parser.add_argument("--kept", action="store_true")
    args = parser.parse_args()
    need_command()
    if not args.kept:
        export(args.only)
    rows = ["| file | " + " | ".join(COLUMNS) + " | MiB |", "|---" * (len(COLUMNS) + 2) + "|"]
    families, refused, wrong, notes = set(), set(), 0, []
    for name, folder in forms.folders(ROOT):
        with open(os.path.join(folder, "meta.json"), encoding="utf-8") as file:
            meta = json.load(file)
        if args.only and meta["family"] not in args.only.split(","):
            continue
        found, peak = one_file(folder, meta)
        families.add(meta["family"])
        rows.append(row_of(name, found, peak))
        print(rows[-1], flush=True)
        for column, one in zip(COLUMNS, found):
            mixed = meta["mixes"] and column == "2 micro-batches"
            if one in ("ok", "-") or (mixed and one.startswith("refused")):
                continue
            notes.append(f"- {name}, {column}: {one}")
            print(notes[-1], flush=True)
            wrong += one.startswith("WRONG")
            refused.add(meta["family"])
    text = "\n".join([*rows, "", *notes]) + "\n"
    with open(os.path.join(ROOT, "table.md"), "w", encoding="utf-8") as out:
        out.write(text)
    print(f"{len(rows) - 2} files of {len(families)} families; {wrong} wrong; not all of "
          f"{len(refused)} families: {', '.join(sorted(refused)) or 'none'}")  # fmt: skip
    few = not args.only and len(families) < FAMILIES_WANTED
    return 1 if wrong or len(refused) > REFUSED_MOST or few else 0


if __name__ == "__main__":
    sys.exit(main())

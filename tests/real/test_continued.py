#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=1800 label=full
"""generate against other programs (continued.py): greedy answers of 128 tokens, whole and in 2 stages, are those of transformers for
ten families, and those of ONNX Runtime GenAI for its builder's fp32, fp16 and int4 folders, up to a token whose lead over the
second is within the tolerance. Every difference is printed. All is kept in build/real/continued; without
build/venv/real and build/venv/genai (./dev test --all makes them) nothing is tested."""
import glob
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "cli")]
from command import DONE, SHARED, SOURCE, Count, need_command, run  # noqa: E402

# By the largest logit: half precision rounds every product, and integers of 4 bits meet activations rounded to 8.
TOLERANCES = {"genai-fp16": 1e-2, "genai-int4": 3e-2}
TOLERANCE, ALL, EOS = 1e-4, 13, 2


def make(folder):
    """Whatever is not there yet."""
    modern = os.path.join(SHARED, "models", "modern", "generate.py")
    python = os.path.join(SOURCE, "build", "venv", "real", "bin", "python")
    packages = glob.glob(os.path.join(SOURCE, "build", "venv", "genai", "lib", "python3*", "site-packages"))
    if not os.path.exists(python) or not packages or not os.path.exists(modern):
        print("SKIP: build/venv/real with torch and transformers, build/venv/genai with GenAI, or ../shared/models/modern is not there")
        sys.exit(77)
    environment = {**os.environ, "PYTHONPATH": packages[0], "HF_HUB_OFFLINE": "1"}
    subprocess.run([python, "-B", os.path.join(HERE, "continued.py"), folder, modern], check=True, env=environment)


def ask(folder, wanted, stages, scratch):
    """Our answers, or why there are none."""
    path = os.path.join(scratch, "requests.jsonl")
    n = len(wanted["answers"][0])
    is_folder = os.path.exists(os.path.join(folder, "genai_config.json"))
    more = {"stop": [EOS], "min_tokens": n} if is_folder else {}
    with open(path, "w", encoding="utf-8") as file:
        for ids, penalty in zip(wanted["prompts"], wanted["penalties"]):
            file.write(json.dumps({"ids": ids, "temperature": 0, "max_tokens": n, "repetition_penalty": penalty, **more}) + "\n")
    model = folder if is_folder else os.path.join(folder, "model.onnx")
    room = max(map(len, wanted["prompts"])) + n
    r = run("generate", model, "--requests", path, "--context", str(room), "--stages", str(stages), "--json", timeout=300)
    if r.status != DONE:
        return r.err.strip()[-300:]
    return [request["answers"][0]["ids"] for request in json.loads(r.out)["requests"]]


def compare(name, wanted, found, what):
    """The first difference that the tolerance does not explain, or None; prints every other one."""
    tolerance = TOLERANCES.get(name, TOLERANCE)
    for prompt, (answer, other) in enumerate(zip(wanted["answers"], found)):
        if answer == other:
            continue
        k = next((i for i, pair in enumerate(zip(answer, other)) if pair[0] != pair[1]), min(len(answer), len(other)))
        ahead, largest = wanted["margins"][prompt][k], wanted["largest"][prompt][k]
        said = f"{what}: prompt of {len(wanted['prompts'][prompt])}: token {k} is {other[k:k + 1]}, not {answer[k]}, which led by " \
               f"{ahead:.3g} (largest logit {largest:.3g})"
        if ahead > tolerance * largest or len(answer) != len(other):
            return said
        print("within the tolerance: " + said)
    return None


def main():
    need_command()
    folder = os.environ.get("REAL_CONTINUED") or os.path.join(SOURCE, "build", "real", "continued")
    make(folder)
    count, n_made = Count(), 0
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(glob.glob(os.path.join(folder, "*", "answers.json"))):
            name = os.path.basename(os.path.dirname(path))
            with open(path, encoding="utf-8") as file:
                wanted = json.load(file)
            n_made += 1
            for stages in (1, 2):
                what = f"{name}, {stages} stages"
                found = ask(os.path.dirname(path), wanted, stages, scratch)
                count.check(what, found if isinstance(found, str) else compare(name, wanted, found, what))
    count.check("what could be made", None if n_made == ALL else f"{n_made} of {ALL}")
    return count.finish()


sys.exit(main())

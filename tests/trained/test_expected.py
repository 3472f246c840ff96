#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""The trained initializers of every model of ../shared/models/{modern,gradients} are exactly those
that are PyTorch's parameters (expected/*.txt): one too many is a failure, and so is one missing.
Names that an exporter lost are those of the parameters that they are."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cli"))
from command import DONE, SHARED, Count, need_command, run

EXPECTED = os.path.join(HERE, "expected")
TELLING = ("infer", "infer_legacy")


class Family:
    def __init__(self, path):
        self.kinds, self.files, names = {}, {}, {}
        self.meant = {}  # of each file: an initializer that was renamed -> the parameter
        for line in open(path, encoding="utf-8").read().splitlines():
            words = line.split(" ")
            if words[0] in ("parameter", "idle", "buffer"):
                self.kinds[words[1]] = words[0]
            elif words[0] == "file":
                names = self.files.setdefault(line[5:], {})
                meant = self.meant.setdefault(line[5:], {})
            elif words[0] != "#":
                names[words[0]] = words[1]
                meant[words[0]] = words[2]


def problem(family, variant, path, reached):
    result = run("inspect", "--train", "--json", path)
    if result.status != DONE:
        return f"status {result.status}: {result.err[:200]}"
    wrong, left, told = [], set(), 0
    renamed = family.files[variant]
    for entry in json.loads(result.out)["initializers"]:
        name, trained = entry["name"], entry["trained"]
        wanted = family.kinds.get(name) == "parameter" or renamed.get(name) == "="
        if trained != wanted and not (wanted and not reached and "no differentiable" in entry["why"]):
            wrong.append(f"{name} {'extra' if trained else 'missing'}")
        origin = entry.get("module_name")
        meant = family.meant[variant].get(name)
        tied = meant is not None and ("embed" in meant or "wte" in meant)  # a head under its own name
        if origin is not None and meant is not None and origin != meant and origin in family.kinds and not tied:
            wrong.append(f"{name} is {meant}, not {origin}")
        told += origin is not None and origin == meant
        if renamed.get(name) == "?" and "doubt" not in entry:
            wrong.append(f"{name} not doubtful")
        left.add(name)
    wrong += [f"{name} is not listed" for name, sign in renamed.items() if sign == "?" and name not in left]
    if reached and variant.startswith("train") and "default" not in variant:
        tied = sum(k == "parameter" for n, k in family.kinds.items() if n in left)
        if tied == 0:
            wrong.append("no parameter bears PyTorch's name")
    lost = [name for name in family.meant[variant] if name in left and not name.startswith(("exp", "add", "unsqueeze"))]
    if not reached and variant in TELLING and told * 2 < len(lost):
        wrong.append(f"of {len(lost)} lost names, {told} are told")
    return "; ".join(wrong[:6]) or None


def main():
    need_command()
    models = os.path.join(SHARED, "models")
    if not os.path.isdir(os.path.join(models, "modern")):
        print("SKIP: ../shared/models is not there")
        return 77
    count = Count()
    for text in sorted(os.listdir(EXPECTED)):
        family = Family(os.path.join(EXPECTED, text))
        name = text[: -len(".txt")]
        for variant in family.files:
            own = name.startswith("gradients-")
            folder = ("gradients/" + name[10:]) if own else f"modern/{name}/{variant}"
            path = os.path.join(models, folder, "model.onnx")
            # a model of several outputs is judged by its first
            count.check(folder, problem(family, variant, path, not own))
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

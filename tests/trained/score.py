#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what `inspect --train` trains in each file of families.py with PyTorch's own answer.

    python score.py DIR [--command build/dev/bin/onnx-pipe] [--only NAME,...] [--modes ...] [-v]

An initializer is a parameter of PyTorch's by its name, or where an exporter renamed it by its
values (transposed, reshaped, a part, joined, 1 + w, exp(w)). Files that do not bind are counted
apart. Needs numpy and onnx."""
import argparse
import json
import os
import subprocess
import sys

import numpy as np
import onnx
from onnx import numpy_helper

FLOATS = (1, 10, 11, 16)


class Truth:
    def __init__(self, path):
        data = np.load(path)
        self.kinds = json.loads(str(data["__kinds__"]))
        self.arrays = {k: data[k] for k in self.kinds}
        self.sets = {k: np.unique(a) for k, a in self.arrays.items()}

    def of(self, name, array):
        """(kind, how): kind 2 trained, 1 not on the way or frozen, 0 buffer, -1 an exporter's."""
        if name in self.kinds:
            return self.kinds[name], name
        flat = array.astype(np.float32).ravel()
        ways = [("", flat)] + [("1+", flat - 1)]
        with np.errstate(all="ignore"):
            ways.append(("exp ", np.log(flat)))
        for way, values in ways:
            tolerance = 0 if way == "" else 2e-6
            wanted = np.unique(values[:4096])
            hits = []
            for key, own in self.sets.items():
                if own.size == 0:
                    continue
                near = np.clip(np.searchsorted(own, wanted), 0, own.size - 1)
                under = np.clip(near - 1, 0, own.size - 1)
                gap = np.minimum(abs(own[near] - wanted), abs(own[under] - wanted))
                if np.all(gap <= tolerance):
                    hits.append(key)
            if way == "1+" and wanted.size == 1 and flat.size > 1:  # fresh norms, merged
                hits = [k for k in hits if self.arrays[k].size == flat.size and self.sets[k].size == 1]
                if hits:
                    return self.kinds[hits[0]], way + hits[0]
            if flat.size == 1:
                hits = [k for k in hits if self.arrays[k].size == 1]
            if hits and (way == "" or wanted.size > 1 or flat.size == 1):
                best = max(hits, key=lambda k: (self.arrays[k].size == flat.size, self.kinds[k]))
                if way == "exp " and self.arrays[best].size != flat.size:
                    continue
                if way == "" and wanted.size < min(3, flat.size) and self.arrays[best].size != flat.size:
                    continue
                return self.kinds[best], way + best
        return -1, ""


def check(command, folder, mode, truth):
    path = os.path.join(folder, mode + ".onnx")
    got = subprocess.run([command, "inspect", "--train", "--json", path], capture_output=True, text=True, timeout=120)
    if got.returncode != 0:
        return None, [got.stderr.strip().split("\n")[0][:160]]
    report = json.loads(got.stdout)
    report = report.get("training", report)
    listed = {p["name"]: p for p in report["initializers"]}
    wrong = []
    model = onnx.load(path)
    parts = 0
    for t in model.graph.initializer:
        if t.data_type not in FLOATS:
            continue
        array = numpy_helper.to_array(t)
        kind, how = truth.of(t.name, array)
        mine = listed.get(t.name)
        trained = mine is not None and mine["trained"]
        parts += trained
        if trained == (kind == 2) or (how.startswith("exp ") and mine is not None and "doubt" in mine):
            continue
        if kind == 2 and array.size == 0:
            continue
        why = "is not bound" if mine is None else mine["why"]
        wrong.append(f"{'extra  ' if trained else 'missing'} {t.name} {list(array.shape)} {['exporter', 'buffer', 'frozen', 'parameter'][kind + 1]} {how}: {why}"[:200])
    return parts, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--command", default="build/dev/bin/onnx-pipe")
    parser.add_argument("--only", default="")
    parser.add_argument("--modes", default="dynamo,static,legacy")
    parser.add_argument("-v", action="store_true", help="every wrong initializer")
    args = parser.parse_args()
    only = [o for o in args.only.split(",") if o]
    totals = {m: [0, 0, 0] for m in args.modes.split(",")}
    for name in sorted(os.listdir(args.folder)):
        folder = os.path.join(args.folder, name)
        if (only and name not in only) or not os.path.exists(os.path.join(folder, "done")):
            continue
        truth = Truth(os.path.join(folder, "truth.npz"))
        for mode, total in totals.items():
            if not os.path.exists(os.path.join(folder, mode + ".onnx")):
                continue
            trained, wrong = check(args.command, folder, mode, truth)
            total[2 if trained is None else 1 if wrong else 0] += 1
            if wrong:
                print(f"{name}/{mode}: {'not bound: ' + wrong[0] if trained is None else f'{len(wrong)} wrong'}")
                for line in wrong[: None if args.v else 6] if trained is not None else []:
                    print("   ", line)
    for mode, (exact, bad, unbound) in totals.items():
        print(f"{mode}: {exact} of {exact + bad} exact, {unbound} do not bind")
    return 0 if not any(bad for _, bad, _ in totals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

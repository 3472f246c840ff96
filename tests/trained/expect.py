#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes expected/FAMILY.txt: what PyTorch itself calls parameters and buffers of the models of
../shared/models, and which initializer of each file is which of them.

    python expect.py          needs torch, transformers, onnx and numpy; see README.md

    parameter NAME            PyTorch's, on the way to the loss
    idle NAME                 PyTorch's, but nothing of it reaches the loss
    buffer NAME               PyTorch's buffer
    file VARIANT              what follows is of VARIANT/model.onnx alone
    NAME = PARAMETER          an initializer that the exporter named otherwise (transposed, a part,
                              tied; 1+PARAMETER and exp(PARAMETER) where it computed)
    NAME ? PARAMETER          the same of one number: exp(PARAMETER), which is not trained but doubtful
"""
import importlib.util
import json
import os
import sys

import numpy as np
import onnx
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
SHARED = os.environ.get("OPIPE_SHARED_DIR") or os.path.join(HERE, "..", "..", "..", "shared")
OUT = os.path.join(HERE, "expected")
FLOATS = (1, 10, 11, 16)


def floats_of(path):
    graph = onnx.load(path).graph
    return {
        t.name: numpy_helper.to_array(t).astype(np.float32)
        for t in graph.initializer
        if t.data_type in FLOATS and (t.data_location != 1 or os.path.exists(path + ".data"))
    }


def meant(array, own):
    """(how, PARAMETER) whose numbers these are, or None."""
    ways = [("=", "%s", array)]
    with np.errstate(all="ignore"):
        if array.size == 1:
            ways.append(("?", "exp(%s)", np.log(array)))
        else:
            ways.append(("=", "1+%s", array - 1))
    half = 1e-2 if np.all(array == array.astype(np.float16)) else 2e-6
    for sign, how, values in ways:
        flat = np.sort(values.ravel())
        for name, other in own.items():
            if other.size < flat.size or (flat.size == 1 and other.size != 1):
                continue
            if other.size == flat.size:
                same = np.allclose(np.sort(other.ravel()), flat, rtol=half, atol=half / 10)
            else:  # a part of it, whole numbers found again
                same = flat.size >= 8 and half < 1e-3 and bool(np.all(np.isin(flat, other)))
            if same:
                return sign, how % name
    return None


def write(family, head, parameters, idle, buffers, files):
    lines = ["# " + head] + [f"parameter {n}" for n in parameters]
    lines += [f"idle {n}" for n in idle] + [f"buffer {n}" for n in buffers]
    for variant, renamed in files:
        lines.append(f"file {variant}")
        lines += [f"{n} {sign} {meaning}" for n, (sign, meaning) in renamed]
    os.makedirs(OUT, exist_ok=True)
    with open(os.path.join(OUT, family + ".txt"), "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")
    print(family, len(parameters), len(idle), len(buffers), len(files))


def modern(generate, family):
    spec = generate.FAMILIES[family]
    folder = os.path.join(SHARED, "models", "modern", family)
    model = spec["make"](spec.get("impl", "sdpa"))
    names = [n for n, _ in model.named_parameters(remove_duplicate=False)]
    buffers = [n for n, b in model.named_buffers(remove_duplicate=False) if b.is_floating_point()]
    variants = sorted(v for v in os.listdir(folder) if os.path.exists(os.path.join(folder, v, "model.onnx")))
    plain = floats_of(os.path.join(folder, "train", "model.onnx"))
    own = {n: plain[n] for n in names if n in plain}
    gradients = os.path.join(folder, "train", "grads.safetensors")
    with open(gradients, "rb") as data:
        size = int.from_bytes(data.read(8), "little")
        reached = set(json.loads(data.read(size))) - {"__metadata__"}
    tied = {n: g for g in json.load(open(os.path.join(folder, "train", "meta.json")))["tied"] for n in g}
    alive = [n for n in names if n in reached or reached & set(tied.get(n, ()))]
    idle = [n for n in names if n not in alive]
    files = []
    for variant in variants:
        arrays = floats_of(os.path.join(folder, variant, "model.onnx"))
        here = {n: a for n, a in arrays.items() if n in names}
        found = [(n, meant(a, here) or meant(a, own)) for n, a in arrays.items() if n not in names and n not in buffers]
        files.append((variant, [(n, m) for n, m in found if m is not None]))
    head = f"{spec['source_class']}, transformers {generate.VERSIONS['transformers']}, torch {generate.VERSIONS['torch']}"
    write(family, head, alive, idle, buffers, files)


def gradients(family):
    folder = os.path.join(SHARED, "models", "gradients", family)
    grads = os.path.join(folder, "grad_set_0")
    names = []
    for entry in sorted(os.listdir(grads)):
        if entry.startswith("grad_"):
            names.append(onnx.load_tensor(os.path.join(grads, entry)).name)
    arrays = floats_of(os.path.join(folder, "model.onnx"))
    names = [n[5:] if n.startswith("grad_") and n not in arrays else n for n in names]
    write("gradients-" + family, "a gradient of PyTorch's lies beside the model", [n for n in names if n in arrays], [], [], [(".", [])])


def main():
    path = os.path.join(SHARED, "models", "modern", "generate.py")
    module = importlib.util.spec_from_file_location("generate", path)
    generate = importlib.util.module_from_spec(module)
    module.loader.exec_module(generate)
    for family in sorted(generate.FAMILIES):
        if os.path.isdir(os.path.join(SHARED, "models", "modern", family)):
            modern(generate, family)
    for family in sorted(os.listdir(os.path.join(SHARED, "models", "gradients"))):
        gradients(family)
    return 0


if __name__ == "__main__":
    sys.exit(main())

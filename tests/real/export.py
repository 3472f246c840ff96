#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports the families of families.py with torch's two exporters, as their users do.

DIR/FAMILY-EXPORTER/ gets model.onnx, two data sets with what ONNX Runtime gives for them (other
sizes than the file was traced with), and meta.json: how far torch is off, and which initialisers
are torch's parameters and buffers. `dynamo` leaves the naming of free dimensions to torch, which
names the batch of each input apart; `legacy` names them as the families say.

Existing files are kept.

usage: export.py DIR [--only NAME,...] [--exporter dynamo|legacy]
"""
import argparse
import json
import logging
import os
import sys
import warnings

import numpy as np
import onnx
import torch
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "data", "export"))
import families  # noqa: E402
import graphs  # noqa: E402

SMALL = bool(os.environ.get("REAL_SMALL"))
# Sizes of the data sets: rows, tokens.
SIZES = [(4, 5), (5, 4)] if SMALL else [(2, 64), (4, 40)] if families.WIDE else [(4, 7), (6, 9)]
TRACED = (3, 6)
OPSET = {"dynamo": 20, "legacy": 17}


class Called(torch.nn.Module):
    """A model whose forward has one positional argument per input."""

    def __init__(self, family):
        super().__init__()
        self.inner, self.call = family.build(), family.call
        names = ", ".join(family.inputs)
        pairs = ", ".join(f"{name}={name}" for name in family.inputs)
        space = {}
        exec(f"def forward(self, {names}):\n    return self.call(self.inner, {pairs})", space)
        self.__class__ = type("Called", (Called,), {"forward": space["forward"]})


def inputs_of(family, seed, rows, tokens):
    rng = np.random.default_rng([seed, rows, tokens])
    return {name: make(rng, rows, tokens) for name, (make, _) in family.inputs.items()}


def tensors(inputs):
    return tuple(torch.from_numpy(value) for value in inputs.values())


def export_dynamo(family, model, path):
    free = torch.export.Dim.DYNAMIC
    shapes = tuple({axis: free for axis in axes} for _, axes in family.inputs.values())
    program = torch.onnx.export(
        model,
        tensors(inputs_of(family, 1, *TRACED)),
        dynamo=True,
        opset_version=OPSET["dynamo"],
        input_names=list(family.inputs),
        output_names=family.outputs,
        dynamic_shapes=shapes,
        verbose=False,
    )
    onnx.save(graphs.strip(program.model_proto), path)


def export_legacy(family, model, path):
    torch.onnx.export(
        model,
        tensors(inputs_of(family, 1, *TRACED)),
        path,
        dynamo=False,
        opset_version=OPSET["legacy"],
        input_names=list(family.inputs),
        output_names=family.outputs,
        dynamic_axes={name: axes for name, (_, axes) in family.inputs.items()},
    )
    onnx.save(graphs.strip(onnx.load(path)), path)


def gap(got, want):
    got, want = np.asarray(got, np.float64), want.double().numpy()
    if got.shape != want.shape:
        raise ValueError(f"shape {got.shape}, torch has {want.shape}")
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30))


def origins(model, named):
    """{initialiser: the torch name of the tensor with its numbers, transposed or not}."""
    known = {}
    for name, value in named:
        value = value.detach().float().numpy()
        known.setdefault((value.shape, value.tobytes()), name)
        if value.ndim == 2:
            turned = np.ascontiguousarray(value.T)
            known.setdefault((turned.shape, turned.tobytes()), name + " (transposed)")
    found = {}
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor).astype(np.float32)
        name = known.get((value.shape, value.tobytes()))
        if name is not None and value.size > 1:
            found[tensor.name] = name
    return found


def write_labels(folder, number, scores):
    """Classes to train the first output on, whatever it means: one for each vector."""
    rng = np.random.default_rng([number, scores.shape[0]])
    labels = rng.integers(0, scores.shape[-1], scores.shape[:-1])
    path = os.path.join(folder, f"test_data_set_{number}", "labels.pb")
    tensor = graphs.tensor("labels", labels.astype(np.int64))
    graphs.write_bytes(path, tensor.SerializeToString(deterministic=True))


def export(name, exporter, folder):
    family = families.FAMILIES[name]
    seed = sum(name.encode())
    graphs.fresh(folder)
    path = os.path.join(folder, "model.onnx")
    torch.manual_seed(seed)
    model = Called(family).eval()
    families.reseed(model.inner, seed)
    with torch.no_grad():
        (export_dynamo if exporter == "dynamo" else export_legacy)(family, model, path)
    sets = [inputs_of(family, seed, *size) for size in SIZES]
    read = {value.name for value in onnx.load(path).graph.input}
    inputs = [name for name in family.inputs if name in read]
    results = graphs.run_sets(folder, [{k: v for k, v in one.items() if k in read} for one in sets])
    worst = 0.0
    for number, (one, got) in enumerate(zip(sets, results)):
        write_labels(folder, number, got[family.outputs[0]])
        with torch.no_grad():
            want = model(*tensors(one))
        for output, value in zip(family.outputs, want):
            worst = max(worst, gap(got[output], value))
    file = onnx.load(path)
    meta = {
        "family": name,
        "exporter": exporter,
        "causal": family.causal,
        "mixes": family.mixes,
        "inputs": inputs,
        "outputs": family.outputs,
        "gap_to_torch": worst,
        "parameters": origins(file, model.inner.named_parameters()),
        "buffers": origins(file, model.inner.named_buffers()),
    }
    with open(os.path.join(folder, "meta.json"), "w", encoding="utf-8") as out:
        json.dump(meta, out, indent=1, sort_keys=True)
        out.write("\n")
    dims = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in file.graph.input}  # fmt: skip
    print(f"{name}-{exporter}: {len(file.graph.node)} nodes, {os.path.getsize(path)} bytes, "
          f"torch differs by {worst:.1e}, {dims}", flush=True)  # fmt: skip
    if worst > (1e-2 if families.WIDE else 1e-3):  # softmax of a wide T5's scores, which it does not scale, is steep
        raise ValueError(f"the file differs from torch by {worst}")


def export_quietly(name, exporter, folder):
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    try:
        export(name, exporter, folder)
    except Exception as reason:  # an exporter may fail in any way
        text = " ".join(str(reason).split())[:300]
        print(f"{name}-{exporter}: NOT EXPORTED: {type(reason).__name__}: {text}", flush=True)
        graphs.shutil.rmtree(folder, ignore_errors=True)
        return 1
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder")
    parser.add_argument("--only")
    parser.add_argument("--exporter", choices=["dynamo", "legacy"])
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(families.FAMILIES)
    exporters = [args.exporter] if args.exporter else ["dynamo", "legacy"]
    failed = 0
    for name in names:
        for exporter in exporters:
            where = os.path.join(args.folder, f"{name}-{exporter}")
            if os.path.exists(os.path.join(where, "meta.json")):
                continue
            child = os.fork()  # a process each: exporters leave state behind, and some crash
            if child == 0:
                os._exit(export_quietly(name, exporter, where))
            failed += os.waitpid(child, 0)[1] != 0
    print(f"{len(names) * len(exporters) - failed} exported, {failed} not")
    return 0


if __name__ == "__main__":
    sys.exit(main())

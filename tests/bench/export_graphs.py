#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports the benchmark graphs with torch, without their weights, into graphs/.

Run by hand in the virtual environment of tests/data/export/requirements.txt; what it writes is
committed, so that a bench needs no torch: models.py puts seeded weights in. An initialiser of more
than 64 elements keeps its name, type and shape and loses its numbers.

usage: export_graphs.py [--only NAME,...]
"""
import argparse
import logging
import os
import sys
import warnings

import onnx
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "data", "export"))
import graphs  # noqa: E402
import modules  # noqa: E402

OPSET = 20
ROW = {0: "batch", 1: "seq"}
KV = [f"past_{kind}_{i}" for i in range(4) for kind in "kv"]


def ids(batch, seq):
    return torch.zeros((batch, seq), dtype=torch.int64)


def gpt2_small():
    return modules.Gpt(12, 768, 12, 50257, 1024), {"input_ids": ids(2, 16)}, ["logits"]


def bert_base():
    inputs = {name: ids(2, 16) for name in ("input_ids", "attention_mask", "token_type_ids")}
    return modules.Encoder(12, 768, 12, 30522, 512, head=False), inputs, ["hidden"]


def small():
    return modules.Gpt(4, 256, 4, 8192, 512), {"input_ids": ids(2, 16)}, ["logits"]


def small_past():
    past = {name: torch.zeros(2, 4, 5, 64) for name in KV}
    outputs = ["logits"] + [name.replace("past", "present") for name in KV]
    return modules.GptPast(4, 256, 4, 8192, 512), {"input_ids": ids(2, 3), **past}, outputs


MODELS = {make.__name__: make for make in (gpt2_small, bert_base, small, small_past)}


def export(make):
    torch.manual_seed(0)
    model, inputs, outputs = make()
    dims = {name: torch.export.Dim(name, min=1, max=512) for name in ("batch", "seq", "past")}
    shapes = []
    for name in inputs:
        axes = {0: "batch", 2: "past"} if name in KV else ROW
        shapes.append({axis: dims[dim] for axis, dim in axes.items()})
    if len(inputs) > 3:
        shapes = [shapes[0], tuple(shapes[1:])]
    program = torch.onnx.export(
        modules.fill(model, 0),
        tuple(inputs.values()),
        dynamo=True,
        opset_version=OPSET,
        input_names=list(inputs),
        output_names=outputs,
        dynamic_shapes=tuple(shapes),
        verbose=False,
    )
    return graphs.strip(program.model_proto)


def without_weights(model):
    for tensor in model.graph.initializer:
        size = 1
        for dim in tensor.dims:
            size *= dim
        if size > 64:
            if tensor.data_type != onnx.TensorProto.FLOAT:
                raise ValueError(f"{tensor.name}: a large tensor that holds no weights")
            tensor.ClearField("raw_data")
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    for name in args.only.split(",") if args.only else MODELS:
        model = without_weights(export(MODELS[name]))
        data = model.SerializeToString(deterministic=True)
        graphs.write_bytes(os.path.join(HERE, "graphs", f"{name}.onnx"), data)
        print(f"{name}: {len(model.graph.node)} nodes, {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the benchmark models: the graphs of graphs/ with seeded random weights.

Weights lie in DIR/NAME.onnx.data, at offsets that are multiples of 4096. A model that is there is
not written again. `cut` makes the two halves that a user of a runtime without pipelines would make
by hand.

usage: models.py DIR [NAME ...]
"""
import argparse
import os
import sys
import zlib

import numpy as np
import onnx
from onnx import TensorProto
from onnx.utils import Extractor

HERE = os.path.dirname(os.path.abspath(__file__))
GRAPHS = os.path.join(HERE, "graphs")
PAGE = 4096


def names():
    return sorted(name[:-5] for name in os.listdir(GRAPHS) if name.endswith(".onnx"))


def numbers(name, shape):
    """Matrices of standard deviation 0.02, scales near 1, the rest near 0; seeded by the name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    noise = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
    scale = len(shape) == 1 and name.endswith(".weight")
    return noise + np.float32(1) if scale else noise


def entry(tensor, key, value):
    pair = tensor.external_data.add()
    pair.key, pair.value = key, str(value)


def write(folder, name):
    """Returns the path of the model."""
    path = os.path.join(folder, f"{name}.onnx")
    if os.path.exists(path):
        return path
    os.makedirs(folder, exist_ok=True)
    model = onnx.load(os.path.join(GRAPHS, f"{name}.onnx"))
    location = f"{name}.onnx.data"
    with open(os.path.join(folder, location), "wb") as file:
        for tensor in model.graph.initializer:
            if tensor.HasField("raw_data"):
                continue
            file.write(bytes(-file.tell() % PAGE))
            data = numbers(tensor.name, tuple(tensor.dims)).tobytes()
            tensor.data_location = TensorProto.EXTERNAL
            entry(tensor, "location", location)
            entry(tensor, "offset", file.tell())
            entry(tensor, "length", len(data))
            file.write(data)
    with open(path + ".part", "wb") as file:
        file.write(model.SerializeToString(deterministic=True))
    os.rename(path + ".part", path)
    return path


def cut(folder, name, layer, layers):
    """Two models cut at the residual stream before `layer`: their paths and the tensor's name.
    Needs two LayerNormalization per layer, the first of which reads the stream."""
    whole = onnx.load(write(folder, name), load_external_data=False)
    norms = [node for node in whole.graph.node if node.op_type == "LayerNormalization"]
    if len(norms) != 2 * layers + 1:
        raise ValueError(f"{name}: {len(norms)} norms, expected {2 * layers + 1}")
    tensor = norms[2 * layer].input[0]
    extract = Extractor(onnx.shape_inference.infer_shapes(whole))
    inputs = [value.name for value in whole.graph.input]
    outputs = [value.name for value in whole.graph.output]
    paths = [os.path.join(folder, f"{name}_{half}_of_{layer}.onnx") for half in ("first", "second")]
    parts = (
        extract.extract_model(inputs, [tensor]),
        extract.extract_model([tensor, *inputs], outputs),
    )
    for path, part in zip(paths, parts):
        with open(path, "wb") as file:
            file.write(part.SerializeToString(deterministic=True))
    return paths, tensor


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("dir")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    for name in args.names or names():
        print(write(args.dir, name))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the benchmark models: the graphs of graphs/ and of nets.py with seeded random weights, none of them zero.

Weights lie in DIR/NAME.onnx.data, at offsets that are multiples of 4096. A model that is there is
not written again. `cut` makes the two halves that a user of a runtime without pipelines would make
by hand. NAME-int8 and NAME-bf16 are what users make of NAME: products of 8-bit integers by ONNX
Runtime's quantize_dynamic, and all of it in bf16, but for the outputs.

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

import nets

HERE = os.path.dirname(os.path.abspath(__file__))
GRAPHS = os.path.join(HERE, "graphs")
PAGE = 4096


def names():
    return sorted([name[:-5] for name in os.listdir(GRAPHS) if name.endswith(".onnx")] + list(nets.NETS))


def numbers(name, shape, spread=0.02):
    """Matrices of standard deviation `spread`, scales near 1, the rest near 0; seeded by the name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    noise = rng.standard_normal(shape, dtype=np.float32) * np.float32(spread)
    scale = len(shape) == 1 and name.endswith(".weight")
    return noise + np.float32(1) if scale else noise


def entry(tensor, key, value):
    pair = tensor.external_data.add()
    pair.key, pair.value = key, str(value)


def spread_of(tensor):
    """The spread that nets.py states; exported graphs state none."""
    words = tensor.doc_string.split()
    return float(words[1]) if words[:1] == ["spread"] else 0.02


def int8(source, target):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, weight_type=QuantType.QInt8)


def bf16_bytes(array):
    """Rounded to nearest even; what is finite stays finite."""
    limit = np.uint32(0x7F7F0000).view(np.float32)
    bits = np.clip(np.ascontiguousarray(array, np.float32), -limit, limit).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()


def turn_bf16(tensor):
    if tensor.data_type == TensorProto.FLOAT:
        data = bf16_bytes(onnx.numpy_helper.to_array(tensor))
        tensor.ClearField("float_data")
        tensor.data_type, tensor.raw_data = TensorProto.BFLOAT16, data


def bf16(source, target):
    model = onnx.load(source)
    graph = model.graph
    del graph.value_info[:]
    if any(value.type.tensor_type.elem_type == TensorProto.FLOAT for value in graph.input):
        raise ValueError(f"{source}: an input of floats")
    for tensor in graph.initializer:
        turn_bf16(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                turn_bf16(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.BFLOAT16
    for value in graph.output:
        for node in graph.node:
            node.output[:] = [f"{name}_bf16" if name == value.name else name for name in node.output]
            node.input[:] = [f"{name}_bf16" if name == value.name else name for name in node.input]
        last = onnx.helper.make_node("Cast", [f"{value.name}_bf16"], [value.name], f"{value.name}_fp32", to=TensorProto.FLOAT)
        graph.node.append(last)
    onnx.save(model, target)


KINDS = {"int8": int8, "bf16": bf16}


def write_kind(folder, name):
    """The path of a model, which is written first if it is not there."""
    path = os.path.join(folder, f"{name}.onnx")
    base, kind = name.rsplit("-", 1)
    if not os.path.exists(path):
        KINDS[kind](write(folder, base), path + ".part")
        os.rename(path + ".part", path)
    return path


def write(folder, name):
    """Returns the path of the model."""
    if "-" in name:
        return write_kind(folder, name)
    path = os.path.join(folder, f"{name}.onnx")
    if os.path.exists(path):
        return path
    os.makedirs(folder, exist_ok=True)
    model = nets.NETS[name]() if name in nets.NETS else onnx.load(os.path.join(GRAPHS, f"{name}.onnx"))
    location = f"{name}.onnx.data"
    with open(os.path.join(folder, location), "wb") as file:
        for tensor in model.graph.initializer:
            if tensor.HasField("raw_data"):
                continue
            file.write(bytes(-file.tell() % PAGE))
            data = numbers(tensor.name, tuple(tensor.dims), spread_of(tensor)).tobytes()
            tensor.ClearField("doc_string")
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

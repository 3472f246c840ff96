#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the ONNX backend tests by the operators and types that they use.

Writes the names_*.txt beside this file, or with --check compares them with what is
committed. Reads the model files with a small protobuf
reader of its own, so that nothing but Python's standard library is needed.

usage: names.py DATA_DIR [--check]      DATA_DIR: what fetch.py unpacked
"""
import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

# The operators without which no exported transformer runs.
MIN = """
Constant Identity Shape Gather Unsqueeze Squeeze Concat Slice Reshape Flatten Transpose Expand
Tile Range ConstantOfShape Cast CastLike Where Split Trilu
Equal Greater GreaterOrEqual Less LessOrEqual And Or Not IsNaN
Add Sub Mul Div Neg Sqrt Reciprocal Pow Exp Log Abs Min Max Sum Sin Cos Erf Tanh Sigmoid Relu Gelu
ReduceMean ReduceSum Softmax LogSoftmax LayerNormalization
MatMul Gemm Conv
Dropout SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss
""".split()

# Operators of the standard domain that the loader supports beyond that.
FURTHER = """
ScatterND ScatterElements GatherND GatherElements CumSum ReduceMax ReduceMin ReduceProd ReduceL2
BatchNormalization Clip Size ArgMax Mod Floor Ceil Round Sign Einsum OneHot TopK Pad
RMSNormalization RotaryEmbedding Attention Swish SwiGLU
Resize Upsample DFT LSTM GRU RNN ConvTranspose Col2Im DepthToSpace SpaceToDepth GridSample
""".split()

# TensorProto.DataType numbers.
STANDARD_TYPES = {1: "float", 6: "int32", 7: "int64", 9: "bool", 11: "double"}

# Their mask comes from the random generator of the program that wrote the data.
RANDOM = """
test_training_dropout test_training_dropout_default
test_training_dropout_default_mask test_training_dropout_mask
""".split()

# Zeros that the program which wrote the data missed by up to 2e-7: compared with atol 1e-6.
NOISE = "test_dft_inverse test_dft_inverse_opset19".split()


def varint(data, at):
    """One base-128 number at `at`: (value, position behind it)."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data):
    """(number, value) of every field; value is an int, or the bytes of what has a length."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"wire type {wire}")
        yield key >> 3, value


def pick(data, number):
    return [value for n, value in fields(data) if n == number]


class Model:
    """A model's operators (domain, name), and the element types of its inputs."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        self.ops = set()
        self.inputs = set()
        self.functions = set()
        for function in pick(data, 25):
            name = pick(function, 1)[0].decode()
            domain = (pick(function, 10) or [b""])[0].decode()
            self.functions.add((domain, name))
            for node in pick(function, 7):
                self.node(node)
        for graph in pick(data, 7):
            self.graph(graph)
            self.inputs.update(self.type_of(value) for value in pick(graph, 11))
        self.ops -= self.functions

    def graph(self, graph):
        for node in pick(graph, 1):
            self.node(node)

    def node(self, node):
        domain = (pick(node, 7) or [b""])[0].decode()
        self.ops.add(("" if domain == "ai.onnx" else domain, pick(node, 4)[0].decode()))
        for attribute in pick(node, 5):
            for number in (6, 11):
                for graph in pick(attribute, number):
                    self.graph(graph)

    @staticmethod
    def type_of(value):
        """TensorProto.DataType of a tensor; a negative number for sequences and the like."""
        for kind, body in fields(pick(value, 2)[0]):
            if kind == 1:
                return (pick(body, 1) or [0])[0]
            return -kind
        return 0


def survey(root):
    """name -> Model for every test below the unpacked data; names are `kind/test_name`."""
    found = {}
    for kind in ("node", "simple", "pytorch-converted", "pytorch-operator"):
        folder = os.path.join(root, kind)
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name, "model.onnx")
            if os.path.isfile(path):
                found[f"{kind}/{name}"] = Model(path)
    return found


def lists(models):
    """file name -> test names. Every test is in one list at most."""
    small = {("", op) for op in MIN}
    large = small | {("", op) for op in FURTHER}
    out = {"min": [], "further": [], "torch": [], "types": [], "noise": []}
    for name, model in models.items():
        if not model.ops <= large:
            continue
        standard = model.inputs <= set(STANDARD_TYPES)
        if name in {f"node/{noise}" for noise in NOISE}:
            key = "noise"
        elif not standard:
            key = "types"
        elif not name.startswith("node/"):
            key = "torch"
        else:
            key = "min" if model.ops <= small else "further"
        out[key].append(name)
    out["random"] = [f"node/{name}" for name in RANDOM]
    return {f"names_{key}.txt": names for key, names in out.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("data_dir")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()
    status = 0
    for name, tests in lists(survey(args.data_dir)).items():
        text = "".join(test + "\n" for test in tests)
        path = os.path.join(HERE, name)
        if not args.check:
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            print(f"{name}: {len(tests)} tests")
            continue
        with open(path, encoding="ascii") as file:
            if file.read() != text:
                print(f"{name} is not what {args.data_dir} gives", file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())

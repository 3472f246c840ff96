#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models with weights of few bits and what onnxruntime gives for them.

    python make.py [NAME...]     beside this file; needs numpy, onnx 1.23, onnxruntime 1.32

Each is a chain of products, so that it can be cut in four; every form stands in one of them. Seeded:
the same files again.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

HERE = pathlib.Path(__file__).resolve().parent
ROWS = (3, 1)


class Graph:
    """Nodes and initializers of one model; `x` is the value that the next node reads."""

    def __init__(self, name, dtype=np.float32):
        self.random = np.random.default_rng(sum(map(ord, name)))
        self.nodes, self.tensors, self.dtype, self.x, self.width = [], [], dtype, "x", 0

    def constant(self, value, kind=None):
        name = f"t{len(self.tensors)}"
        if kind is None:
            self.tensors.append(nh.from_array(np.ascontiguousarray(value), name))
        else:
            self.tensors.append(h.make_tensor(name, kind, value.shape, value.flatten().tolist()))
        return name

    def node(self, op, inputs, domain="", outputs=1, **attributes):
        out = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(
            h.make_node(op, inputs, out, f"{op}_{len(self.nodes)}", domain=domain, **attributes)
        )
        return out[0] if outputs == 1 else out

    def numbers(self, *shape, spread=1.0):
        return (self.random.standard_normal(shape) * spread).astype(self.dtype)

    def nbits(self, k, n, bits, block, zeros=None, bias=False, level=0):
        """x -> x W^T; zeros: None, "packed" or "numbers"."""
        blocks = (k + block - 1) // block
        codes = self.random.integers(0, 256, (n, blocks, block * bits // 8), np.uint8)
        scale = self.numbers(n * blocks, spread=2.0 / 2**bits / k**0.5)
        inputs = [self.x, self.constant(codes), self.constant(scale)]
        if zeros == "packed":
            row = (blocks * bits + 7) // 8
            inputs.append(self.constant(self.random.integers(0, 256, n * row, np.uint8)))
        elif zeros == "numbers":
            middle = 2 ** (bits - 1)
            inputs.append(self.constant(self.numbers(n * blocks) + self.dtype(middle)))
        if bias:
            inputs += [""] * (5 - len(inputs)) + [self.constant(self.numbers(n))]
        attributes = dict(K=k, N=n, bits=bits, block_size=block, accuracy_level=level)
        self.x = self.node("MatMulNBits", inputs, "com.microsoft", **attributes)

    def dequantized(self, rows, columns, kind, axis=None, block=0, zeros=True):
        """A matrix [rows, columns] of `kind`: one scale (axis None), along an axis, or in blocks."""
        low, high = {T.INT4: (-8, 8), T.UINT4: (0, 16), T.INT8: (-128, 128), T.UINT8: (0, 256)}[kind]
        shape = [rows, columns]
        if axis is None:
            scales = ()
        elif block == 0:
            scales = (shape[axis],)
        else:
            scales = tuple((d + block - 1) // block if a == axis else d for a, d in enumerate(shape))
        codes = self.random.integers(low, high, (rows, columns))
        scale = np.asarray(self.numbers(*scales, spread=4.0 / (high - low) / rows**0.5), self.dtype)
        inputs = [self.constant(codes, kind), self.constant(scale)]
        if zeros:
            middle = (low + high) // 2
            inputs.append(self.constant(self.random.integers(middle - 2, middle + 2, scales), kind))
        attributes = {} if axis is None else dict(axis=axis)
        if block:
            attributes["block_size"] = block
        return self.node("DequantizeLinear", inputs, **attributes)

    def linear(self, k, n, kind, **how):
        self.x = self.node("MatMul", [self.x, self.dequantized(k, n, kind, **how)])

    def gemm(self, k, n, kind, **how):
        w = self.dequantized(n, k, kind, **how)
        self.x = self.node("Gemm", [self.x, w, self.constant(self.numbers(n))], transB=1)

    def dynamic(self, k, n, kind, each=False):
        """x W + b as quantize_dynamic writes it; each: a scale and zero point for each column. Weights have 7 bits:
        sums of two products of 8 leave the 16 bits that onnxruntime has for them on AVX2."""
        low, high = (-64, 64) if kind == T.INT8 else (0, 128)
        x, scale, zero = self.node("DynamicQuantizeLinear", [self.x], outputs=3)
        w = self.constant(self.random.integers(low, high, (k, n)), kind)
        columns = (n,) if each else ()
        middle = (low + high) // 2
        w_zero = self.constant(self.random.integers(middle - 3, middle + 3, columns), kind)
        w_scale = self.constant(np.abs(self.numbers(*columns, spread=0.01)) + self.dtype(0.001))
        y = self.node("MatMulInteger", [x, w, zero, w_zero])
        y = self.node("Cast", [y], to=T.FLOAT)
        y = self.node("Mul", [y, self.node("Mul", [scale, w_scale])])
        self.x = self.node("Add", [y, self.constant(self.numbers(n))])

    def rounded(self, scale, zero, kind):
        """x as its kind's numbers and back."""
        inputs = [self.constant(np.float32(scale)), self.constant(np.array(zero), kind)]
        q = self.node("QuantizeLinear", [self.x, *inputs])
        self.x = self.node("DequantizeLinear", [q, *inputs])

    def act(self, op="Tanh"):
        self.x = self.node(op, [self.x])


def nbits4(g):
    g.nbits(64, 96, 4, 32, bias=True)
    g.act()
    g.nbits(96, 80, 4, 16, zeros="packed")
    g.act()
    g.nbits(80, 72, 4, 32, zeros="numbers")
    g.act()
    g.nbits(72, 40, 4, 128, zeros="packed", bias=True)


def nbits8(g):
    g.nbits(64, 96, 8, 32)
    g.act("Relu")
    g.nbits(96, 130, 8, 64, zeros="packed", bias=True)
    g.act()
    g.nbits(130, 40, 8, 16, zeros="packed")


def nbits2(g):
    g.nbits(64, 96, 2, 64, zeros="packed")
    g.act()
    g.nbits(96, 64, 2, 16)
    g.act()
    g.nbits(64, 40, 2, 128, bias=True)


def nbits_int8(g):
    """Accuracy level 4: rows of 8 bits."""
    g.nbits(64, 96, 4, 32, zeros="packed", bias=True, level=4)
    g.act()
    g.nbits(96, 80, 8, 32, level=4)
    g.act()
    g.nbits(80, 66, 2, 64, zeros="packed", level=4)
    g.act()
    g.nbits(66, 40, 4, 64, level=4)


def qdq4(g):
    g.linear(64, 96, T.INT4, axis=0, block=32)
    g.act()
    g.linear(96, 80, T.UINT4, axis=1)
    g.act()
    g.linear(80, 66, T.INT4)
    g.act()
    g.gemm(66, 40, T.UINT4, axis=1, block=16)


def qdq8(g):
    g.linear(64, 96, T.INT8, axis=1, zeros=False)
    g.act()
    g.linear(96, 80, T.UINT8, axis=0, block=16)
    g.act()
    g.gemm(80, 72, T.INT8, axis=0)
    g.act()
    g.gemm(72, 40, T.UINT8)


def gathered(g):
    """Tables that are gathered from, in every form; x are indices."""
    x = g.x
    rows = [
        g.node("Gather", [g.dequantized(50, 64, *form), x])
        for form in (
            (T.INT8, 0),
            (T.UINT8, 1),
            (T.UINT4,),
            (T.INT4, 1, 16),
            (T.INT4, 0, 16),
            (T.INT8, None, 0, False),
        )
    ]
    g.x = g.node("Sum", rows)
    g.linear(64, 48, T.UINT4, axis=0, block=16)
    g.act()
    g.linear(48, 40, T.INT8, axis=1)


def dynamic8(g):
    """No function between the products: a last bit of it could move a rounded number by one."""
    g.dynamic(64, 96, T.INT8)
    g.act("Relu")
    g.dynamic(96, 70, T.UINT8, each=True)
    g.act("Relu")
    g.dynamic(70, 40, T.INT8, each=True)


def static8(g):
    g.rounded(0.03, 120, T.UINT8)
    g.linear(64, 96, T.INT8, axis=1, zeros=False)
    g.act()
    g.rounded(1 / 127, 0, T.INT8)
    g.linear(96, 40, T.INT8)
    g.rounded(0.1, -3, T.INT8)


# name: (maker, extent of x, type)
MODELS = {
    "nbits4": (nbits4, 64, np.float32),
    "nbits8": (nbits8, 64, np.float32),
    "nbits2": (nbits2, 64, np.float32),
    "nbits_int8": (nbits_int8, 64, np.float32),
    "nbits4_fp16": (nbits4, 64, np.float16),
    "qdq4": (qdq4, 64, np.float32),
    "qdq8": (qdq8, 64, np.float32),
    "dynamic8": (dynamic8, 64, np.float32),
    "static8": (static8, 64, np.float32),
    "gathered": (gathered, None, np.float32),
}


def make(name):
    maker, width, dtype = MODELS[name]
    g = Graph(name, dtype)
    maker(g)
    kind = h.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = h.make_tensor_value_info("x", T.INT64, ["batch", 5])
    if width is not None:
        rows = ["batch"] if "gemm" in maker.__code__.co_names else ["batch", 4]
        x = h.make_tensor_value_info("x", kind, [*rows, width])
    y = h.make_tensor_value_info(g.x, kind, None)
    graph = h.make_graph(g.nodes, name, [x], [y], g.tensors)
    opsets = [h.make_opsetid("", 21), h.make_opsetid("com.microsoft", 1)]
    model = h.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="")
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    for i, rows in enumerate(ROWS):
        shape = [rows if d == "batch" else d for d in session.get_inputs()[0].shape]
        if width is None:
            value = g.random.integers(0, 50, shape)
        else:
            value = g.numbers(*shape)
        data = folder / f"test_data_set_{i}"
        data.mkdir(exist_ok=True)
        (found,) = session.run(None, {"x": value})
        for kind_, name_, array in (("input", "x", value), ("output", g.x, found)):
            (data / f"{kind_}_0.pb").write_bytes(nh.from_array(array, name_).SerializeToString())


if __name__ == "__main__":
    for wanted in sys.argv[1:] or MODELS:
        make(wanted)

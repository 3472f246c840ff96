#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models that ONNX Runtime's quantize_static wrote, and what onnxruntime without its optimiser gives for them.

    python make.py [--width W --image E] [FOLDER]     FOLDER: here; needs numpy, onnx 1.23, onnxruntime

block: two layers of a transformer; conv: a small residual net with a depthwise convolution and pools. Each as QDQ pairs with a
scale for each channel, and in QOperator form with one scale. operators: what neither of them has, one output each. *_wrong_*: the QDQ
models with what a wrong kernel would compute. Seeded: the same files again. The bench makes larger ones of the same kind (--width, --image).
"""

import argparse
import pathlib
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import helper as h
from onnx import numpy_helper as nh
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

FORMS = {"qdq": (QuantFormat.QDQ, True), "qoperator": (QuantFormat.QOperator, False)}


class Graph:
    """Nodes and initializers of a model."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes, self.tensors = [], []

    def constant(self, value, dtype=np.float32):
        name = f"t{len(self.tensors)}"
        self.tensors.append(nh.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape, spread=None):
        return self.constant(self.random.standard_normal(shape) * (spread or 1 / np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else shape[0])))

    def node(self, op, inputs, domain="", **attributes):
        out = f"{op}_{len(self.nodes)}"
        self.nodes.append(h.make_node(op, inputs, [out], f"n{len(self.nodes)}", domain=domain, **attributes))
        return out

    def model(self, name, inputs, outputs):
        graph = h.make_graph(self.nodes, name, inputs, outputs, self.tensors)
        opsets = [h.make_opsetid("", 20), h.make_opsetid("com.microsoft", 1)]
        return h.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="")


def linear(g, x, n_in, n_out):
    return g.node("Add", [g.node("MatMul", [x, g.weight(n_in, n_out)]), g.weight(n_out, spread=0.1)])


def norm(g, x, width):
    return g.node("LayerNormalization", [x, g.constant(np.ones(width)), g.constant(np.zeros(width))], axis=-1)


def block(width, image):
    g, heads, x = Graph(1), 4, "x"
    parts, whole = g.constant([0, 0, heads, width // heads], np.int64), g.constant([0, 0, width], np.int64)
    scale = g.constant(1 / np.sqrt(width // heads))
    for _ in range(2):
        n = norm(g, x, width)
        q, k, v = [g.node("Transpose", [g.node("Reshape", [linear(g, n, width, width), parts])], perm=[0, 2, 1, 3]) for _ in "qkv"]
        scores = g.node("MatMul", [q, g.node("Transpose", [k], perm=[0, 1, 3, 2])])
        weights = g.node("Softmax", [g.node("Mul", [scores, scale])], axis=-1)
        rows = g.node("Reshape", [g.node("Transpose", [g.node("MatMul", [weights, v])], perm=[0, 2, 1, 3]), whole])
        x = g.node("Add", [x, linear(g, rows, width, width)])
        up = g.node("Gelu", [linear(g, norm(g, x, width), width, 4 * width)])
        x = g.node("Add", [x, linear(g, up, 4 * width, width)])
    y = g.node("Gemm", [g.node("Reshape", [x, g.constant([-1, width], np.int64)]), g.weight(10, width, spread=0.2)], transB=1)
    shape = ["batch", 2 if image < 64 else 64, width]
    return g.model("block", [h.make_tensor_value_info("x", 1, shape)], [h.make_tensor_value_info(y, 1, None)])


def conv(width, image):
    g = Graph(2)

    def convolve(x, c_in, c_out, size, stride=1, relu=True, group=1):
        inputs = [x, g.weight(c_out, c_in // group, size, size), g.weight(c_out, spread=0.1)]
        y = g.node("Conv", inputs, kernel_shape=[size] * 2, pads=[size // 2] * 4, strides=[stride] * 2, group=group)
        return g.node("Relu", [y]) if relu else y

    c = width // 4
    x = convolve("x", 3, c, 7, 2)
    x = g.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for stride, c_out in ((1, c), (2, 2 * c)):
        skip = x if stride == 1 else convolve(x, c, c_out, 1, stride, False)
        y = convolve(convolve(x, c, c_out, 3, stride), c_out, c_out, 3, 1, False)
        x, c = g.node("Relu", [g.node("Add", [y, skip])]), c_out
        x = convolve(x, c, c, 3, group=c)
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x])])
    y = g.node("Gemm", [x, g.weight(10, c, spread=0.2), g.weight(10, spread=0.1)], transB=1)
    given = h.make_tensor_value_info("x", 1, ["batch", 3, image, image])
    return g.model("conv", [given], [h.make_tensor_value_info(y, 1, None)])


MS = "com.microsoft"


def operators():
    """One output of each; u: codes of x, float32 ones are rounded once more or are exact sums."""
    g = Graph(3)

    def pair(scale, zero, dtype=np.uint8):
        return [g.constant(scale), g.constant(zero, dtype)]

    def codes(*shape, dtype=np.int8):
        info = np.iinfo(dtype)  # int8: half of the range, see quantized()
        return g.constant(g.random.integers(info.min // 2, info.max // (2 if info.min < 0 else 1) + 1, shape), dtype)

    x = pair(0.02, 120)
    u = g.node("QuantizeLinear", ["x", *x])  # [2, 4, 6, 8]
    y = pair(0.011, 131)
    outs = [
        g.node("QLinearSigmoid", [u, *x, *pair(1 / 256, 0)], MS),
        g.node("QLinearLeakyRelu", [u, *x, *y], MS, alpha=0.2),
        g.node("QLinearAveragePool", [u, *x, *y], MS, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], count_include_pad=1),
        g.node("QLinearGlobalAveragePool", [u, *x, *y], MS, channels_last=0),
        g.node("QLinearSoftmax", [u, *x, *pair(1 / 256, 0)], MS, axis=2, opset=13),
        g.node("QLinearConcat", [*pair(0.03, 99), u, *x, u, *y], MS, axis=1),
        g.node("QLinearWhere", [g.node("Greater", ["x", g.constant(0)]), u, *x, u, *y, *pair(0.025, 100)], MS),
        g.node("QLinearAdd", [u, *x, codes(6, 1, dtype=np.uint8), *y, *pair(0.04, 127)], MS),
        g.node("QLinearMul", [u, *x, u, *y, *pair(0.05, 127)], MS),
        g.node("QLinearConv", [u, *x, codes(6, 2, 3, 3), g.constant(np.linspace(0.01, 0.03, 6)), g.constant([0] * 6, np.int8),
                               *pair(0.3, 128), g.constant([100, -2000, 3, 40, 5, 9], np.int32)], pads=[1, 0, 1, 0], group=2, strides=[2, 1]),
        g.node("QLinearConv", [u, *x, codes(5, 4, 3, 2), g.constant(0.02), g.constant(7, np.int8), *pair(0.5, 128)], auto_pad="SAME_UPPER"),
    ]  # fmt: skip
    rows = g.node("Reshape", [u, g.constant([-1, 8], np.int64)])
    outs += [
        g.node("QLinearMatMul", [rows, *x, codes(8, 5), g.constant(np.linspace(0.01, 0.02, 5)), g.constant([0] * 5, np.int8), *pair(0.2, 128)]),
        g.node("QGemm", [rows, *x, codes(5, 8), *pair(0.01, 3, np.int8), g.constant([100, -2000, 3, 40, 5], np.int32), *pair(0.2, 128)], MS, transB=1, alpha=0.5),
        g.node("QGemm", [rows, *x, codes(8, 5), *pair(0.01, 3, np.int8)], MS),
        g.node("MatMulIntegerToFloat", [u, codes(8, 5), x[0], g.constant(np.linspace(0.01, 0.02, 5)), x[1], g.constant([0] * 5, np.int8), g.weight(5)], MS),
        g.node("DynamicQuantizeMatMul", ["x", codes(8, 5), g.constant(0.02), g.constant(3, np.int8), g.weight(5)], MS),
    ]  # fmt: skip
    tokens = g.node("Reshape", [u, g.constant([2, 24, 8], np.int64)])
    outs.append(g.node("QAttention", [tokens, codes(8, 24), g.weight(24), x[0], g.constant(0.01), "", x[1], g.constant(0, np.int8)], MS, num_heads=2))
    ids = g.constant([[1, 2, 3], [4, 0, 5]], np.int32)
    tables = [codes(6, 8, dtype=np.uint8), codes(4, 8, dtype=np.uint8), codes(2, 8, dtype=np.uint8), codes(8, dtype=np.uint8), codes(8, dtype=np.uint8)]
    scales, zeros = [g.constant(0.02 + 0.01 * i) for i in range(5)], [g.constant(120 + i, np.uint8) for i in range(5)]
    segments = g.constant([[0, 0, 1], [0, 1, 1]], np.int32)
    outs.append("embedded")
    g.nodes.append(h.make_node("QEmbedLayerNormalization", [ids, segments, *tables, "", *scales, *zeros], ["embedded", "lengths"], "embed", domain=MS))
    given = h.make_tensor_value_info("x", 1, ["batch", 4, 6, 8])
    return g.model("operators", [given], [h.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in outs])


class Calibration(CalibrationDataReader):
    def __init__(self, shape):
        self.rows = iter([{"x": np.random.default_rng(i).standard_normal(shape, np.float32)} for i in range(4)])

    def get_next(self):
        return next(self.rows, None)


def keep(folder, model):
    """The model, and a data set of two rows."""
    (folder / "test_data_set_0").mkdir(parents=True, exist_ok=True)
    for tensor in model.graph.output:
        tensor.ClearField("type")
    model = onnx.shape_inference.infer_shapes(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (given,) = session.get_inputs()
    x = np.random.default_rng(9).standard_normal([2 if d == "batch" else d for d in given.shape], np.float32)
    found = session.run(None, {"x": x})
    data = folder / "test_data_set_0"
    (data / "input_0.pb").write_bytes(nh.from_array(x, "x").SerializeToString())
    for array, out in zip(found, model.graph.output):
        out.type.CopyFrom(h.make_tensor_type_proto(h.np_dtype_to_tensor_dtype(array.dtype), None))
    onnx.save(model, folder / "model.onnx")
    for i, (array, out) in enumerate(zip(found, session.get_outputs())):
        (data / f"output_{i}.pb").write_bytes(nh.from_array(array, out.name).SerializeToString())


def quantized(maker, width, image, form):
    """The model of `maker` in one of FORMS. Weights of 7 bits: where processors have no VNNI, ONNX Runtime's sums of two products
    of 8 bits saturate."""
    model = maker(width, image)
    shape = [1 if d.dim_param else d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    with tempfile.TemporaryDirectory() as folder:
        plain, made = f"{folder}/plain.onnx", f"{folder}/made.onnx"
        onnx.save(model, plain)
        how, channels = FORMS[form]
        quantize_static(plain, made, Calibration(shape), quant_format=how, per_channel=channels,
                        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, reduce_range=True)  # fmt: skip
        return onnx.load(made)


def defect(model, slot, change):
    """The same with what a wrong kernel computes: scale (slot 1) or zero point (2) of every product's result changed."""
    made = {name: node for node in model.graph.node for name in node.output}
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for i, node in enumerate(model.graph.node):
        codes = made.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        product = made.get(codes.input[0]) if codes is not None and codes.op_type == "QuantizeLinear" else None
        if product is not None and product.op_type in ("MatMul", "Conv"):
            right = nh.to_array(tensors[node.input[slot]])
            model.graph.initializer.append(nh.from_array(change(right).astype(right.dtype), f"wrong{i}"))
            node.input[slot] = f"wrong{i}"
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--image", type=int, default=20)
    args = parser.parse_args()
    for maker in (block, conv):
        for form in FORMS:
            keep(args.folder / f"{maker.__name__}_{form}", quantized(maker, args.width, args.image, form))
        wrong = quantized(maker, args.width, args.image, "qdq")
        onnx.save(defect(wrong, 1, lambda scale: scale * np.float32(1.01)), args.folder / f"{maker.__name__}_wrong_scale.onnx")
        wrong = quantized(maker, args.width, args.image, "qdq")
        onnx.save(defect(wrong, 2, lambda zero: zero + 1), args.folder / f"{maker.__name__}_wrong_zero.onnx")
    keep(args.folder / "operators", operators())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models whose operators become others when they are bound, or that came late, and what onnxruntime gives.

    python make.py [NAME...]     beside this file; needs numpy, onnx 1.23, onnxruntime 1.32

Set 1 has another batch than set 0 where the batch is free. Seeded: the same files again.
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
MS = "com.microsoft"
BATCH = "batch"


class Graph:
    """Nodes and initializers of one model."""

    def __init__(self, name):
        self.random = np.random.default_rng(sum(map(ord, name)))
        self.nodes, self.tensors = [], []

    def weight(self, *shape, spread=0.5):
        return self.constant((self.random.standard_normal(shape) * spread).astype(np.float32))

    def constant(self, value, kind=None, name=None):
        name = name or f"t{len(self.tensors)}"
        if kind is None:
            self.tensors.append(nh.from_array(np.asarray(value), name))
        else:
            self.tensors.append(h.make_tensor(name, kind, value.shape, value.flatten().tolist()))
        return name

    def node(self, op, inputs, domain="", outputs=1, **attributes):
        out = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(h.make_node(op, inputs, out, name, domain=domain, **attributes))
        return out[0] if outputs == 1 else out


def floats(name, *shape):
    return h.make_tensor_value_info(name, T.FLOAT, list(shape))


def indices(name, below, *shape):
    """`below` stays with the value, for whoever draws it."""
    value = h.make_tensor_value_info(name, T.INT64, list(shape))
    value.doc_string = str(below)
    return value


def body(name, nodes, inputs, outputs, tensors=()):
    return h.make_graph(nodes, name, inputs, outputs, list(tensors))


def scan(graph):
    """Two states, three scan inputs and two scan outputs, each with an axis and a direction of its own; the body reads
    values of the graph around it, one that is computed and one that is an initializer, and has an initializer."""
    graph.constant((graph.random.standard_normal((4, 4)) * 0.5).astype(np.float32), name="mix.weight")
    shift = graph.node("Mul", ["x0", graph.weight(4)])
    one = nh.from_array(np.float32(0.25), "quarter")
    nodes = [
        h.make_node("MatMul", ["s", "mix.weight"], ["m"]),
        h.make_node("Add", ["m", "a"], ["p"]),
        h.make_node("Add", ["p", shift], ["q"]),
        h.make_node("Tanh", ["q"], ["s_out"]),
        h.make_node("Mul", ["b", "quarter"], ["b4"]),
        h.make_node("Add", ["r", "b4"], ["r1"]),
        h.make_node("Sub", ["r1", "c"], ["r_out"]),
        h.make_node("Mul", ["s_out", "r_out"], ["y"]),
        h.make_node("Neg", ["y"], ["z"]),
    ]
    state = [floats(n, None, 4) for n in ("s", "r")]
    parts = [floats(n, None, 4) for n in ("a", "b", "c")]
    made = [floats(n, None, 4) for n in ("s_out", "r_out", "y", "z")]
    late = graph.node("Transpose", ["x"], perm=[1, 0, 2])
    last = graph.node("Transpose", ["x"], perm=[0, 2, 1])
    zero = graph.node("Sub", ["x0", "x0"])
    out = graph.node(
        "Scan",
        ["x0", zero, "x", late, last],
        outputs=4,
        body=body("trip", nodes, state + parts, made, [one]),
        num_scan_inputs=3,
        scan_input_axes=[1, 0, -1],
        scan_input_directions=[0, 1, 0],
        scan_output_axes=[1, -1],
        scan_output_directions=[0, 1],
    )
    turned = graph.node("Transpose", [out[3]], perm=[0, 2, 1])
    both = graph.node("Sub", [out[2], turned])
    ends = graph.node("Add", [out[0], out[1]])
    y = graph.node("MatMul", [both, graph.weight(4, 3)])
    return 20, [floats("x", BATCH, 5, 4), floats("x0", BATCH, 4)], [(y, BATCH, 5, 3), (ends, BATCH, 4)]


def scan_rows(graph):
    """Opset 8: a batch in axis 0, sequences of several lengths, an input that is read backwards beside one that is not."""
    nodes = [h.make_node("Add", ["s", "a"], ["s_out"]), h.make_node("Mul", ["s_out", "a"], ["y"])]
    trip = body("trip", nodes, [floats("s", 4), floats("a", 4)], [floats("s_out", 4), floats("y", 4)])
    lengths = graph.constant(np.asarray([3, 5, 1], np.int64))
    ends, y = graph.node("Scan", [lengths, "x0", "x"], outputs=2, body=trip, num_scan_inputs=1)
    back, z = graph.node("Scan", ["", ends, y], outputs=2, body=trip, num_scan_inputs=1, directions=[1])
    return 8, [floats("x", 3, 5, 4), floats("x0", 3, 4)], [(back, 3, 4), (z, 3, 5, 4)]


def scan_nothing(graph):
    """No trips, which onnxruntime refuses: the state is what it was, and the scan output is empty."""
    nodes = [h.make_node("Add", ["s", "a"], ["s_out"]), h.make_node("Exp", ["s_out"], ["y"])]
    trip = body("trip", nodes, [floats("s", None, 4), floats("a", 4)], [floats(n, None, 4) for n in ("s_out", "y")])
    empty = graph.constant(np.zeros((0, 4), np.float32))
    ends, y = graph.node("Scan", ["x", empty], outputs=2, body=trip, num_scan_inputs=1, scan_output_axes=[1])
    rows = graph.node("ReduceSum", [y, graph.constant(np.asarray([1], np.int64))], keepdims=0)
    out = graph.node("Add", [graph.node("Relu", [ends]), rows])
    return 24, [floats("x", BATCH, 4)], [(out, BATCH, 4)], lambda data: [np.maximum(data["x"], 0)]


def ms_qdq(graph):
    """QuantizeLinear and DequantizeLinear of com.microsoft: 16 bits, 4 bits, one scale and one for each entry of an axis."""
    x = "x"
    for kind, zero in ((T.UINT16, 32768), (T.INT16, 0), (T.INT8, 3), (T.UINT8, None)):
        scale = graph.constant(np.float32(0.001 if kind in (T.UINT16, T.INT16) else 0.03))
        zeros = [] if zero is None else [graph.constant(np.asarray(zero), kind)]
        codes = graph.node("QuantizeLinear", [x, scale] + zeros, MS)
        x = graph.node("DequantizeLinear", [codes, scale] + zeros, MS)
        if zero is None:
            continue
        weight = graph.constant(graph.random.integers(-8, 8, (16, 16)), T.INT4)
        scales = graph.constant(graph.random.uniform(0.02, 0.06, 16).astype(np.float32))
        zeros = graph.constant(graph.random.integers(-2, 3, 16), T.INT4)
        weight = graph.node("DequantizeLinear", [weight, scales, zeros], MS, axis=kind % 2)
        x = graph.node("MatMul", [x, weight])
    per = graph.constant(graph.random.uniform(0.01, 0.05, 16).astype(np.float32))
    zeros = graph.constant(graph.random.integers(-5, 5, 16), T.INT8)
    x = graph.node("QuantizeLinear", [x, per, zeros], MS, axis=1)
    x = graph.node("DequantizeLinear", [x, per, zeros], MS, axis=1)
    return 20, [floats("x", BATCH, 16)], [(x, BATCH, 16)]


def tensor_scatter(graph):
    """Linear from places of each row, without places, and circular along another axis, over the end."""
    new = graph.node("Mul", ["x", graph.weight(4)])
    a = graph.node("TensorScatter", ["cache", new, "where"])
    b = graph.node("TensorScatter", [a, graph.node("Neg", ["x"])], axis=2)
    turned = graph.node("Transpose", [b], perm=[0, 2, 1, 3])
    end = graph.node("Add", ["where", graph.constant(np.asarray([5], np.int64))])
    c = graph.node("TensorScatter", [turned, graph.node("Transpose", [new], perm=[0, 2, 1, 3]), end], axis=-3, mode="circular")
    y = graph.node("MatMul", [c, graph.weight(4, 3)])
    inputs = [floats("x", BATCH, 2, 3, 4), floats("cache", BATCH, 2, 7, 4), indices("where", 5, BATCH)]
    return 24, inputs, [(y, BATCH, 7, 2, 3), (a, BATCH, 2, 7, 4)]


def gather_blocks(graph):
    """GatherBlockQuantized: 4 bits by axis, with zero points and without; 2, 4 and 8 bits in bytes, blocks that do not
    divide the row; along the axis that has blocks."""
    rows, columns, sums = 24, 48, []

    def table(kind, low, high, shape, scales, zeros, place="ids", **attributes):
        data = graph.constant(graph.random.integers(low, high, shape), kind)
        scale = graph.constant(graph.random.uniform(0.02, 0.2, scales).astype(np.float32))
        more = [graph.constant(graph.random.integers(low, high, zeros), kind)] if zeros else []
        sums.append(graph.node("GatherBlockQuantized", [data, place, scale] + more, MS, **attributes))

    table(T.INT4, -8, 8, (rows, columns), (rows, 3), None, block_size=16)
    table(T.UINT4, 0, 16, (rows, columns), (rows, 2), (rows, 2), block_size=32, quantize_axis=-1)
    table(T.UINT8, 0, 256, (rows, columns // 2), (rows, 3), None, block_size=16, bits=4)
    table(T.UINT8, 0, 256, (rows, columns // 2), (rows, 3), (rows, 2), block_size=16, bits=4)
    table(T.UINT8, 0, 256, (rows, columns // 4), (rows, 2), (rows, 1), block_size=32, bits=2)
    table(T.UINT8, 0, 256, (rows, columns), (rows, 3), (rows, 3), block_size=16, bits=8)
    table(T.UINT8, 0, 256, (rows, columns), (rows, 3), None, block_size=16, bits=8)
    total = sums[0]
    for other in sums[1:]:
        total = graph.node("Add", [total, other])
    table(T.INT4, -8, 8, (rows, 5), (2, 5), (2, 5), block_size=16, quantize_axis=0)
    table(T.INT4, -8, 8, (5, rows), (1, rows), None, block_size=16, quantize_axis=0, gather_axis=1)
    turned = graph.node("Transpose", [sums[-1]], perm=[1, 2, 0])
    outputs = [(total, BATCH, 3, columns), (sums[-2], BATCH, 3, 5), (turned, BATCH, 3, 5)]
    return 21, [indices("ids", rows, BATCH, 3)], outputs


def one_mark(graph):
    """com.microsoft Attention beside a mask with one mark for each sample, and with one for all: onnxruntime's optimiser
    writes both where a mask was broadcast. Either stands for every key, whatever its value."""
    x = "x"
    for mask, causal in (("marks", 0), (graph.constant(np.zeros((1, 1), np.int32)), 1)):
        x, kept = graph.node("Attention", [x, graph.weight(8, 24), graph.weight(24), mask, "past"], MS, 2, num_heads=2, unidirectional=causal)
        x = graph.node("Add", [x, "x"])
    marks = h.make_tensor_value_info("marks", T.INT32, [BATCH, 1])
    return 17, [floats("x", BATCH, 3, 8), marks, floats("past", 2, BATCH, 2, 2, 4)], [(x, BATCH, 3, 8), (kept, 2, BATCH, 2, 5, 4)]


MODELS = {f.__name__: f for f in (scan, scan_rows, scan_nothing, ms_qdq, tensor_scatter, gather_blocks, one_mark)}
ROWS = (4, 6)


def fed(random, value, rows):
    shape = [rows if d.dim_param else d.dim_value for d in value.type.tensor_type.shape.dim]
    if value.doc_string:
        return random.integers(0, int(value.doc_string), shape)
    if value.type.tensor_type.elem_type == T.INT32:
        return random.integers(0, 2, shape, np.int32)
    return random.standard_normal(shape).astype(np.float32)


def write(name):
    graph = Graph(name)
    opset, inputs, outputs, *plain = MODELS[name](graph)
    outputs = [floats(out, *shape) for out, *shape in outputs]
    imports = [h.make_opsetid("", opset), h.make_opsetid(MS, 1)]
    made = h.make_graph(graph.nodes, name, inputs, outputs, graph.tensors)
    model = h.make_model(made, opset_imports=imports, ir_version=11 if opset > 20 else 10)
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    compute = plain[0] if plain else lambda data: session.run(None, data)
    free = any(d.dim_param for d in inputs[0].type.tensor_type.shape.dim)
    for k, rows in enumerate(ROWS[: 2 if free else 1]):
        data = {v.name: fed(graph.random, v, rows) for v in inputs}
        found = compute(data)
        into = folder / f"test_data_set_{k}"
        into.mkdir(exist_ok=True)
        for kind, values in (("input", data.items()), ("output", zip([o.name for o in outputs], found))):
            for i, (value, array) in enumerate(values):
                (into / f"{kind}_{i}.pb").write_bytes(nh.from_array(array, value).SerializeToString())


if __name__ == "__main__":
    for wanted in sys.argv[1:] or MODELS:
        write(wanted)

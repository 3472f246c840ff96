# SPDX-License-Identifier: Apache-2.0
"""Graphs of the bench that no exporter has to make: convolutions, speech, experts. Node by node as torch's legacy
exporter writes the models of these names, with batch norms folded into convolutions; weights without numbers, which
models.py puts in: each says how widely they spread.

  resnet50      3 x 224 x 224 -> 1000 classes; 25.5 M parameters
  mobilenet_v3  the large one, 3 x 224 x 224 -> 1000; depthwise convolutions, squeeze and excitation; 5.5 M
  wav2vec2      base: 7 convolutions over samples, a grouped one of 128 frames, 12 layers of 768, 32 letters; 94 M
  moe_block     a mixture of 16 experts of 2048 x 768, 2 for each token, all of them for all tokens in two batched
                products (as GPT-OSS does it), weighted by the router; 75 M
"""
import math

import numpy as np
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
EXPERTS, WIDTH, HIDDEN, CHOSEN = 16, 2048, 768, 2
# Blocks of MobileNetV3 large: kernel, width inside, width out, squeeze, activation, stride.
BLOCKS = [
    (3, 16, 16, False, "Relu", 1), (3, 64, 24, False, "Relu", 2), (3, 72, 24, False, "Relu", 1),
    (5, 72, 40, True, "Relu", 2), (5, 120, 40, True, "Relu", 1), (5, 120, 40, True, "Relu", 1),
    (3, 240, 80, False, "HardSwish", 2), (3, 200, 80, False, "HardSwish", 1), (3, 184, 80, False, "HardSwish", 1),
    (3, 184, 80, False, "HardSwish", 1), (3, 480, 112, True, "HardSwish", 1), (3, 672, 112, True, "HardSwish", 1),
    (5, 672, 160, True, "HardSwish", 2), (5, 960, 160, True, "HardSwish", 1), (5, 960, 160, True, "HardSwish", 1),
]  # fmt: skip


class Net:
    """Nodes and initialisers; a method adds what it is named for and returns its output's name."""

    def __init__(self):
        self.nodes, self.tensors = [], []

    def weight(self, name, shape, spread):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, doc_string=f"spread {spread:.6g}")
        self.tensors.append(tensor)
        return name

    def constant(self, values, dtype=np.int64):
        name = f"constant_{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def node(self, op, *inputs, outputs=1, **attributes):
        names = [f"{op}_{len(self.nodes)}" + (f"_{i}" if i else "") for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, f"/{names[0]}", **attributes))
        return names[0] if outputs == 1 else names

    def conv(self, x, name, n_in, n_out, kernel, stride=1, pads=None, group=1, bias=True):
        """kernel: [k] or [k, k]; pads: at every end, half a kernel where not told."""
        at_end = kernel[0] // 2 if pads is None else pads
        fan = n_in // group * math.prod(kernel)
        inputs = [self.weight(f"{name}.weight", [n_out, n_in // group, *kernel], math.sqrt(2 / fan))]
        if bias:
            inputs.append(self.weight(f"{name}.bias", [n_out], 0.02))
        sides = len(kernel)
        return self.node("Conv", x, *inputs, kernel_shape=kernel, strides=[stride] * sides, pads=[at_end] * 2 * sides,
                         dilations=[1] * sides, group=group)  # fmt: skip

    def linear(self, x, name, n_in, n_out):
        y = self.node("MatMul", x, self.weight(f"{name}.matrix", [n_in, n_out], 1 / math.sqrt(n_in)))
        return self.node("Add", self.weight(f"{name}.bias", [n_out], 0.02), y)

    def norm(self, x, name, width):
        scale, bias = self.weight(f"{name}.weight", [width], 0.02), self.weight(f"{name}.bias", [width], 0.02)
        return self.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def gelu(self, x):
        root, one, half = (self.constant(v, np.float32) for v in (math.sqrt(2), 1, 0.5))
        y = self.node("Add", self.node("Erf", self.node("Div", x, root)), one)
        return self.node("Mul", self.node("Mul", x, y), half)

    def model(self, name, inputs, output, shape):
        given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in inputs.items()]
        self.nodes[-1].output[0] = output
        graph = helper.make_graph(self.nodes, name, given, [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
                                  self.tensors)  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)

    def classes(self, x, n_in, name):
        w = self.weight(f"{name}.weight", [1000, n_in], 1 / math.sqrt(n_in))
        return self.node("Gemm", x, w, self.weight(f"{name}.bias", [1000], 0.02), transB=1)


PIXELS = {"pixel_values": ["batch", 3, 224, 224]}


def resnet50():
    net = Net()
    x = net.node("Relu", net.conv("pixel_values", "stem", 3, 64, [7, 7], 2))
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for block in range(depth):
            name, stride = f"stage{stage}.{block}", 2 if stage > 0 and block == 0 else 1
            y = net.node("Relu", net.conv(x, f"{name}.a", width, inner, [1, 1]))
            y = net.node("Relu", net.conv(y, f"{name}.b", inner, inner, [3, 3], stride))
            y = net.conv(y, f"{name}.c", inner, 4 * inner, [1, 1])
            if block == 0:
                x = net.conv(x, f"{name}.short", width, 4 * inner, [1, 1], stride)
            x, width = net.node("Relu", net.node("Add", y, x)), 4 * inner
    x = net.node("Flatten", net.node("GlobalAveragePool", x), axis=1)
    net.classes(x, width, "head")
    return net.model("resnet50", PIXELS, "logits", ["batch", 1000])


def squeeze(net, x, name, width):
    """x scaled by channel, by what its means say."""
    inner = max(8, (width // 4 + 4) // 8 * 8)
    y = net.node("GlobalAveragePool", x)
    y = net.node("Relu", net.conv(y, f"{name}.down", width, inner, [1, 1]))
    y = net.node("HardSigmoid", net.conv(y, f"{name}.up", inner, width, [1, 1]), alpha=1 / 6, beta=0.5)
    return net.node("Mul", y, x)


def mobilenet_v3():
    net = Net()
    x = net.node("HardSwish", net.conv("pixel_values", "stem", 3, 16, [3, 3], 2))
    width = 16
    for i, (kernel, inner, out, squeezes, act, stride) in enumerate(BLOCKS):
        y = x if inner == width else net.node(act, net.conv(x, f"block{i}.wide", width, inner, [1, 1]))
        y = net.node(act, net.conv(y, f"block{i}.depth", inner, inner, [kernel, kernel], stride, group=inner))
        y = squeeze(net, y, f"block{i}", inner) if squeezes else y
        y = net.conv(y, f"block{i}.out", inner, out, [1, 1])
        x, width = net.node("Add", x, y) if stride == 1 and width == out else y, out
    x = net.node("HardSwish", net.conv(x, "last", width, 960, [1, 1]))
    x = net.node("Flatten", net.node("GlobalAveragePool", x), axis=1)
    w = net.weight("middle.weight", [1280, 960], 1 / math.sqrt(960))
    x = net.node("HardSwish", net.node("Gemm", x, w, net.weight("middle.bias", [1280], 0.02), transB=1))
    net.classes(x, 1280, "head")
    return net.model("mobilenet_v3", PIXELS, "logits", ["batch", 1000])


def encoder_layer(net, x, name, width, heads):
    """Norms behind sums; x [batch, frames, width]."""
    parts = []
    for part in "qkv":
        y = net.node("Reshape", net.linear(x, f"{name}.{part}", width, width), net.constant([0, 0, heads, width // heads]))
        parts.append(net.node("Transpose", y, perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]))
    scale = net.constant(math.sqrt(width // heads), np.float32)
    scores = net.node("Div", net.node("MatMul", parts[0], parts[1]), scale)
    y = net.node("MatMul", net.node("Softmax", scores, axis=-1), parts[2])
    y = net.node("Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, 0, width]))
    x = net.norm(net.node("Add", x, net.linear(y, f"{name}.o", width, width)), f"{name}.norm1", width)
    y = net.gelu(net.linear(x, f"{name}.up", width, 4 * width))
    return net.norm(net.node("Add", x, net.linear(y, f"{name}.down", 4 * width, width)), f"{name}.norm2", width)


def wav2vec2():
    net, width = Net(), 768
    x = net.node("Unsqueeze", "input_values", net.constant([1]))
    for i, (kernel, stride) in enumerate([(10, 5), *[(3, 2)] * 4, *[(2, 2)] * 2]):
        x = net.conv(x, f"feature{i}", 512 if i else 1, 512, [kernel], stride, pads=0, bias=False)
        if i == 0:
            scale, bias = (net.weight(f"group.{part}", [512], 0.02) for part in ("weight", "bias"))
            x = net.node("InstanceNormalization", x, scale, bias, epsilon=1e-5)
        x = net.gelu(x)
    x = net.norm(net.node("Transpose", x, perm=[0, 2, 1]), "features", 512)
    x = net.linear(x, "projection", 512, width)
    y = net.conv(net.node("Transpose", x, perm=[0, 2, 1]), "position", width, width, [128], group=16)
    y = net.node("Slice", y, net.constant([0]), net.constant([-1]), net.constant([2]))
    y = net.node("Transpose", net.gelu(y), perm=[0, 2, 1])
    x = net.norm(net.node("Add", x, y), "first", width)
    for layer in range(12):
        x = encoder_layer(net, x, f"layer{layer}", width, 12)
    net.linear(x, "head", width, 32)
    return net.model("wav2vec2", {"input_values": ["batch", "samples"]}, "logits", ["batch", "frames", 32])


def moe_block():
    net = Net()
    flat = net.node("Reshape", "hidden", net.constant([-1, WIDTH]))
    scores = net.node("MatMul", flat, net.weight("router", [WIDTH, EXPERTS], 1 / math.sqrt(WIDTH)))
    scores = net.node("Softmax", scores, axis=-1)
    best, which = net.node("TopK", scores, net.constant([CHOSEN]), outputs=2, axis=-1)
    best = net.node("Div", best, net.node("ReduceSum", best, net.constant([-1]), keepdims=1))
    zeros = net.node("ConstantOfShape", net.node("Shape", scores), value=numpy_helper.from_array(np.zeros(1, np.float32)))
    shares = net.node("ScatterElements", zeros, which, best, axis=1)
    shares = net.node("Unsqueeze", net.node("Transpose", shares, perm=[1, 0]), net.constant([-1]))
    x = net.node("Expand", net.node("Unsqueeze", flat, net.constant([0])), net.constant([EXPERTS, 1, 1]))
    both = net.node("MatMul", x, net.weight("gate_up", [EXPERTS, WIDTH, 2 * HIDDEN], 1 / math.sqrt(WIDTH)))
    gate, up = net.node("Split", both, net.constant([HIDDEN, HIDDEN]), outputs=2, axis=-1)
    y = net.node("Mul", net.node("Mul", gate, net.node("Sigmoid", gate)), up)
    y = net.node("MatMul", y, net.weight("down", [EXPERTS, HIDDEN, WIDTH], 1 / math.sqrt(HIDDEN)))
    y = net.node("ReduceSum", net.node("Mul", y, shares), net.constant([0]), keepdims=0)
    net.node("Reshape", y, net.node("Shape", "hidden"))
    return net.model("moe_block", {"hidden": ["batch", "seq", WIDTH]}, "mixed", ["batch", "seq", WIDTH])


NETS = {make.__name__: make for make in (resnet50, mobilenet_v3, wav2vec2, moe_block)}

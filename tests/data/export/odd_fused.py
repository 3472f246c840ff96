# SPDX-License-Identifier: Apache-2.0
"""Hand-built models of what ONNX Runtime's optimiser makes of a product, or a convolution, and the
activation behind it: com.microsoft FusedGemm and FusedConv, with every activation that they have."""
from build import Odd, build, data, node, value, weight

MS = dict(domain="com.microsoft")
GEMMS = [
    dict(activation="Relu", alpha=0.5, beta=2.0),
    dict(activation="Sigmoid", transB=1),
    dict(activation="Tanh", transA=1),
    dict(activation="LeakyRelu", activation_alpha=0.1),
    dict(activation="HardSigmoid", activation_alpha=0.3, activation_beta=0.4),
    dict(activation="Elu", activation_alpha=0.7),
    dict(activation="Celu", activation_alpha=0.6),
    dict(activation="Selu", activation_alpha=1.5, activation_gamma=0.9),
    dict(activation="ThresholdedRelu", activation_alpha=0.25),
    dict(activation="Softplus"),
    dict(activation="Softsign"),
]
CONVS = [
    dict(activation="Relu", pads=[1, 1, 1, 1]),
    dict(activation="Sigmoid", auto_pad="SAME_UPPER", strides=[2, 2]),
    dict(activation="Tanh"),
    dict(activation="LeakyRelu", activation_params=[0.2]),
    dict(activation="HardSigmoid", activation_params=[0.25, 0.4]),
    dict(activation="HardSwish", dilations=[2, 2]),
    dict(activation="Clip", activation_params=[-0.3, 0.6]),
    dict(),
]


def fused_gemm():
    """Of the same rows, but one: its A is turned, as a weight's product with itself. The second has
    no bias, the third one a number."""
    nodes, weights = [], [weight("turned", 4, 3), weight("w", 4, 5), weight("v", 5, 4)]
    weights += [weight("b", 5), weight("one", 1)]
    for i, attributes in enumerate(GEMMS):
        left = "turned" if "transA" in attributes else "x"
        right = "v" if "transB" in attributes else "w"
        added = ("b", "_", "one")[i % 3] if i < 3 else "b"
        nodes.append(node("FusedGemm", f"{left} {right} {added}", f"y{i}", **MS, **attributes))
    outputs = [value(f"y{i}", ["batch" if i != 2 else 3, 5]) for i in range(len(GEMMS))]
    model = build(nodes, [value("x", ["batch", 4])], outputs, weights, imports=[(MS["domain"], 1)])
    return Odd(model, [({"x": data(60, 2, 4)}, None), ({"x": data(61, 5, 4)}, None)])


def fused_conv():
    """The first adds what a convolution gave before, the second has no bias."""
    nodes = [node("Conv", "x k b", "z", name="before", pads=[1, 1, 1, 1])]
    for i, attributes in enumerate(CONVS):
        more = ("b z", "_", "b")[min(i, 2)]
        nodes.append(node("FusedConv", f"x k {more}", f"y{i}", **MS, **attributes))
    outputs = [value(f"y{i}", ["batch", 3, None, None]) for i in range(len(CONVS))]
    weights = [weight("k", 3, 2, 3, 3), weight("b", 3)]
    inputs = [value("x", ["batch", 2, 6, 5])]
    model = build(nodes, inputs, outputs, weights, imports=[(MS["domain"], 1)])
    return Odd(model, [({"x": data(62, 1, 2, 6, 5)}, None), ({"x": data(63, 3, 2, 6, 5)}, None)])


MODELS = {"fused_gemm": fused_gemm, "fused_conv": fused_conv}

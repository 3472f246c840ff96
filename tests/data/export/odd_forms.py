# SPDX-License-Identifier: Apache-2.0
"""Attributes and versions: what must be honoured, what changes nothing, and what must be refused."""
import numpy as np
from onnx import TensorProto, helper

from build import FLOAT, INT64, SETS, X, Y, Odd, build, const, data, function, node, value, weight


def attend(q, k, v, left=-1, right=-1, causal=False, lengths=None):
    """Y of Attention, as its text says: row i stands at i + offset and sees keys by their distance."""
    keys, rows = k.shape[2], q.shape[2]
    offset = np.zeros(len(q), np.int64) if lengths is None else lengths - rows
    ahead = np.arange(keys) - np.arange(rows)[:, None] - offset[:, None, None]
    seen = np.ones_like(ahead, bool) if left < 0 else ahead >= -left
    seen &= True if right < 0 else ahead <= right
    seen &= ahead <= 0 if causal else True
    seen &= True if lengths is None else (np.arange(keys) < lengths[:, None])[:, None]
    s = np.where(seen[:, None], q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[3]), -np.inf)
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(-1, keepdims=True))
        p = np.nan_to_num(p / p.sum(-1, keepdims=True))
    return (p @ v).astype(np.float32)


def attention(opset, ir, sizes, lengths=None, **attributes):
    """Relu(Attention(q, k, v)); sizes: rows, keys."""
    rows, keys = sizes
    shapes = {"q": [2, 2, rows, 4], "k": [2, 2, keys, 4], "v": [2, 2, keys, 4]}
    inputs = [value(name, shape) for name, shape in shapes.items()]
    arrays = {name: data(ord(name), *shape) for name, shape in shapes.items()}
    names = "q k v"
    if lengths is not None:
        inputs.append(value("lengths", [2], INT64))
        arrays["lengths"] = np.array(lengths, np.int64)
        names += " _ _ _ lengths"
    nodes = [node("Attention", names, "a", **attributes), node("Relu", "a", "y")]
    model = build(nodes, inputs, [value("y", shapes["q"])], opset=opset, ir=ir)
    y = attend(*(arrays[name] for name in "qkv"), attributes.get("left_window_size", -1), attributes.get("right_window_size", -1),
               attributes.get("is_causal", 0) == 1, arrays.get("lengths"))  # fmt: skip
    return Odd(model, [(arrays, {"y": np.maximum(y, 0)})])


def attention_window():
    return attention(25, 12, (5, 7), left_window_size=2, right_window_size=1)


def attention_window_causal():
    return attention(25, 12, (5, 5), left_window_size=1, right_window_size=3, is_causal=1)


def attention_window_lengths():
    return attention(25, 12, (3, 6), [6, 4], left_window_size=1, right_window_size=0)


def attention_lengths_causal():
    """Each sequence's rows end where its keys end; the second has fewer keys than rows."""
    return attention(24, 11, (3, 6), [5, 2], is_causal=1)


def newest_opset():
    """Forms of opset 28 in IR 14."""
    image = value("x", [1, 2, 4, 4])
    nodes = [
        node("SwiGLU", "x x", "a", alpha=1.5),
        node("SpaceToDepth", "a", "b", blocksize=2, mode="CRD"),
        node("Mod", "b two", "c"),
        node("Cast", "c", "y", to=FLOAT, round_mode="up"),
    ]
    x = data(4, 1, 2, 4, 4)
    a = x * x / (1 + np.exp(-1.5 * x))
    b = a.reshape(1, 2, 2, 2, 2, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 8, 2, 2)
    y = np.mod(b, np.float32(2)).astype(np.float32)
    model = build(nodes, [image], [value("y", [1, 8, 2, 2])], [const("two", 2.0, np.float32)], opset=28, ir=14)
    return Odd(model, [({"x": x}, {"y": y})])


def group_query_both_ways():
    """causal 0: the rows of a prompt see all keys of their sequence, and no padding."""
    heads, kv_heads, size, rows = 4, 2, 8, 5
    shapes = {"q": [2, rows, heads * size], "k": [2, rows, kv_heads * size], "v": [2, rows, kv_heads * size]}
    arrays = {name: data(ord(name), *shape) for name, shape in shapes.items()}
    lengths = np.array([rows, rows - 2])
    split = lambda x, n: x.reshape(2, rows, n, size).transpose(0, 2, 1, 3)  # noqa: E731
    k, v = (np.repeat(split(arrays[name], kv_heads), heads // kv_heads, 1) for name in "kv")
    seen = (np.arange(rows) < lengths[:, None])[:, None, None]
    s = np.where(seen, split(arrays["q"], heads) @ k.transpose(0, 1, 3, 2) / np.sqrt(size), -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    y = (p / p.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(2, rows, -1)
    last = [const("lengths", lengths - 1, np.int32), const("total", rows, np.int32)]
    nodes = [
        node("GroupQueryAttention", "q k v _ _ lengths total", "a", num_heads=heads, kv_num_heads=kv_heads, causal=0, domain="com.microsoft"),
        node("Relu", "a", "y"),
    ]  # fmt: skip
    model = build(nodes, [value(n, s) for n, s in shapes.items()], [value("y", shapes["q"])], last, imports=[("com.microsoft", 1)])
    return Odd(model, [(arrays, {"y": np.maximum(y, 0).astype(np.float32)})])


def attributes_without_effect():
    """Notes of a program, a hint, a default under a misspelt name, a function's own attribute, and a node that nothing needs."""
    scaled = node("Constant", "", "s")
    scaled.attribute.add(name="value_float", ref_attr_name="by", type=1)
    scale = function("Scale", ["a"], ["b"], [scaled, node("Mul", "a s", "b")], ["by"])
    nodes = [
        node("Gemm", "x w", "a", __note="kept", transb=0),
        node("Relu", "a", "b", consumed_inputs=[0]),
        node("Gemm", "x w", "unused", transb=1, name="never_read"),
        node("Scale", "b", "y", domain="test.local", by=0.5),
    ]
    model = build(nodes, [X], [Y], [weight("w", 4, 4)], functions=[scale], imports=[("test.local", 1)])
    w = np.frombuffer(model.graph.initializer[0].raw_data, np.float32).reshape(4, 4)
    return Odd(model, [(inputs, {"y": (np.maximum(inputs["x"] @ w, 0) * np.float32(0.5))}) for inputs, _ in SETS])


def refused(nodes, text, weights=(), opset=17, ir=8, y=Y):
    return Odd(build(nodes, [X], [y], weights, opset=opset, ir=ir), expect=[("load", text)])


def attribute_misspelt():
    nodes = [node("Gemm", "x w", "y", transb=1, name="product")]
    return refused(nodes, "node 'product' (Gemm): attribute 'transb' (1) is not known in version 17, perhaps 'transB'", [weight("w", 4, 4)])


def attribute_value():
    nodes = [node("Cast", "x", "h", to=TensorProto.FLOAT8E8M0, round_mode="down", name="rounded"), node("Cast", "h", "y", to=FLOAT)]
    return refused(nodes, "node 'rounded' (Cast): attribute 'round_mode' is 'down', supported: up", opset=24, ir=11)


def attribute_of_later_version():
    row = helper.make_tensor("shape", INT64, [4], [1, 1, -1, 4])
    nodes = [
        node("Reshape", "x shape", "q"),
        node("Attention", "q q q", "a", left_window_size=2, name="near"),
        node("Squeeze", "a", "y"),
    ]
    return refused(nodes, "node 'near' (Attention): attribute 'left_window_size' (2) is not known in version 24", [row], 24, 11)


def opset_after_newest():
    return refused([node("Relu", "x", "y")], "imports opset 29 of domain ai.onnx; operators are known up to opset 28", opset=29, ir=14)


def ir_after_newest():
    return refused([node("Relu", "x", "y")], "IR version 15; 3 to 14 are supported", ir=15)


MODELS = {
    make.__name__: make
    for make in (attention_window, attention_window_causal, attention_window_lengths, attention_lengths_causal, newest_opset,
                 group_query_both_ways, attributes_without_effect, attribute_misspelt, attribute_value, attribute_of_later_version,
                 opset_after_newest, ir_after_newest)
}  # fmt: skip

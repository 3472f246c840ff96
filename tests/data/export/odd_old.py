# SPDX-License-Identifier: Apache-2.0
"""One-node models in the forms that operators had before their present one.

Runtimes have dropped most of these forms, so the expected outputs are written down here, in
numpy, from the operator texts. Names are `operator_opset` and what is special about it.
"""
import math

import numpy as np

from build import Odd, build, const, data, node, value

A = data(40, 2, 3, 4)
B3, B4 = data(41, 3), data(42, 4)
POSITIVE = np.abs(A) + 0.5
ROWS = np.array([[3, 1, 2, 0], [9, 7, 5, 8]], np.float32)
NUMBERS = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
KINDS = {
    np.dtype(np.float32): 1,
    np.dtype(np.int32): 6,
    np.dtype(np.int64): 7,
    np.dtype(bool): 9,
    np.dtype(np.float64): 11,
}
MODELS = {}


def old(name, opset, op, inputs, want, weights=(), absent=None, refused=None, **attributes):
    """inputs: arrays, called a, b, ...; weights: arrays that are initialisers, called w0, w1, ...
    `absent` gives the node's input names where they are not simply all of these, in order.
    `refused`: a form that is not supported; what the refusal must name."""
    given = {chr(ord("a") + i): np.asarray(array) for i, array in enumerate(inputs)}
    stored = {f"w{i}": np.asarray(array) for i, array in enumerate(weights)}
    wanted = want if isinstance(want, (list, tuple)) else [want]
    outputs = {f"y{i}": np.asarray(array) for i, array in enumerate(wanted)}

    def make():
        def info(values):
            return [value(key, list(v.shape), KINDS[v.dtype]) for key, v in values.items()]

        names = absent or " ".join([*given, *stored])
        made = node(op, names, " ".join(outputs), **attributes)
        model = build(
            [made],
            info(given),
            info(outputs),
            [const(k, v) for k, v in stored.items()],
            opset=opset,
            ir=4 if opset < 10 else 7,
        )
        return Odd(model, (), [("load", refused)]) if refused else Odd(model, [(given, outputs)])

    MODELS[name] = make


def softmax_rows(x, axis, log=False):
    """The old meaning: everything before the axis is rows, everything from it on is one row."""
    flat = x.reshape(math.prod(x.shape[:axis]), -1).astype(np.float64)
    flat = flat - flat.max(1, keepdims=True)
    total = np.exp(flat).sum(1, keepdims=True)
    result = flat - np.log(total) if log else np.exp(flat) / total
    return result.reshape(x.shape).astype(np.float32)


def normalised(x, mean, variance, scale, bias, eps=1e-5):
    def wide(v):
        return v.reshape(1, -1, *[1] * (x.ndim - 2))

    return wide(scale) * (x - wide(mean)) / np.sqrt(wide(variance) + np.float32(eps)) + wide(bias)


def layer_normalised(x, scale, bias, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * scale + bias


# Broadcasting by attributes (until opset 6): `axis` says where b's axes lie in a.
old("add_6_axis", 6, "Add", [A, B3], A + B3[:, None], broadcast=1, axis=1)
old("add_6_suffix", 6, "Add", [A, B4], A + B4, broadcast=1)
old("add_6_same", 6, "Add", [A, A], A + A)
old("add_1_consumed", 1, "Add", [A, A], A + A, consumed_inputs=[0, 0])
old("sub_6_axis", 6, "Sub", [A, A[:, :, 0]], A - A[:, :, :1], broadcast=1, axis=0)
old("mul_1_scalar", 1, "Mul", [A, B4[:1]], A * B4[0], broadcast=1)
old(
    "div_6_axis",
    6,
    "Div",
    [A, POSITIVE[0, :, 0]],
    A / POSITIVE[0, :, 0][:, None],
    broadcast=1,
    axis=1,
)
old("pow_1_axis", 1, "Pow", [POSITIVE, B3], POSITIVE ** B3[:, None], broadcast=1, axis=1)
old(
    "equal_1_axis",
    1,
    "Equal",
    [NUMBERS, np.array([4, 5, 10], np.int32)],
    NUMBERS == np.array([4, 5, 10])[:, None],
    broadcast=1,
    axis=1,
)
# Floats came to Equal at opset 11; files of before that hold them all the same.
old("equal_7_float", 7, "Equal", [np.round(A), np.round(B4)], np.round(A) == np.round(B4))
old("greater_1", 1, "Greater", [A, B4], A > B4, broadcast=1)
old("less_1_axis", 1, "Less", [A, B3], A < B3[:, None], broadcast=1, axis=1)
old("and_1_axis", 1, "And", [A > 0, B3 > 0], (A > 0) & (B3 > 0)[:, None], broadcast=1, axis=1)
old(
    "gemm_1_broadcast",
    1,
    "Gemm",
    [ROWS, data(43, 5, 4), data(44, 5)],
    ROWS @ data(43, 5, 4).T + data(44, 5),
    broadcast=1,
    transB=1,
)
old(
    "gemm_6_scalar",
    6,
    "Gemm",
    [ROWS, data(45, 4, 2), data(46, 1)],
    0.5 * ROWS @ data(45, 4, 2) + 2 * data(46, 1),
    broadcast=1,
    alpha=0.5,
    beta=2.0,
)
old(
    "gemm_9",
    9,
    "Gemm",
    [ROWS, data(47, 2, 3), data(48, 1, 3)],
    ROWS.T @ data(47, 2, 3) + data(48, 1, 3),
    transA=1,
)
old("gemm_11_no_c", 11, "Gemm", [ROWS, data(49, 4, 3)], ROWS @ data(49, 4, 3))

# Element by element, with the in-place hints of the first opsets.
for title, op, want in (
    ("relu", "Relu", np.maximum(A, 0)),
    ("neg", "Neg", -A),
    ("exp", "Exp", np.exp(A)),
    ("abs", "Abs", np.abs(A)),
    ("tanh", "Tanh", np.tanh(A)),
    ("sigmoid", "Sigmoid", 1 / (1 + np.exp(-A))),
):
    old(f"{title}_1_consumed", 1, op, [A], want, consumed_inputs=[0])
old("sqrt_1", 1, "Sqrt", [POSITIVE], np.sqrt(POSITIVE), consumed_inputs=[0])
old("sum_1", 1, "Sum", [A, POSITIVE, A], A + POSITIVE + A, consumed_inputs=[0, 0, 0])
old("sum_8_broadcast", 8, "Sum", [A, B4], A + B4)
old("max_6", 6, "Max", [A, POSITIVE], np.maximum(A, POSITIVE))
old("min_1", 1, "Min", [A, POSITIVE], np.minimum(A, POSITIVE), consumed_inputs=[0, 0])
old("clip_1", 1, "Clip", [A], np.clip(A, -0.5, 0.25), min=-0.5, max=0.25, consumed_inputs=[0])
old("clip_6_max", 6, "Clip", [A], np.minimum(A, 0.25), max=0.25)
old("clip_6_none", 6, "Clip", [A], A)
old(
    "clip_11_max",
    11,
    "Clip",
    [A],
    np.minimum(A, 0.25),
    [np.array(0.25, np.float32)],
    absent="a _ w0",
)
old("cast_1_name", 1, "Cast", [NUMBERS], NUMBERS.astype(np.float32), to="FLOAT")
old("cast_6", 6, "Cast", [A], A.astype(np.int64), to=7)
old("mod_10_fmod", 10, "Mod", [A, POSITIVE], np.fmod(A, POSITIVE), fmod=1)

# Shapes by attributes.
old("reshape_1", 1, "Reshape", [A], A.reshape(2, 12), shape=[0, -1], consumed_inputs=[0])
old("squeeze_1", 1, "Squeeze", [A[:, None, :, :, None]], A, axes=[1, 4])
old("squeeze_1_all", 1, "Squeeze", [A[:1]], A[0])
old("squeeze_11_negative", 11, "Squeeze", [A[..., None]], A, axes=[-1])
old("unsqueeze_1", 1, "Unsqueeze", [A], A[None, :, None], axes=[0, 2])
old("unsqueeze_11_negative", 11, "Unsqueeze", [A], A[:, :, None, :, None], axes=[-1, 2])
old("concat_1_default", 1, "Concat", [A, A], np.concatenate([A, A], 1))
old("slice_1", 1, "Slice", [A], A[:, 1:3, :-1], axes=[1, 2], starts=[1, 0], ends=[2**31 - 1, -1])
old("slice_1_no_axes", 1, "Slice", [A], A[1:2, 0:2], starts=[1, 0], ends=[2, 2])
old(
    "slice_10_steps",
    10,
    "Slice",
    [A],
    A[:, ::-2, 1:],
    [np.array(v, np.int64) for v in ([2, 1], [-(2**31), 4], [1, 2], [-2, 1])],
)
old(
    "slice_11_negative",
    11,
    "Slice",
    [A],
    A[:, -2:, ::-1],
    [np.array(v, np.int64) for v in ([-2, -1], [2**63 - 1, -(2**63)], [-2, -1], [1, -1])],
)
old(
    "pad_1_paddings",
    1,
    "Pad",
    [A],
    np.pad(A, ((0, 0), (1, 0), (0, 2))),
    paddings=[0, 1, 0, 0, 0, 2],
)
old(
    "pad_2_value",
    2,
    "Pad",
    [A],
    np.pad(A, ((0, 1), (0, 0), (2, 0)), constant_values=1.5),
    pads=[0, 0, 2, 1, 0, 0],
    value=1.5,
)
old(
    "pad_2_reflect",
    2,
    "Pad",
    [A],
    np.pad(A, ((0, 0), (1, 1), (2, 1)), mode="reflect"),
    pads=[0, 1, 2, 0, 1, 1],
    mode="reflect",
)
old(
    "pad_2_edge_negative",
    2,
    "Pad",
    [A],
    np.pad(A, ((0, 0), (0, 2), (0, 0)), mode="edge")[:, 1:],
    pads=[0, -1, 0, 0, 2, 0],
    mode="edge",
)
old(
    "pad_11",
    11,
    "Pad",
    [A],
    np.pad(A, ((0, 0), (1, 0), (0, 1)), constant_values=-2),
    [np.array([0, 1, 0, 0, 0, 1], np.int64), np.array(-2, np.float32)],
)
old(
    "split_1_input",
    1,
    "Split",
    [A],
    [A[:, :1], A[:, 1:]],
    [np.array([1, 2], np.float32)],
    refused="make_y0",
    axis=1,
)
old("split_1_attribute", 1, "Split", [A], [A[..., :1], A[..., 1:]], axis=2, split=[1, 3])
old("split_2_equal", 2, "Split", [A], [A[..., :2], A[..., 2:]], axis=2)
old("split_11_negative", 11, "Split", [A], [A[:, :2], A[:, 2:]], axis=-2, split=[2, 1])
old("split_18_uneven", 18, "Split", [A], [A[:, :2], A[:, 2:]], axis=1, num_outputs=2)
old(
    "tile_1",
    1,
    "Tile",
    [A],
    np.tile(A, (1, 2, 1)),
    [np.array(2, np.float32), np.array(1, np.float32)],
    refused="make_y0",
)
old("tile_6", 6, "Tile", [A], np.tile(A, (1, 2, 3)), [np.array([1, 2, 3], np.int64)])
old("flatten_1", 1, "Flatten", [A], A.reshape(6, 4), axis=2)
old("transpose_1_default", 1, "Transpose", [A], A.T)
old("gather_1", 1, "Gather", [A], A[:, [2, 0]], [np.array([2, 0], np.int32)], axis=1)
old("expand_8", 8, "Expand", [B4], np.broadcast_to(B4, (3, 4)), [np.array([3, 1], np.int64)])
old(
    "constantofshape_9",
    9,
    "ConstantOfShape",
    [],
    np.zeros((2, 3), np.float32),
    [np.array([2, 3], np.int64)],
)
old("shape_1", 1, "Shape", [A], np.array([2, 3, 4], np.int64))
old("size_1", 1, "Size", [A], np.array(24, np.int64))
old("where_9", 9, "Where", [A > 0, A, B4], np.where(A > 0, A, B4))

# Reductions and what comes with them.
old("reducesum_1", 1, "ReduceSum", [A], A.sum((0, 2), keepdims=True), axes=[0, 2])
old("reducesum_1_all", 1, "ReduceSum", [A], A.sum(), keepdims=0)
old("reducesum_11_negative", 11, "ReduceSum", [A], A.sum(-2), axes=[-2], keepdims=0)
old("reducemean_1", 1, "ReduceMean", [A], A.mean(1), axes=[1], keepdims=0)
old("reducemax_1", 1, "ReduceMax", [A], A.max(2), axes=[2], keepdims=0)
old("reducemin_11", 11, "ReduceMin", [A], A.min(-1, keepdims=True), axes=[-1])
old("reduceprod_1", 1, "ReduceProd", [A], A.prod(1, keepdims=True), axes=[1])
old("reducel2_1", 1, "ReduceL2", [A], np.sqrt((A * A).sum((1, 2), keepdims=True)), axes=[1, 2])
old("argmax_1", 1, "ArgMax", [A], A.argmax(1), axis=1, keepdims=0)
old("argmax_11_negative", 11, "ArgMax", [A], A.argmax(-1)[..., None], axis=-1)
old("topk_1", 1, "TopK", [ROWS], [-np.sort(-ROWS)[:, :2], np.argsort(-ROWS)[:, :2]], k=2, axis=1)
old(
    "topk_10",
    10,
    "TopK",
    [ROWS],
    [-np.sort(-ROWS)[:, :3], np.argsort(-ROWS)[:, :3]],
    [np.array([3], np.int64)],
)
old("softmax_1_default", 1, "Softmax", [A], softmax_rows(A, 1))
old("softmax_11_axis0", 11, "Softmax", [A], softmax_rows(A, 0), axis=0)
old("softmax_11_last", 11, "Softmax", [A], softmax_rows(A, 2), axis=-1)
old("logsoftmax_1_default", 1, "LogSoftmax", [A], softmax_rows(A, 1, log=True))
old(
    "onehot_9",
    9,
    "OneHot",
    [np.array([1, 0, 3], np.int64)],
    np.eye(4, dtype=np.float32)[[1, 0, 3]] * 3 - 1,
    [np.array(4, np.int64), np.array([-1, 2], np.float32)],
)
old(
    "cumsum_11",
    11,
    "CumSum",
    [A],
    np.cumsum(A[:, ::-1], 1)[:, ::-1],
    [np.array(1, np.int64)],
    reverse=1,
)
old("einsum_12", 12, "Einsum", [A, data(50, 4, 5)], A @ data(50, 4, 5), equation="bij,jk->bik")

# Normalisation and dropout, as inference means them.
NORM = [np.abs(data(51 + i, 3)) + 0.5 for i in range(4)]
PICTURE = data(60, 2, 3, 2, 2)
for title, opset, extra in (
    ("1", 1, {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]}),
    ("6", 6, {"is_test": 1}),
    ("7", 7, {}),
    ("9", 9, {}),
):
    old(
        f"batchnormalization_{title}",
        opset,
        "BatchNormalization",
        [PICTURE],
        normalised(PICTURE, NORM[2], NORM[3], NORM[0], NORM[1]),
        NORM,
        **extra,
    )
old("dropout_1", 1, "Dropout", [A], A, is_test=1, ratio=0.9, consumed_inputs=[0])
old("dropout_6", 6, "Dropout", [A], A, is_test=1)
old("dropout_7", 7, "Dropout", [A], A, ratio=0.25)
old("dropout_10_mask", 10, "Dropout", [A], [A, np.ones_like(A, bool)])
old("dropout_12", 12, "Dropout", [A], A, [np.array(0.5, np.float32)])
old(
    "layernormalization_11",
    11,
    "LayerNormalization",
    [A],
    layer_normalised(A, B4, data(61, 4), 1e-3),
    [B4, data(61, 4)],
    epsilon=1e-3,
)
old(
    "simplifiedlayernormalization_11",
    11,
    "SimplifiedLayerNormalization",
    [A],
    A / np.sqrt((A * A).mean(-1, keepdims=True) + 1e-6) * B4,
    [B4],
    epsilon=1e-6,
)
SIGNAL, KERNEL = data(62, 1, 2, 4), data(63, 3, 2, 3)
old(
    "conv_1",
    1,
    "Conv",
    [SIGNAL],
    np.stack([np.tensordot(KERNEL, SIGNAL[0, :, i : i + 3], 2) for i in range(2)], -1)[None],
    [KERNEL],
)

# Indices that came late.
old("gathernd_11", 11, "GatherND", [A], A[[0, 1], [2, 0]], [np.array([[0, 2], [1, 0]], np.int64)])
old(
    "gatherelements_11",
    11,
    "GatherElements",
    [ROWS],
    np.take_along_axis(ROWS, np.array([[3], [0]]), 1),
    [np.array([[3], [0]], np.int64)],
    axis=1,
)


def scattered():
    result = A.copy()
    result[1, 2] = B4
    return result


old("scatternd_11", 11, "ScatterND", [A], scattered(), [np.array([[1, 2]], np.int64), B4[None]])
old(
    "scatterelements_11",
    11,
    "ScatterElements",
    [ROWS],
    np.where(np.arange(4) == [[1], [2]], np.float32(5), ROWS),
    [np.array([[1], [2]], np.int64), np.full((2, 1), 5, np.float32)],
    axis=1,
)
old("range_11", 11, "Range", [], np.arange(1, 8, 3), [np.array(v, np.int64) for v in (1, 8, 3)])

# SPDX-License-Identifier: Apache-2.0
"""One-node models whose attributes, shapes or constant inputs are impossible, huge or misleading.

The node is called `victim`; the message must name it. All sizes that would not fit into memory
must be found out by arithmetic, before anything is allocated.
"""
from wire import (
    BOOL,
    FLOAT,
    INT64,
    STRING,
    X,
    Y,
    blob,
    floats,
    graph,
    longs,
    model,
    node,
    num,
    one_node,
    subgraph,
    tensor,
    value,
)

TOP = (1 << 63) - 1


def ints(name, *numbers):
    return tensor(name, INT64, [len(numbers)], longs(*numbers))


def scalar(name, number):
    return tensor(name, INT64, [], longs(number))


def op(kind, inputs="x", weights=(), **more):
    """Refused, naming the node."""
    return one_node(kind, inputs, weights, **more), "load victim"


def wrong_attribute(kind, body, inputs="x"):
    """body: the AttributeProto as it is."""
    made = node(kind, inputs, "y") + blob(5, body)
    return model(graph([made], [X], [blob(1, "y")])), "load victim"


def split(*sizes):
    """Two outputs of the four columns."""
    made = node("Split", "x s", "y z", axis=1)
    outputs = [blob(1, "y"), blob(1, "z")]
    return model(graph([made], [X], outputs, [ints("s", *sizes)])), "load victim"


def branch(then, other):
    nodes = [
        node(
            "If",
            "yes",
            "y",
            **{
                name: subgraph(body)
                for name, body in (("then_branch", then), ("else_branch", other))
                if body
            }
        )
    ]
    return model(graph(nodes, [X], [Y], [tensor("yes", BOOL, [], b"\x01")])), "load victim"


PLAIN = graph([node("Relu", "x", "t", name="inner")], [], [value("t", [2, 4])])
TWO_OUTPUTS = graph([node("Relu", "x", "t", name="inner")], [], [value("t", [2, 4])] * 2)
UNKNOWN_READ = graph([node("Relu", "nowhere", "t", name="inner")], [], [value("t", [2, 4])])
BIG = [1 << 20, 1 << 20, 1 << 20]
F8 = tensor("f", FLOAT, [3, 8], floats(*range(24)))
W = tensor("w", FLOAT, [4, 4], floats(*range(16)))
KERNEL = tensor("w", FLOAT, [1, 1, 3], floats(1, 2, 3))
LINE = {"shape": (1, 1, 8)}
QKV = {"shape": (1, 4, 12)}

ATTACKS = {
    "reshape_two_free": op("Reshape", "x s", [ints("s", -1, -1)]),
    "reshape_negative": op("Reshape", "x s", [ints("s", -2, 4)]),
    "reshape_other_count": op("Reshape", "x s", [ints("s", 3, 3)]),
    "reshape_wraps": op("Reshape", "x s", [ints("s", 1 << 32, 1 << 32, 8)]),
    "reshape_copy_past_end": op("Reshape", "x s", [ints("s", 2, 4, 0)]),
    "reshape_shape_of_floats": op("Reshape", "x s", [tensor("s", FLOAT, [2], floats(2, 4))]),
    "reshape_shape_is_matrix": (
        one_node("Reshape", "x s", [tensor("s", INT64, [1, 2], longs(2, 4))]),
        "any",
    ),
    "transpose_repeats": op("Transpose", perm=[0, 0]),
    "transpose_out_of_range": op("Transpose", perm=[0, 7]),
    "transpose_negative": op("Transpose", perm=[0, -9]),
    "transpose_short": op("Transpose", perm=[0]),
    "squeeze_not_one": op("Squeeze", "x a", [ints("a", 0)]),
    "squeeze_out_of_range": op("Squeeze", "x a", [ints("a", 5)]),
    "unsqueeze_twice": op("Unsqueeze", "x a", [ints("a", 0, 0)]),
    "unsqueeze_out_of_range": op("Unsqueeze", "x a", [ints("a", -9)]),
    "concat_axis": op("Concat", "x x", axis=2),
    "concat_shapes": op("Concat", "x f", [F8], axis=0),
    "concat_no_axis": op("Concat", "x x"),
    "slice_step_0": op(
        "Slice", "x s e a t", [ints("s", 0), ints("e", 4), ints("a", 1), ints("t", 0)]
    ),
    "slice_step_min": (
        one_node(
            "Slice",
            "x s e a t",
            [ints("s", TOP), ints("e", -TOP - 1), ints("a", 1), ints("t", -TOP - 1)],
        ),
        "any",
    ),
    "slice_axis": op("Slice", "x s e a", [ints("s", 0), ints("e", 4), ints("a", 2)]),
    "slice_axis_twice": op("Slice", "x s e a", [ints("s", 0, 0), ints("e", 1, 2), ints("a", 1, 1)]),
    "slice_lengths": op("Slice", "x s e", [ints("s", 0, 0), ints("e", 4)]),
    "split_sum": split(1, 5),
    "split_negative": split(-1, 5),
    "split_wraps": split(TOP, TOP),
    "split_entries": split(1, 1, 2),
    "gather_index": op("Gather", "x i", [ints("i", 0, 99)], axis=1),
    "gather_index_negative": op("Gather", "x i", [ints("i", -5)], axis=1),
    "gather_index_min": op("Gather", "x i", [ints("i", -TOP - 1)], axis=1),
    "gather_axis": op("Gather", "x i", [ints("i", 0)], axis=-3),
    "gathernd_index": op("GatherND", "x i", [tensor("i", INT64, [1, 2], longs(0, 4))]),
    "gathernd_too_deep": op("GatherND", "x i", [tensor("i", INT64, [1, 3], longs(0, 0, 0))]),
    "gathernd_batch": op(
        "GatherND", "x i", [tensor("i", INT64, [1, 2], longs(0, 0))], batch_dims=9
    ),
    "gatherelements_index": op(
        "GatherElements", "x i", [tensor("i", INT64, [1, 1], longs(1 << 40))], axis=1
    ),
    "scatternd_index": op(
        "ScatterND",
        "x i u",
        [tensor("i", INT64, [1, 1], longs(2)), tensor("u", FLOAT, [1, 4], floats(1, 2, 3, 4))],
    ),
    "scatternd_updates": op(
        "ScatterND",
        "x i u",
        [tensor("i", INT64, [1, 1], longs(1)), tensor("u", FLOAT, [1, 1], floats(1))],
    ),
    "scatterelements_index": op(
        "ScatterElements",
        "x i u",
        [tensor("i", INT64, [1, 1], longs(-99)), tensor("u", FLOAT, [1, 1], floats(1))],
    ),
    "expand_huge": (one_node("Expand", "x s", [ints("s", 1 << 40, 2, 4)]), "refuse"),
    "expand_wraps": op("Expand", "x s", [ints("s", 1 << 62, 2, 4)]),
    "expand_negative": op("Expand", "x s", [ints("s", -3, 2, 4)]),
    "expand_shapes": op("Expand", "x s", [ints("s", 3, 4)]),
    "tile_huge": op("Tile", "x r", [ints("r", 1 << 40, 1 << 20)]),
    "tile_negative": op("Tile", "x r", [ints("r", -1, 2)]),
    "tile_lengths": op("Tile", "x r", [ints("r", 2)]),
    "pad_huge": op("Pad", "x p", [ints("p", 1 << 40, 0, 1 << 40, 0)]),
    "pad_below_zero": op("Pad", "x p", [ints("p", -2, 0, -2, 0)]),
    "pad_reflect_too_far": op("Pad", "x p", [ints("p", 9, 0, 0, 0)], mode="reflect"),
    "pad_lengths": op("Pad", "x p", [ints("p", 1, 1)]),
    "range_step_0": op("Range", "a b c", [scalar("a", 0), scalar("b", 9), scalar("c", 0)]),
    "range_huge": op("Range", "a b c", [scalar("a", -TOP), scalar("b", TOP), scalar("c", 1)]),
    "constantofshape_huge": op("ConstantOfShape", "s", [ints("s", *BIG)]),
    "constantofshape_negative": op("ConstantOfShape", "s", [ints("s", -1)]),
    "onehot_huge": (
        one_node(
            "OneHot",
            "i d v",
            [ints("i", 1), scalar("d", 1 << 50), tensor("v", FLOAT, [2], floats(0, 1))],
        ),
        "refuse",
    ),
    "onehot_negative": op(
        "OneHot", "i d v", [ints("i", 1), scalar("d", -4), tensor("v", FLOAT, [2], floats(0, 1))]
    ),
    "topk_too_many": op("TopK", "x k", [ints("k", 5)]),
    "topk_negative": op("TopK", "x k", [ints("k", -1)]),
    "cumsum_axis": op("CumSum", "x a", [scalar("a", 2)]),
    "trilu_far": (one_node("Trilu", "x k", [scalar("k", -TOP - 1)]), "any"),
    "matmul_sizes": op("MatMul", "x f", [F8]),
    "matmul_scalar": op("MatMul", "x c", [tensor("c", FLOAT, [], floats(1))]),
    "gemm_sizes": op("Gemm", "x f", [F8]),
    "gemm_bias": op("Gemm", "x w c", [W, tensor("c", FLOAT, [3], floats(1, 2, 3))]),
    "add_shapes": op("Add", "x f", [F8]),
    "add_types": op("Add", "x i", [ints("i", 1, 2, 3, 4)]),
    "where_condition": op("Where", "x x x"),
    "conv_stride_0": op("Conv", "x w", [KERNEL], **LINE, strides=[0]),
    "conv_stride_negative": op("Conv", "x w", [KERNEL], **LINE, strides=[-1]),
    "conv_dilation_huge": op("Conv", "x w", [KERNEL], **LINE, dilations=[TOP]),
    "conv_pads_huge": op("Conv", "x w", [KERNEL], **LINE, pads=[TOP, TOP]),
    "conv_pads_negative": op("Conv", "x w", [KERNEL], **LINE, pads=[-4, -4]),
    "conv_group_0": op("Conv", "x w", [KERNEL], **LINE, group=0),
    "conv_group": op("Conv", "x w", [KERNEL], **LINE, group=3),
    "conv_kernel_shape": op("Conv", "x w", [KERNEL], **LINE, kernel_shape=[5]),
    "softmax_axis": op("Softmax", axis=2),
    "softmax_axis_min": op("Softmax", axis=-TOP - 1),
    "reducesum_axis": op("ReduceSum", "x a", [ints("a", 9)]),
    "reducesum_axis_twice": (one_node("ReduceSum", "x a", [ints("a", 1, -1)]), "any"),
    "argmax_of_nothing": op("ArgMax", shape=(0, 4), axis=0),
    "layernorm_axis": op("LayerNormalization", "x w", [W], axis=7),
    "layernorm_scale": op("LayerNormalization", "x c", [tensor("c", FLOAT, [3], floats(1, 2, 3))]),
    "batchnorm_channels": op(
        "BatchNormalization", "x c c c c", [tensor("c", FLOAT, [3], floats(1, 2, 3))]
    ),
    "dropout_ratio": (
        one_node(
            "Dropout",
            "x r t",
            [tensor("r", FLOAT, [], floats(-3)), tensor("t", BOOL, [], b"\x01")],
        ),
        "any",
    ),
    "cast_to_99": op("Cast", to=99),
    "cast_to_string": op("Cast", to=STRING),
    "cast_no_to": op("Cast"),
    "einsum_text": op("Einsum", equation="ij->->k"),
    "einsum_output": op("Einsum", equation="ij->ijk"),
    "einsum_rank": op("Einsum", equation="ijk->i"),
    "einsum_operands": op("Einsum", equation="ij,jk->ik"),
    "attention_heads_0": op("Attention", "x x x", **QKV, version=23, q_num_heads=0, kv_num_heads=0),
    "attention_heads": op("Attention", "x x x", **QKV, version=23, q_num_heads=5, kv_num_heads=5),
    "attention_groups": op("Attention", "x x x", **QKV, version=23, q_num_heads=3, kv_num_heads=2),
    "attention_no_heads": op("Attention", "x x x", **QKV, version=23),
    "rotary_caches": op(
        "RotaryEmbedding",
        "x c c",
        [tensor("c", FLOAT, [1, 4, 3], floats(*range(12)))],
        shape=(1, 1, 4, 4),
        version=23,
    ),
    "mha_heads": op("MultiHeadAttention", "x x x", **QKV, domain="com.microsoft", num_heads=-1),
    "gqa_heads": op(
        "GroupQueryAttention", "x x x", **QKV, domain="com.microsoft", num_heads=4, kv_num_heads=0
    ),
    "loss_labels": op("SoftmaxCrossEntropyLoss", "x i", [ints("i", 0, 99)]),
    "inputs_too_few": op("Add", "x"),
    "inputs_too_many": op("Relu", "x x x"),
    "inputs_absent": op("Relu", ""),
    "outputs_too_many": (model(graph([node("Relu", "x", "y z")], [X], [Y])), "load victim"),
    "if_no_branch": branch(None, None),
    "if_one_branch": (branch(PLAIN, None)[0], "any"),
    "if_outputs": (branch(TWO_OUTPUTS, TWO_OUTPUTS)[0], "any"),
    "if_unknown_name": (branch(UNKNOWN_READ, PLAIN)[0], "load nowhere"),
    "attribute_kind": wrong_attribute("Softmax", blob(1, "axis") + blob(4, "1") + num(20, 3)),
    "attribute_kind_lies": wrong_attribute("Softmax", blob(1, "axis") + num(3, 1) + num(20, 1)),
    "attribute_kind_unknown": wrong_attribute("Softmax", blob(1, "axis") + num(3, 1) + num(20, 77)),
    "attribute_no_name": wrong_attribute("Softmax", num(3, 1) + num(20, 2)),
    "attribute_reference": wrong_attribute(
        "Softmax", blob(1, "axis") + blob(21, "outer") + num(20, 2)
    ),
    "attribute_unknown": (
        wrong_attribute("Relu", blob(1, "slope") + num(3, 1) + num(20, 2))[0],
        "any",
    ),
}

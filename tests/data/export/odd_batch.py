# SPDX-License-Identifier: Apache-2.0
"""Hand-built models in which exporters computed something from the batch: what may be split into
micro-batches, and what must be refused."""
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from build import INT64, Odd, build, const, data, node, value, weight

FLOAT = TensorProto.FLOAT
ROWS = [node("Shape", "x", "rows", start=0, end=1), node("Shape", "x", "length", start=1, end=2)]


def tokens(seed, rows, length):
    return data(seed, rows, length, 4)


def picked(far):
    """One token of every row, by row * length + position over the flattened batch; `far`: the
    position is an input, which may reach into another row."""
    where = [node("Cast", "at", "place", to=INT64)]
    if not far:
        where = [node("ReduceSum", "x m", "sum", keepdims=0), node("ArgMax", "sum", "place", axis=1,
                 keepdims=0)]  # fmt: skip
    nodes = [
        *ROWS,
        *where,
        node("Squeeze", "rows", "n"),
        node("Squeeze", "length", "s"),
        node("Range", "zero n one", "counted"),
        node("Mul", "counted s", "first"),
        node("Add", "first place", "index", name="index"),
        node("Reshape", "x flat", "tokens"),
        node("Gather", "tokens index", "y", axis=0, name="pick"),
    ]
    weights = [const("zero", 0, np.int64), const("one", 1, np.int64), const("m", [2], np.int64),
               const("flat", [-1, 4], np.int64)]  # fmt: skip
    inputs = [value("x", ["s72", "s53", 4])] + ([value("at", ["s43"], INT64)] if far else [])
    return build(nodes, inputs, [value("y", None)], weights)


def batch_indexed():
    """One token of every row by pairs (row, position): how dynamo writes x[arange(rows), at]."""
    nodes = [
        *ROWS,
        node("Squeeze", "rows", "n"),
        node("Range", "zero n one", "counted"),
        node("Unsqueeze", "counted last", "row"),
        node("ReduceSum", "x m", "sum", keepdims=0),
        node("ArgMax", "sum", "place", axis=1, keepdims=1),
        node("Concat", "row place", "pairs", axis=1),
        node("GatherND", "x pairs", "y", name="pick"),
    ]
    weights = [const("zero", 0, np.int64), const("one", 1, np.int64), const("m", [2], np.int64),
               const("last", [1], np.int64)]  # fmt: skip
    sets = [({"x": tokens(0, 4, 3)}, None), ({"x": tokens(1, 5, 2)}, None)]
    model = build(nodes, [value("x", ["s72", "s53", 4])], [value("y", None)], weights)
    return Odd(model, sets)


def batch_picked():
    sets = [({"x": tokens(0, 4, 3)}, None), ({"x": tokens(1, 5, 2)}, None)]
    return Odd(picked(False), sets)


def batch_picked_far():
    inputs = {"x": tokens(0, 4, 3), "at": np.array([0, 2, 1, 0], np.int64)}
    return Odd(picked(True), [(inputs, None)], [("microbatches", "pick"),
                                               ("microbatches", "another element")])  # fmt: skip


def batch_tiled():
    """A table of every head repeated for every row, beside batch and heads in one dimension."""
    nodes = [
        *ROWS,
        node("Concat", "rows length heads", "split", axis=0),
        node("Reshape", "x split", "apart"),
        node("Transpose", "apart", "turned", perm=[0, 2, 1, 3]),
        node("Concat", "minus length two", "merged", axis=0),
        node("Reshape", "turned merged", "queries"),
        node("Concat", "rows ones", "repeats", axis=0),
        node("Tile", "keys repeats", "tiled"),
        node("MatMul", "queries tiled", "y", name="product"),
    ]
    weights = [
        weight("keys", 2, 2, 3),
        const("heads", [2, 2], np.int64),
        const("two", [2], np.int64),
        const("minus", [-1], np.int64),
        const("ones", [1, 1], np.int64),
    ]
    sets = [({"x": tokens(0, 4, 3)}, None), ({"x": tokens(1, 2, 2)}, None)]
    return Odd(build(nodes, [value("x", ["s72", "s53", 4])], [value("y", None)], weights), sets)


def projected(role, transposed):
    """x turned to [length, rows, 4], projected, with rows and heads in one dimension: [2 rows,
    length, 2], or [2 rows, 2, length]."""
    return [
        node("MatMul", f"turned w_{role}", f"{role}_all"),
        node("Reshape", f"{role}_all merged", f"{role}_merged"),
        node("Transpose", f"{role}_merged", role, perm=[1, 2, 0] if transposed else [1, 0, 2]),
    ]


def batch_turned():
    """Attention as speech encoders write it: the length first, rows and heads in one dimension
    (which with one row are the heads), and a table of every head repeated for every row."""
    nodes = [
        *ROWS,
        node("Mul", "rows two", "all_heads"),
        node("Concat", "length all_heads two", "merged", axis=0),
        node("Concat", "rows ones", "repeats", axis=0),
        node("Tile", "table repeats", "tiled"),
        node("Transpose", "x", "turned", perm=[1, 0, 2]),
        *projected("q", False),
        *projected("k", True),
        *projected("v", False),
        node("MatMul", "q k", "scores"),
        node("Add", "scores tiled", "biased"),
        node("Softmax", "biased", "weights", axis=-1, name="attention"),
        node("MatMul", "weights v", "mixed"),
        node("Transpose", "mixed", "back", perm=[1, 0, 2]),
        node("Concat", "length rows four", "whole", axis=0),
        node("Reshape", "back whole", "joined"),
        node("Transpose", "joined", "y", perm=[1, 0, 2]),
    ]
    weights = [
        *(weight(f"w_{role}", 4, 4) for role in "qkv"),
        weight("table", 2, 1, 1),
        const("two", [2], np.int64),
        const("four", [4], np.int64),
        const("ones", [1, 1], np.int64),
    ]
    sets = [({"x": tokens(0, 4, 3)}, None), ({"x": tokens(1, 6, 5)}, None)]
    return Odd(build(nodes, [value("x", ["s72", "s53", 4])], [value("y", None)], weights), sets)


def assigned(reversed_rows):
    """y[:, 0] = x[:, 1], by pairs (row, 0), as the older exporter writes it; `reversed_rows`: each
    row's tokens go to the row as far from the end."""
    first, last, step = ("n_1", "minus", "minus") if reversed_rows else ("zero", "n", "one")
    nodes = [
        *ROWS,
        node("Squeeze", "rows", "n"),
        node("Sub", "n one", "n_1"),
        node("Range", f"{first} {last} {step}", "counted"),
        node("Reshape", "counted column", "row"),
        node("Shape", "row", "like"),
        node("ConstantOfShape", "like", "token", value=const("", [0], np.int64)),
        node("Concat", "row token", "pairs", axis=2),
        node("Concat", "rows length four", "wide", axis=0),
        node("ConstantOfShape", "wide", "empty"),
        node("Slice", "x second third second", "picked"),
        node("ScatterND", "empty pairs picked", "filled", name="assign"),
        node("Add", "filled x", "y"),
    ]
    weights = [const("zero", 0, np.int64), const("one", 1, np.int64), const("minus", -1, np.int64),
               const("column", [-1, 1, 1], np.int64), const("four", [4], np.int64),
               const("second", [1], np.int64), const("third", [2], np.int64)]  # fmt: skip
    return build(nodes, [value("x", ["s72", "s53", 4])], [value("y", None)], weights)


def batch_assigned():
    sets = [({"x": tokens(0, 4, 3)}, None), ({"x": tokens(1, 6, 5)}, None)]
    return Odd(assigned(False), sets)


def batch_assigned_far():
    expect = [("microbatches", "assign"), ("microbatches", "goes where indices say")]
    return Odd(assigned(True), [({"x": tokens(0, 4, 3)}, None)], expect)


def strided(reversed_rows):
    """Windows of two tokens that overlap, of every row and head: positions in all of them laid end
    to end, as the older exporter writes as_strided; `reversed_rows`: rows and heads from the end."""
    first, last, step = ("all_1", "minus", "minus") if reversed_rows else ("zero", "all", "one")
    nodes = [
        *ROWS,
        node("Concat", "rows length heads", "split", axis=0),
        node("Reshape", "x split", "apart"),
        node("Transpose", "apart", "turned", perm=[0, 2, 1, 3]),
        node("Concat", "end length two", "merged", axis=0),
        node("Reshape", "turned merged", "each"),
        node("Reshape", "each end", "flat"),
        node("Squeeze", "rows", "n"),
        node("Squeeze", "length", "tokens"),
        node("Mul", "n second", "all"),
        node("Sub", "all one", "all_1"),
        node("Sub", "tokens one", "starts"),
        node("Mul", "tokens second", "stride"),
        node("Range", f"{first} {last} {step}", "row"),
        node("Mul", "row stride", "row_at"),
        node("Reshape", "row_at column", "row_column"),
        node("Range", "zero starts one", "start"),
        node("Mul", "start second", "start_at"),
        node("Unsqueeze", "start_at behind", "start_column"),
        node("Add", "row_column start_column", "window"),
        node("Add", "window within", "at"),
        node("Gather", "flat at", "windows", name="windows", axis=0),
        node("Sub", "length ones", "n_windows"),
        node("Concat", "rows two n_windows four", "wide", axis=0),
        node("Reshape", "windows wide", "y"),
    ]
    weights = [const("zero", 0, np.int64), const("one", 1, np.int64), const("minus", -1, np.int64),
               const("second", 2, np.int64), const("end", [-1], np.int64), const("behind", [1], np.int64),
               const("heads", [2, 2], np.int64), const("two", [2], np.int64), const("ones", [1], np.int64),
               const("four", [4], np.int64), const("column", [-1, 1, 1], np.int64),
               const("within", [0, 1, 2, 3], np.int64)]  # fmt: skip
    return build(nodes, [value("x", ["s72", "s53", 4])], [value("y", None)], weights)


def batch_strided():
    sets = [({"x": tokens(0, 4, 3)}, None), ({"x": tokens(1, 6, 5)}, None)]
    return Odd(strided(False), sets)


def batch_strided_far():
    expect = [("microbatches", "windows"), ("microbatches", "are picked")]
    return Odd(strided(True), [({"x": tokens(0, 4, 3)}, None)], expect)


def batch_apart():
    """Dimensions named apart, a bias expanded to the batch, rows and lengths of equal number."""
    nodes = [
        *ROWS,
        node("Concat", "rows length four", "wide", axis=0),
        node("Expand", "bias wide", "added"),
        node("Add", "x added", "sum"),
        node("Unsqueeze", "mask last", "column"),
        node("Mul", "sum column", "masked"),
        node("Transpose", "masked", "first", perm=[1, 0, 2]),
        node("Softmax", "first", "soft", axis=0),
        node("Transpose", "soft", "back", perm=[1, 0, 2]),
        node("MatMul", "back w", "y"),
    ]
    weights = [weight("bias", 4), weight("w", 4, 3), const("four", [4], np.int64),
               const("last", [2], np.int64)]  # fmt: skip
    inputs = [value("x", ["s72", "s53", 4]), value("mask", ["s43", "s9"])]
    sets = [({"x": tokens(k, n, s), "mask": data(k + 9, n, s)}, None)
            for k, (n, s) in enumerate([(4, 4), (5, 2)])]  # fmt: skip
    return Odd(build(nodes, inputs, [value("y", None)], weights), sets)


def batch_not_all():
    """Positions of as many tokens as there are rows, by chance: they are no part of the batch."""
    nodes = [
        node("Gather", "table positions", "place"),
        node("Add", "x place", "h"),
        node("MatMul", "h w", "y"),
    ]
    inputs = [value("positions", ["s2"], INT64), value("x", ["s72", "s53", 4])]
    sets = [({"positions": np.arange(4, dtype=np.int64), "x": tokens(0, 4, 4)}, None)]
    weights = [weight("table", 8, 4), weight("w", 4, 4)]
    return Odd(build(nodes, inputs, [value("y", None)], weights), sets)


def batch_contrast():
    """Every row beside every other, as a contrastive loss has them."""
    nodes = [
        node("Transpose", "b", "turned", perm=[1, 0]),
        node("MatMul", "a turned", "y", name="beside"),
    ]
    inputs = [value("a", ["s72", 4]), value("b", ["s43", 4])]
    sets = [({"a": data(0, 4, 4), "b": data(1, 4, 4)}, None)]
    expect = [("microbatches", "beside"), ("microbatches", "--batch-dim")]
    return Odd(build(nodes, inputs, [value("y", None)]), sets, expect)


def batch_normal():
    """BatchNormalization in training mode: mean and variance of all rows."""
    nodes = [
        node("BatchNormalization", "x scale bias mean var", "y m v", training_mode=1, name="normal")
    ]
    weights = [const(name, one, np.float32) for name, one in
               (("scale", [1, 2, 3]), ("bias", [0, 1, 2]), ("mean", [0, 0, 0]), ("var", [1, 1, 1]))]
    model = build(nodes, [value("x", ["batch", 3, 2])], [value("y", None)], weights)
    x = data(0, 4, 3, 2)
    mean, var = (f(x, axis=(0, 2), keepdims=True) for f in (np.mean, np.var))
    scale, bias = (np.array(v, np.float32).reshape(1, 3, 1) for v in ([1, 2, 3], [0, 1, 2]))
    y = (x - mean) / np.sqrt(var + np.float32(1e-5)) * scale + bias
    return Odd(model, [({"x": x}, {"y": y})], [("microbatches", "normal")])


def batch_counted():
    """Rows that are numbered: every micro-batch would begin again."""
    nodes = [
        *ROWS,
        node("Squeeze", "rows", "n"),
        node("Range", "zero n one", "counted"),
        node("Gather", "table counted", "place"),
        node("Unsqueeze", "place one_", "rows_"),
        node("Add", "x rows_", "y", name="numbered"),
    ]
    weights = [weight("table", 8, 4), const("zero", 0, np.int64), const("one", 1, np.int64),
               const("one_", [1], np.int64)]  # fmt: skip
    sets = [({"x": tokens(0, 4, 3)}, None)]
    model = build(nodes, [value("x", ["s72", "s53", 4])], [value("y", None)], weights)
    return Odd(model, sets, [("microbatches", "numbered")])


def chosen(drops):
    added = helper.make_graph([node("Add", "h h", "a")], "then", [], [value("a", None)])
    scaled = helper.make_graph([node("Mul", "h two", "b")], "else", [], [value("b", None)])
    nodes = [
        node("Shape", "x", "rows", start=0, end=1),
        node("Squeeze", "rows", "n"),
        node("Equal", "n three", "c"),
        node("MatMul", "x w", "h"),
        node("If", "c", "t", then_branch=added, else_branch=scaled),
        node("Tanh", "t", "u"),
        node("Dropout", "u ratio training" if drops else "u", "d", name="drop"),
        node("MatMul", "d v", "y"),
    ]
    weights = [const("three", 3, np.int64), const("two", 2, np.float32), weight("w", 4, 8), weight("v", 8, 32),
               *([const("ratio", 0.25, np.float32), const("training", True)] if drops else [])]  # fmt: skip
    return build(nodes, [value("x", ["batch", "seq", 4])], [value("y", None)], weights)


def batch_chosen():
    """Twice a tensor, in one way for three rows and in another for all other numbers: graphs that
    are bound for different rows are other graphs. Drops tokens in training."""
    still = ort.InferenceSession(chosen(False).SerializeToString())
    sets = []
    for seed, rows in enumerate((4, 5)):
        x = {"x": data(seed, rows, 2 + seed, 4)}
        sets.append((x, {"y": still.run(None, x)[0]}))
    return Odd(chosen(True), sets)


MODELS = {
    make.__name__: make
    for make in (
        batch_indexed,
        batch_picked,
        batch_picked_far,
        batch_tiled,
        batch_turned,
        batch_assigned,
        batch_assigned_far,
        batch_strided,
        batch_strided_far,
        batch_apart,
        batch_not_all,
        batch_contrast,
        batch_normal,
        batch_counted,
        batch_chosen,
    )
}

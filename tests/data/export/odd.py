# SPDX-License-Identifier: Apache-2.0
"""Hand-built small models that are odd but legal: what exporters, converters and old files hold."""
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from build import (
    BOOL,
    FLOAT,
    INT64,
    SETS,
    X,
    Y,
    Odd,
    build,
    const,
    data,
    function,
    node,
    value,
    weight,
)


def branches(read):
    """Two branches that read a value of the outer graph."""
    then = helper.make_graph(
        [node("Mul", f"{read} two", "then_out")],
        "then",
        [],
        [value("then_out", ["batch", 4])],
        [const("two", 2.0, np.float32)],
    )
    other = helper.make_graph(
        [node("Neg", read, "else_out")], "else", [], [value("else_out", ["batch", 4])]
    )
    return {"then_branch": then, "else_branch": other}


def if_constant():
    nodes = [
        node("Constant", "", "yes", value=const("", True)),
        node("Relu", "x", "h"),
        node("If", "yes", "y", **branches("h")),
    ]
    return Odd(build(nodes, [X], [Y]), SETS)


def if_shape():
    """The condition depends on a shape only, as exporters write squeeze of a dynamic axis."""
    squeezed = helper.make_graph([node("Squeeze", "x axis", "a")], "then", [], [value("a", None)])
    same = helper.make_graph([node("Identity", "x", "b")], "else", [], [value("b", None)])
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s axis0", "n"),
        node("Equal", "n one", "c"),
        node("If", "c", "h", then_branch=squeezed, else_branch=same),
        node("Add", "h bias", "y"),
    ]
    weights = [
        const("axis", [1], np.int64),
        const("axis0", 1, np.int64),
        const("one", 1, np.int64),
        weight("bias", 4),
    ]
    model = build(nodes, [value("x", ["batch", "middle", 4])], [value("y", None)], weights)
    return Odd(model, [({"x": data(2, 2, 1, 4)}, None), ({"x": data(3, 2, 3, 4)}, None)])


def if_input():
    """Decided by an input: runs where that is pinned (use=1, use=0), else the node is named."""
    nodes = [node("If", "use", "y", name="gate", **branches("x"))]
    model = build(nodes, [X, value("use", [], BOOL)], [Y])
    sets = [({"x": data(4, 2, 4), "use": np.array(flag)}, None) for flag in (True, False)]
    return Odd(model, sets, [("load", "gate"), ("load", "If")])


def linked(op, inputs, outputs, domain="", **references):
    """A node whose attributes refer to those of the function around it: name=(outer name, type)."""
    made = node(op, inputs, outputs, domain=domain)
    for name, (outer, kind) in references.items():
        made.attribute.add(name=name, ref_attr_name=outer, type=kind)
    return made


def functions_nested():
    """Three levels; an attribute handed down, one with a default, an optional input left out."""
    number = onnx.AttributeProto.FLOAT
    scale = function(
        "Scale",
        ["a"],
        ["b"],
        [linked("Constant", "", "f", value_float=("factor", number)), node("Mul", "a f", "b")],
        ["factor"],
    )
    inner = function(
        "Inner",
        ["a", "limit"],
        ["b"],
        [
            linked("Scale", "a", "t", "test.local", factor=("by", number)),
            node("Clip", "t _ limit", "b"),
        ],
        defaults=[helper.make_attribute("by", 3.0)],
        imports=(("", 17), ("test.local", 1)),
    )
    outer = function(
        "Outer",
        ["a"],
        ["b"],
        [
            node("Constant", "", "one", value_float=1.0),
            node("Inner", "a one", "p", domain="test.local"),
            node("Inner", "a", "q", domain="test.local", by=0.5),
            node("Add", "p q", "b"),
        ],
        imports=(("", 17), ("test.local", 1)),
    )
    nodes = [
        node("Outer", "x", "h", domain="test.local"),
        node("Outer", "h", "y", domain="test.local"),
    ]
    model = build(nodes, [X], [Y], functions=[outer, inner, scale], imports=[("test.local", 1)])
    return Odd(model, SETS)


def initializer_input(ir):
    """IR 3: weights are listed among the inputs. From IR 4 on such an input has that as default."""
    nodes = [node("MatMul", "x w", "h"), node("Add", "h b", "y")]
    model = build(
        nodes,
        [X, value("w", [4, 4]), value("b", [4])],
        [Y],
        [weight("w", 4, 4), weight("b", 4)],
        ir=ir,
    )
    return Odd(model, SETS)


def unsorted():
    nodes = [node("Add", "h b", "y"), node("Relu", "g", "h"), node("MatMul", "x w", "g")]
    return Odd(build(nodes, [X], [Y], [weight("w", 4, 4), weight("b", 4)]), SETS)


def sequence_constant():
    """Sequences that stand only for a Split and a Concat."""
    nodes = [
        node("SplitToSequence", "x sizes", "s", axis=1),
        node("SequenceAt", "s i1", "b"),
        node("SequenceAt", "s minus", "c"),
        node("SequenceConstruct", "c b x", "t"),
        node("ConcatFromSequence", "t", "y", axis=1),
    ]
    weights = [
        const("sizes", [1, 3], np.int64),
        const("i1", 0, np.int64),
        const("minus", -1, np.int64),
    ]
    return Odd(build(nodes, [X], [value("y", ["batch", 8])], weights), SETS)


def domain_without_import():
    """Accepted as version 1 of the domain."""
    nodes = [
        node("FusedMatMul", "x w", "h", domain="com.microsoft", transB=1, alpha=0.5),
        node("QuickGelu", "h", "y", domain="com.microsoft", alpha=1.702),
    ]
    return Odd(build(nodes, [X], [Y], [weight("w", 4, 4)]), SETS)


def shared_initializer():
    """A tied table: rows of it at the start, scores against it at the end."""
    nodes = [
        node("Gather", "table ids", "e"),
        node("MatMul", "e w", "h"),
        node("Relu", "h", "r"),
        node("Transpose", "table", "turned", perm=[1, 0]),
        node("MatMul", "r turned", "y"),
    ]
    model = build(
        nodes,
        [value("ids", ["batch", "seq"], INT64)],
        [value("y", ["batch", "seq", 12])],
        [weight("table", 12, 4), weight("w", 4, 4)],
    )
    rng = np.random.default_rng(7)
    return Odd(model, [({"ids": rng.integers(0, 12, shape)}, None) for shape in ((2, 3), (3, 5))])


def skip_tensors():
    """All six layers read `mask`; the last node reads the very first value, and `late` alone."""
    nodes, x = [node("Sub", "one keep", "lack"), node("Mul", "lack low", "mask")], "x"
    weights = [const("one", 1.0, np.float32), const("low", -10.0, np.float32)]
    for i in range(6):
        weights.append(weight(f"w{i}", 4, 4))
        nodes += [
            node("MatMul", f"{x} w{i}", f"p{i}"),
            node("Add", f"p{i} mask", f"q{i}"),
            node("Softmax", f"q{i}", f"r{i}", axis=-1),
            node("Add", f"r{i} {x}", f"s{i}"),
        ]
        x = f"s{i}"
    nodes += [node("Add", f"{x} x", "last"), node("Mul", "last late", "y")]
    model = build(
        nodes, [X, value("keep", ["batch", 4]), value("late", ["batch", 1])], [Y], weights
    )
    sets = [
        (
            {
                "x": data(8 + n, n, 4),
                "keep": (data(9 + n, n, 4) > 0).astype(np.float32),
                "late": data(10 + n, n, 1),
            },
            None,
        )
        for n in (2, 4)
    ]
    return Odd(model, sets)


def annotated(stages):
    """Six layers whose nodes carry the standard's pipeline stages (IR 11)."""
    odd = skip_tensors()
    odd.model.ir_version = 11
    odd.model.opset_import[0].version = 23
    count = len(odd.model.graph.node)
    odd.model.configuration.add(
        name="line", num_devices=max(stages(i, count) for i in range(count)) + 1
    )
    for i, item in enumerate(odd.model.graph.node):
        item.device_configurations.add(configuration_id="line", pipeline_stage=stages(i, count))
    return odd


def pipeline_stages():
    return annotated(lambda i, count: min(2, i * 3 // count))


def pipeline_stages_backward():
    odd = annotated(lambda i, count: 1 if i < count // 2 else 0)
    return Odd(odd.model, odd.sets, [("plan", "stage")])


def batch_folded():
    """Rows of a batch of 2 get mixed: no split along the batch is possible."""
    nodes = [
        node("MatMul", "x w", "h"),
        node("Reshape", "h shape", "g", name="fold_rows"),
        node("Softmax", "g", "y", axis=-1, name="mix_rows"),
    ]
    model = build(
        nodes,
        [value("x", ["batch", 4])],
        [value("y", [1, None])],
        [weight("w", 4, 4), const("shape", [1, -1], np.int64)],
    )
    return Odd(model, [({"x": data(20, 2, 4)}, None)], [("microbatches", "mix_rows")])


def batch_mean():
    nodes = [
        node("ReduceMean", "x", "m", axes=[0], keepdims=1, name="over_rows"),
        node("Sub", "x m", "y"),
    ]
    return Odd(build(nodes, [X], [Y]), SETS, [("microbatches", "over_rows")])


def batch_rows():
    """Batch and sequence become one axis and come apart again, as Gemm wants it."""
    nodes = [
        node("Shape", "x", "s"),
        node("Reshape", "x flat", "r"),
        node("Gemm", "r w b", "g"),
        node("Gather", "s two", "head"),
        node("Concat", "head last", "full", axis=0),
        node("Reshape", "g full", "y"),
    ]
    weights = [
        weight("w", 4, 6),
        weight("b", 6),
        const("flat", [-1, 4], np.int64),
        const("two", [0, 1], np.int64),
        const("last", [6], np.int64),
    ]
    model = build(
        nodes, [value("x", ["batch", "seq", 4])], [value("y", ["batch", "seq", 6])], weights
    )
    return Odd(model, [({"x": data(21, 2, 3, 4)}, None), ({"x": data(22, 4, 1, 4)}, None)])


def output_is_initializer():
    nodes = [node("Add", "x b", "y")]
    return Odd(build(nodes, [X], [Y, value("b", [4])], [weight("b", 4)]), SETS)


def output_is_input():
    nodes = [node("Relu", "x", "y")]
    return Odd(build(nodes, [X], [Y, value("x", ["batch", 4])]), SETS)


def output_read_inside():
    """A graph output that later nodes read too."""
    nodes = [node("Relu", "x", "mid"), node("MatMul", "mid w", "y")]
    return Odd(build(nodes, [X], [value("mid", ["batch", 4]), Y], [weight("w", 4, 4)]), SETS)


def no_nodes():
    return Odd(build([], [X], [value("x", ["batch", 4])]), SETS)


def absent_names():
    """Empty names for absent inputs and outputs, in the middle and at the end."""
    nodes = [
        node("Clip", "x _ top", "c"),
        node("Dropout", "c _ _", "d _"),
        node("LayerNormalization", "d g _", "y _ inverse"),
    ]
    weights = [const("top", 0.5, np.float32), weight("g", 4)]
    return Odd(build(nodes, [X], [Y, value("inverse", ["batch", 1])], weights), SETS)


def unused():
    """An input, an initialiser and a node that nothing reads."""
    nodes = [node("Relu", "x", "y"), node("Exp", "spare_weight", "dead")]
    model = build(nodes, [X, value("spare", ["other"])], [Y], [weight("spare_weight", 3)])
    return Odd(model, [({"x": data(23, 2, 4), "spare": data(24, 5)}, None)])


def zero_rows():
    nodes = [node("MatMul", "x w", "h"), node("Concat", "h x", "y", axis=0)]
    model = build(nodes, [X], [value("y", ["rows", 4])], [weight("w", 4, 4)])
    return Odd(model, [({"x": data(25, 0, 4)}, None), ({"x": data(26, 2, 4)}, None)])


def causal(training):
    """One block of a decoder whose Dropout trains, or not."""
    nodes = [
        node("Gather", "table ids", "embedded"),
        node("Dropout", "embedded ratio training", "x"),
        node("MatMul", "x wq", "q"),
        node("MatMul", "x wk", "k"),
        node("MatMul", "x wv", "v"),
        node("Attention", "q k v", "a", is_causal=1, q_num_heads=2, kv_num_heads=2),
        node("MatMul", "a wo", "o"),
        node("Dropout", "o ratio training", "d"),
        node("Add", "x d", "h"),
        node("MatMul", "h head", "logits"),
    ]
    weights = [weight("table", 32, 8), weight("head", 8, 32)]
    weights += [weight(name, 8, 8) for name in ("wq", "wk", "wv", "wo")]
    weights += [const("ratio", 0.3, np.float32), const("training", training)]
    ids = value("ids", ["batch", "seq"], INT64)
    return build(nodes, [ids], [value("logits", ["batch", "seq", 32])], weights, opset=23, ir=10)


def dropout_tokens():
    """Dropout on tokens before and behind causal attention: slices of a sequence drop alike."""
    still = ort.InferenceSession(causal(False).SerializeToString())
    sets = []
    for batch, seq in ((2, 6), (3, 5)):
        ids = {"ids": np.random.default_rng(batch).integers(0, 32, (batch, seq))}
        sets.append((ids, {"logits": still.run(None, ids)[0]}))
    return Odd(causal(True), sets)


def recurrence():
    """Two layers that keep a state of one size from request to request, each read by nobody else."""
    nodes, weights, inputs, outputs, read = [], [weight("head", 6, 3)], [value("x", ["batch", 4])], [], "x"
    for layer, width in enumerate((4, 6)):
        nodes += [
            node("MatMul", f"{read} w{layer}", f"u{layer}"),
            node("Mul", f"state{layer} decay{layer}", f"old{layer}"),
            node("Add", f"u{layer} old{layer}", f"next{layer}"),
            node("Tanh", f"next{layer}", f"h{layer}"),
        ]
        weights += [weight(f"w{layer}", width, 6), weight(f"decay{layer}", 6)]
        inputs.append(value(f"state{layer}", ["batch", 6]))
        outputs.append(value(f"next{layer}", ["batch", 6]))
        read = f"h{layer}"
    nodes.append(node("MatMul", f"{read} head", "y"))
    sets = []
    for seed, rows in ((41, 2), (44, 3)):
        given = {"x": data(seed, rows, 4), "state0": data(seed + 1, rows, 6), "state1": data(seed + 2, rows, 6)}
        sets.append((given, None))
    return Odd(build(nodes, inputs, [value("y", ["batch", 3]), *outputs], weights), sets)


MODELS = {
    "recurrence": recurrence,
    "if_constant": if_constant,
    "if_shape": if_shape,
    "if_input": if_input,
    "functions_nested": functions_nested,
    "initializer_input_ir3": lambda: initializer_input(3),
    "initializer_input_ir8": lambda: initializer_input(8),
    "unsorted": unsorted,
    "sequence_constant": sequence_constant,
    "domain_without_import": domain_without_import,
    "shared_initializer": shared_initializer,
    "skip_tensors": skip_tensors,
    "pipeline_stages": pipeline_stages,
    "pipeline_stages_backward": pipeline_stages_backward,
    "batch_folded": batch_folded,
    "batch_mean": batch_mean,
    "batch_rows": batch_rows,
    "output_is_initializer": output_is_initializer,
    "output_is_input": output_is_input,
    "output_read_inside": output_read_inside,
    "no_nodes": no_nodes,
    "absent_names": absent_names,
    "unused": unused,
    "zero_rows": zero_rows,
    "dropout_tokens": dropout_tokens,
}

# SPDX-License-Identifier: Apache-2.0
"""Hand-built small models that are odd but legal: what exporters, converters and old files hold."""
import numpy as np
import onnx
from onnx import TensorProto, helper

from build import BOOL, FLOAT, INT64, SETS, X, Y, Odd, build, const, data, function, node, value, weight


def branches(read):
    """Two branches that read a value of the outer graph."""
    then = helper.make_graph([node("Mul", f"{read} two", "then_out")], "then", [],
                             [value("then_out", ["batch", 4])], [const("two", 2.0, np.float32)])
    other = helper.make_graph([node("Neg", read, "else_out")], "else", [],
                              [value("else_out", ["batch", 4])])
    return {"then_branch": then, "else_branch": other}


def if_constant():
    nodes = [node("Constant", "", "yes", value=const("", True)),
             node("Relu", "x", "h"), node("If", "yes", "y", **branches("h"))]
    return Odd(build(nodes, [X], [Y]), SETS)


def if_shape():
    """The condition depends on a shape only, as exporters write squeeze of a dynamic axis."""
    squeezed = helper.make_graph([node("Squeeze", "x axis", "a")], "then", [], [value("a", None)])
    same = helper.make_graph([node("Identity", "x", "b")], "else", [], [value("b", None)])
    nodes = [node("Shape", "x", "s"), node("Gather", "s axis0", "n"), node("Equal", "n one", "c"),
             node("If", "c", "h", then_branch=squeezed, else_branch=same),
             node("Add", "h bias", "y")]
    weights = [const("axis", [1], np.int64), const("axis0", 1, np.int64), const("one", 1, np.int64),
               weight("bias", 4)]
    model = build(nodes, [value("x", ["batch", "middle", 4])], [value("y", None)], weights)
    return Odd(model, [({"x": data(2, 2, 1, 4)}, None), ({"x": data(3, 2, 3, 4)}, None)])


def if_input():
    """Decided by an input: runs where that is pinned (use=true, use=false), else the node is named."""
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
    scale = function("Scale", ["a"], ["b"],
                     [linked("Constant", "", "f", value_float=("factor", number)),
                      node("Mul", "a f", "b")], ["factor"])
    inner = function("Inner", ["a", "limit"], ["b"],
                     [linked("Scale", "a", "t", "test.local", factor=("by", number)),
                      node("Clip", "t _ limit", "b")],
                     defaults=[helper.make_attribute("by", 3.0)],
                     imports=(("", 17), ("test.local", 1)))
    outer = function("Outer", ["a"], ["b"],
                     [node("Constant", "", "one", value_float=1.0),
                      node("Inner", "a one", "p", domain="test.local"),
                      node("Inner", "a", "q", domain="test.local", by=0.5), node("Add", "p q", "b")],
                     imports=(("", 17), ("test.local", 1)))
    nodes = [node("Outer", "x", "h", domain="test.local"), node("Outer", "h", "y", domain="test.local")]
    model = build(nodes, [X], [Y], functions=[outer, inner, scale], imports=[("test.local", 1)])
    return Odd(model, SETS)


def initializer_input(ir):
    """IR 3: weights are listed among the inputs. From IR 4 on such an input has a default."""
    nodes = [node("MatMul", "x w", "h"), node("Add", "h b", "y")]
    model = build(nodes, [X, value("w", [4, 4]), value("b", [4])], [Y],
                  [weight("w", 4, 4), weight("b", 4)], ir=ir)
    sets = list(SETS)
    if ir > 3:
        sets.append(({"x": data(5, 2, 4), "b": data(6, 4)}, None))
    return Odd(model, sets)


def unsorted():
    nodes = [node("Add", "h b", "y"), node("Relu", "g", "h"), node("MatMul", "x w", "g")]
    return Odd(build(nodes, [X], [Y], [weight("w", 4, 4), weight("b", 4)]), SETS)


def sequence_constant():
    """Sequences that stand only for a Split and a Concat."""
    nodes = [node("SplitToSequence", "x sizes", "s", axis=1), node("SequenceAt", "s i1", "b"),
             node("SequenceAt", "s minus", "c"), node("SequenceConstruct", "c b x", "t"),
             node("ConcatFromSequence", "t", "y", axis=1)]
    weights = [const("sizes", [1, 3], np.int64), const("i1", 0, np.int64), const("minus", -1, np.int64)]
    return Odd(build(nodes, [X], [value("y", ["batch", 8])], weights), SETS)


def domain_without_import():
    """Accepted as version 1 of the domain."""
    nodes = [node("FusedMatMul", "x w", "h", domain="com.microsoft", transB=1, alpha=0.5),
             node("QuickGelu", "h", "y", domain="com.microsoft", alpha=1.702)]
    return Odd(build(nodes, [X], [Y], [weight("w", 4, 4)]), SETS)


def shared_initializer():
    """A tied table: rows of it at the start, scores against it at the end."""
    nodes = [node("Gather", "table ids", "e"), node("MatMul", "e w", "h"), node("Relu", "h", "r"),
             node("Transpose", "table", "turned", perm=[1, 0]), node("MatMul", "r turned", "y")]
    model = build(nodes, [value("ids", ["batch", "seq"], INT64)], [value("y", ["batch", "seq", 12])],
                  [weight("table", 12, 4), weight("w", 4, 4)])
    rng = np.random.default_rng(7)
    return Odd(model, [({"ids": rng.integers(0, 12, shape)}, None) for shape in ((2, 3), (3, 5))])


def skip_tensors():
    """`mask` is read by all six layers, the very first value by the very last node, `late` only there."""
    nodes, x = [node("Sub", "one keep", "lack"), node("Mul", "lack low", "mask")], "x"
    weights = [const("one", 1.0, np.float32), const("low", -10.0, np.float32)]
    for i in range(6):
        weights.append(weight(f"w{i}", 4, 4))
        nodes += [node("MatMul", f"{x} w{i}", f"p{i}"), node("Add", f"p{i} mask", f"q{i}"),
                  node("Softmax", f"q{i}", f"r{i}", axis=-1), node("Add", f"r{i} {x}", f"s{i}")]
        x = f"s{i}"
    nodes += [node("Add", f"{x} x", "last"), node("Mul", "last late", "y")]
    model = build(nodes, [X, value("keep", ["batch", 4]), value("late", ["batch", 1])], [Y], weights)
    sets = [({"x": data(8 + n, n, 4), "keep": (data(9 + n, n, 4) > 0).astype(np.float32),
              "late": data(10 + n, n, 1)}, None) for n in (2, 4)]
    return Odd(model, sets)


def annotated(stages):
    """Six layers whose nodes carry the standard's pipeline stages (IR 11)."""
    odd = skip_tensors()
    odd.model.ir_version = 11
    odd.model.opset_import[0].version = 23
    count = len(odd.model.graph.node)
    odd.model.configuration.add(name="line", num_devices=max(stages(i, count) for i in range(count)) + 1)
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
    nodes = [node("MatMul", "x w", "h"), node("Reshape", "h shape", "g", name="fold_rows"),
             node("Softmax", "g", "y", axis=-1)]
    model = build(nodes, [value("x", ["batch", 4])], [value("y", [1, None])],
                  [weight("w", 4, 4), const("shape", [1, -1], np.int64)])
    return Odd(model, [({"x": data(20, 2, 4)}, None)], [("microbatches", "fold_rows")])


def batch_mean():
    nodes = [node("ReduceMean", "x", "m", axes=[0], keepdims=1, name="over_rows"),
             node("Sub", "x m", "y")]
    return Odd(build(nodes, [X], [Y]), SETS, [("microbatches", "over_rows")])


def batch_rows():
    """Batch and sequence become one axis and come apart again, as Gemm wants it: rows stay whole."""
    nodes = [node("Shape", "x", "s"), node("Reshape", "x flat", "r"), node("Gemm", "r w b", "g"),
             node("Gather", "s two", "head"), node("Concat", "head last", "full", axis=0),
             node("Reshape", "g full", "y")]
    weights = [weight("w", 4, 6), weight("b", 6), const("flat", [-1, 4], np.int64),
               const("two", [0, 1], np.int64), const("last", [6], np.int64)]
    model = build(nodes, [value("x", ["batch", "seq", 4])], [value("y", ["batch", "seq", 6])], weights)
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
    nodes = [node("Clip", "x _ top", "c"), node("Dropout", "c _ _", "d _"),
             node("LayerNormalization", "d g _", "y _ inverse")]
    weights = [const("top", 0.5, np.float32), weight("g", 4)]
    return Odd(build(nodes, [X], [Y, value("inverse", ["batch", 1])], weights), SETS)


def unused():
    """An input, an initialiser and a node that nothing reads."""
    nodes = [node("Relu", "x", "y"), node("Exp", "spare_weight", "dead")]
    model = build(nodes, [X, value("spare", ["other"])], [Y], [weight("spare_weight", 3)])
    return Odd(model, [({"x": data(23, 2, 4), "spare": data(24, 5)}, None)])


def constant_forms():
    """Constant in all its spellings."""
    nodes = [node("Constant", "", "a", value_float=0.5),
             node("Constant", "", "b", value_floats=[1.0, 2.0, 3.0, 4.0]),
             node("Constant", "", "c", value_int=1), node("Constant", "", "d", value_ints=[-1, 4]),
             node("Constant", "", "e", value=const("", [[0.25]], np.float32)),
             node("Mul", "x a", "h"), node("Add", "h b", "i"), node("Add", "i e", "j"),
             node("Reshape", "j d", "k"), node("Concat", "k k", "l", axis=-1),
             node("Split", "l", "m n", axis=1), node("Cast", "c", "f", to=FLOAT),
             node("Add", "m f", "o"), node("Mul", "o n", "y")]
    return Odd(build(nodes, [X], [Y]), SETS)


def typed(name, kind, dims, field, values):
    made = TensorProto(name=name, data_type=kind, dims=dims)
    getattr(made, field).extend(values)
    return made


def typed_fields():
    """Numbers in the typed fields instead of raw bytes; 16-bit floats and booleans stand in int32_data."""
    half = np.array([0.5, -1.25, 2.0, 0.0], np.float16).view(np.uint16).tolist()
    weights = [typed("f", FLOAT, [4], "float_data", [1.0, 2.0, 3.0, 4.0]),
               typed("h", TensorProto.FLOAT16, [4], "int32_data", half),
               typed("k", BOOL, [4], "int32_data", [1, 0, 1, 1]),
               typed("u", TensorProto.UINT32, [4], "uint64_data", [0, 1, 2, 4000000000]),
               typed("t", TensorProto.DOUBLE, [], "double_data", [0.125]),
               typed("i", INT64, [1], "int64_data", [1]), typed("j", TensorProto.INT32, [2], "int32_data", [-1, 4])]
    nodes = [node("Cast", "h", "hf", to=FLOAT), node("Cast", "u", "uf", to=FLOAT),
             node("Cast", "t", "tf", to=FLOAT), node("Cast", "j", "jl", to=INT64),
             node("Add", "x f", "a"), node("Where", "k a hf", "b"), node("Mul", "b tf", "c"),
             node("Reshape", "c jl", "d"), node("ReduceMax", "uf", "m", keepdims=1), node("Div", "d m", "e"),
             node("Unsqueeze", "e i", "g"), node("Squeeze", "g i", "y")]
    return Odd(build(nodes, [X], [Y], weights), SETS)


def packed_types():
    """Weights of 4 and 2 bits and 8-bit floats, as storage for Cast."""
    nibble = [-8, 7, -1, 3, 5]
    packed = bytes(sum((v & 15) << (4 * (i % 2)) for i, v in enumerate(nibble) if i // 2 == k) for k in range(3))
    pairs = [0, 1, 2, 3, 3, 2]
    quarter = bytes(sum(v << (2 * (i % 4)) for i, v in enumerate(pairs) if i // 4 == k) for k in range(2))
    weights = [helper.make_tensor("n", TensorProto.INT4, [5], packed, raw=True),
               helper.make_tensor("p", TensorProto.UINT2, [6], quarter, raw=True),
               helper.make_tensor("e", TensorProto.FLOAT8E4M3FN, [4], bytes([0x38, 0xB8, 0x7E, 0x01]), raw=True)]
    nodes = [node("Cast", "n", "nf", to=FLOAT), node("Cast", "p", "pf", to=FLOAT), node("Cast", "e", "ef", to=FLOAT),
             node("Concat", "nf pf", "w", axis=0), node("Add", "x ef", "z"), node("Identity", "w", "y")]
    model = build(nodes, [X], [value("z", ["batch", 4]), value("y", [11])], weights, opset=25, ir=13)
    sets = []
    for inputs, _ in SETS:
        z = inputs["x"] + np.array([1.0, -1.0, 448.0, 2.0 ** -9], np.float32)
        sets.append((inputs, {"z": z, "y": np.array(nibble + pairs, np.float32)}))
    return Odd(model, sets)


def zero_rows():
    nodes = [node("MatMul", "x w", "h"), node("Concat", "h x", "y", axis=0)]
    model = build(nodes, [X], [value("y", ["rows", 4])], [weight("w", 4, 4)])
    return Odd(model, [({"x": data(25, 0, 4)}, None), ({"x": data(26, 2, 4)}, None)])


def attribute_without_type():
    """Very old files leave out the kind of an attribute; what is there tells it."""
    odd = batch_mean()
    for attribute in odd.model.graph.node[0].attribute:
        attribute.ClearField("type")
    x = [inputs["x"] for inputs, _ in SETS]
    return Odd(odd.model, [({"x": a}, {"y": a - a.mean(0, keepdims=True)}) for a in x])


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def unknown_fields():
    """Fields that no schema knows, metadata, a doc string: all of it survives an annotation."""
    odd = functions_nested()
    model = odd.model
    model.ir_version = 11
    model.metadata_props.add(key="note", value="kept \u00fc as it is")
    model.graph.metadata_props.add(key="graph note", value="")
    model.graph.node[0].doc_string = "a text"
    model.graph.quantization_annotation.add(tensor_name="x")
    # Field 2047 with three bytes, then field 1000 with the number 150.
    unknown = bytes([0xFA, 0x7F, 3]) + b"abc" + bytes([0xC0, 0x3E, 0x96, 0x01])
    graph = model.graph.SerializeToString(deterministic=True) + unknown
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    rest.ClearField("graph")
    raw = unknown + rest.SerializeToString(deterministic=True)
    raw += b"\x3a" + varint(len(graph)) + graph + unknown
    return Odd(model, odd.sets, raw=raw)


MODELS = {
    "if_constant": if_constant, "if_shape": if_shape, "if_input": if_input,
    "functions_nested": functions_nested, "initializer_input_ir3": lambda: initializer_input(3),
    "initializer_input_ir8": lambda: initializer_input(8), "unsorted": unsorted,
    "sequence_constant": sequence_constant, "domain_without_import": domain_without_import,
    "shared_initializer": shared_initializer, "skip_tensors": skip_tensors,
    "pipeline_stages": pipeline_stages, "pipeline_stages_backward": pipeline_stages_backward,
    "batch_folded": batch_folded, "batch_mean": batch_mean, "batch_rows": batch_rows,
    "output_is_initializer": output_is_initializer, "output_is_input": output_is_input,
    "output_read_inside": output_read_inside, "no_nodes": no_nodes, "absent_names": absent_names,
    "unused": unused, "constant_forms": constant_forms, "typed_fields": typed_fields,
    "packed_types": packed_types, "zero_rows": zero_rows,
    "attribute_without_type": attribute_without_type, "unknown_fields": unknown_fields,
}

# SPDX-License-Identifier: Apache-2.0
"""Hand-built models that are odd in how the file holds values, attributes and unknown fields."""
import numpy as np
import onnx
from onnx import TensorProto, helper

import odd as odd_graphs
from build import BOOL, FLOAT, INT64, SETS, X, Y, Odd, build, const, data, node, value


def constant_forms():
    """Constant in all its spellings."""
    nodes = [
        node("Constant", "", "a", value_float=0.5),
        node("Constant", "", "b", value_floats=[1.0, 2.0, 3.0, 4.0]),
        node("Constant", "", "c", value_int=1),
        node("Constant", "", "d", value_ints=[-1, 4]),
        node("Constant", "", "e", value=const("", [[0.25]], np.float32)),
        node("Mul", "x a", "h"),
        node("Add", "h b", "i"),
        node("Add", "i e", "j"),
        node("Reshape", "j d", "k"),
        node("Concat", "k k", "l", axis=-1),
        node("Split", "l", "m n", axis=1),
        node("Cast", "c", "f", to=FLOAT),
        node("Add", "m f", "o"),
        node("Mul", "o n", "y"),
    ]
    return Odd(build(nodes, [X], [Y]), SETS)


def typed(name, kind, dims, field, values):
    made = TensorProto(name=name, data_type=kind, dims=dims)
    getattr(made, field).extend(values)
    return made


def typed_fields():
    """Numbers in typed fields instead of raw bytes; fp16 and booleans stand in int32_data."""
    half = np.array([0.5, -1.25, 2.0, 0.0], np.float16).view(np.uint16).tolist()
    weights = [
        typed("f", FLOAT, [4], "float_data", [1.0, 2.0, 3.0, 4.0]),
        typed("h", TensorProto.FLOAT16, [4], "int32_data", half),
        typed("k", BOOL, [4], "int32_data", [1, 0, 1, 1]),
        typed("u", TensorProto.UINT32, [4], "uint64_data", [0, 1, 2, 4000000000]),
        typed("t", TensorProto.DOUBLE, [], "double_data", [0.125]),
        typed("i", INT64, [1], "int64_data", [1]),
        typed("j", TensorProto.INT32, [2], "int32_data", [-1, 4]),
    ]
    nodes = [
        node("Cast", "h", "hf", to=FLOAT),
        node("Cast", "u", "uf", to=FLOAT),
        node("Cast", "t", "tf", to=FLOAT),
        node("Cast", "j", "jl", to=INT64),
        node("Add", "x f", "a"),
        node("Where", "k a hf", "b"),
        node("Mul", "b tf", "c"),
        node("Reshape", "c jl", "d"),
        node("ReduceMax", "uf", "m", keepdims=1),
        node("Div", "d m", "e"),
        node("Unsqueeze", "e i", "g"),
        node("Squeeze", "g i", "y"),
    ]
    return Odd(build(nodes, [X], [Y], weights), SETS)


def packed_types():
    """Weights of 4 and 2 bits and 8-bit floats, as storage for Cast."""
    nibble = [-8, 7, -1, 3, 5]
    packed = bytes(
        sum((v & 15) << (4 * (i % 2)) for i, v in enumerate(nibble) if i // 2 == k)
        for k in range(3)
    )
    pairs = [0, 1, 2, 3, 3, 2]
    quarter = bytes(
        sum(v << (2 * (i % 4)) for i, v in enumerate(pairs) if i // 4 == k) for k in range(2)
    )
    weights = [
        helper.make_tensor("n", TensorProto.INT4, [5], packed, raw=True),
        helper.make_tensor("p", TensorProto.UINT2, [6], quarter, raw=True),
        helper.make_tensor(
            "e", TensorProto.FLOAT8E4M3FN, [4], bytes([0x38, 0xB8, 0x7E, 0x01]), raw=True
        ),
    ]
    nodes = [
        node("Cast", "n", "nf", to=FLOAT),
        node("Cast", "p", "pf", to=FLOAT),
        node("Cast", "e", "ef", to=FLOAT),
        node("Concat", "nf pf", "w", axis=0),
        node("Add", "x ef", "z"),
        node("Identity", "w", "y"),
    ]
    model = build(
        nodes, [X], [value("z", ["batch", 4]), value("y", [11])], weights, opset=25, ir=13
    )
    sets = []
    for inputs, _ in SETS:
        z = inputs["x"] + np.array([1.0, -1.0, 448.0, 2.0**-9], np.float32)
        sets.append((inputs, {"z": z, "y": np.array(nibble + pairs, np.float32)}))
    return Odd(model, sets)


def attribute_without_type():
    """Very old files leave out the kind of an attribute; what is there tells it."""
    odd = odd_graphs.batch_mean()
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
    odd = odd_graphs.functions_nested()
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


def long_lists():
    """Lists of more than 128 numbers that operators keep: places that Resize reads, sizes of Split."""
    parts = [f"part_{i}" for i in range(150)]
    nodes = [
        node("Resize", "x _ twice", "wide", mode="linear"),
        node("Split", "wide", " ".join(parts), axis=3, num_outputs=len(parts)),
        node("Sum", " ".join(reversed(parts)), "y"),
        node("Resize", "x _ half", "z", mode="cubic"),
    ]
    weights = [const("twice", [1, 1, 1, 2], np.float32), const("half", [1, 1, 1, 1.5], np.float32)]
    inputs = [value("x", ["batch", 1, 2, 150])]
    sets = [({"x": data(seed, rows, 1, 2, 150)}, None) for seed, rows in enumerate((2, 3))]
    return Odd(build(nodes, inputs, [value("y", None), value("z", None)], weights, 18), sets)


MODELS = {
    "long_lists": long_lists,
    "constant_forms": constant_forms,
    "typed_fields": typed_fields,
    "packed_types": packed_types,
    "attribute_without_type": attribute_without_type,
    "unknown_fields": unknown_fields,
}

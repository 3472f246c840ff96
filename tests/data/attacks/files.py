# SPDX-License-Identifier: Apache-2.0
"""Attacks on how the file is read: wire format, counts and depth, tensors, functions."""
from wire import (
    FLOAT,
    INT2,
    INT4,
    INT64,
    STRING,
    W_DATA,
    X,
    Y,
    adds,
    blob,
    dims_of,
    each,
    floats,
    function,
    graph,
    longs,
    model,
    node,
    num,
    opset,
    subgraph,
    tensor,
    value,
    varint,
)

GOOD = adds(tensor("weight0", FLOAT, [2, 4], W_DATA))


def nested(depth, step, core=b""):
    """step(message) wraps once. A layer costs a few bytes, so thousands fit into a small file."""
    for _ in range(depth):
        core = step(core)
    return core


def nest_types(depth):
    """TypeProto.sequence_type.elem_type.sequence_type ..."""
    kind = nested(depth, lambda inner: blob(4, blob(1, inner)))
    return model(graph([node("Relu", "x", "y")], [X, blob(1, "z") + blob(2, kind)], [Y]))


def nest_optionals(depth):
    kind = nested(depth, lambda inner: blob(9, blob(1, inner)))
    return model(graph([node("Relu", "x", "y")], [X, blob(1, "z") + blob(2, kind)], [Y]))


def nest_graphs(depth):
    """NodeProto.attribute.g.node ..."""

    def step(inner):
        return blob(
            1, blob(4, "If") + blob(5, blob(1, "then_branch") + blob(6, inner) + num(20, 5))
        )

    return model(nested(depth, step) + each(11, [X]) + each(12, [Y]))


def nest_functions(depth):
    def step(inner):
        return blob(
            1, blob(4, "If") + blob(5, blob(1, "then_branch") + blob(6, inner) + num(20, 5))
        )

    body = (
        blob(1, "f")
        + blob(10, "test.local")
        + blob(7, blob(4, "If") + blob(5, blob(6, nested(depth, step))))
    )
    return GOOD + blob(25, body)


def many(field, count, item=b""):
    """A graph with `count` smallest possible entries of one kind."""
    return model(graph([node("Relu", "x", "y")], [X], [Y]) + blob(field, item) * count)


def ifs(depth):
    """Honest nesting: each If holds another in its then branch. Few levels must be read."""
    inner = graph([node("Relu", "x", "leaf")], [], [value("leaf", [2, 4])])
    for level in range(depth):
        other = graph([node("Neg", "x", f"e{level}")], [], [value(f"e{level}", [2, 4])])
        inner = graph(
            [
                node(
                    "If",
                    "yes",
                    f"t{level}",
                    then_branch=subgraph(inner),
                    else_branch=subgraph(other),
                )
            ],
            [],
            [value(f"t{level}", [2, 4])],
        )
    nodes = [
        node(
            "If",
            "yes",
            "y",
            then_branch=subgraph(inner),
            else_branch=subgraph(graph([node("Neg", "x", "e")], [], [value("e", [2, 4])])),
        )
    ]
    return model(graph(nodes, [X], [Y], [tensor("yes", 9, [], b"\x01")]))


def calls(name, callee, times):
    """A function that calls another `times` times in a row."""
    nodes, last = [], "a"
    for i in range(times):
        out = "b" if i + 1 == times else f"t{i}"
        nodes.append(node(callee, last, out, domain="test.local"))
        last = out
    return function(name, nodes)


def function_model(functions, first):
    body = graph([node(first, "x", "y", domain="test.local")], [X], [Y])
    return model(body, more=opset(1, "test.local")) + b"".join(functions)


def function_explosion():
    """Ten levels of ten calls each: 10^10 nodes once inlined, in 12 kB."""
    functions = [calls(f"Callee{i}", f"Callee{i + 1}", 10) for i in range(10)]
    return function_model([*functions, function("Callee10", [node("Relu", "a", "b")])], "Callee0")


def weight(kind, shape, raw=None, more=b""):
    return adds(tensor("weight0", kind, shape, raw, more))


def packed(field, *bodies):
    return blob(field, b"".join(bodies))


def wire_attacks():
    return {
        "good": (GOOD, "runs"),
        "empty_file": (b"", "refuse"),
        "one_byte": (b"\x08", "refuse"),
        "zeros": (bytes(4096), "refuse"),
        "text": (b"<html><body>404 Not Found</body></html>\n", "refuse"),
        "git_lfs_pointer": (
            b"version https://git-lfs.example/spec/v1\noid sha256:00\nsize 9\n",
            "refuse",
        ),
        "no_graph": (num(1, 8) + opset(17), "load graph"),
        "two_graphs": (GOOD + blob(7, graph([node("Neg", "x", "y")], [X], [Y])), "load graph"),
        "two_types": (adds(tensor("weight0", FLOAT, [2, 4], W_DATA) + num(2, INT64)), "any"),
        "two_names": (adds(tensor("weight0", FLOAT, [2, 4], W_DATA) + blob(8, "v")), "any"),
        "varint_too_long": (b"\x08" + b"\xff" * 11 + b"\x01" + GOOD, "refuse"),
        "field_zero": (b"\x02\x01a" + GOOD, "refuse"),
        "group": (b"\x0b\x0c" + GOOD, "refuse"),
        "wire_type_7": (b"\x0f\x00" + GOOD, "refuse"),
        "graph_as_number": (num(1, 8) + opset(17) + num(7, 3), "refuse"),
        "length_past_end": (GOOD + b"\x72\xff\xff\xff\x7f" + b"x", "refuse"),
        "length_wraps": (GOOD + b"\x72" + varint((1 << 64) - 4) + b"x", "refuse"),
        "length_past_parent": (
            model(blob(1, b"\x0a\x7fx") + each(11, [X]) + each(12, [Y])),
            "refuse",
        ),
        "cut_number": (GOOD + b"\x08\x80", "refuse"),
        "name_not_utf8": (
            model(graph([node("Relu", "x", "y", name=b"\xff\xfe\x80")], [X], [Y])),
            "any",
        ),
        "name_with_nul": (nul_names(), "refuse"),
        "operator_with_nul": (model(graph([node("Relu\0x", "x", "y")], [X], [Y])), "refuse"),
        "ir_0": (adds(tensor("weight0", FLOAT, [2, 4], W_DATA), ir=0), "refuse"),
        "ir_2": (adds(tensor("weight0", FLOAT, [2, 4], W_DATA), ir=2), "refuse"),
        "ir_huge": (adds(tensor("weight0", FLOAT, [2, 4], W_DATA), ir=1 << 62), "refuse"),
        "opset_0": (model(graph([node("Relu", "x", "y")], [X], [Y]), 0), "refuse"),
        "opset_negative": (model(graph([node("Relu", "x", "y")], [X], [Y]), -1), "refuse"),
        "opset_twice": (GOOD + opset(6), "refuse"),
        "unknown_fields": (
            blob(1000, b"abc")
            + GOOD
            + num(2047, 5)
            + varint(999 << 3 | 5)
            + b"abcd"
            + varint(998 << 3 | 1)
            + b"abcdefgh",
            "runs",
        ),
    }


def nul_names():
    """`w` and `w<NUL>2` are one name to code that stops at the NUL."""
    nodes = [
        node("Add", "x weight0", "h", name="n1"),
        node("Add", "h weight0\0two", "y", name="n2"),
    ]
    weights = [
        tensor("weight0", FLOAT, [2, 4], W_DATA),
        tensor("weight0\0two", FLOAT, [2, 4], W_DATA),
    ]
    return model(graph(nodes, [X], [Y], weights))


def size_attacks():
    relu = model(graph([node("Relu", "x", "y")], [X], [Y]))
    return {
        "nest_types": (nest_types(8000), "refuse"),
        "nest_optionals": (nest_optionals(8000), "refuse"),
        "nest_graphs": (nest_graphs(2000), "refuse"),
        "nest_functions": (nest_functions(2000), "refuse"),
        "nest_ifs_few": (ifs(3), "any"),
        "nest_ifs_many": (ifs(200), "refuse"),
        "empty_nodes": (many(1, 5000000), "refuse"),
        "empty_tensors": (many(5, 5000000), "refuse"),
        "empty_values": (many(13, 5000000), "any"),
        "empty_attributes": (
            model(graph([node("Relu", "x", "y") + blob(5, b"") * 3000000], [X], [Y])),
            "refuse",
        ),
        "empty_inputs": (
            model(graph([node("Concat", "x", "y", axis=0) + blob(1, b"") * 3000000], [X], [Y])),
            "refuse",
        ),
        "empty_functions": (relu + blob(25, b"") * 3000000, "refuse"),
        "empty_metadata": (relu + blob(14, b"") * 3000000, "any"),
        "million_dims": (
            adds(num(1, 1) * 1000000 + tensor("weight0", FLOAT, [], floats(1))),
            "refuse",
        ),
        "function_of_itself": (
            function_model([calls("Callee", "Callee", 1)], "Callee"),
            "load Callee",
        ),
        "function_ring": (
            function_model(
                [calls("Callee", "G", 1), calls("G", "H", 1), calls("H", "Callee", 1)], "Callee"
            ),
            "load Callee",
        ),
        "function_explosion": (function_explosion(), "load Callee"),
        "function_twice": (
            function_model(
                [
                    function("Callee", [node("Relu", "a", "b")]),
                    function("Callee", [node("Neg", "a", "b")]),
                ],
                "Callee",
            ),
            "load Callee",
        ),
        "function_without_output": (
            function_model([function("Callee", [node("Relu", "a", "c")])], "Callee"),
            "refuse",
        ),
    }


def tensor_attacks():
    huge, eight = 1 << 32, W_DATA
    return {
        "dims_wrap": (weight(FLOAT, [huge, huge], b""), "load weight0"),
        "dims_wrap_bytes": (weight(FLOAT, [1 << 62], b""), "load weight0"),
        "dims_wrap_small": (weight(FLOAT, [(1 << 61) + 2, 4], eight), "load weight0"),
        "dims_negative": (weight(FLOAT, [-2, -4], eight), "load weight0"),
        "dims_zero_huge": (weight(FLOAT, [0, 1 << 62, 1 << 62], b""), "any"),
        "dims_many": (weight(FLOAT, [1] * 200 + [2, 4], eight), "any"),
        "dims_packed": (
            adds(
                packed(1, varint(2), varint(4))
                + num(2, FLOAT)
                + blob(8, "weight0")
                + blob(9, eight)
            ),
            "runs",
        ),
        "raw_odd_length": (weight(FLOAT, [2, 4], eight[:-1]), "load weight0"),
        "raw_short": (weight(FLOAT, [2, 4], eight[:16]), "load weight0"),
        "raw_long": (weight(FLOAT, [2, 4], eight + b"\0\0\0\0"), "load weight0"),
        "raw_absent": (weight(FLOAT, [2, 4]), "load weight0"),
        "raw_twice": (weight(FLOAT, [2, 4], eight, blob(9, eight)), "any"),
        "raw_and_typed": (weight(FLOAT, [2, 4], eight, packed(4, eight)), "load weight0"),
        "typed_short": (weight(FLOAT, [2, 4], None, packed(4, eight[:28])), "load weight0"),
        "typed_long": (weight(FLOAT, [2, 4], None, packed(4, eight + eight)), "load weight0"),
        "typed_odd_length": (weight(FLOAT, [2, 4], None, packed(4, eight[:-2])), "refuse"),
        "typed_packed": (weight(FLOAT, [2, 4], None, packed(4, eight)), "runs"),
        "typed_parts": (
            weight(FLOAT, [2, 4], None, packed(4, eight[:8]) + packed(4, eight[8:])),
            "runs",
        ),
        "typed_other_field": (
            weight(FLOAT, [2, 4], None, packed(7, *[varint(1)] * 8)),
            "load weight0",
        ),
        "typed_out_of_range": (weight(9, [2, 4], None, packed(5, *[varint(300)] * 8)), "refuse"),
        "int4_short": (cast(INT4, [5], b"\x11\x22"), "load weight0"),
        "int4_long": (cast(INT4, [5], b"\x11\x22\x03\x00"), "load weight0"),
        "int2_short": (cast(INT2, [9], b"\x11\x22"), "load weight0"),
        "int4_typed_short": (
            cast(INT4, [5], None, packed(5, varint(0x11), varint(0x22))),
            "load weight0",
        ),
        "type_0": (weight(0, [2, 4], eight), "load weight0"),
        "type_99": (weight(99, [2, 4], eight), "load weight0"),
        "type_huge": (weight(1 << 40, [2, 4], eight), "load weight0"),
        "strings": (weight(STRING, [2], None, blob(6, "a") + blob(6, "b")), "load weight0"),
        "segment": (weight(FLOAT, [2, 4], eight, blob(3, num(1, 0) + num(2, 1 << 40))), "any"),
        "location_unknown": (weight(FLOAT, [2, 4], eight, num(14, 7)), "any"),
        "external_flag_alone": (weight(FLOAT, [2, 4], None, num(14, 1)), "load weight0"),
        "same_name_twice": (
            model(
                graph(
                    [node("Add", "x weight0", "y")],
                    [X],
                    [Y],
                    [tensor("weight0", FLOAT, shape, eight) for shape in ([2, 4], [4, 2])],
                )
            ),
            "load weight0",
        ),
        "no_name": (
            model(graph([node("Add", "x ", "y")], [X], [Y], [tensor("", FLOAT, [2, 4], eight)])),
            "refuse",
        ),
        "sparse": (
            model(graph([node("Add", "x weight0", "y")], [X], [Y], more=blob(15, sparse()))),
            "refuse",
        ),
        "input_without_type": (
            model(graph([node("Relu", "shapeless", "y")], [blob(1, "shapeless")], [Y])),
            "load shapeless",
        ),
        "input_of_negative_size": (
            model(graph([node("Relu", "x", "y")], [value("x", [-1, 4])], [Y])),
            "any",
        ),
        "input_of_huge_size": (
            model(
                graph([node("Relu", "x", "y")], [value("x", [1 << 40, 1 << 40])], [blob(1, "y")])
            ),
            "refuse",
        ),
        "input_twice": (
            model(graph([node("Relu", "double", "y")], [value("double", [2, 4])] * 2, [Y])),
            "load double",
        ),
        "output_twice": (model(graph([node("Relu", "x", "y")], [X], [Y, Y])), "any"),
        "output_unknown": (
            model(graph([node("Relu", "x", "y")], [X], [value("lost", [2, 4])])),
            "load lost",
        ),
        "no_outputs": (model(graph([node("Relu", "x", "y")], [X], [])), "any"),
        "output_type_wrong": (
            model(graph([node("Relu", "x", "y")], [X], [value("y", [2, 4], INT64)])),
            "any",
        ),
        "node_without_operator": (model(graph([blob(1, "x") + blob(2, "y")], [X], [Y])), "refuse"),
        "node_reads_itself": (model(graph([node("Add", "x y", "y")], [X], [Y])), "load victim"),
        "node_writes_input": (
            model(
                graph(
                    [node("Relu", "taken", "taken"), node("Relu", "taken", "y", name="n")],
                    [value("taken", [2, 4])],
                    [Y],
                )
            ),
            "load taken",
        ),
    }


def cast(kind, shape, raw=None, more=b""):
    """y = float(w), for types that only Cast takes."""
    return model(
        graph(
            [node("Cast", "weight0", "y", to=FLOAT)],
            [X],
            [blob(1, "y")],
            [tensor("weight0", kind, shape, raw, more)],
        ),
        21,
        10,
    )


def sparse():
    """Two values with indices far outside a [2, 4] tensor."""
    return (
        blob(1, tensor("weight0", FLOAT, [2], floats(1, 2)))
        + blob(2, tensor("i", INT64, [2], longs(1 << 40, -9)))
        + b"".join(num(3, d) for d in (2, 4))
        + dims_of([])
    )


def attacks():
    return {**wire_attacks(), **size_attacks(), **tensor_attacks()}

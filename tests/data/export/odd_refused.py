# SPDX-License-Identifier: Apache-2.0
"""Small models that must be refused when they are loaded, each with what the message must name."""
from build import FLOAT, X, Y, Odd, build, function, node, value, weight


def cycle():
    nodes = [
        node("Add", "x b", "a", name="first"),
        node("Relu", "a", "b", name="second"),
        node("Neg", "b", "y"),
    ]
    return Odd(build(nodes, [X], [Y]), expect=[("load", "cycle")])


def written_twice():
    nodes = [
        node("Relu", "x", "h", name="first"),
        node("Neg", "x", "h", name="second"),
        node("Exp", "h", "y"),
    ]
    return Odd(build(nodes, [X], [Y]), expect=[("load", "h")])


def reads_nothing():
    nodes = [node("Add", "x missing", "y")]
    return Odd(build(nodes, [X], [Y]), expect=[("load", "missing")])


def unknown_operators():
    """Three things wrong; the one report has all of them."""
    nodes = [
        node("Relu", "x", "a"),
        node("Frobnicate", "a", "b", name="n1", domain="test.unknown"),
        node("Unique", "b", "c", name="n2"),
        node("Cast", "c", "d", to=FLOAT),
        node("Twist", "d", "y", name="n3"),
    ]
    model = build(nodes, [X], [value("y", None)], imports=[("test.unknown", 4)])
    return Odd(
        model,
        expect=[
            ("load", text)
            for text in ("Frobnicate", "test.unknown", "Unique", "Twist", "n1", "n3")
        ],
    )


def opset_too_new():
    """An opset of which nobody can know what its Softmax means."""
    return Odd(
        build([node("Softmax", "x", "y", axis=-1)], [X], [Y], opset=99), expect=[("load", "99")]
    )


def function_cycle():
    ping = function(
        "Ping",
        ["a"],
        ["b"],
        [node("Pong", "a", "b", domain="test.local")],
        imports=(("test.local", 1),),
    )
    pong = function(
        "Pong",
        ["a"],
        ["b"],
        [node("Ping", "a", "b", domain="test.local")],
        imports=(("test.local", 1),),
    )
    model = build(
        [node("Ping", "x", "y", domain="test.local")],
        [X],
        [Y],
        functions=[ping, pong],
        imports=[("test.local", 1)],
    )
    return Odd(model, expect=[("load", "Ping")])


def shapes_disagree():
    nodes = [node("MatMul", "x w", "y", name="product")]
    model = build(nodes, [value("x", [2, 4])], [value("y", [2, 3])], [weight("w", 5, 3)])
    return Odd(model, expect=[("load", "product")])


MODELS = {
    "cycle": cycle,
    "written_twice": written_twice,
    "reads_nothing": reads_nothing,
    "unknown_operators": unknown_operators,
    "opset_too_new": opset_too_new,
    "function_cycle": function_cycle,
    "shapes_disagree": shapes_disagree,
}

# SPDX-License-Identifier: Apache-2.0
"""Writes ONNX messages byte by byte, wrong ones too, with Python's standard library alone.

A message is bytes; fields are written in the order given. Field numbers are the format's.
"""
import struct

FLOAT, INT32, INT64, STRING, BOOL = 1, 6, 7, 8, 9
INT4, INT2 = 22, 26


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def num(field, number):
    return varint(field << 3) + varint(number)


def blob(field, body):
    body = body.encode() if isinstance(body, str) else body
    return varint(field << 3 | 2) + varint(len(body)) + body


def real(field, number):
    return varint(field << 3 | 5) + struct.pack("<f", number)


def each(field, bodies):
    return b"".join(blob(field, body) for body in bodies)


def floats(*numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


def longs(*numbers):
    return struct.pack(f"<{len(numbers)}q", *numbers)


def dims_of(shape):
    return b"".join(num(1, size) for size in shape)


def tensor(name, kind, shape, raw=None, more=b""):
    body = dims_of(shape) + num(2, kind) + (blob(8, name) if name else b"")
    return body + (b"" if raw is None else blob(9, raw)) + more


def outside(name, kind, shape, **entries):
    """A tensor whose data is external; entries are the keys and values, in order."""
    pairs = each(13, [blob(1, key) + blob(2, text) for key, text in entries.items()])
    return tensor(name, kind, shape, None, pairs + num(14, 1))


def attribute(name, value):
    """int, float, str, bytes (a TensorProto), list of int; (field, type, bytes) for the rest."""
    head = blob(1, name)
    if isinstance(value, tuple):
        return head + blob(value[0], value[2]) + num(20, value[1])
    if isinstance(value, int):
        return head + num(3, value) + num(20, 2)
    if isinstance(value, float):
        return head + real(2, value) + num(20, 1)
    if isinstance(value, str):
        return head + blob(4, value) + num(20, 3)
    if isinstance(value, bytes):
        return head + blob(5, value) + num(20, 4)
    return head + b"".join(num(8, item) for item in value) + num(20, 7)


def subgraph(body):
    return (6, 5, body)


def node(op, inputs, outputs, name="victim", domain="", **attributes):
    """inputs: names with blanks between, or a list, in which "" is one that is left out."""
    inputs = inputs.split() if isinstance(inputs, str) else inputs
    body = each(1, inputs) + each(2, outputs.split()) + blob(3, name) + blob(4, op)
    body += blob(7, domain) if domain else b""
    return body + each(5, [attribute(key, value) for key, value in attributes.items()])


def value(name, shape, kind=FLOAT):
    """shape: numbers, or names of free dimensions."""
    dims = each(1, [blob(2, d) if isinstance(d, str) else num(1, d) for d in shape])
    return blob(1, name) + blob(2, blob(1, num(1, kind) + blob(2, dims)))


def graph(nodes, inputs, outputs, weights=(), more=b""):
    body = each(1, nodes) + blob(2, "attack") + each(5, weights)
    return body + each(11, inputs) + each(12, outputs) + more


def opset(version, domain=""):
    return blob(8, (blob(1, domain) if domain else b"") + num(2, version))


def model(body, version=17, ir=8, more=b""):
    """body: a GraphProto."""
    return num(1, ir) + opset(version) + more + blob(7, body)


def function(name, nodes, domain="test.local"):
    """A local function of one input `a` and one output `b`."""
    body = blob(1, name) + blob(4, "a") + blob(5, "b") + each(7, nodes)
    body += blob(9, num(2, 17)) + blob(9, blob(1, domain) + num(2, 1)) + blob(10, domain)
    return blob(25, body)


X, Y = value("x", [2, 4]), value("y", [2, 4])
W_DATA = floats(*range(1, 9))


def adds(weight, more=b"", ir=8):
    """y = x + w for a given TensorProto w."""
    return model(graph([node("Add", "x weight0", "y")], [X], [Y], [weight]), ir=ir, more=more)


def one_node(op, inputs, weights=(), shape=(2, 4), kind=FLOAT, version=17, domain="", **attributes):
    """One node `victim`; `y` has no declared shape, so only the node itself can object."""
    body = graph(
        [node(op, inputs, "y", domain=domain, **attributes)],
        [value("x", shape, kind)],
        [blob(1, "y")],
        weights,
    )
    return model(body, version)

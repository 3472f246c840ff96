#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the operators' schemas of an installed package as a table: one line for each operator and version.

usage: make.py onnx|onnxruntime [--check FILE]

  ai.onnx Cast 28 1-1 1-1 saturate:INT=1 to:INT! round_mode:STRING=up | 10 1 3
  domain  operator, version, inputs, outputs, attributes with type and default ("!": required) | element types of its tensors, as numbers of the format

onnx: all operators of ai.onnx, every version. onnxruntime: those of com.microsoft, and those that it adds to ai.onnx.
Exit status of --check: 0 the same, 1 not, 3 the package is not installed or of another version.
"""
import argparse
import sys

KINDS = ("", "FLOAT", "INT", "STRING", "TENSOR", "GRAPH", "FLOATS", "INTS", "STRINGS", "TENSORS", "GRAPHS", "SPARSE_TENSOR", "", "TYPE_PROTO", "")
TYPES = ("", "float", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "double", "uint32", "uint64",
         "complex64", "complex128", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "uint4", "int4",
         "float4e2m1", "float8e8m0", "uint2", "int2", "float6e2m3", "float6e3m2")  # fmt: skip
MANY = 2147483647


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def default_of(message):
    """Text of the value in a serialised AttributeProto; None: it has none."""
    import struct

    at, values = 0, []
    while at < len(message):
        key, at = varint(message, at)
        if key & 7 == 0:
            value, at = varint(message, at)
        elif key & 7 == 5:
            value, at = message[at : at + 4], at + 4
        else:
            size, at = varint(message, at)
            value, at = message[at : at + size], at + size
        number = key >> 3
        if number in (2, 7):
            values += [f"{x:.9g}" for (x,) in struct.iter_unpack("<f", value)]
        elif number in (3, 8) and key & 7 == 0:
            values.append(str(value - (1 << 64) if value >> 63 else value))
        elif number in (4, 9):
            values.append(value.decode())
    return ",".join(values) if values else None


def count(least, most):
    return f"{least}-{'*' if most >= MANY else most}"


def types_of(schema):
    found = set()
    for constraint in schema.type_constraints:
        for text in constraint.allowed_type_strs:
            inner = text.replace("seq(", "").replace("optional(", "").replace("sparse_tensor(", "tensor(")
            name = inner[inner.find("tensor(") + 7 :].strip(")")
            found.add(TYPES.index(name))
    return " ".join(map(str, sorted(found)))


def line(schema, kind, message):
    attrs = []
    for name, attr in sorted(schema.attributes.items()):
        default = default_of(message(attr))
        attrs.append(f"{name}:{kind(attr)}{'!' if attr.required else ''}{'' if default is None else '=' + default}")
    words = [schema.domain or "ai.onnx", schema.name, str(schema.since_version)]
    words += [count(schema.min_input, schema.max_input), count(schema.min_output, schema.max_output)]
    words += ["deprecated"] if schema.deprecated else attrs
    return " ".join(words) + f" | {types_of(schema)}".rstrip()


def onnx_lines():
    import onnx

    chosen = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""]
    return f"# onnx {onnx.__version__}", [line(s, lambda a: KINDS[int(a.type)], lambda a: a.default_value.SerializeToString()) for s in chosen]


def onnxruntime_lines():
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = ("LayerNormalization", "SimplifiedLayerNormalization")
    chosen = [s for s in state.get_all_operator_schema() if s.domain == "com.microsoft" or (s.name in own and s.since_version == 1)]
    # Types that its own enumeration cannot name: TYPE_PROTO.
    kind = lambda a: str(a.type).rsplit(".", 1)[-1].replace("???", "TYPE_PROTO")  # noqa: E731
    return f"# onnxruntime {onnxruntime.__version__}", [line(s, kind, lambda a: a._default_value) for s in chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("package", choices=("onnx", "onnxruntime"))
    parser.add_argument("--check", metavar="FILE")
    args = parser.parse_args()
    try:
        head, lines = onnx_lines() if args.package == "onnx" else onnxruntime_lines()
    except ImportError as reason:
        print(f"make.py: {reason}", file=sys.stderr)
        return 3
    text = "\n".join([head, *sorted(set(lines), key=lambda x: (x.split()[:2], int(x.split()[2])))]) + "\n"
    if args.check is None:
        sys.stdout.write(text)
        return 0
    with open(args.check, encoding="utf-8") as file:
        committed = file.read()
    if committed.split("\n", 1)[0] != head:
        print(f"make.py: installed is {head[2:]}, the table is of {committed[2:].split(chr(10), 1)[0]}", file=sys.stderr)
        return 3
    for left, right in zip(committed.split("\n"), text.split("\n")):
        if left != right:
            print(f"make.py: the table says   {left}\n         {args.package} says {right}", file=sys.stderr)
            return 1
    return 0 if committed == text else 1


if __name__ == "__main__":
    sys.exit(main())

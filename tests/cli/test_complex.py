#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Complex numbers: shown with both parts, compared in their plane, drawn where no input is given, read and written."""
import json
import os
import struct
import sys
import tempfile

from command import CHECK_FAILED, DATA, DONE, Count, need_command, run

sys.path.insert(0, os.path.join(DATA, "attacks"))
import wire  # noqa: E402

KINDS = {14: ("f", "<c8"), 15: ("d", "<c16")} # of ONNX: complex64, complex128
NUMBERS = [1.5, -2, 0, 3, -4, 0.25, 5, 6, -7, 8, 9, -10]
SHOWN = "1.5-2i 5+6i 0+3i -7+8i ..." # transposed


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)
    return path


def packed(kind, numbers):
    return struct.pack(f"<{len(numbers)}{KINDS[kind][0]}", *numbers)


def transposed(numbers):
    pairs = [numbers[i:i + 2] for i in range(0, len(numbers), 2)]
    return [x for i in range(3) for row in range(2) for x in pairs[row * 3 + i]]


def folder_of(folder, kind, expected):
    """y [3, 2] = Identity(Transpose(x [2, 3])) and a set of data."""
    data = os.path.join(folder, "test_data_set_0")
    os.makedirs(data, exist_ok=True)
    nodes = [wire.node("Transpose", "x", "t", "moves"), wire.node("Identity", "t", "y", "gives")]
    graph = wire.graph(nodes, [wire.value("x", (2, 3), kind)], [wire.value("y", (3, 2), kind)])
    write(os.path.join(data, "input_0.pb"), wire.tensor("x", kind, (2, 3), packed(kind, NUMBERS)))
    write(os.path.join(data, "output_0.pb"), wire.tensor("y", kind, (3, 2), packed(kind, expected)))
    return write(os.path.join(folder, "model.onnx"), wire.model(graph, version=21, ir=10))


def check(count, folder, kind):
    right, wrong = transposed(NUMBERS), transposed(NUMBERS)
    wrong[3] += 0.5 # of an imaginary part alone
    model = folder_of(folder, kind, right)
    shape = f" of type {kind}"
    for how in ("--check", "--check=element"):
        result = run("run", folder, how, "--stages", "2")
        count.check(how + shape, None if result.status == DONE else f"{result.status}: {result.out}{result.err}")
    out = os.path.join(folder, "out")
    result = run("run", folder, "--reference", "--output", out)
    head = f"{{'descr': '{KINDS[kind][1]}'".encode()
    with open(os.path.join(out, "test_data_set_0", "y.npy"), "rb") as file:
        y = file.read()
    count.check("written" + shape, None if head in y and y.endswith(packed(kind, right)) else f"{y}")
    source = os.path.join(folder, "x.npy")
    header = f"{{'descr': '{KINDS[kind][1]}', 'fortran_order': False, 'shape': (2, 3), }}".ljust(117) + "\n"
    write(source, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + packed(kind, NUMBERS))
    result = run("run", model, "--input", f"x={source}", "--reference")
    count.check("shown" + shape, None if result.status == DONE and SHOWN in result.out else f"{result.out}{result.err}")
    result = run("run", model, "--input", f"x={source}", "--json")
    pairs = json.loads(result.out)["outputs"][0]["first"]
    count.check("as JSON" + shape, None if pairs == [[1.5, -2], [5, 6], [0, 3], [-7, 8]] else f"{pairs}")
    drawn = json.loads(run("run", model, "--json", "--seed", "3").out)["outputs"][0]["first"]
    parts = [part for pair in drawn for part in pair]
    count.check("drawn" + shape, None if all(1e-3 < abs(part) < 10 for part in parts) else f"{drawn}")
    folder_of(folder, kind, wrong)
    for how, part in (("--check", "largest difference 0.5 at element 1 (5+6i, expected 5+6.5i)"),
                      ("--check=element", "1 elements differ, the first is 1: 5+6i, expected 5+6.5i")):
        result = run("run", folder, how, "--stages", "2")
        said = result.out + result.err
        count.check("wrong" + shape + " " + how, None if result.status == CHECK_FAILED and part in said else f"{result.status}: {said}")


def main():
    need_command()
    count = Count()
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            check(count, folder, kind)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

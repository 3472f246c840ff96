#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=180
"""Training of files that store half types: from float32 masters, with the losses of the same model
written in float32; the model is saved in the types that it had."""
import json
import os
import random
import struct
import sys
import tempfile

from command import DATA, DONE, Count, need_command, run

sys.path.insert(0, os.path.join(DATA, "attacks"))
from wire import FLOAT, floats, graph, model, node, tensor, value  # noqa: E402

FLOAT16, BFLOAT16 = 10, 16
ROWS, IN, WIDE, OUT = 8, 4, 6, 3
numbers = random.Random(7)


def near_bfloat(x):
    """Cut to 8 bits, which float16 has as well for such numbers."""
    return struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", x))[0] & 0xFFFF0000))[0]


def drawn(n):
    return [near_bfloat(numbers.uniform(0.1, 1) * numbers.choice((-1, 1))) for _ in range(n)]


A, B, BIAS, HALF = drawn(IN * WIDE), drawn(WIDE * OUT), drawn(WIDE), [0.75]
X, TARGET = drawn(ROWS * IN), drawn(ROWS * OUT)


def raw(kind, content):
    if kind == FLOAT:
        return floats(*content)
    if kind == FLOAT16:
        return struct.pack(f"<{len(content)}e", *content)
    return b"".join(struct.pack("<f", x)[2:] for x in content)


def write(path, kind, x_kind):
    """x (of x_kind), two layers of `kind`, between them a part in float32, as exporters of norms have it."""
    nodes = [node("Cast", "x", "cast", "cast", to=kind), node("MatMul", "cast a.weight", "p", "p"),
             node("Add", "p a.bias", "q", "q"), node("Tanh", "q", "h", "h"), node("Cast", "h", "wide", "wide", to=FLOAT),
             node("Mul", "wide wide", "square", "square"), node("Cast", "square", "narrow", "narrow", to=kind),
             node("Mul", "narrow scale", "s", "s"), node("MatMul", "s b.weight", "y", "y")]
    weights = [tensor("a.weight", kind, [IN, WIDE], raw(kind, A)), tensor("a.bias", kind, [WIDE], raw(kind, BIAS)),
               tensor("b.weight", kind, [WIDE, OUT], raw(kind, B)), tensor("scale", kind, [], raw(kind, HALF))]
    with open(path, "wb") as file:
        file.write(model(graph(nodes, [value("x", ["batch", IN], x_kind)], [value("y", ["batch", OUT], kind)], weights)))
    return path


def write_npy(path, kind, shape, content):
    head = f"{{'descr': '{'<f4' if kind == FLOAT else '<f2'}', 'fortran_order': False, 'shape': ({', '.join(map(str, shape))},), }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + raw(kind, content))
    return path


def train(path, folder, x_kind, *more):
    x = write_npy(os.path.join(folder, "x.npy"), x_kind, [ROWS, IN], X)
    t = write_npy(os.path.join(folder, "t.npy"), FLOAT, [ROWS, OUT], TARGET)
    return run("train", path, "--data", f"x={x}", "--data", f"t={t}", "--loss", "mse:output=y,target=t", "--batch", str(ROWS),
               "--optimizer", "sgd:lr=0.1", "--steps", "4", "--json", *more)


def steps_of(result):
    return [(step["loss"], step["gradient_norm"]) for step in json.loads(result.out)["steps"]] if result.status == DONE else result.err[-300:]


def check_saved(count, folder, name, path, saved):
    """The file's types; other numbers in the weights that were trained."""
    with open(path, "rb") as file:
        before = file.read()
    with open(saved, "rb") as file:
        after = file.read()
    same = len(before) == len(after)
    changed = sum(a != b for a, b in zip(before, after))
    count.check(f"{name}: saved as it was", None if same and changed > 0 else f"{len(before)} bytes, then {len(after)}; {changed} differ")
    x = write_npy(os.path.join(folder, "x.npy"), FLOAT16 if name == "float16" else FLOAT, [ROWS, IN], X)
    for file in (path, saved):
        result = run("run", file, "--bind", f"batch={ROWS}", "--input", f"x={x}", "--stages", "2", "--reference")
        count.check(f"{name}: {os.path.basename(file)} runs", None if result.status == DONE else result.err[-300:])


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        plain = write(os.path.join(folder, "plain.onnx"), FLOAT, FLOAT)
        for name, kind, x_kind in (("float16", FLOAT16, FLOAT16), ("bfloat16", BFLOAT16, FLOAT)):
            path, saved = write(os.path.join(folder, name + ".onnx"), kind, x_kind), os.path.join(folder, "saved.onnx")
            for way in (["--ranks", "1"], ["--ranks", "2", "--microbatches", "2"], ["--ranks", "2", "--compute", "bf16"],
                        ["--ranks", "2", "--compute", "fp16"], ["--ranks", "2", "--schedule", "2bw", "--microbatches", "4"]):
                wanted = steps_of(train(plain, folder, FLOAT, *way))
                got = train(path, folder, x_kind, *way, "--reference", "--save-model", saved)
                good = isinstance(wanted, list) and steps_of(got) == wanted
                count.check(f"{name}, {' '.join(way)}", None if good else f"{steps_of(got)}, of float32 {wanted}")
            check_saved(count, folder, name, path, saved)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes hostile model files into a folder, for the loader's tests. Standard library only.

DIR/NAME/model.onnx and DIR/NAME/expect.txt, whose one line is
    load TEXT    must be refused, and the message must contain TEXT
    refuse       must be refused, whatever the message says
    runs         must load and run: y = x + w with w = 1..8, test_data_set_0
    any          either way, but no crash, no hang, no wild memory
DIR/truncated/N.onnx and DIR/flipped/N.onnx come from the model given with --model: cut at every
64th byte, and with bytes changed by a seeded generator. They are all of the kind `any`. What is not
a folder with an expect.txt (secret.bin, .blobs) belongs to the others.

usage: make.py DIR [--model FILE] [--flips N]
"""
import argparse
import os
import random
import struct
import sys

import external
import files
import operators
from wire import FLOAT, W_DATA, floats, tensor


def writer(folder):
    def put(name, data):
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)

    return put


def data_set(put):
    x = floats(*(i / 4 for i in range(8)))
    w = struct.unpack("<8f", W_DATA)
    y = floats(*(i / 4 + w[i] for i in range(8)))
    put("test_data_set_0/input_0.pb", tensor("x", FLOAT, [2, 4], x))
    put("test_data_set_0/output_0.pb", tensor("y", FLOAT, [2, 4], y))


def write_all(out, attacks):
    """A maker may write further files; it returns None where it has written the model too."""
    for name, (made, expectation) in attacks.items():
        folder = os.path.join(out, name)
        os.makedirs(folder)
        put = writer(folder)
        data = made(folder, put) if callable(made) else made
        if data is not None:
            put("model.onnx", data)
        if expectation == "runs":
            data_set(put)
        put("expect.txt", expectation.encode() + b"\n")


def mutilate(out, path, flips):
    with open(path, "rb") as file:
        good = file.read()
    put = writer(out)
    for at in range(0, len(good), 64):
        put(f"truncated/{at}.onnx", good[:at])
    rng = random.Random(2024)
    for i in range(flips):
        bad = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 8, 64))):
            bad[rng.randrange(len(bad))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        put(f"flipped/{i}.onnx", bytes(bad))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out_dir")
    parser.add_argument("--model", help="a small good model for truncated/ and flipped/")
    parser.add_argument("--flips", type=int, default=400)
    args = parser.parse_args()
    if os.path.exists(args.out_dir) and os.listdir(args.out_dir):
        print(f"make.py: {args.out_dir} is not empty", file=sys.stderr)
        return 3
    writer(args.out_dir)("secret.bin", W_DATA)
    for attacks in (files.attacks(), operators.ATTACKS, external.ATTACKS):
        write_all(args.out_dir, attacks)
    if args.model:
        mutilate(args.out_dir, args.model, args.flips)
    return 0


if __name__ == "__main__":
    sys.exit(main())

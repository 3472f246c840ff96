#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=180
"""Labels that are the model's own input, shifted: the model still reads its tokens where they stand. The first loss is the
cross entropy of the scores that a run of the model gives, computed here; gradients have the bits of those of labels that
are given apart, under schedules with micro-batches, slices, chunks, replicas and two versions."""
import array
import json
import math
import os
import struct
import sys
import tempfile

from command import DATA, DONE, Count, need_command, run

DEMO = os.path.join(DATA, "demo", "model.onnx")
ROWS, TOKENS, CLASSES = 8, 16, 256
LOSS = "cross-entropy:logits=logits,labels=%s,shift=1"
BOUND = ["--bind", f"batch={ROWS},seq={TOKENS}"]
WAYS = [
    ["--ranks", "1", "--schedule", "gpipe"],
    ["--ranks", "2", "--schedule", "1f1b", "--microbatches", "4"],
    ["--ranks", "2", "--schedule", "terapipe:slices=2", "--microbatches", "2"],
    ["--ranks", "2", "--schedule", "seq1f1b:slices=4", "--microbatches", "2"],
    ["--ranks", "2", "--schedule", "terapipe:lengths=7+9", "--microbatches", "4"],
    ["--ranks", "3", "--schedule", "interleaved:chunks=2", "--microbatches", "3"],
    ["--ranks", "2", "--schedule", "chimera", "--microbatches", "4"],
    ["--ranks", "2", "--schedule", "2bw", "--microbatches", "4"],
    ["--stages", "2", "--replicas", "2,1", "--microbatches", "2"],
    ["--stages", "2", "--replicas", "2", "--microbatches", "4"],
]


def write_npy(path, numbers):
    head = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({ROWS}, {TOKENS}), }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + array.array("q", numbers).tobytes())


def read_floats(path):
    with open(path, "rb") as file:
        body = file.read()
    return array.array("f", body[10 + struct.unpack("<H", body[8:10])[0]:])


def cross_entropy(scores, ids):
    """Position t judged by token t + 1, the mean over all that have one."""
    total = n = 0
    for row in range(ROWS):
        for t in range(TOKENS - 1):
            at = (row * TOKENS + t) * CLASSES
            own = scores[at:at + CLASSES]
            most = max(own)
            total += most + math.log(sum(math.exp(x - most) for x in own)) - own[ids[row * TOKENS + t + 1]]
            n += 1
    return total / n


def train(ids, labels, way, gradients):
    result = run("train", DEMO, "--data", "input_ids=" + ids, *labels, "--batch", str(ROWS), "--steps", "2", "--dropout", "off",
                 *way, "--save-gradients", gradients, "--json")
    if result.status != DONE:
        return f"status {result.status}: {result.err.strip()}", None
    with open(gradients, "rb") as file:
        return [one["loss"] for one in json.loads(result.out)["steps"]], file.read()


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        ids = os.path.join(folder, "ids.npy")
        numbers = [(i * i * 31 + 7 * i) % CLASSES for i in range(ROWS * TOKENS)]
        write_npy(ids, numbers)
        ran = run("run", DEMO, "--input", "input_ids=" + ids, *BOUND, "--output", os.path.join(folder, "out"))
        count.check("run", None if ran.status == DONE else ran.err)
        wanted = cross_entropy(read_floats(os.path.join(folder, "out", "logits.npy")), numbers)
        same, apart = ["--loss", LOSS % "input_ids"], ["--data", "labels=" + ids, "--loss", LOSS % "labels"]
        for way in WAYS:
            name = " ".join(way)
            own, own_bits = train(ids, same, way, os.path.join(folder, "own.safetensors"))
            other, other_bits = train(ids, apart, way, os.path.join(folder, "other.safetensors"))
            count.check(name + ": runs", None if own_bits and other_bits else f"{own}; {other}")
            if not own_bits or not other_bits:
                continue
            count.check(name + ": losses", None if own == other else f"{own} and {other}")
            count.check(name + ": gradients", None if own_bits == other_bits else "other bits")
            near = abs(own[0] - wanted) <= 1e-5 * wanted
            count.check(name + ": cross entropy", None if near else f"{own[0]}, {wanted} of the scores")
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

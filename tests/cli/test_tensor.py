#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""run --tensor: products, tables and heads of every stage divided among ranks, bit-equal to the plan's reference and close to the
uncut model; what cannot be divided or combined is refused by name, with the numbers."""
import glob
import os
import re
import sys

from command import BUILD, DATA, DONE, REFUSED, SHARED, USAGE, Count, need_command, run

MODERN = os.path.join(SHARED, "models", "modern")
MODEL = os.path.join(DATA, "gpt_8block", "model.onnx")
SHAPE = ["--bind", "batch=3,seq=8", "--requests", "4"]
# Model, words: bit-equal to the reference.
EQUAL = [
    ("gpt_8block", ["--tensor", "2"]),
    ("gpt_8block", ["--tensor", "3", "--stages", "2", "--microbatches", "3"]),
    ("llama_8block", ["--tensor", "2", "--ranks", "4", "--schedule", "interleaved:chunks=2", "--microbatches", "2"]),
    ("encoder", ["--tensor", "2", "--stages", "2", "--replicas", "2", "--microbatches", "2", "--schedule", "sequential"]),
    ("llama_8block", ["--tensor", "2", "--stages", "2", "--microbatches", "2", "--transport", "emulated"]),
    ("gpt_8block", ["--tensor", "2", "--stages", "2", "--microbatches", "2", "--device", "emulated:16,async=1,time_us=100"]),
]
# Close to outputs of the uncut model that the folder holds.
CLOSE = [("gpt_8block", "2"), ("llama_8block", "3"), ("encoder_legacy", "2")]
IMPAIRED = ["--plugin", os.path.join(BUILD, "tests", "plugins", "opipe-transport-impaired.so"), "--transport", "impaired"]
REFUSALS = [
    (["--tensor", "0"], USAGE, "tensor"),
    (["--tensor", "2,sequence=1"], USAGE, "tensor"),
    (["--tensor", "2", "--ranks", "3"], REFUSED, "groups of 2 members cannot share 3 ranks"),
    (["--tensor", "2", "--schedule", "terapipe:slices=2"], REFUSED, "token slices"),
    (["--tensor", "2", "--replicas", "2,1"], REFUSED, "replicas that share micro-batches"),
    (["--tensor", "2", "--stages", "1", "--device", "cpu,threads=1", "--device", "cpu,threads=2"], REFUSED, "other numbers of threads"),
    (["--tensor", "2", *IMPAIRED], REFUSED, "has no collectives"),
]


def problem_of(*words):
    """Why a run does not have its reference's bits, or is not close to the uncut model."""
    result = run("run", *words, "--reference")
    problem = result.broken(60, 1024)
    far = re.search(r"largest difference from the uncut model: (\S+)", result.out)
    if not problem and (result.status != DONE or "identical to the plan's reference" not in result.out):
        problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
    elif not problem and (far is None or not float(far[1]) < 1e-4):
        problem = f"not close to the uncut model: {far and far[1]}"
    return problem


def check_equal(count):
    for name, words in EQUAL:
        count.check(f"{name} {' '.join(words)}", problem_of(os.path.join(DATA, name, "model.onnx"), *SHAPE, *words))


def check_modern(count):
    """Every family of exports, by width 2 or 3 and 1, 2 or 4 stages in turn."""
    models = sorted(glob.glob(os.path.join(MODERN, "*", "infer", "model.onnx")))
    if not models:
        count.skip(f"{MODERN} is not there")
    for i, path in enumerate(models):
        words = ["--tensor", str(2 + i % 2), "--stages", str((1, 2, 4)[i % 3]), "--requests", "2"]
        count.check(f"{path.split(os.sep)[-3]} {' '.join(words)}", problem_of(path, *words))


def check_close(count):
    for name, tensor in CLOSE:
        result = run("run", os.path.join(DATA, name), "--check", "--tensor", tensor, "--stages", "2")
        problem = result.broken(60, 1024)
        if not problem and result.status != DONE:
            problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
        count.check(f"{name} close to the uncut model, width {tensor}", problem)


def check_refusals(count):
    os.environ["OPIPE_WITHOUT_COLLECTIVES"] = "1"  # of the impaired transport
    for words, status, text in REFUSALS:
        result = run("run", MODEL, *SHAPE, *words)
        problem = result.broken(30, 512)
        if not problem and (result.status != status or text not in result.err):
            problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
        count.check(f"refused: {' '.join(words)}", problem)


def main():
    need_command()
    count = Count()
    check_equal(count)
    check_modern(count)
    check_close(count)
    check_refusals(count)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

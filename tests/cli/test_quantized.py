#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=180
"""Models that quantize_static wrote (tests/data/quantized): products of quantized tensors become products of integers, at every
cut and unfused within what rounding may do; a scale that is wrong by 1 %, or a zero point by 1, is not within it."""
import json
import os
import shutil
import sys
import tempfile

from command import CHECK_FAILED, DATA, DONE, SHARED, Count, need_command, run

FOLDER = os.path.join(DATA, "quantized")
# how many products and convolutions of integers, and of numbers (attention's, which have no weights)
MODELS = {
    "block_qdq": ({"MatMulInteger": 13, "ConvInteger": 0}, 4),
    "block_qoperator": ({"MatMulInteger": 13, "ConvInteger": 0}, 4),
    "conv_qdq": ({"MatMulInteger": 1, "ConvInteger": 8}, 0),
    "conv_qoperator": ({"MatMulInteger": 1, "ConvInteger": 8}, 0),
}
PRODUCTS = ("MatMul", "FusedMatMul", "Gemm", "Conv")


def expect(count, what, result, status):
    wrong = None if result.status == status else f"{result.status}, not {status}: {(result.out + result.err)[-400:]}"
    count.check(what, result.broken(60, 2048) or wrong)


def operators_of(model, *options):
    result = run("inspect", model, "--json", *options)
    return json.loads(result.out)["operators"] if result.status == DONE else {}


def fused(count, name, integers, numbers):
    """The operators of a model; unfused there are only products of numbers."""
    path = os.path.join(FOLDER, name, "model.onnx")
    with_fusion, without = operators_of(path), operators_of(path, "--no-fuse")
    found = {op: with_fusion.get(op, 0) for op in integers}
    count.check(f"{name}: integers", None if found == integers else f"{found}, not {integers}")
    left = sum(with_fusion.get(op, 0) for op in PRODUCTS)
    count.check(f"{name}: numbers", None if left == numbers else f"{left}, not {numbers}: {with_fusion}")
    all_numbers = sum(without.get(op, 0) for op in PRODUCTS)
    wanted = sum(integers.values()) + numbers
    count.check(f"{name}: unfused", None if all_numbers == wanted else f"{all_numbers}, not {wanted}: {without}")


def checked(count, folder, ways):
    for way in ways:
        expect(count, f"{os.path.basename(folder)} {' '.join(way)}", run("run", folder, "--check", *way), DONE)


def defective(count, scratch, kind, wrong):
    """A data set beside a model that computes something else."""
    folder = os.path.join(scratch, f"{kind}_{wrong}")
    shutil.copytree(os.path.join(FOLDER, f"{kind}_qdq"), folder)
    shutil.copyfile(os.path.join(FOLDER, f"{kind}_{wrong}.onnx"), os.path.join(folder, "model.onnx"))
    expect(count, f"{kind} {wrong}", run("run", folder, "--check"), CHECK_FAILED)


def main():
    need_command()
    count = Count()
    for name, (integers, numbers) in MODELS.items():
        fused(count, name, integers, numbers)
        ways = (["--stages", "1"], ["--stages", "3", "--reference"], ["--stages", "2", "--microbatches", "2", "--reference"],
                ["--stages", "2", "--no-fuse"])  # fmt: skip
        checked(count, os.path.join(FOLDER, name), ways)
    checked(count, os.path.join(FOLDER, "operators"), (["--stages", "1"], ["--stages", "2", "--reference"]))
    with tempfile.TemporaryDirectory() as scratch:
        for kind in ("block", "conv"):
            for wrong in ("wrong_scale", "wrong_zero"):
                defective(count, scratch, kind, wrong)
    trial = os.path.join(SHARED, "trials", "qoperator")
    if os.path.isdir(trial):
        checked(count, trial, (["--stages", "1"], ["--stages", "2", "--microbatches", "1"], ["--stages", "3"]))
    else:
        count.skip(f"{trial} is not there")
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 always
"""No node of the models here, of the modern ones, of GPT-2 and LLaMA lacks a rule of the CUDA backend:
forward, and backward in fp32 and bf16. On the doubles; plans are made, nothing is run."""
import glob
import os
import re
import subprocess
import sys

BUILD = os.environ["OPIPE_BUILD_DIR"]
SOURCE = os.environ["OPIPE_SOURCE_DIR"]
SHARED = os.environ.get("OPIPE_SHARED_DIR", "")
DOUBLES = os.path.join(BUILD, "tests", "cuda")
COMMAND = os.path.join(BUILD, "bin", "onnx-pipe")
SANITIZED = bool(os.environ.get("ASAN_OPTIONS") or os.environ.get("UBSAN_OPTIONS"))


def plan(model, *arguments):
    run = subprocess.run(
        [COMMAND, "plan", model, "--device", "cuda", "--stages", "1",
         "--plugin", os.path.join(DOUBLES, "plugins"), *arguments],
        env=dict(os.environ, OPIPE_CUDA_PATH=DOUBLES), capture_output=True, text=True, check=False)
    return run.returncode, run.stderr.strip()


def output_of(model):
    """The first output of floats; a plan for one that is not there lists those that are."""
    _, said = plan(model, "--train", "--loss", "mse:output=?,target=target")
    found = re.search(r"'([^']*)' b?float", said.split("the outputs are", 1)[-1])
    return found.group(1) if found else None


def check(model, failed):
    status, said = plan(model)
    if status != 0:
        failed.append(f"{model}: {said}")
        return 0
    output = output_of(model)
    if output is None:
        failed.append(f"{model}: which output is of floats?")
        return 0
    for compute in ("fp32", "bf16"):
        status, said = plan(model, "--train", "--loss", f"mse:output={output},target=target",
                            "--compute", compute)
        if status != 0 and "none of 0 initializers" not in said:
            failed.append(f"{model} in {compute}, backward: {said}")
    return 1


def main():
    if not os.path.exists(os.path.join(DOUBLES, "libcuda.so.1")):
        print("SKIP: the doubles of CUDA need a C++ compiler at build")
        return 77
    models = sorted(glob.glob(os.path.join(SOURCE, "tests/data/*/model.onnx")))
    for pattern in ("models/modern/*/train/model.onnx", "models/graphs/gpt2_*/model.onnx",
                    "models/graphs/llama_*/model.onnx"):
        more = sorted(glob.glob(os.path.join(SHARED, pattern))) if SHARED else []
        if not more:
            print(f"SKIP: no {pattern}")
        models += more
    failed = []
    done = sum(check(model, failed) for model in (models[::5] if SANITIZED else models))
    print(f"{done} of {len(models)} models")
    for line in failed:
        print("FAILED:", line)
    return 1 if failed or done == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""Tensor groups of two ranks on the CUDA backend, by its doubles: GPT-2 and LLaMA give the outputs that PyTorch had, and train with the
losses and norms of one rank on the CPU, masks of dropout and parts of a vocabulary too; nothing falls back. Sums are queued on one
GPU, and go through host memory between two."""
import os
import re
import sys

SOURCE = os.environ["OPIPE_SOURCE_DIR"]
sys.path.insert(0, os.path.join(SOURCE, "tests", "cli"))
from command import BUILD, DATA, DONE, SANITIZED, Count, need_command, run  # noqa: E402
from equal import MODERN, labels_of  # noqa: E402

DOUBLES = os.path.join(BUILD, "tests", "cuda")
CUDA = ["--plugin", os.path.join(DOUBLES, "plugins"), "--fallback", "none"]
ONE, TWO = ["--device", "cuda:0"], ["--device", "cuda:0", "--device", "cuda:1"]
# Family, words.
CHECKED = [("gpt2", [*ONE, "--stages", "1"]), ("llama", [*ONE, "--stages", "2"]), ("llama", [*TWO, "--stages", "1"])]
ADAMW = ["--optimizer", "adamw:lr=0.001,decay=0.1", "--clip", "0.5"]
# Family, form, seeds of the doubles: in which order they do what is queued; words.
TRAINED = [
    ("gpt2", "train", "1", [*ADAMW, "--stages", "1"]),
    ("gpt2", "train_dropout", "2", ["--optimizer", "sgd:lr=0.01,momentum=0.9", "--stages", "1", "--dropout", "0.2"]),
    ("llama", "train", "35", [*ADAMW, "--stages", "2"]),
]


def problem_of(result, pattern=None):
    if result.status != DONE:
        return f"status {result.status}: {(result.err or result.out)[-400:]}"
    if pattern is not None and not re.search(pattern, result.out):
        return f"no {pattern}: {result.out[-400:]}"
    return None


def check_outputs(count):
    for family, words in CHECKED:
        folder = os.path.join(MODERN, family, "infer")
        result = run("run", folder, "--check", "--tensor", "2", *CUDA, *words)
        count.check(f"{family} {' '.join(words)}", problem_of(result, "products and tables divided"))


def figures(result):
    return [(float(loss), float(norm)) for loss, norm in re.findall(r"loss (\S+) +norm (\S+)", result.out)]


def near(found, wanted):
    return len(found) == len(wanted) > 0 and all(abs(a - b) <= tolerance * abs(b) for own, other in zip(found, wanted)
                                                 for a, b, tolerance in zip(own, other, (1e-5, 1e-3)))


def check_training(count):
    """By the figures of one rank of the CPU; and the bits of the plan's reference."""
    for family, form, seeds, words in TRAINED:
        folder = os.path.join(MODERN, family, form)
        common = ["train", os.path.join(folder, "model.onnx"), *labels_of(folder), "--steps", "2", "--microbatches", "2"]
        alone = run(*common, *words, "--stages", "1", "--device", "cpu")
        for seed in seeds:
            os.environ["OPIPE_CUDA_DOUBLE_SEED"] = seed
            result = run(*common, *words, *CUDA, *ONE, "--tensor", "2", "--reference")
            problem = problem_of(alone) or problem_of(result, "bit-equal")
            if not problem and not near(figures(result), figures(alone)):
                problem = f"{figures(result)}, on the CPU {figures(alone)}"
            count.check(f"train {family} {form} {' '.join(words)}, seed {seed}", problem)


def check_own_models(count):
    """Where the models are not there: a small one of the project's."""
    model = os.path.join(DATA, "llama_8block", "model.onnx")
    result = run("run", model, "--bind", "batch=2,seq=8", "--requests", "2", "--tensor", "2", "--stages", "1", "--reference", *CUDA, *ONE)
    problem = problem_of(result, "identical to the plan's reference")
    far = re.search(r"largest difference from the uncut model: (\S+)", result.out)
    count.check("llama_8block", problem or (None if far and float(far[1]) < 1e-4 else f"not close: {far and far[1]}"))


def main():
    need_command()
    if not os.path.exists(os.path.join(DOUBLES, "libcuda.so.1")):
        print("SKIP: the doubles of CUDA need a C++ compiler at build")
        return 77
    os.environ |= {"OPIPE_CUDA_PATH": DOUBLES, "OPIPE_CUDA_DOUBLE_ALIKE": "1"}
    count = Count()
    check_own_models(count)
    if not os.path.isdir(os.path.join(MODERN, "gpt2")):
        count.skip(f"{MODERN} is not there")
    elif not SANITIZED:
        check_outputs(count)
        check_training(count)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

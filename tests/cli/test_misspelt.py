#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=60
"""Options and verbs that there are not: what was probably meant is named, nothing where nothing is near; values that
lack, that are empty, or that an option does not take."""
import os

from command import DATA, USAGE, Count, need_command, run

MODEL = os.path.join(DATA, "demo", "model.onnx")

# Misspelt options, and the option that is meant.
MEANT = [
    (["train", MODEL, "--clip-norm", "1"], "clip"),
    (["train", MODEL, "--clip-norm=1"], "clip"),
    (["train", MODEL, "--gradient-clip", "1"], "clip"),
    (["train", MODEL, "--batch-size", "4"], "batch"),
    (["train", MODEL, "--learning-rate", "1"], "optimizer"),
    (["train", MODEL, "--epoch", "4", "--epcohs", "2"], "epochs"),
    (["train", MODEL, "--SAVE", "x"], "save"),
    (["train", MODEL, "--save_model", "x"], "save-model"),
    (["train", MODEL, "--optimiser", "sgd:lr=1"], "optimizer"),
    (["train", MODEL, "--savemodel=x"], "save-model"),
    (["train", MODEL, "--resume-from", "x"], "resume"),
    (["run", MODEL, "--micro-batches", "2"], "microbatches"),
    (["run", MODEL, "--stgaes", "2"], "stages"),
    (["run", MODEL, "--num-stages=2"], "stages"),
    (["run", MODEL, "-stages", "2"], "stages"),
    (["run", MODEL, "--cot", "x"], "cut"),
    (["run", "--jsn", MODEL], "json"),
    (["plan", MODEL, "--no-fused"], "no-fuse"),
    (["inspect", MODEL, "--grph-only"], "graph-only"),
    (["schedule", "list", "--jsno"], "json"),
    (["plugins", "--whyy"], "why"),
]
# Nothing is near, or too much is.
FOREIGN = [
    (["run", MODEL, "--frob"], "'--frob' ('onnx-pipe run --help')"),
    (["run", MODEL, "--verbose"], "'--verbose' ('onnx-pipe run --help')"),
    (["run", MODEL, "--batch-size", "4"], "'--batch-size' ('onnx-pipe run --help')"),
    (["run", MODEL, "--" + "stages" * 50], "'--" + "stages" * 50 + "' ('onnx-pipe run --help')"),
    (["run", MODEL, "---"], "'---' ('onnx-pipe run --help')"),
    (["run", MODEL, "-x"], "'-x' ('onnx-pipe run --help')"),
    (["inspect", MODEL, "-o", "x"], "'-o' ('onnx-pipe inspect --help')"),
    (["run", MODEL, "--s", "2"], "'--s' may be any of --stages, --schedule, --seed, --silence"),
]
VALUES = [
    (["run", MODEL, "--stages"], "run: --stages needs a value: S"),
    (["run", MODEL, "-o"], "run: --output needs a value: DIR"),
    (["run", MODEL, "--json=1"], "run: --json takes no value"),
    (["run", MODEL, "--stages="], "--stages: its value is empty, S is needed"),
    (["train", MODEL, "--save", ""], "--save: its value is empty, DIR is needed"),
    (["train", MODEL, "--data", "text:" + __file__, "--recompute", "all"],
     "--recompute all: one of none|stage|block|attention is needed"),
    (["train", MODEL, "--data", "text:" + __file__, "--compute", "f16"], "--compute f16: one of fp32|bf16|fp16 is needed"),
]
VERBS = [
    (["traim", MODEL], "there is no command 'traim'; did you mean 'train'?"),
    (["runs", MODEL], "there is no command 'runs'; did you mean 'run'?"),
    (["insp", MODEL], "there is no command 'insp'; did you mean 'inspect'?"),
    (["frob"], "there is no command 'frob'; 'onnx-pipe --help' lists them"),
    ([""], "there is no command ''; 'onnx-pipe --help' lists them"),
    (["schedule", "shpw"], "there is no 'schedule shpw'; did you mean 'show'?"),
    (["schedule", "frob", "gpipe"], "there is no 'schedule frob': list, show, lower, check, simulate, draw, convert"),
    (["plan", "expplain", "a.json", "b.json"], "there is no 'plan expplain'; did you mean 'explain'?"),
    (["plan", "explain", "a.json"], "plan explain A.json B.json: two files are needed"),
    (["plan", MODEL, MODEL], "plan takes MODEL|FOLDER, 2 operands were given"),
]


def main():
    need_command()
    count = Count()
    cases = [(arguments, f"; did you mean '--{meant}'?\n") for arguments, meant in MEANT] + FOREIGN + VALUES + VERBS
    for arguments, text in cases:
        result = run(*arguments)
        good = result.status == USAGE and text in result.err and result.err.count("\n") == 1
        wrong = f"{result.status}: {(result.err or result.out)[-300:]}"
        count.check(" ".join(arguments)[:120], result.broken(30, 1024) or (None if good else wrong))
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

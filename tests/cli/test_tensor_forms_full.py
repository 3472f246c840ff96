#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=3600 label=full
"""train --tensor with recomputation, in bf16, with a sharded optimizer and dropout: seven exports x widths 2, 3, 4, plain and in rows x stages 1, 2, 4
x replicas 1, 2. The bits of the plan's reference, close to the uncut model."""
import itertools
import os
import sys

from command import Count, need_command
from equal import labels_of
from test_tensor import MODERN
from test_tensor_full import trained

EXPORTS = ("gpt2/train", "gpt2/train_dropout", "llama/train", "phi3/train", "t5/train", "qwen2_moe/train", "olmo2/train")
WIDTHS = ("2", "3", "4", "2,sequence=1", "3,sequence=1", "4,sequence=1")
ASKED = (["--recompute", "stage"], ["--recompute", "block"], ["--recompute", "attention"], ["--compute", "bf16"], ["--shard", "optimizer"])


def check_export(count, name, folder):
    dropout = ["--dropout", "0.2"] if "dropout" in name else []
    for width, stages, replicas, more in itertools.product(WIDTHS, ("1", "2", "4"), ("1", "2"), ASKED):
        form = ["--tensor", width, "--stages", stages, "--replicas", replicas, *dropout, *more]
        words = [os.path.join(folder, "model.onnx"), *labels_of(folder), "--microbatches", "2", *form]
        count.check(f"train {name} {' '.join(form)}", trained(*words))


def main():
    need_command()
    count = Count()
    for name in EXPORTS:
        folder = os.path.join(MODERN, *name.split("/"))
        if os.path.isdir(folder):
            check_export(count, name, folder)
        else:
            count.skip(f"{folder} is not there")
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

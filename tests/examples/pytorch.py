#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From PyTorch to a pipeline and back: what the guide of that name does, with a small causal transformer.

usage: pytorch.py infer FOLDER       the model for inference, and a set of data with its own outputs, for run --check
       pytorch.py train FILE         the model for training, by the exporter that is the preset (dynamo)
       pytorch.py script FILE        the same by the older exporter (TorchScript)
       pytorch.py lora FILE [TRAINED.onnx]  frozen weights (of a trained file) with adapters of low rank
       pytorch.py loss TEXT IDS.npy  eight rows of the text; PyTorch's loss and gradient norm for them
       pytorch.py back TRAINED.onnx IDS.npy  the trained weights in the module again; its logits for the first row
"""
import os
import sys

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as f

LONGEST = 128


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        batch, seq, hidden = x.shape
        q, k, v = (t.view(batch, seq, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, seq, hidden)))
        return x + self.drop(self.down(f.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, vocab=256, hidden=64, layers=4, heads=4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, hidden), nn.Embedding(LONGEST, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)

    def forward(self, input_ids):
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LoRA(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.lora_A.T @ self.lora_B.T)


def export(model, path, **how):
    """Two rows of 16 tokens are the example."""
    torch.onnx.export(model, (torch.zeros(2, 16, dtype=torch.int64),), path, input_names=["input_ids"], output_names=["logits"], **how)


def dynamo(model, path, **how):
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=LONGEST)}
    export(model, path, dynamo=True, dynamic_shapes={"input_ids": dims}, **how)


def script(model, path):
    axes = {0: "batch", 1: "seq"}
    export(model, path, dynamo=False, opset_version=17, dynamic_axes={"input_ids": axes, "logits": axes},
           training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)


def infer(model, folder):
    data = os.path.join(folder, "test_data_set_0")
    os.makedirs(data, exist_ok=True)
    dynamo(model.eval(), os.path.join(folder, "model.onnx"))
    ids = torch.randint(0, 256, (4, 16))
    with torch.no_grad():
        logits = model(ids)
    for kind, name, array in (("input", "input_ids", ids), ("output", "logits", logits)):
        with open(os.path.join(data, kind + "_0.pb"), "wb") as file:
            file.write(numpy_helper.from_array(array.numpy(), name).SerializeToString())


def load(model, path):
    """Initializers have the parameters' names."""
    arrays = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    model.load_state_dict({name: torch.from_numpy(arrays[name].copy()) for name in model.state_dict()})


def lora(model, path, trained=None):
    if trained is not None:
        load(model, trained)
    for block in model.blocks:
        block.qkv = LoRA(block.qkv)
    dynamo(model.train(), path, optimize=False)


def loss(model, text, ids_path):
    with open(text, "rb") as file:
        ids = torch.tensor(list(file.read(256))).view(8, 32)
    mean = f.cross_entropy(model.eval()(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    mean.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    np.save(ids_path, ids.numpy())
    print(f"loss {mean:.7f}  norm {norm:.5f}")


def back(model, path, ids_path):
    load(model, path)
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(np.load(ids_path)))
    print("logits", " ".join(f"{x:.6g}" for x in logits.flatten()[:4].tolist()))


def main():
    verbs = {"infer": infer, "train": lambda model, path: dynamo(model.train(), path, optimize=False),
             "script": lambda model, path: script(model.train(), path), "lora": lora, "loss": loss, "back": back}
    if len(sys.argv) < 3 or sys.argv[1] not in verbs:
        print(__doc__, file=sys.stderr)
        return 2
    torch.manual_seed(0)
    verbs[sys.argv[1]](GPT(), *sys.argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(main())

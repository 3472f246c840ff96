# SPDX-License-Identifier: Apache-2.0
"""A module of PyTorch, trained as a pipeline, and its weights in the module again: torch_train.py"""
import onnxpipe
import torch
from torch import nn

module = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 64))
ids = torch.randperm(192).reshape(16, 12) % 64  # every token three times
model = onnxpipe.from_torch(module, ids, train=True, output_names=["logits"])
training = onnxpipe.Training(loss="cross-entropy", output="logits", labels="labels", lr=1e-2)
with onnxpipe.Trainer(model, training=training, stages=2, microbatches=2, dims={"batch": 16}) as trainer:
    for step in trainer.steps({model.inputs[0].name: ids, "labels": (ids + 1) % 64} for _ in range(20)):
        print(f"step {step.step}: loss {step.loss:.4f}")
    weights = {name: torch.from_dlpack(trainer.parameters[name]) for name in module.state_dict()}
module.load_state_dict(weights)
with torch.no_grad():
    print("next of 0 to 4:", module(torch.arange(5)).argmax(-1).tolist())

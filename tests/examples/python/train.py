# SPDX-License-Identifier: Apache-2.0
"""Training in two stages, a checkpoint, and the trained file: train.py MODEL.onnx FOLDER"""
import sys
import numpy as np
import onnxpipe

ids = (np.arange(8)[:, None] + np.arange(16)) % 5  # what it learns to repeat: 0 1 2 3 4 0 ...
TRAINING = onnxpipe.Training(loss="cross-entropy", output="logits", labels="labels", shift=True, optimizer="adamw", lr=3e-3)


def main(path: str, folder: str) -> None:
    model = onnxpipe.Model(path)
    with onnxpipe.Trainer(model, training=TRAINING, stages=2, schedule="1f1b", microbatches=4, dims={"batch": 8, "seq": 16}) as trainer:
        for step in trainer.steps({"input_ids": ids, "labels": ids} for _ in range(20)):
            print(f"step {step.step}: loss {step.loss:.4f}, gradient norm {step.gradient_norm:.3f}")
        trainer.save(f"{folder}/checkpoint", position=[20])
        trainer.save_model(f"{folder}/trained.onnx")


main(*sys.argv[1:])

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=600 label=full
"""torch: DLPack both ways with addresses compared, exports of from_torch and from_transformers (configurations, nothing is fetched)."""
import os
import subprocess
import sys
import tempfile

import kit


def inside():
    import numpy as np
    import onnxpipe as op
    import torch
    import transformers as hf

    def lent():
        """In place, both ways: the library is given torch's address, torch sees numpy's."""
        ids = torch.arange(16).reshape(2, 8)
        tensor, keep = op._library.ffi().new("opipe_tensor *"), []
        op._tensors.fill(tensor[0], ids, "ids", keep)
        assert int(op._library.ffi().cast("uintptr_t", tensor.data)) == ids.data_ptr()
        for kind in (torch.bfloat16, torch.float16, torch.float32):
            own = torch.ones(3, 4, dtype=kind)
            op._tensors.fill(tensor[0], own.T, "own", keep)
            assert int(op._library.ffi().cast("uintptr_t", tensor.data)) == own.data_ptr()
        with op.Session(op.Plan(op.Model(kit.DEMO), stages=2)) as session:
            logits = session.run({"input_ids": ids})["logits"]
            back = torch.from_dlpack(logits)
            assert back.data_ptr() == logits.ctypes.data
            out = torch.empty(2, 8, 256)
            session.run({"input_ids": ids}, outputs={"logits": out})
            assert torch.equal(out, back), "written into torch's memory"
            kit.raises(TypeError, ["input_ids", "grad"], session.run, torch.ones(2, 8, requires_grad=True))
        bf16 = torch.from_dlpack(op.as_tensor(np.ones(4, np.float32)))
        assert bf16.sum() == 4

    def modules():
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Embedding(50, 16), torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 50)
        )
        ids = torch.randint(0, 50, (1, 6))  # one row: the batch is free all the same
        model = op.from_torch(module, ids)
        with op.Session(op.Plan(model, dims={"batch": 3})) as session:
            assert next(iter(session.run(torch.cat([ids] * 5)).values())).shape == (5, 6, 50)
        module.train()
        model = op.from_torch(module, ids, train=True, output_names=["logits"])
        assert module.training
        training = op.Training(loss="cross-entropy", output="logits", labels="labels", lr=1e-2)
        with op.Trainer(model, training=training, stages=2, microbatches=2, dims={"batch": 4}) as trainer:
            batch = {model.inputs[0].name: ids.repeat(4, 1), "labels": ids.repeat(4, 1)}
            steps = [trainer.step(batch) for _ in range(10)]
            assert steps[-1].loss < steps[0].loss
            assert set(trainer.parameters) == {name for name, _ in module.named_parameters()}
        kit.raises(op.InvalidError, ["off by", "is allowed"], op.from_torch, module, ids, tolerance=1e-30)
        kit.raises(TypeError, ["no tensor"], op.from_torch, module, ())

    def causal():
        configurations = [
            hf.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=64),
            hf.LlamaConfig(
                num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, vocab_size=100, intermediate_size=64,
                max_position_embeddings=64,
            ),
        ]  # fmt: skip
        for configuration in configurations:
            assert op.from_transformers(configuration).outputs[0].name == "logits"
            trained = op.from_transformers(configuration, train=True)
            with op.Trainer(
                trained, training=op.Training(loss="cross-entropy", output="logits", labels="labels", shift=True), stages=2
            ) as trainer:
                shape = trainer.plan.model.inputs[0].shape
                ids = torch.randint(0, 100, shape)
                assert trainer.step({"input_ids": ids, "labels": ids}).loss > 0
            model = op.from_transformers(configuration, past=True)
            pairs = op.cache_pairs(model, 4096)
            assert len(pairs) == 4
            decode(model, pairs)
        kit.raises(TypeError, ["int"], op.from_transformers, 7)

    def decode(model, pairs):
        """Token by token with what streams keep, as all at once."""
        ids = np.arange(6).reshape(1, 6) * 7 % 100
        plan = op.Plan(model, stages=2, states=pairs, streams=1, dims={"batch": 1, "seq": 1, "past": 1, "total": 2})
        with op.Session(plan) as session:
            empty = {}
            for info in model.inputs:
                if info.name.startswith("past_"):
                    empty[info.name] = np.zeros([1, info.shape[1], 0, info.shape[3]], np.float32)
            whole = session.run({"input_ids": ids, "attention_mask": np.ones((1, 6), np.int64), **empty})["logits"]
            state = session.state()
            for token in range(6):
                given = {"input_ids": ids[:, token : token + 1], "attention_mask": np.ones((1, token + 1), np.int64)}
                found = session.run({**given, **(empty if token == 0 else {})}, state=state)["logits"]
                assert np.abs(found[0, 0] - whole[0, token]).max() <= 1e-4 * np.abs(whole).max()

    for part in (lent, modules, causal):
        part()
        print(part.__name__, "passed", flush=True)


def main():
    if len(sys.argv) > 1:
        inside()
        return 0
    python = os.path.join(kit.SOURCE, "build", "venv", "real", "bin", "python")
    if not os.path.exists(python):
        kit.skip("no build/venv/real with torch and transformers (./dev real)")
    kit.begin()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cffi", "_cffi_backend"):  # of this Python, for one that has torch
            file = __import__(name).__file__
            source = os.path.dirname(file) if file.endswith("__init__.py") else file
            os.symlink(source, os.path.join(folder, os.path.basename(source)))
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([kit.PACKAGE, folder]), HF_HUB_OFFLINE="1")
        subprocess.run([python, "-B", __file__, "inside"], check=True, env=environment)
        script = os.path.join(kit.SOURCE, "tests", "examples", "python", "torch_train.py")
        said = subprocess.run([python, "-B", script], check=True, env=environment, capture_output=True, text=True).stdout
        assert "next of 0 to 4: [1, 2, 3, 4, 5]" in said, said
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports the small transformers of tests/data, and makes the hand-built models of tests/data/odd.

Run by hand in a virtual environment with requirements.txt; never by the tests. Weights and
inputs are seeded, outputs are ONNX Runtime's with graph optimisation disabled and are checked
against torch. A second run with the same versions writes the same bytes.

usage: export.py [--only NAME,...] [--out DIR] [--list]
"""
import argparse
import copy
import logging
import os
import sys
import warnings

import numpy as np
import onnx
import torch
from onnxruntime.transformers import optimizer

import build
import graphs
import modules
import odd
import odd_batch
import odd_forms
import odd_fused
import odd_old
import odd_refused
import odd_values

HERE = os.path.dirname(os.path.abspath(__file__))
ROW = {0: "batch", 1: "seq"}


class Case:
    """One model: how it is made, what goes in, and how it is exported."""

    def __init__(
        self,
        make,
        seed,
        inputs,
        outputs,
        sets,
        *,
        opset=20,
        dtype=torch.float32,
        legacy=False,
        optimize=True,
        external=False,
        dims=None,
        tol=1e-5,
        fuse=None,
    ):
        self.make, self.seed, self.inputs, self.outputs, self.sets = (
            make,
            seed,
            inputs,
            outputs,
            sets,
        )
        self.opset, self.dtype, self.legacy, self.optimize = opset, dtype, legacy, optimize
        self.external, self.tol, self.fuse = external, tol, fuse
        self.dims = dims or {name: ROW for name in inputs}


def ids(vocab):
    def make(rng, batch, seq):
        return rng.integers(0, vocab, (batch, seq)).astype(np.int64)

    return make


def padding(rng, batch, seq):
    """Ones, but the last third of the last row."""
    mask = np.ones((batch, seq), np.int64)
    mask[-1, seq - seq // 3 :] = 0
    return mask


def kinds(rng, batch, seq):
    return (np.arange(seq)[None, :] >= rng.integers(1, seq, (batch, 1))).astype(np.int64)


def half_seq(make):
    """Another length for the decoder, so that no code can mix the two up."""
    return lambda rng, batch, seq: make(rng, batch, max(1, seq // 2))


def past(heads, head):
    """The keys or values of seq + 2 earlier tokens."""
    return lambda rng, batch, seq: rng.standard_normal((batch, heads, seq + 2, head)).astype(
        np.float32
    )


def pixels(rng, batch, seq):
    return rng.standard_normal((batch, 3, 16, 16)).astype(np.float32)


def gpt(blocks, width, heads, vocab, positions, kind=modules.Gpt):
    return lambda: kind(blocks, width, heads, vocab, positions)


def llama(blocks, width, heads, kv_heads, hidden, vocab):
    return lambda: modules.Llama(blocks, width, heads, kv_heads, hidden, vocab)


def encoder(vocab):
    return lambda: modules.Encoder(2, 16, 2, vocab, 32)


KV = [f"past_{kind}_{i}" for i in range(2) for kind in "kv"]
KV_OUT = [f"present_{kind}_{i}" for i in range(2) for kind in "kv"]
TOKENS = {"input_ids": ids(256)}
FEW = {"input_ids": ids(96)}
TEXT = {"input_ids": ids(528), "attention_mask": padding, "token_type_ids": kinds}
SHORT_TEXT = {**TEXT, "input_ids": ids(96)}
PAIR = {"input_ids": ids(96), "attention_mask": padding, "decoder_input_ids": half_seq(ids(96))}
PAIR_DIMS = {
    "input_ids": ROW,
    "attention_mask": ROW,
    "decoder_input_ids": {0: "batch", 1: "target"},
}
PAST = {"input_ids": ids(96), **{name: past(2, 8) for name in KV}}
PAST_DIMS = {"input_ids": ROW, **{name: {0: "batch", 2: "past"} for name in KV}}
LOGITS = ["logits"]
TWO = [(2, 5), (3, 3)]

# A head tied to an embedding of at most 8192 elements is untied by the exporter: hence 344 x 24 and
# 528 x 16. The others are kept small.
CASES = {
    "demo": Case(gpt(8, 56, 7, 256, 64), 1, TOKENS, LOGITS, [(2, 12), (3, 7)]),
    "gpt_8block": Case(
        gpt(8, 24, 4, 344, 64), 2, {"input_ids": ids(344)}, LOGITS, [(2, 6), (3, 3)]
    ),
    "llama_8block": Case(llama(8, 24, 4, 2, 48, 256), 3, TOKENS, LOGITS, [(2, 6), (3, 3)]),
    "encoder": Case(encoder(528), 4, TEXT, ["scores"], [(2, 4), (3, 3)]),
    "encoder_decoder": Case(
        lambda: modules.T5(2, 16, 2, 96), 5, PAIR, LOGITS, [(2, 6), (3, 9)], dims=PAIR_DIMS
    ),
    "vision": Case(
        lambda: modules.Vision(2, 16, 2, 10),
        6,
        {"pixels": pixels},
        ["classes"],
        [(2, 1), (1, 1)],
        dims={"pixels": {0: "batch"}},
    ),
    "gpt_past": Case(
        gpt(2, 16, 2, 96, 32, kind=modules.GptPast),
        7,
        PAST,
        LOGITS + KV_OUT,
        [(2, 3), (3, 1)],
        dims=PAST_DIMS,
    ),
    "gpt_legacy": Case(gpt(2, 16, 2, 96, 32), 8, FEW, LOGITS, TWO, opset=14, legacy=True),
    "encoder_legacy": Case(encoder(96), 9, SHORT_TEXT, ["scores"], TWO, opset=12, legacy=True),
    "encoder_contrib": Case(
        encoder(96),
        15,
        SHORT_TEXT,
        ["scores"],
        TWO,
        opset=12,
        legacy=True,
        fuse={"model_type": "bert", "num_heads": 2, "hidden_size": 16},
    ),
    "gpt_raw": Case(gpt(2, 16, 2, 96, 32), 10, FEW, LOGITS, TWO, opset=18, optimize=False),
    "llama_attention": Case(llama(2, 16, 4, 2, 32, 96), 11, FEW, LOGITS, TWO, opset=23),
    "llama_external": Case(llama(2, 16, 4, 2, 32, 96), 12, FEW, LOGITS, TWO, external=True),
    "llama_fp16": Case(
        llama(2, 16, 4, 2, 32, 96), 13, FEW, LOGITS, TWO, dtype=torch.float16, tol=2e-3
    ),
    "gpt_bf16": Case(gpt(2, 16, 2, 96, 32), 14, FEW, LOGITS, TWO, dtype=torch.bfloat16, tol=2e-2),
}


def example(case, number):
    """The inputs of data set `number`, as arrays."""
    rng = np.random.default_rng([case.seed, number])
    return {name: make(rng, *case.sets[number]) for name, make in case.inputs.items()}


def to_torch(case, inputs):
    tensors = [torch.from_numpy(value) for value in inputs.values()]
    return tuple(t.to(case.dtype) if t.is_floating_point() else t for t in tensors)


def export_model(case, model, path):
    args, names = to_torch(case, example(case, 0)), list(case.inputs)
    if case.legacy:
        dims = dict(case.dims, **{case.outputs[0]: ROW})
        torch.onnx.export(
            model,
            args,
            path,
            dynamo=False,
            opset_version=case.opset,
            input_names=names,
            output_names=case.outputs,
            dynamic_axes=dims,
        )
        if case.fuse:
            fused = optimizer.optimize_model(path, opt_level=0, **case.fuse).model
            fused.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
            return fused
        return onnx.load(path)
    named = {}
    shapes = tuple(
        {
            axis: named.setdefault(dim, torch.export.Dim(dim, min=1, max=64))
            for axis, dim in case.dims[name].items()
        }
        for name in names
    )
    if isinstance(model, modules.GptPast):
        shapes = (shapes[0], shapes[1:])
    program = torch.onnx.export(
        model,
        args,
        dynamo=True,
        opset_version=case.opset,
        input_names=names,
        output_names=case.outputs,
        dynamic_shapes=shapes,
        optimize=case.optimize,
        verbose=False,
    )
    return program.model_proto


def save(case, model, folder):
    path = os.path.join(folder, "model.onnx")
    model = graphs.strip(model)
    if case.external:
        onnx.save(
            model, path, save_as_external_data=True, location="model.onnx.data", size_threshold=256
        )
    else:
        graphs.write_bytes(path, model.SerializeToString(deterministic=True))
    onnx.checker.check_model(path)
    return path


def torch_outputs(case, model, inputs):
    with torch.no_grad():
        result = model(*to_torch(case, inputs))
    result = result if isinstance(result, tuple) else (result,)
    return dict(zip(case.outputs, result))


def largest_gap(got, want):
    """max|a-b| / max|b| over all outputs."""
    gap = 0.0
    for name, b in want.items():
        a, b = np.asarray(got[name], np.float64), b.double().numpy()
        if a.shape != b.shape:
            raise ValueError(f"{name}: shape {a.shape}, torch has {b.shape}")
        gap = max(gap, np.abs(a - b).max() / np.abs(b).max())
    return gap


def half_gap(case, model, folder, inputs, truth):
    """How far a run in the half type is off: ONNX Runtime's in fp16, torch's in bf16, which the
    former has no kernels for."""
    if case.dtype == torch.bfloat16:
        got = {name: value.double() for name, value in torch_outputs(case, model, inputs).items()}
    else:
        runner = graphs.session(os.path.join(folder, "model.onnx"))
        got = dict(zip(case.outputs, runner.run(None, inputs)))
    return largest_gap(got, truth)


def half_proto(name, value):
    """A 16-bit float tensor; numpy has no bfloat16."""
    kind = onnx.TensorProto.BFLOAT16 if value.dtype == torch.bfloat16 else onnx.TensorProto.FLOAT16
    bits = value.contiguous().view(torch.int16).numpy().tobytes()
    return onnx.helper.make_tensor(name, kind, value.shape, bits, raw=True)


def write_sets(case, model, folder):
    """ONNX Runtime's outputs in fp32. For half types the float64 model's outputs, rounded once:
    what a kernel rounds in between differs from one runtime to the next."""
    sets = [example(case, i) for i in range(len(case.sets))]
    if case.dtype == torch.float32:
        results = graphs.run_sets(folder, sets)
        return max(
            largest_gap(got, torch_outputs(case, model, inputs))
            for got, inputs in zip(results, sets)
        )
    wide, gap = copy.deepcopy(model).double(), 0.0
    for number, inputs in enumerate(sets):
        truth = {
            name: value.to(case.dtype) for name, value in torch_outputs(case, wide, inputs).items()
        }
        gap = max(gap, half_gap(case, model, folder, inputs, truth))
        graphs.write_set(
            folder, number, inputs, {name: half_proto(name, value) for name, value in truth.items()}
        )
    return gap


def make_case(name, case, out):
    folder = graphs.fresh(os.path.join(out, name))
    model = modules.fill(case.make(), case.seed).to(case.dtype)
    path = os.path.join(folder, "model.onnx")
    proto = export_model(case, model, path)
    save(case, proto, folder)
    gap = write_sets(case, model, folder)
    if gap > case.tol:
        raise ValueError(
            f"{name}: ONNX Runtime and torch differ by {gap:.1e}, more than {case.tol}"
        )
    params = sum(p.numel() for p in model.parameters())
    print(
        f"{name:16} opset {case.opset} nodes {len(proto.graph.node):4} parameters {params:7} "
        f"model {os.path.getsize(path):8} folder {graphs.folder_bytes(folder):8} gap {gap:.1e}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", help="names, separated by commas; `odd` is one of them")
    parser.add_argument("--out", default=os.path.dirname(HERE))
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print("\n".join([*CASES, "odd"]))
        return 0
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    names = args.only.split(",") if args.only else [*CASES, "odd"]
    for name in names:
        if name == "odd":
            build.make_all(
                os.path.join(args.out, "odd"),
                {**odd.MODELS, **odd_values.MODELS, **odd_refused.MODELS, **odd_batch.MODELS,
                 **odd_fused.MODELS, **odd_forms.MODELS},  # fmt: skip
            )
            build.make_all(os.path.join(args.out, "old"), odd_old.MODELS)
        else:
            make_case(name, CASES[name], args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

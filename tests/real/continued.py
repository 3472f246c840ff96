#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Other programs' greedy answers to prompts: transformers', of exported families; ONNX Runtime GenAI, of its builder's folders.

DIR/FAMILY/ gets model.onnx, a decoder of ../shared/models/modern (generate.py there) with room for long answers, and answers.json;
DIR/genai-FORM/ a folder of GenAI's builder and answers.json: {"prompts": [[id]], "penalties": [of repetition, which keeps a tiny
model from saying one word for ever], "answers": [[id]], "margins": [[by how much the likeliest was ahead of the second]], "largest":
[[largest |logit|]]}. Folders with answers are kept; a refusal is printed.

Run by build/venv/real's Python with build/venv/genai's packages on PYTHONPATH.

usage: continued.py DIR GENERATE.PY [--only NAME,...] [--tokens N]
"""
import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile

import numpy as np
import torch
import transformers

FAMILIES = ("bloom", "gemma2", "gpt2", "gptneox", "llama", "olmo2", "opt", "phi3", "qwen2", "qwen2_moe")
# ONNX Runtime computes half precision on a CPU only where no heads are repeated: it reuses those buffers for other shapes.
FORMS = {"fp32": ("fp32", {}, {}), "fp16": ("fp16", {}, {"num_key_value_heads": 4}), "int4": ("int4", {"accuracy_level": "1"}, {})}
ROOM, LENGTHS, PENALTIES = 256, (1, 7, 40), (1.0, 5.0)
NUMBERS = {
    "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 3, "intermediate_size": 256,
    "vocab_size": 512, "max_position_embeddings": ROOM, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "attention_bias": False, "mlp_bias": False, "initializer_range": 0.12,
}  # fmt: skip


def asked(vocabulary):
    """(prompt, penalty)"""
    return [([3 + (11 * k + 5 * n) % (vocabulary - 3) for k in range(n)], penalty) for n in LENGTHS for penalty in PENALTIES]


class Roomy:
    """transformers, but for the lengths that its configurations are made for."""

    def __getattr__(self, name):
        found = getattr(transformers, name)
        if not name.endswith("Config"):
            return found

        def make(**numbers):
            for key in ("max_position_embeddings", "n_positions", "original_max_position_embeddings"):
                if key in numbers:
                    numbers[key] = ROOM
            return found(**numbers)

        return make


def margins(logits, ids, penalty):
    """The lead of the likeliest, and the largest |logit|."""
    logits, seen = np.array(logits, np.float64), sorted(set(ids))
    logits[seen] = np.where(logits[seen] < 0, logits[seen] * penalty, logits[seen] / penalty)
    two = np.sort(logits)[-2:]
    return float(two[1] - two[0]), float(np.abs(logits[np.isfinite(logits)]).max())


def keep(folder, requests, answers, ahead):
    prompts, penalties = zip(*requests)
    pairs = [[list(pair) for pair in zip(*one)] for one in ahead]
    with open(os.path.join(folder, "answers.json"), "w", encoding="utf-8") as file:
        found = {"prompts": prompts, "penalties": penalties, "answers": answers}
        json.dump({**found, "margins": [p[0] for p in pairs], "largest": [p[1] for p in pairs]}, file)


# ---- transformers ----


def of_transformers(modern, family, folder, n):
    spec = modern.FAMILIES[family]
    exported = modern.make_model(spec, family, False)
    sample = {k: torch.from_numpy(a) for k, a in spec["inputs"](0, *spec["shapes"][0]).items()}
    with torch.no_grad():
        program, _ = modern.export_dynamo(exported, spec, sample)
    modern.ir.save(program.model, os.path.join(folder, "model.onnx"))
    plain = spec["make"](spec.get("impl") or "sdpa").eval()
    plain.load_state_dict(exported.state_dict())
    plain.generation_config.eos_token_id = plain.config.eos_token_id = None  # no id ends an answer, and none is avoided
    requests, answers, ahead = asked(plain.config.vocab_size), [], []
    for prompt, penalty in requests:
        with torch.no_grad():
            found = plain.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), max_new_tokens=n,
                do_sample=False, use_cache=False, repetition_penalty=penalty, output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
        ids = [int(i) for i in found.sequences[0]]
        answers.append(ids[len(prompt):])
        ahead.append([margins(row[0].float().numpy(), ids[:len(prompt) + k], penalty) for k, row in enumerate(found.logits)])
    keep(folder, requests, answers, ahead)


# ---- GenAI ----


def of_genai(form, folder, n):
    import decoders
    import onnxruntime_genai as og

    precision, options, numbers = FORMS[form]
    with tempfile.TemporaryDirectory() as source:
        decoders.checkpoint(source, "llama", {**NUMBERS, **numbers}, 5)
        decoders.build(source, folder, precision, options)
    config = og.Config(folder)
    model = og.Model(config)
    requests, answers, ahead = asked(NUMBERS["vocab_size"]), [], []
    for prompt, penalty in requests:
        params = og.GeneratorParams(model)
        params.set_search_options(do_sample=False, repetition_penalty=penalty, max_length=len(prompt) + n, min_length=len(prompt) + n)
        generator = og.Generator(model, params)
        generator.append_tokens(np.array([prompt], np.int32))
        rows = []
        for _ in range(n):
            row = np.array(generator.get_logits(), np.float32).reshape(-1, NUMBERS["vocab_size"])[-1]
            row[NUMBERS["eos_token_id"]] = -np.inf  # min_length keeps it out
            rows.append(margins(row, [int(i) for i in generator.get_sequence(0)], penalty))
            generator.generate_next_token()
        answers.append([int(i) for i in generator.get_sequence(0)[len(prompt):]])
        ahead.append(rows)
    keep(folder, requests, answers, ahead)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder")
    parser.add_argument("modern", help="generate.py of models/modern")
    parser.add_argument("--only", default="")
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    spec = importlib.util.spec_from_file_location("modern", args.modern)
    modern = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(modern)
    modern.T = Roomy()
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    for name in [*FAMILIES, *(f"genai-{form}" for form in FORMS)]:
        folder = os.path.join(args.folder, name)
        if (args.only and name not in args.only.split(",")) or os.path.exists(os.path.join(folder, "answers.json")):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        try:
            if name in FAMILIES:
                of_transformers(modern, name, folder, args.tokens)
            else:
                of_genai(name[6:], folder, args.tokens)
        except Exception as reason:  # of whatever other program
            print(f"NOT MADE {name}: {type(reason).__name__}: {str(reason).strip()[-300:]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decoders as ONNX Runtime GenAI's model builder writes them, of random small configurations.

DIR/NAME/ gets model.onnx, meta.json (pairs of past and present, what was drawn) and tokens_P.npy, logits_P.npy for prompts of P
tokens: float32 [P + STEPS - 1, vocabulary], ONNX Runtime's logits without its optimiser, of the prompt and of single tokens
behind it, with keys and values that grow. The k-th decoder is of the k-th kind, whose numbers are drawn by SEED and k.

Run by build/venv/real's Python with build/venv/genai's packages on PYTHONPATH. Decoders that the builder refuses are printed as
NOT BUILT.

usage: decoders.py DIR [--count N] [--only NAME,...] [--seed N]
"""
import argparse
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import types
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
import transformers

PROMPTS, STEPS, CONTEXT = (1, 7, 64), 8, 128


def common(rng):
    """Numbers that every decoder has."""
    kv = int(rng.choice([1, 2, 3]))
    heads = kv * int(rng.choice([1, 2, 4]))
    head_dim = int(rng.choice([16, 32, 48, 64]))  # ONNX Runtime rotates multiples of 16 alone
    return {
        "hidden_size": heads * head_dim,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "num_hidden_layers": int(rng.integers(2, 5)),
        "intermediate_size": 32 * int(rng.integers(2, 9)),
        "vocab_size": 8 * int(rng.integers(15, 40)) + 1,  # odd: the builder takes any product of so many columns for the head
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": bool(rng.integers(2)),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": float(1.5 / np.sqrt(heads * head_dim)),  # much more, and layers blow rounding up
    }


def window(rng):
    return int(rng.choice([4, 9, 32]))


def rope(rng, **more):
    return {"rope_theta": float(rng.choice([100.0, 10000.0])), "rope_type": "default", **more}


def llama(rng):
    found = common(rng)
    found["rope_parameters"] = [
        rope(rng),
        rope(rng, rope_type="linear", factor=2.0),
        rope(rng, rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ][rng.integers(3)]
    return {**found, "attention_bias": bool(rng.integers(2)), "mlp_bias": bool(rng.integers(2))}


def mistral(rng):
    return {**common(rng), "rope_parameters": rope(rng), "sliding_window": window(rng)}


def kinds_of_layers(rng, n):
    """Local and global attention in turns, which is which by chance."""
    first = int(rng.integers(2))
    return [("sliding_attention", "full_attention")[(k + first) % 2] for k in range(n)]


def qwen2(rng):
    found = {**common(rng), "rope_parameters": rope(rng)}
    layers = kinds_of_layers(rng, found["num_hidden_layers"])
    return {**found, "use_sliding_window": True, "sliding_window": window(rng), "max_window_layers": 0, "layer_types": layers}


def qwen3(rng):
    return {**common(rng), "rope_parameters": rope(rng), "head_dim": int(rng.choice([16, 32]))}


def phi(rng):
    found = {**common(rng), "rope_parameters": rope(rng, partial_rotary_factor=0.5), "partial_rotary_factor": 0.5}
    del found["head_dim"]
    heads = found["num_attention_heads"] = found["num_key_value_heads"]
    return {**found, "hidden_size": heads * 32, "tie_word_embeddings": False}


def phi3(rng):
    found = {**common(rng), "rope_parameters": rope(rng, partial_rotary_factor=1.0), "original_max_position_embeddings": CONTEXT}
    del found["head_dim"]
    return {**found, "sliding_window": window(rng)}


def phi3_long(rng):
    found = phi3(rng)
    half = found["hidden_size"] // found["num_attention_heads"] // 2
    factors = {name: [float(x) for x in rng.uniform(1, 3, half)] for name in ("short_factor", "long_factor")}
    found["original_max_position_embeddings"] = 32
    found["rope_parameters"] = rope(rng, rope_type="longrope", type="longrope", partial_rotary_factor=1.0,
                                    original_max_position_embeddings=32, **factors)
    return found


def gemma(rng):
    return {**common(rng), "rope_parameters": rope(rng), "hidden_activation": "gelu_pytorch_tanh"}


def gemma2(rng):
    found = {**common(rng), "rope_parameters": rope(rng), "sliding_window": window(rng), "attn_logit_softcapping": 5.0}
    found["layer_types"] = kinds_of_layers(rng, found["num_hidden_layers"])
    return {**found, "final_logit_softcapping": 8.0, "query_pre_attn_scalar": int(rng.choice([16, 24]))}


def gemma3(rng):
    found = {**common(rng), "sliding_window": window(rng), "query_pre_attn_scalar": int(rng.choice([16, 24]))}
    found["layer_types"] = kinds_of_layers(rng, found["num_hidden_layers"])
    found["rope_parameters"] = {"sliding_attention": rope(rng), "full_attention": rope(rng, rope_theta=1e6)}
    return found


def granite(rng):
    return {**common(rng), "rope_parameters": rope(rng), "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
            "attention_multiplier": 0.2}


def nemotron(rng):
    return {**common(rng), "rope_parameters": rope(rng, partial_rotary_factor=0.5), "partial_rotary_factor": 0.5, "head_dim": 32}


def smollm3(rng):
    found = {**common(rng), "rope_parameters": rope(rng), "use_sliding_window": True, "sliding_window": window(rng)}
    layers = kinds_of_layers(rng, found["num_hidden_layers"])
    # The builder writes layers that rotate alone: for others it asks for an input that it has left out.
    return {**found, "layer_types": layers, "no_rope_layers": [1] * len(layers)}


def plain(rng):
    return {**common(rng), "rope_parameters": rope(rng)}


# kind: numbers, names of transformers' classes before Config and ForCausalLM
KINDS = {
    "llama": (llama, "Llama"),
    "qwen2": (qwen2, "Qwen2"),
    "mistral": (mistral, "Mistral"),
    "phi3": (phi3, "Phi3"),
    "gemma": (gemma, "Gemma"),
    "qwen3": (qwen3, "Qwen3"),
    "phi": (phi, "Phi"),
    "gemma2": (gemma2, "Gemma2"),
    "phi3_long": (phi3_long, "Phi3"),
    "gemma3": (gemma3, "Gemma3"),
    "granite": (granite, "Granite"),
    "nemotron": (nemotron, "Nemotron"),
    "smollm3": (smollm3, "SmolLM3"),
    "olmo": (plain, "Olmo"),
    "ernie": (plain, "Ernie4_5"),
    "hunyuan": (plain, "HunYuanDenseV1"),
}
# precision and the builder's options; int4 without rounded activations
FORMS = (
    ("fp32", {}),
    ("int4", {"accuracy_level": "1"}),
    ("fp32", {"fuse_qkv": "false"}),
    ("int4", {"accuracy_level": "1", "is_symmetric": "false", "block_size": "16"}),
    ("int8", {"accuracy_level": "1"}),
)


def classes(name):
    config = {"Gemma3": "Gemma3TextConfig"}.get(name, name + "Config")
    return getattr(transformers, config), getattr(transformers, name + "ForCausalLM")


def checkpoint(folder, kind, numbers, seed):
    """A model folder as users download it."""
    config_class, model_class = classes(KINDS[kind][1])
    torch.manual_seed(seed)
    config = config_class(**numbers)
    model = model_class(config).eval()
    with torch.no_grad():  # norms and biases that do nothing would hide their loss
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    words = {f"w{k}": k for k in range(8)}
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w3"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w1", eos_token="w2", pad_token="w0").save_pretrained(folder)
    return model


def build(source, folder, precision, options):
    """By the builder, as its command does."""
    import onnxruntime_genai

    sys.path.insert(0, os.path.join(os.path.dirname(onnxruntime_genai.__file__), "models"))
    import builder

    read = builder.AutoConfig.from_pretrained

    def flat(*arguments, **how):
        """Gemma 3's numbers as transformers 4 had them, which the builder reads."""
        config = read(*arguments, **how)
        if isinstance(config.rope_parameters.get("full_attention"), dict):
            config.rope_local_base_freq = config.rope_parameters["sliding_attention"]["rope_theta"]
            config.rope_parameters = config.rope_parameters["full_attention"]
        return config

    builder.AutoConfig = types.SimpleNamespace(from_pretrained=flat)
    with tempfile.TemporaryDirectory() as cache:
        extra = [f"{name}={value}" for name, value in options.items()] + ["hf_token=false"]
        more = builder.parse_extra_options(source, source, folder, precision, "cpu", cache, extra)
        builder.create_model(source, source, folder, precision, "cpu", cache, **more)


def pairs_of(session):
    names = [value.name for value in session.get_outputs()]
    found = []
    for value in session.get_inputs():
        if value.name.startswith("past"):
            present = "present" + value.name[4:].replace("_key_values", "")
            if present not in names:
                raise SystemExit(f"{value.name} has no {present} among {names}")
            found.append((value.name, present))
    return found


def decode(session, pairs, empty, prompt, vocabulary):
    """[tokens], [logits] of a prompt and of STEPS - 1 steps, each the likeliest token so far."""
    tokens = [(11 * k + 3) % min(96, vocabulary) for k in range(prompt)]
    names = [value.name for value in session.get_inputs()]
    logits, past, kept = [], 0, {name: empty[name] for name, _ in pairs}
    for _ in range(STEPS):
        n = len(tokens) - past
        feeds = {
            "input_ids": np.array([tokens[past:]], dtype=np.int64),
            "attention_mask": np.ones((1, past + n), dtype=np.int64),
            "position_ids": np.arange(past, past + n, dtype=np.int64)[None],
        }
        found = session.run(["logits"] + [present for _, present in pairs], {**{k: v for k, v in feeds.items() if k in names}, **kept})
        kept = {name: value for (name, _), value in zip(pairs, found[1:])}
        logits.append(found[0][0].astype(np.float32))
        past += n
        tokens.append(int(logits[-1][-1].argmax()))
    return np.array(tokens[:-1], dtype=np.int64), np.concatenate(logits)


def windows_of(folder):
    """{past: rows} of buffers that hold a window of the keys alone. Some windows have more room than they need."""
    graph = onnx.load(os.path.join(folder, "model.onnx"), load_external_data=False).graph
    found = {}
    for node in graph.node:
        numbers = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if numbers.get("sliding_window_cache", 0):
            for name in node.input[3:5]:
                found[name] = numbers["local_window_size"] + len(graph.input) % 3 * 5
    return found


def record(folder, meta, model):
    """ONNX Runtime's logits, and how far torch's are off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"])
    meta["pairs"] = pairs_of(session)
    numbers = meta["numbers"]
    width = numbers.get("head_dim") or numbers["hidden_size"] // numbers["num_attention_heads"]
    windows = windows_of(folder)
    meta["empty"] = {name: [1, numbers["num_key_value_heads"], windows.get(name, 0), width] for name, _ in meta["pairs"]}
    empty = {name: np.zeros(shape, dtype=np.float32) for name, shape in meta["empty"].items()}
    for prompt in PROMPTS:
        tokens, logits = decode(session, meta["pairs"], empty, prompt, numbers["vocab_size"])
        np.save(os.path.join(folder, f"tokens_{prompt}.npy"), tokens)
        np.save(os.path.join(folder, f"logits_{prompt}.npy"), logits)
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens)[None]).logits[0].numpy()
    meta["torch"] = float(np.abs(wanted - logits).max() / np.abs(wanted).max())


def make(root, k, kind, seed):
    rng = np.random.default_rng([seed, k])
    precision, options = FORMS[(k + k // len(KINDS)) % len(FORMS)]
    name = f"{kind}-{precision}-{k}"
    folder = os.path.join(root, name)
    if os.path.exists(os.path.join(folder, "meta.json")):
        return
    meta = {"kind": kind, "precision": precision, "options": options, "numbers": KINDS[kind][0](rng)}
    if options.get("is_symmetric") == "false":  # of tied ones the builder writes a file that ONNX Runtime refuses
        meta["numbers"]["tie_word_embeddings"] = False
    said = io.StringIO()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory() as source, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            model = checkpoint(source, kind, meta["numbers"], 1000 * seed + k)
            build(source, folder, precision, options)
        record(folder, meta, model)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        print(f"NOT BUILT {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return
    with open(os.path.join(folder, "meta.json"), "w", encoding="utf-8") as file:
        json.dump(meta, file, indent=1)
    print(f"{name}: torch {meta['torch']:.1e} off", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir")
    parser.add_argument("--count", type=int, default=len(KINDS))
    parser.add_argument("--only")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    kinds = list(KINDS)
    for k in range(options.count):
        kind = kinds[k % len(kinds)]
        if not options.only or kind in options.only.split(","):
            make(options.dir, k, kind, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports small models with random weights by both exporters, each beside PyTorch's own answer to
what is trained: DIR/NAME/{dynamo,static,legacy}.onnx and truth.npz.

    python families.py --out DIR [--only NAME,...] [--modes dynamo,static,legacy] [--fresh]

A model is taken from every class that transformers lists for a task; configurations are the
library's own, made small. --fresh keeps the library's initial weights (zero biases, unit norms,
which exporters merge); otherwise every parameter gets values of its own. Needs torch, transformers,
onnx and onnxscript; nothing is fetched. score.py compares what `inspect --train` says."""
import argparse
import inspect
import json
import logging
import os
import signal
import sys
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import numpy as np
import torch
import transformers
from transformers.models.auto import modeling_auto as auto

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "emb_dim": 32,
    "embedding_size": 32, "hidden_dim": 64, "encoder_hidden_size": 32, "word_embed_proj_dim": 32,
    "intermediate_size": 64, "ffn_dim": 64, "d_ff": 64, "n_inner": 64, "d_inner": 64, "dff": 64,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "ffn_hidden_size": 64, "d_kv": 8,
    "num_hidden_layers": 2, "num_layers": 2, "n_layers": 2, "n_layer": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2, "num_encoder_layers": 2, "num_blocks": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "head_dim": 8, "d_head": 8,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "num_kv_heads": 2, "attention_head_size": 8, "rotary_dim": 4,
    "max_position_embeddings": 64, "n_positions": 64, "max_seq_len": 64, "max_seq_length": 64,
    "max_source_positions": 12, "max_target_positions": 24, "n_ctx": 64, "context_length": 64,
    "image_size": 32, "patch_size": 8, "num_labels": 5, "conv_dim": [32, 32], "conv_kernel": [8, 4],
    "conv_stride": [4, 4], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2, "num_mel_bins": 16, "kv_lora_rank": 8, "q_lora_rank": 8,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "qk_head_dim": 12, "v_head_dim": 8,
    "n_routed_experts": 4, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "state_size": 4, "time_step_rank": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "use_cache": False, "dropout": 0.0, "attention_dropout": 0.0, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "activation_dropout": 0.0, "resid_pdrop": 0.0,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0, "layerdrop": 0.0, "encoder_layerdrop": 0.0,
    "hidden_dropout": 0.0, "dropout_rate": 0.0, "drop_path_rate": 0.0, "summary_last_dropout": 0.0,
    "num_hash_buckets": 64, "char_vocab_size": 64, "num_hash_functions": 4, "word_embed_dim": 32,
    "mask_time_prob": 0.0, "apply_spec_augment": False, "hidden_sizes": [16, 32],
    "depths": [1, 1], "embed_dim": 16, "layer_types": None,
}
PARTS = ("text_config", "vision_config", "audio_config")
DEFAULTS = {"use_cache": False}
# Configurations of families that the generic numbers do not fit.
OWN = {
    "swin": {"num_heads": [2, 4], "patch_size": 4, "window_size": 4, "image_size": 32, "depths": [2, 2]},
    "swinv2": {"num_heads": [2, 4], "patch_size": 4, "window_size": 4, "image_size": 32, "depths": [2, 2]},
    "mpt": {"max_seq_len": 64},
    "falcon": {"alibi": True, "new_decoder_architecture": False},
    "gptj": {"rotary_dim": 4}, "codegen": {"rotary_dim": 4},
    "marian": {"decoder_vocab_size": 99}, "segformer": {
        "num_encoder_blocks": 2, "sr_ratios": [2, 1], "hidden_sizes": [16, 32], "patch_sizes": [7, 3],
        "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2]},
    "pvt": {"num_encoder_blocks": 2, "sequence_reduction_ratios": [2, 1], "hidden_sizes": [16, 32],
            "patch_sizes": [4, 2], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2]},
    "convnext": {"hidden_sizes": [8, 16, 32, 32], "depths": [1, 1, 1, 1], "image_size": 64, "patch_size": 4},
    "convnextv2": {"hidden_sizes": [8, 16, 32, 32], "depths": [1, 1, 1, 1], "image_size": 64, "patch_size": 4},
    "resnet": {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8},
    "regnet": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "embedding_size": 8, "groups_width": 8},
    "poolformer": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
    "levit": {"hidden_sizes": [32, 64, 64], "depths": [1, 1, 1], "num_attention_heads": [2, 2, 2],
              "image_size": 64, "key_dim": [8, 8, 8]},
    "mobilevit": {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64], "image_size": 64, "patch_size": 2},
    "cvt": {"embed_dim": [16, 32, 32], "num_heads": [1, 2, 2], "depth": [1, 1, 1]},
    "big_bird": {"attention_type": "original_full"}, "bigbird_pegasus": {"attention_type": "original_full"},
    "xlnet": {"d_head": 8}, "rembert": {"input_embedding_size": 16, "output_embedding_size": 24},
    "mobilebert": {"embedding_size": 16, "intra_bottleneck_size": 16, "num_attention_heads": 2, "true_hidden_size": 16},
    "squeezebert": {"q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 2,
                    "intermediate_groups": 2, "output_groups": 2},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16,
                   "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "wav2vec2-conformer": {"position_embeddings_type": "relative", "conv_depthwise_kernel_size": 3, "max_source_positions": 512},
    "whisper": {"suppress_tokens": None, "begin_suppress_tokens": None},
    "focalnet": {"image_size": 32, "patch_size": 4, "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3]},
    "beit": {"use_relative_position_bias": True}, "data2vec-vision": {"use_relative_position_bias": True},
    "clip": {"projection_dim": 32}, "rwkv": {"attention_hidden_size": 32, "context_length": 64},
    "fsmt": {"langs": ["en", "de"], "src_vocab_size": 99, "tgt_vocab_size": 99}, "prophetnet": {"num_buckets": 8},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}, "gemma3_text": {"sliding_window": 4},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]}, "dinov2": {"mlp_ratio": 2}, "hiera": {"image_size": [32, 32], "depths": [1, 1, 1], "num_query_pool": 2, "embed_dim": 8},
    "longformer": {"attention_window": 4}, "led": {"attention_window": 4}, "reformer": {"axial_pos_embds": False},
}
TASKS = (
    ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "text"), ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "text"),
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "seq2seq"),
    ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "image"),
    ("MODEL_FOR_CTC_MAPPING_NAMES", "audio"),
    ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "speech"),
    ("MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES", "pair"),
    ("MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES", "image"),
)


def config_of(cls, kind):
    maker = cls.config_class
    base = maker()
    known = base.to_dict()

    def fit(known, own):
        small = {k: v for k, v in SMALL.items() if k in known and v is not None}
        if isinstance(known.get("num_attention_heads"), (list, tuple)):
            small.pop("num_attention_heads", None)
        for k in list(small):  # a list here, one number there
            if known[k] is not None and isinstance(known[k], (list, tuple)) != isinstance(small[k], list):
                small.pop(k)
            elif isinstance(known[k], int) and isinstance(small[k], float):
                small[k] = int(small[k])
        small.update({k: v for k, v in own.items()})
        return small

    kwargs = fit(known, OWN.get(maker.model_type, {}))
    for part in PARTS:
        if isinstance(known.get(part), dict):
            kwargs[part] = fit(known[part], {})
    if "num_key_value_heads" in known and kind == "text" and known.get("num_key_value_heads") is None:
        kwargs.pop("num_key_value_heads", None)
    return maker(**kwargs)


def feeds(cls, config, kind):
    r = np.random.default_rng(7)
    ids = torch.from_numpy(r.integers(3, 90, (2, 7)).astype(np.int64))
    mask = torch.ones_like(ids)
    size = getattr(config, "image_size", 32) or 32
    size = size if isinstance(size, int) else size[0]
    vision = getattr(config, "vision_config", None)
    if vision is not None:
        size = vision.image_size if isinstance(vision.image_size, int) else vision.image_size[0]
    pixels = torch.from_numpy(r.standard_normal((2, 3, size, size)).astype(np.float32))
    text = {0: "batch", 1: "seq"}
    if kind == "text":
        return {"input_ids": (ids, text), "attention_mask": (mask, text)}
    if kind == "seq2seq":
        other = torch.from_numpy(r.integers(3, 90, (2, 5)).astype(np.int64))
        return {"input_ids": (ids, text), "attention_mask": (mask, text),
                "decoder_input_ids": (other, {0: "batch", 1: "target"})}
    if kind == "image":
        return {"pixel_values": (pixels, {0: "batch"})}
    if kind == "audio":
        bins = getattr(config, "feature_projection_input_dim", 0)
        if "input_features" in inspect.signature(cls.forward).parameters and bins:
            return {"input_features": (torch.randn(2, 32, bins), {0: "batch"})}
        return {"input_values": (torch.randn(2, 800), {0: "batch"})}
    if kind == "speech":
        other = torch.from_numpy(r.integers(3, 90, (2, 5)).astype(np.int64))
        bins = getattr(config, "num_mel_bins", 16)
        if config.model_type == "whisper":
            sound = torch.randn(2, bins, 2 * config.max_source_positions)
        else:
            sound = torch.randn(2, 24, getattr(config, "input_feat_per_channel", bins))
        return {"input_features": (sound, {0: "batch"}), "decoder_input_ids": (other, {0: "batch", 1: "target"})}
    return {"input_ids": (ids, text), "pixel_values": (pixels, {0: "images"}), "attention_mask": (mask, text)}


def own_values(model, seed):
    """Every trained parameter gets values of its own; what is frozen stays."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                scale = 0.1 if p.dim() < 2 else 0.9 / max(p[0].numel(), 16) ** 0.5
                noise = torch.randn(p.shape, generator=g) * scale
                p.copy_(p + noise if p.dim() < 2 else noise)


class First(torch.nn.Module):
    """Only the first output, as a model whose parameters keep their names."""


def wrap(model, names):
    base = type(model)

    def forward(self, *args):
        out = base.forward(self, **dict(zip(names, args)))
        for key in ("logits_per_image", "logits", "reconstruction", "last_hidden_state"):
            if hasattr(out, key) and getattr(out, key) is not None:
                return getattr(out, key)
        return out[0]

    code = "def forward(self, %s):\n    return call(self, %s)\n" % (", ".join(names), ", ".join(names))
    scope = {"call": forward}
    exec(code, scope)
    model.__class__ = type(base.__name__, (base,), {"forward": scope["forward"]})
    return model


def export(model, inputs, mode, path):
    names = list(inputs)
    args = tuple(v[0] for v in inputs.values())
    axes = {k: v[1] for k, v in inputs.items()}
    if mode == "legacy":
        torch.onnx.export(model, args, path, dynamo=False, opset_version=17, input_names=names,
                          output_names=["logits"], dynamic_axes=dict(axes, logits={0: "batch"}))
        return
    shapes = tuple({a: torch.export.Dim.DYNAMIC for a in axes[k]} for k in names)
    program = torch.onnx.export(model, args, dynamo=True, input_names=names, output_names=["logits"],
                                dynamic_shapes=None if mode == "static" else shapes, verbose=False)
    program.save(path, external_data=False)


def truth(model, inputs, path):
    """name -> 2: trained, 1: a parameter that is frozen or not on the way, 0: a buffer; values."""
    out = model(*(v[0] for v in inputs.values()))
    out.float().sum().backward()
    kinds, arrays = {}, {}
    for name, p in model.named_parameters(remove_duplicate=False):
        kinds[name] = 2 if p.requires_grad and p.grad is not None else 1
        arrays[name] = p.detach().float().numpy()
    for name, b in model.named_buffers(remove_duplicate=False):
        if b.is_floating_point():
            kinds[name] = 0
            arrays[name] = b.detach().float().numpy()
    np.savez(path, __kinds__=json.dumps(kinds), **arrays)


class Late(Exception):
    pass


def late(*_):
    raise Late("time")


def one(name, cls, kind, args):
    folder = os.path.join(args.out, name)
    done = os.path.join(folder, "done")
    if os.path.exists(done):
        return
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(3)
    config = config_of(cls, kind)
    inputs = feeds(cls, config, kind)
    accepted = inspect.signature(cls.forward).parameters
    inputs = {k: v for k, v in inputs.items() if k in accepted}
    model = cls(config).float().eval()
    for key, value in DEFAULTS.items():
        if hasattr(model.config, key):
            setattr(model.config, key, value)
    count = sum(p.numel() for p in model.parameters())
    if count > 3_000_000:
        raise ValueError(f"{count} parameters")
    if not args.fresh:
        own_values(model, 11)
    model = wrap(model, list(inputs))
    truth(model, inputs, os.path.join(folder, "truth.npz"))
    notes = []
    for mode in args.modes.split(","):
        signal.alarm(60)
        try:
            with torch.no_grad():
                export(model, inputs, mode, os.path.join(folder, mode + ".onnx"))
            notes.append(mode)
        except Exception as e:
            notes.append(f"{mode} failed: {type(e).__name__} {str(e)[:90]!r}")
        finally:
            signal.alarm(0)
    open(done, "w").write("\n".join(notes))
    print("ok  ", name, count, "; ".join(notes), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--modes", default="dynamo,static,legacy")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th model, from K")
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, late)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    only = [o for o in args.only.split(",") if o]
    seen, jobs = set(), []
    for task, kind in TASKS:
        for model_type, names in getattr(auto, task, {}).items():
            cls_name = names if isinstance(names, str) else names[0]
            if cls_name in seen or (model_type in {m for m, *_ in jobs} and not only):
                continue
            seen.add(cls_name)
            jobs.append((model_type, cls_name, kind))
    order = {o: i for i, o in enumerate(only)}
    jobs.sort(key=lambda job: min(order.get(job[0], 999), order.get(job[1], 999)))
    k, n = (int(x) for x in args.part.split("/"))
    for model_type, cls_name, kind in jobs[k::n]:
        name = cls_name
        if only and name not in only and model_type not in only:
            continue
        try:
            signal.alarm(60)
            cls = getattr(transformers, cls_name)
            signal.alarm(0)
            one(name, cls, kind, args)
        except Exception as e:
            print("skip", name, type(e).__name__, str(e)[:120].replace("\n", " "), flush=True)
        finally:
            signal.alarm(0)


if __name__ == "__main__":
    main()

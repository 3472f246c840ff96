# SPDX-License-Identifier: Apache-2.0
"""The families that export.py exports: tiny transformers of the transformers package, with seeded
random weights. A family says how to build the model, how to call it, and which axes of its inputs
are free. REAL_SMALL in the environment: one narrow layer, for files that are committed. REAL_WIDE: two
layers (of convolutions: all) as wide as their users' are, with their vocabularies and images."""
import os

import numpy as np
import torch
import transformers as hf

WIDTH, LAYERS, HEADS, HIDDEN, VOCAB, LONGEST = 32, 2, 4, 48, 99, 64
if os.environ.get("REAL_SMALL"):
    WIDTH, LAYERS, HIDDEN, VOCAB, LONGEST = 16, 1, 20, 40, 16
WIDE = bool(os.environ.get("REAL_WIDE"))
if WIDE:
    WIDTH, HEADS, HIDDEN, VOCAB, LONGEST = 768, 12, 3072, 30000, 512
SIZE = WIDTH // HEADS
PIXELS, PATCH = (224, 16) if WIDE else (16, 4)

DECODER = dict(
    hidden_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=HIDDEN,
    vocab_size=VOCAB,
    max_position_embeddings=LONGEST,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
GROUPED = dict(DECODER, num_key_value_heads=2, head_dim=SIZE)
ENCODER = {**DECODER, "max_position_embeddings": LONGEST + 2}
MOE = dict(GROUPED, moe_intermediate_size=768 if WIDE else 24, num_experts_per_tok=2)
PAIR = dict(
    d_model=WIDTH,
    encoder_layers=LAYERS,
    decoder_layers=LAYERS,
    encoder_attention_heads=HEADS,
    decoder_attention_heads=HEADS,
    encoder_ffn_dim=HIDDEN,
    decoder_ffn_dim=HIDDEN,
    vocab_size=VOCAB,
    max_position_embeddings=LONGEST,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=2,
)
T5 = dict(
    d_model=WIDTH,
    d_kv=SIZE,
    d_ff=HIDDEN,
    num_layers=LAYERS,
    num_heads=HEADS,
    vocab_size=VOCAB,
    pad_token_id=0,
    eos_token_id=1,
    decoder_start_token_id=0,
)
VISION = dict(
    hidden_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=HIDDEN,
    image_size=PIXELS,
    patch_size=PATCH,
    num_labels=5,
)
CLIP_TEXT = {**DECODER, "bos_token_id": VOCAB - 2, "eos_token_id": VOCAB - 1}
SPEECH = dict(
    hidden_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=HIDDEN,
    conv_dim=(512 if WIDE else 16,) * 3,
    conv_kernel=(10, 3, 2),
    conv_stride=(5, 2, 2),
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
    num_feat_extract_layers=3,
    vocab_size=VOCAB,
)


# ---- inputs: (rng, batch, length) -> array ------------------------------------------------------


def ids(rng, batch, length):
    return rng.integers(3, VOCAB, (batch, length)).astype(np.int64)


def short_ids(rng, batch, length):
    return ids(rng, batch, max(2, length - 2))


def text_ids(rng, batch, length):
    """Ends with the end token, the largest one, somewhere in every row."""
    out = rng.integers(3, VOCAB - 2, (batch, length)).astype(np.int64)
    for row in range(batch):
        out[row, length - 1 - row % 2 :] = VOCAB - 1
    return out


def mask(rng, batch, length):
    """Ones, but the end of the last row."""
    out = np.ones((batch, length), np.int64)
    out[-1, length - length // 3 :] = 0
    return out


def left_mask(rng, batch, length):
    out = np.ones((batch, length), np.int64)
    out[-1, : length // 3] = 0
    return out


def kinds(rng, batch, length):
    return (np.arange(length)[None, :] >= rng.integers(1, length, (batch, 1))).astype(np.int64)


def positions(rng, batch, length):
    return np.tile(np.arange(length, dtype=np.int64), (batch, 1))


def pixels(size, channels=3):
    return lambda rng, batch, length: rng.standard_normal((batch, channels, size, size)).astype(
        np.float32
    )


def wave(rng, batch, length):
    return rng.standard_normal((batch, 40 * length)).astype(np.float32)


def spectrum(bins, frames):
    return lambda rng, batch, length: rng.standard_normal((batch, bins, frames)).astype(np.float32)


def past(heads, size):
    return lambda rng, batch, length: rng.standard_normal((batch, heads, 3, size)).astype(
        np.float32
    )


def past_mask(rng, batch, length):
    return np.ones((batch, length + 3), np.int64)


ROW, IMAGE = {0: "batch", 1: "seq"}, {0: "batch"}


class Family:
    """build() gives a model; call(model, **inputs) its outputs, in the order of `outputs`.
    inputs: {name: (maker, {axis: dimension})}."""

    def __init__(self, build, inputs, outputs, call, causal=False, mixes=False):
        self.build, self.inputs, self.outputs, self.call = build, inputs, outputs, call
        self.causal = causal  # every token sees itself and earlier ones: token slices are possible
        self.mixes = mixes  # samples read each other: no micro-batches


def pick(*names):
    """Calls the model by name, without a cache, and takes these fields of what it returns."""

    def call(model, **inputs):
        extra = {} if getattr(model, "no_cache_option", False) else {"use_cache": False}
        result = model(**inputs, **extra)
        return tuple(getattr(result, name) for name in names)

    return call


def plain(*names):
    def call(model, **inputs):
        result = model(**inputs)
        return tuple(getattr(result, name) for name in names)

    return call


def make(kind, config, **options):
    return lambda: getattr(hf, kind)(getattr(hf, config)(**options))


IDS, MASK = ("input_ids", (ids, ROW)), ("attention_mask", (mask, ROW))


def causal(kind, config, extra=(), **options):
    return Family(
        make(kind, config, **options), dict([IDS, MASK, *extra]), ["logits"], pick("logits"),
        causal=True,
    )


def encoder(kind, config, output="last_hidden_state", extra=(), **options):
    return Family(make(kind, config, **options), dict([IDS, MASK, *extra]), [output], plain(output))


def pair(kind, config, **options):
    inputs = dict([IDS, MASK])
    inputs["decoder_input_ids"] = (short_ids, {0: "batch", 1: "target"})
    return Family(make(kind, config, **options), inputs, ["logits"], pick("logits"))


def vision(kind, config, size=PIXELS, output="logits", **options):
    inputs = {"pixel_values": (pixels(size), IMAGE)}
    return Family(make(kind, config, **options), inputs, [output], plain(output))


def speech(kind, config, **options):
    inputs = {"input_values": (wave, {0: "batch", 1: "samples"})}
    return Family(make(kind, config, **options), inputs, ["logits"], plain("logits"))


def cached(kind, config, heads, size, **options):
    """Keys and values of earlier tokens in, of all tokens out."""
    inputs = dict([IDS])
    inputs["attention_mask"] = (past_mask, {0: "batch", 1: "total"})
    names = [f"past_{kind}_{i}" for i in range(LAYERS) for kind in ("key", "value")]
    for name in names:
        inputs[name] = (past(heads, size), {0: "batch", 2: "past"})

    def call(model, input_ids, attention_mask, **pasts):
        cache = hf.DynamicCache(config=model.config)
        for i in range(LAYERS):
            cache.update(pasts[f"past_key_{i}"], pasts[f"past_value_{i}"], i)
        result = model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=True,
        )
        layers = result.past_key_values.layers
        return (result.logits, *[t for layer in layers for t in (layer.keys, layer.values)])

    outputs = ["logits"] + [name.replace("past", "present") for name in names]
    return Family(make(kind, config, **options), inputs, outputs, call)


def clip_like(kind, config, **options):
    inputs = {
        "input_ids": (text_ids, ROW),
        "attention_mask": (mask, ROW),
        "pixel_values": (pixels(PIXELS), {0: "images"}),
    }
    return Family(
        make(kind, config, **options), inputs, ["text_embeds", "image_embeds"],
        plain("text_embeds", "image_embeds"),
    )


def clip_logits(kind, config, **options):
    """Every text beside every image: samples are mixed, and a split must be refused."""
    inputs = {"input_ids": (text_ids, ROW), "pixel_values": (pixels(PIXELS), IMAGE)}
    return Family(
        make(kind, config, **options), inputs, ["logits_per_image"], plain("logits_per_image"),
        mixes=True,
    )


GPT2 = dict(n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=VOCAB, n_positions=LONGEST,
            bos_token_id=1, eos_token_id=2)  # fmt: skip
KINDS = [("token_type_ids", (kinds, ROW))]
DISTIL = dict(dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, hidden_dim=HIDDEN, vocab_size=VOCAB,
              max_position_embeddings=LONGEST)  # fmt: skip
DEBERTA = dict(ENCODER, relative_attention=True, position_buckets=8, max_relative_positions=-1,
               norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
               position_biased_input=False, type_vocab_size=0)  # fmt: skip
CLIP = dict(text_config=CLIP_TEXT, vision_config={k: v for k, v in VISION.items() if
            k != "num_labels"}, projection_dim=24)  # fmt: skip
WHISPER = dict({k: v for k, v in PAIR.items() if k != "max_position_embeddings"}, num_mel_bins=8,
               max_source_positions=12, max_target_positions=LONGEST)  # fmt: skip
SWIN = dict(image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
            window_size=4, num_labels=5)  # fmt: skip
if WIDE:
    SWIN.update(image_size=PIXELS, patch_size=4, embed_dim=96, num_heads=[3, 6], window_size=7)
# Convolutions have another shape than transformers: wide they are ResNet-50, ConvNeXt tiny and MobileViT small.
CONV_PIXELS = 256 if WIDE else 32
RESNET = dict(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=5)
CONVNEXT = dict(patch_size=4, num_stages=2, hidden_sizes=[16, 32], depths=[1, 1], image_size=CONV_PIXELS,
                num_labels=5)  # fmt: skip
MOBILEVIT = dict(image_size=CONV_PIXELS, patch_size=2, hidden_sizes=[16, 24, 32],
                 neck_hidden_sizes=[8, 8, 16, 24, 32, 32, 48], num_labels=5)  # fmt: skip
if WIDE:
    RESNET.update(embedding_size=64, hidden_sizes=[256, 512, 1024, 2048], depths=[3, 4, 6, 3], layer_type="bottleneck")
    CONVNEXT.update(num_stages=4, hidden_sizes=[96, 192, 384, 768], depths=[3, 3, 9, 3])
    MOBILEVIT.update(hidden_sizes=[144, 192, 240], neck_hidden_sizes=[16, 32, 64, 96, 128, 160, 640])


def whisper():
    inputs = {
        "input_features": (spectrum(8, 24), IMAGE),
        "decoder_input_ids": (ids, ROW),
    }
    return Family(
        make("WhisperForConditionalGeneration", "WhisperConfig", **WHISPER), inputs, ["logits"],
        pick("logits"),
    )


def encoder_of(kind, config, maker, axes, name, **options):
    """The encoder of a pair alone."""
    def call(model, **inputs):
        return (model.get_encoder()(**inputs).last_hidden_state,)

    inputs = {name: (maker, axes)}
    if name == "input_ids":
        inputs["attention_mask"] = (mask, ROW)
    return Family(make(kind, config, **options), inputs, ["hidden"], call)


FAMILIES = {
    # decoders
    "gpt2": causal("GPT2LMHeadModel", "GPT2Config", **GPT2),
    "gpt2_cache": cached("GPT2LMHeadModel", "GPT2Config", HEADS, SIZE, **GPT2),
    "gpt_neo": causal("GPTNeoForCausalLM", "GPTNeoConfig", hidden_size=WIDTH, num_layers=LAYERS,
                      num_heads=HEADS, vocab_size=VOCAB, max_position_embeddings=LONGEST,
                      attention_types=[[["global", "local"], 1]], window_size=4),
    "gptj": causal("GPTJForCausalLM", "GPTJConfig", **{**GPT2, "rotary_dim": 4}),
    "codegen": causal("CodeGenForCausalLM", "CodeGenConfig", **{**GPT2, "rotary_dim": 4}),
    "gpt_neox": causal("GPTNeoXForCausalLM", "GPTNeoXConfig", **DECODER),
    "llama": causal("LlamaForCausalLM", "LlamaConfig", **GROUPED),
    "llama_tied": causal("LlamaForCausalLM", "LlamaConfig", **GROUPED, tie_word_embeddings=True),
    "llama_cache": cached("LlamaForCausalLM", "LlamaConfig", 2, SIZE, **GROUPED),
    "mistral": causal("MistralForCausalLM", "MistralConfig", **GROUPED, sliding_window=4),
    "qwen2": causal("Qwen2ForCausalLM", "Qwen2Config", **GROUPED),
    "qwen3": causal("Qwen3ForCausalLM", "Qwen3Config", **GROUPED),
    "qwen3_cache": cached("Qwen3ForCausalLM", "Qwen3Config", 2, SIZE, **GROUPED),
    "gemma": causal("GemmaForCausalLM", "GemmaConfig", **GROUPED),
    "gemma2": causal("Gemma2ForCausalLM", "Gemma2Config", **GROUPED, sliding_window=4),
    "gemma3": causal("Gemma3ForCausalLM", "Gemma3TextConfig", **GROUPED, sliding_window=4),
    "phi": causal("PhiForCausalLM", "PhiConfig", **DECODER),
    "phi3": causal("Phi3ForCausalLM", "Phi3Config", **{**GROUPED, "original_max_position_embeddings": 64}),
    "olmo2": causal("Olmo2ForCausalLM", "Olmo2Config", **DECODER),
    "stablelm": causal("StableLmForCausalLM", "StableLmConfig", **DECODER),
    "starcoder2": causal("Starcoder2ForCausalLM", "Starcoder2Config", **GROUPED),
    "cohere": causal("CohereForCausalLM", "CohereConfig", **GROUPED),
    "granite": causal("GraniteForCausalLM", "GraniteConfig", **GROUPED),
    "smollm3": causal("SmolLM3ForCausalLM", "SmolLM3Config", **GROUPED),
    "mixtral": causal("MixtralForCausalLM", "MixtralConfig", **GROUPED, num_local_experts=4,
                      num_experts_per_tok=2),
    "qwen2_moe": causal("Qwen2MoeForCausalLM", "Qwen2MoeConfig", **MOE, num_experts=4,
                        shared_expert_intermediate_size=24),
    "qwen3_moe": causal("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **MOE, num_experts=4),
    "gpt_oss": causal("GptOssForCausalLM", "GptOssConfig", **GROUPED, num_local_experts=4,
                      num_experts_per_tok=2, sliding_window=4),
    "opt": causal("OPTForCausalLM", "OPTConfig", hidden_size=WIDTH, num_hidden_layers=LAYERS,
                  num_attention_heads=HEADS, ffn_dim=HIDDEN, vocab_size=VOCAB,
                  max_position_embeddings=LONGEST, word_embed_proj_dim=WIDTH),
    "bloom": causal("BloomForCausalLM", "BloomConfig", hidden_size=WIDTH, n_layer=LAYERS,
                    n_head=HEADS, vocab_size=VOCAB),
    "mpt": causal("MptForCausalLM", "MptConfig", d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS,
                  vocab_size=VOCAB, max_seq_len=LONGEST, expansion_ratio=2),
    "falcon": causal("FalconForCausalLM", "FalconConfig", hidden_size=WIDTH,
                     num_hidden_layers=LAYERS, num_attention_heads=HEADS, vocab_size=VOCAB,
                     multi_query=True, parallel_attn=True, alibi=False,
                     new_decoder_architecture=False),
    "falcon_alibi": causal("FalconForCausalLM", "FalconConfig", hidden_size=WIDTH,
                           num_hidden_layers=LAYERS, num_attention_heads=HEADS, vocab_size=VOCAB,
                           multi_query=False, parallel_attn=False, alibi=True),
    "xglm": causal("XGLMForCausalLM", "XGLMConfig", d_model=WIDTH, num_layers=LAYERS,
                   attention_heads=HEADS, ffn_dim=HIDDEN, vocab_size=VOCAB,
                   max_position_embeddings=LONGEST),
    "biogpt": causal("BioGptForCausalLM", "BioGptConfig", **DECODER),
    "persimmon": causal("PersimmonForCausalLM", "PersimmonConfig", **DECODER),
    # encoders
    "bert": encoder("BertModel", "BertConfig", extra=KINDS, **ENCODER),
    "bert_mlm": encoder("BertForMaskedLM", "BertConfig", "logits", extra=KINDS, **ENCODER),
    "bert_pooled": encoder("BertForSequenceClassification", "BertConfig", "logits", extra=KINDS,
                           **ENCODER),
    "roberta": encoder("RobertaModel", "RobertaConfig", **ENCODER),
    "xlm_roberta": encoder("XLMRobertaModel", "XLMRobertaConfig", **ENCODER),
    "distilbert": encoder("DistilBertModel", "DistilBertConfig", **DISTIL),
    "albert": encoder("AlbertModel", "AlbertConfig", **ENCODER, embedding_size=16),
    "electra": encoder("ElectraModel", "ElectraConfig", **ENCODER, embedding_size=16),
    "mpnet": encoder("MPNetModel", "MPNetConfig", **ENCODER),
    "roformer": encoder("RoFormerModel", "RoFormerConfig", **ENCODER),
    "convbert": encoder("ConvBertModel", "ConvBertConfig", **ENCODER, embedding_size=32),
    "squeezebert": encoder("SqueezeBertModel", "SqueezeBertConfig", **ENCODER, embedding_size=32),
    "deberta_v2": encoder("DebertaV2Model", "DebertaV2Config", **DEBERTA),
    "modernbert": encoder("ModernBertModel", "ModernBertConfig", **DECODER,
                          global_attn_every_n_layers=2, local_attention=4, cls_token_id=1,
                          sep_token_id=2),
    "layoutlm": encoder("LayoutLMModel", "LayoutLMConfig", **ENCODER),
    "ibert": encoder("IBertModel", "IBertConfig", **ENCODER),
    # pairs
    "t5": pair("T5ForConditionalGeneration", "T5Config", **T5),
    "t5_gated": pair("T5ForConditionalGeneration", "T5Config", **T5,
                     feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "umt5": pair("UMT5ForConditionalGeneration", "UMT5Config", **T5),
    "t5_encoder": encoder_of("T5ForConditionalGeneration", "T5Config", ids, ROW, "input_ids", **T5),
    "bart": pair("BartForConditionalGeneration", "BartConfig", **PAIR),
    "mbart": pair("MBartForConditionalGeneration", "MBartConfig", **PAIR),
    "marian": pair("MarianMTModel", "MarianConfig", **PAIR),
    "pegasus": pair("PegasusForConditionalGeneration", "PegasusConfig", **PAIR),
    "blenderbot": pair("BlenderbotForConditionalGeneration", "BlenderbotConfig", **PAIR),
    "m2m100": pair("M2M100ForConditionalGeneration", "M2M100Config", **PAIR),
    "whisper": whisper(),
    "whisper_encoder": encoder_of("WhisperForConditionalGeneration", "WhisperConfig",
                                  spectrum(8, 24), IMAGE, "input_features", **WHISPER),
    # vision
    "vit": vision("ViTForImageClassification", "ViTConfig", **VISION),
    "deit": vision("DeiTForImageClassification", "DeiTConfig", **VISION),
    "beit": vision("BeitForImageClassification", "BeitConfig", **VISION,
                   use_relative_position_bias=True),
    "dinov2": vision("Dinov2ForImageClassification", "Dinov2Config", **VISION),
    "swin": vision("SwinForImageClassification", "SwinConfig", **SWIN),
    "swinv2": vision("Swinv2ForImageClassification", "Swinv2Config", **SWIN),
    "convnext": vision("ConvNextForImageClassification", "ConvNextConfig", CONV_PIXELS, **CONVNEXT),
    "resnet": vision("ResNetForImageClassification", "ResNetConfig", CONV_PIXELS, **RESNET),
    "mobilevit": vision("MobileViTForImageClassification", "MobileViTConfig", CONV_PIXELS, **MOBILEVIT),
    # two towers
    "clip": clip_like("CLIPModel", "CLIPConfig", **CLIP),
    "clip_logits": clip_logits("CLIPModel", "CLIPConfig", **CLIP),
    # audio
    "wav2vec2": speech("Wav2Vec2ForCTC", "Wav2Vec2Config", **SPEECH),
    "hubert": speech("HubertForCTC", "HubertConfig", **SPEECH),
    "wavlm": speech("WavLMForCTC", "WavLMConfig", **SPEECH),
}


def reseed(model, seed):
    """Every floating parameter gets small numbers of its own; norms stay near 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if not parameter.is_floating_point():
                continue
            noise = torch.randn(parameter.shape, generator=generator) * 0.1
            norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + noise if norm else noise)
    return model.eval()

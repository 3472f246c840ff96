# SPDX-License-Identifier: Apache-2.0
"""The transformer families that are exported for tests, each in plain torch code of its own.

Every spelling that matters to a graph is chosen on purpose: weights stored as [in, out] in the
GPT (their names survive export), as [out, in] in the others (exporters transpose and rename
them); a tied head in the GPT and the encoder, an untied one in the LLaMA; a mask that all layers
use; rotary tables computed once and used by all layers; relative positions shared by all layers.
Shapes in comments: B batch, S sequence, P past length, D width, H heads, K key/value heads.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F


class Affine(nn.Module):
    """x [.., in] @ w [in, out] + b [out]."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.empty(n_out))

    def forward(self, x):
        return x @ self.weight + self.bias


def split_heads(x, heads):
    """[B, S, H*d] -> [B, H, S, d]"""
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def join_heads(x):
    """[B, H, S, d] -> [B, S, H*d]"""
    return x.transpose(1, 2).flatten(2)


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.qkv = Affine(width, 3 * width)
        self.proj = Affine(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.up = Affine(width, 4 * width)
        self.down = Affine(4 * width, width)

    def forward(self, x, past=None):
        q, k, v = (split_heads(t, self.heads) for t in self.qkv(self.ln_1(x)).chunk(3, dim=-1))
        if past is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
            rows = torch.arange(q.shape[2], device=q.device)[:, None] + past[0].shape[2]
            seen = torch.arange(k.shape[2], device=q.device)[None, :] <= rows
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.proj(join_heads(y))
        x = x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))
        return x, k, v


class Gpt(nn.Module):
    """Learned positions, pre-LayerNorm, tanh GELU, tied head. ids [B, S] -> [B, S, vocab]."""

    def __init__(self, blocks, width, heads, vocab, positions):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(positions, width)
        self.h = nn.ModuleList(GptBlock(width, heads) for _ in range(blocks))
        self.ln_f = nn.LayerNorm(width)

    def embed(self, ids, first=0):
        return self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device) + first)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.h:
            x = block(x)[0]
        return F.linear(self.ln_f(x), self.wte.weight)


class GptPast(Gpt):
    """The same with keys and values of earlier tokens: past_k, past_v [B, H, P, d] per block."""

    def forward(self, input_ids, *past):
        x, present = self.embed(input_ids, past[0].shape[2]), []
        for i, block in enumerate(self.h):
            x, k, v = block(x, past[2 * i : 2 * i + 2])
            present += [k, v]
        return (F.linear(self.ln_f(x), self.wte.weight), *present)


class RmsNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotate(x, cos, sin):
    """Half-split rotary embedding of x [B, H, S, d]; cos, sin [S, d]."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


def repeat_kv(x, times):
    """[B, K, S, d] -> [B, K*times, S, d]"""
    b, k, s, d = x.shape
    return x[:, :, None].expand(b, k, times, s, d).reshape(b, k * times, s, d)


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        head = width // heads
        self.norm_1 = RmsNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * head, bias=False)
        self.v = nn.Linear(width, kv_heads * head, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.norm_2 = RmsNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin):
        h = self.norm_1(x)
        q = rotate(split_heads(self.q(h), self.heads), cos, sin)
        k = rotate(split_heads(self.k(h), self.kv_heads), cos, sin)
        v = split_heads(self.v(h), self.kv_heads)
        times = self.heads // self.kv_heads
        y = F.scaled_dot_product_attention(
            q, repeat_kv(k, times), repeat_kv(v, times), is_causal=True
        )
        x = x + self.o(join_heads(y))
        h = self.norm_2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """RMSNorm, rotary positions, grouped queries, SwiGLU, untied head."""

    def __init__(self, blocks, width, heads, kv_heads, hidden, vocab):
        super().__init__()
        head = width // heads
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(
            LlamaBlock(width, heads, kv_heads, hidden) for _ in range(blocks)
        )
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        frequency = 10000.0 ** (-torch.arange(0, head, 2, dtype=torch.float32) / head)
        self.register_buffer("frequency", frequency, persistent=False)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        place = torch.arange(input_ids.shape[1], device=x.device, dtype=torch.float32)
        angle = place[:, None] * self.frequency.float()[None, :]
        angle = torch.cat([angle, angle], dim=-1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


class EncoderBlock(nn.Module):
    """Post-LayerNorm encoder block with erf GELU; bias is added to the scores."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.scale = heads, math.sqrt(width // heads)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, bias):
        q, k, v = (split_heads(f(x), self.heads) for f in (self.q, self.k, self.v))
        p = (q @ k.transpose(-1, -2) / self.scale + bias).softmax(-1)
        x = self.ln_1(x + self.o(join_heads(p @ v)))
        return self.ln_2(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """BERT-like: ids, padding mask, token types [B, S] -> hidden states, or a tied head."""

    def __init__(self, blocks, width, heads, vocab, positions, head=True):
        super().__init__()
        self.word = nn.Embedding(vocab, width)
        self.place = nn.Embedding(positions, width)
        self.kind = nn.Embedding(2, width)
        self.ln = nn.LayerNorm(width, eps=1e-12)
        self.blocks = nn.ModuleList(EncoderBlock(width, heads) for _ in range(blocks))
        self.head_bias = nn.Parameter(torch.empty(vocab)) if head else None

    def forward(self, input_ids, attention_mask, token_type_ids):
        place = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.ln(self.word(input_ids) + self.place(place) + self.kind(token_type_ids))
        bias = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
        for block in self.blocks:
            x = block(x, bias)
        if self.head_bias is None:
            return x
        return F.linear(x, self.word.weight, self.head_bias)


class RelativeBias(nn.Module):
    """Score bias [1, H, rows, columns] by distance: a bucket each when near, logarithmic far."""

    def __init__(self, heads, buckets=8, far=16, both=True):
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.buckets, self.far, self.both = buckets, far, both

    def forward(self, rows, columns, device):
        gap = (
            torch.arange(columns, device=device)[None, :]
            - torch.arange(rows, device=device)[:, None]
        )
        buckets, base = self.buckets, torch.zeros_like(gap)
        if self.both:
            buckets //= 2
            base = (gap > 0).to(torch.int64) * buckets
            gap = gap.abs()
        else:
            gap = (-gap).clamp(min=0)
        exact = buckets // 2
        # 0.01 keeps the logarithm's argument off the exact powers, where rounding would decide.
        ratio = torch.log((gap.float() + 0.01).clamp(min=1.0) / exact) / math.log(self.far / exact)
        coarse = (exact + (ratio * (buckets - exact)).to(torch.int64)).clamp(max=buckets - 1)
        bucket = base + torch.where(gap < exact, gap, coarse)
        return self.table(bucket).permute(2, 0, 1)[None]


class T5Layer(nn.Module):
    """Self-attention, in the decoder cross-attention, ReLU; RMSNorm first; scores unscaled."""

    def __init__(self, width, heads, cross):
        super().__init__()
        self.heads = heads
        names = ["q", "k", "v", "o"] + (["cq", "ck", "cv", "co"] if cross else [])
        for name in names:
            setattr(self, name, nn.Linear(width, width, bias=False))
        self.norms = nn.ModuleList(RmsNorm(width, 1e-6) for _ in range(3 if cross else 2))
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def attend(self, x, memory, weights, bias):
        q, k, v, o = weights
        q, k, v = split_heads(q(x), self.heads), *(
            split_heads(f(memory), self.heads) for f in (k, v)
        )
        return o(join_heads((q @ k.transpose(-1, -2) + bias).softmax(-1) @ v))

    def forward(self, x, bias, memory=None, memory_bias=None):
        h = self.norms[0](x)
        x = x + self.attend(h, h, (self.q, self.k, self.v, self.o), bias)
        if memory is not None:
            h = self.norms[1](x)
            x = x + self.attend(h, memory, (self.cq, self.ck, self.cv, self.co), memory_bias)
        return x + self.down(F.relu(self.up(self.norms[-1](x))))


class T5(nn.Module):
    """Encoder and decoder with one embedding, which is the head too (scaled by width^-0.5)."""

    def __init__(self, layers, width, heads, vocab):
        super().__init__()
        self.shared = nn.Embedding(vocab, width)
        self.left, self.right = RelativeBias(heads), RelativeBias(heads, both=False)
        self.encoder = nn.ModuleList(T5Layer(width, heads, False) for _ in range(layers))
        self.decoder = nn.ModuleList(T5Layer(width, heads, True) for _ in range(layers))
        self.norm_1, self.norm_2 = RmsNorm(width, 1e-6), RmsNorm(width, 1e-6)
        self.scale = width**-0.5

    def forward(self, input_ids, attention_mask, decoder_input_ids):
        x, s = self.shared(input_ids), input_ids.shape[1]
        padding = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        bias = self.left(s, s, x.device) + padding
        for layer in self.encoder:
            x = layer(x, bias)
        memory, y = self.norm_1(x), self.shared(decoder_input_ids)
        t = decoder_input_ids.shape[1]
        ahead = torch.full((t, t), torch.finfo(y.dtype).min, device=y.device).triu(1)
        bias = self.right(t, t, y.device) + ahead
        for layer in self.decoder:
            y = layer(y, bias, memory, padding)
        return F.linear(self.norm_2(y) * self.scale, self.shared.weight)


class VisionBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = (
            split_heads(t, self.heads) for t in self.qkv(self.ln_1(x)).split(x.shape[-1], -1)
        )
        x = x + self.proj(join_heads(F.scaled_dot_product_attention(q, k, v)))
        h = self.up(self.ln_2(x))
        return x + self.down(h * torch.sigmoid(1.702 * h))


class Vision(nn.Module):
    """Patches by convolution, class token, quick GELU. pixels [B, 3, 16, 16] -> [B, classes]."""

    def __init__(self, blocks, width, heads, classes):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.empty(1, 1, width))
        self.place = nn.Parameter(torch.empty(1, 17, width))
        self.blocks = nn.ModuleList(VisionBlock(width, heads) for _ in range(blocks))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, pixels):
        x = self.patch(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x)[:, 0])


def fill(model, seed):
    """Every parameter gets values of its own, so that no two initialisers are equal."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            leaf = name.rsplit(".", 1)[-1]
            if p.dim() == 1:
                p.copy_(noise * 0.1 + (1.0 if leaf == "weight" else 0.0))
            else:
                # In a [in, out] or [out, in] matrix, the smaller side is what keeps sums in range.
                p.copy_(noise * (0.9 / math.sqrt(max(min(p.shape[:2]), 8))))
    return model.eval()

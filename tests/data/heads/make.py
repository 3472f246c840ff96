#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decoders of two blocks with 6 or 8 query heads, whose keys and values have 6, 3 or 2 heads.

    python make.py     beside this file; needs numpy, onnx 1.23

Tensor groups of 2, 3 and 4 members hold these heads apart, together, or repeated. Seeded: the same files again.
"""
import importlib.util
import pathlib

from onnx import TensorProto as T

HERE = pathlib.Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("rows", HERE.parent / "rows/make.py")
rows = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rows)

WORDS, SIZE, HIDDEN, BLOCKS, ROOM = 96, 8, 24, 2, 32


class Heads(rows.Graph):
    def __init__(self, heads, kept):
        super().__init__()
        self.heads, self.kept, self.width = heads, kept, heads * SIZE  # kept: heads of keys and values
        self.ids = self.input("input_ids", ["batch", "seq"])
        self.pasts = [[self.input(f"past_{x}_{i}", ["batch", kept, "past", SIZE], T.FLOAT) for x in "kv"] for i in range(BLOCKS)]
        self.n, self.before_it = self.length(self.ids, 1), self.length(self.pasts[0][0], 2)

    def split(self, x, heads):
        """[B, S, heads * size] -> [B, heads, S, size]"""
        return self.node("Transpose", self.node("Reshape", x, self.ints(0, 0, heads, SIZE)), perm=[0, 2, 1, 3])

    def join(self, x):
        return self.node("Reshape", self.node("Transpose", x, perm=[0, 2, 1, 3]), self.ints(0, 0, self.width))

    def norm(self, x, name):
        scale, shift = self.weight(f"{name}_scale", self.width, spread=1), self.weight(f"{name}_shift", self.width, spread=0.1)
        return self.node("LayerNormalization", x, scale, shift, axis=-1)

    def product(self, x, name, n_in, n_out):
        return self.node("MatMul", x, self.weight(name, n_in, n_out))

    def repeat(self, x):
        """[B, kept, S, size] -> [B, heads, S, size], as torch exports it."""
        if self.kept == self.heads:
            return x
        shape = self.node("Concat", self.length(x, 0), self.ints(self.kept, self.heads // self.kept), self.length(x, 2), self.ints(SIZE), axis=0)
        wide = self.node("Expand", self.node("Unsqueeze", x, self.ints(2)), shape)
        return self.node("Reshape", wide, self.ints(0, self.heads, -1, SIZE))

    def decoder(self, attend):
        """attend(block, q, k, v) [B, S, width] each -> the same, and the present keys and values."""
        x = self.node("Gather", self.weight("words", WORDS, self.width, spread=1), self.ids)
        places = self.places(self.before_it, self.n)
        x = self.node("Add", x, self.node("Gather", self.weight("places", ROOM, self.width, spread=1), places))
        kept = []
        for i in range(BLOCKS):
            y, widths = self.norm(x, f"norm{i}a"), {"q": self.width, "k": self.kept * SIZE, "v": self.kept * SIZE}
            y, *pair = attend(i, *(self.product(y, f"{w}{i}", self.width, n) for w, n in widths.items()))
            kept.append(pair)
            x = self.node("Add", x, self.product(y, f"o{i}", self.width, self.width))
            y = self.node("Relu", self.product(self.norm(x, f"norm{i}b"), f"up{i}", self.width, HIDDEN))
            x = self.node("Add", x, self.product(y, f"down{i}", HIDDEN, self.width))
        self.output(self.product(self.norm(x, "norm"), "head", self.width, WORDS), "logits", ["batch", "seq", WORDS])
        for i, pair in enumerate(kept):
            for what, y in zip("kv", pair):
                self.output(y, f"present_{what}_{i}", ["batch", self.kept, "total", SIZE])


def grown(g):
    """Products and a softmax."""
    n_rows, keys = g.places(g.before_it, g.n), g.places(g.ints(0), g.node("Add", g.before_it, g.n))
    added = g.hide(g.before(n_rows, keys))

    def attend(i, q, k, v):
        pair = [g.node("Concat", p, g.split(x, g.kept), axis=2) for p, x in zip(g.pasts[i], (k, v))]
        return [g.join(g.scores(g.split(q, g.heads), *map(g.repeat, pair), added)), *pair]

    g.decoder(attend)
    return 20


def attention(g):
    def attend(i, q, k, v):
        y, *pair = g.node("Attention", g.split(q, g.heads), g.split(k, g.kept), g.split(v, g.kept), "", *g.pasts[i], outputs=3, is_causal=1)
        return [g.join(y), *pair]

    g.decoder(attend)
    return 24


def group_query(g):
    total = g.node("Cast", g.node("Add", g.before_it, g.n), to=T.INT32)
    last = g.node("Cast", g.node("Sub", g.node("Add", g.before_it, g.n), g.ints(1)), to=T.INT32)

    def attend(i, q, k, v):
        attributes = {"domain": "com.microsoft", "num_heads": g.heads, "kv_num_heads": g.kept}
        return g.node("GroupQueryAttention", q, k, v, *g.pasts[i], last, total, outputs=3, **attributes)

    g.decoder(attend)
    return 20


FILES = {"grown_6": (grown, 6, 6), "grown_3": (grown, 6, 3), "grown_2": (grown, 8, 2), "attention_2": (attention, 8, 2), "group_query_2": (group_query, 8, 2)}

if __name__ == "__main__":
    for name, (form, heads, kept) in FILES.items():
        g = Heads(heads, kept)
        g.save(name, form(g), HERE)

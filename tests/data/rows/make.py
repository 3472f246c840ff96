#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A decoder of two layers in every form in which files keep keys and values, and decoders that cannot run row by row.

    python make.py [NAME...]     beside this file; needs numpy, onnx 1.23

All forms have the same weights, so that all give the same logits. Seeded: the same files again.
"""
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

HERE = pathlib.Path(__file__).resolve().parent
WORDS, WIDTH, HEADS, SIZE, LAYERS, ROOM = 24, 16, 2, 8, 2, 80


class Graph:
    """Nodes of one graph. Bodies of If have graphs of their own, which read the outer one's weights."""

    def __init__(self, outer=None):
        self.nodes, self.inputs, self.outputs = [], [], []
        self.tensors = outer.tensors if outer else {}
        self.prefix = f"b{len(self.tensors)}_" if outer else ""
        self.random = np.random.default_rng(7)

    def constant(self, value, name=None):
        name = name or f"{self.prefix}c{len(self.tensors)}"
        self.tensors[name] = nh.from_array(np.array(value), name)
        return name

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def number(self, value):
        return self.constant(np.array(value, np.float32))

    def node(self, op, *inputs, outputs=1, domain="", names=None, **attributes):
        out = names or [f"{self.prefix}{op}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(h.make_node(op, list(inputs), out, f"{self.prefix}{op}_{len(self.nodes)}", domain=domain, **attributes))
        return out[0] if len(out) == 1 else out

    def input(self, name, shape, kind=T.INT64):
        self.inputs.append(h.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, value, name, shape, kind=T.FLOAT):
        self.node("Identity", value, names=[name])
        self.outputs.append(h.make_tensor_value_info(name, kind, shape))

    def weight(self, name, *shape, spread=None):
        """The same numbers for the same name, in every form."""
        if name not in self.tensors:
            random = np.random.default_rng(sum(map(ord, name)))
            self.constant((random.standard_normal(shape) * (spread or shape[0] ** -0.5)).astype(np.float32), name)
        return name

    # ---- parts of a decoder ----

    def length(self, x, axis):
        """Of an axis, int64 [1]."""
        return self.node("Shape", x, start=axis, end=axis + 1)

    def places(self, first, n):
        """first, first + 1 ..., n of them; both int64 [1]."""
        scalars = [self.node("Squeeze", x, self.ints(0)) for x in (first, self.node("Add", first, n))]
        return self.node("Range", *scalars, self.constant(np.array(1, np.int64)))

    def norm(self, x, name):
        return self.node("LayerNormalization", x, self.constant(np.ones(WIDTH, np.float32)), self.weight(name, WIDTH, spread=0.1), axis=-1)

    def split(self, x):
        """[B, S, heads * size] -> [B, heads, S, size]"""
        return self.node("Transpose", self.node("Reshape", x, self.ints(0, 0, HEADS, SIZE)), perm=[0, 2, 1, 3])

    def join(self, x):
        return self.node("Reshape", self.node("Transpose", x, perm=[0, 2, 1, 3]), self.ints(0, 0, WIDTH))

    def scores(self, q, k, v, mask):
        """Plain attention; mask: added."""
        s = self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 3, 2]))
        s = self.node("Add", self.node("Mul", s, self.number(SIZE ** -0.5)), mask)
        return self.node("MatMul", self.node("Softmax", s, axis=-1), v)

    def hide(self, seen):
        """bool -> added to scores"""
        return self.node("Where", seen, self.number(0), self.number(-3.4e38))

    def before(self, rows, keys):
        """bool [rows, keys]: key <= row, by places."""
        return self.node("LessOrEqual", self.node("Unsqueeze", keys, self.ints(0)), self.node("Unsqueeze", rows, self.ints(1)))

    def decoder(self, ids, places, attend, change=None, x=None, last=None):
        """places NONE: no positions are added. attend(layer, q, k, v) [B, S, width] each -> the same."""
        x = x or self.node("Gather", self.weight("words", WORDS, WIDTH, spread=1), ids)
        if places:
            x = self.node("Add", x, self.node("Gather", self.weight("places", ROOM, WIDTH, spread=1), places))
        for layer in range(LAYERS):
            y = self.norm(x, f"norm{layer}a")
            y = attend(layer, *(self.node("MatMul", y, self.weight(f"{w}{layer}", WIDTH, WIDTH)) for w in "qkv"))
            x = self.node("Add", x, self.node("MatMul", y, self.weight(f"o{layer}", WIDTH, WIDTH)))
            if change and layer == 0:
                x = change(x)
            y = self.node("Relu", self.node("MatMul", self.norm(x, f"norm{layer}b"), self.weight(f"up{layer}", WIDTH, 2 * WIDTH)))
            x = self.node("Add", x, self.node("MatMul", y, self.weight(f"down{layer}", 2 * WIDTH, WIDTH)))
        x = self.norm(x, "norm")
        return self.node("MatMul", last(x) if last else x, self.weight("head", WIDTH, WORDS))

    def save(self, name, opset, folder=HERE):
        graph = h.make_graph(self.nodes, name, self.inputs, self.outputs, list(self.tensors.values()))
        model = h.make_model(graph, ir_version=10, opset_imports=[h.make_opsetid("", opset), h.make_opsetid("com.microsoft", 1)])
        (folder / name).mkdir(exist_ok=True)
        onnx.save(model, folder / name / "model.onnx")


class FewBits(Graph):
    """Products with weights read codes of 4 bits, in blocks of 16 with a scale each."""

    def node(self, op, *inputs, **attributes):
        if op != "MatMul" or inputs[1] not in self.tensors:
            return super().node(op, *inputs, **attributes)
        w = nh.to_array(self.tensors.pop(inputs[1])).T
        blocks = w.reshape(w.shape[0], -1, 16)
        scales = np.abs(blocks).max(axis=2) / 7
        codes = (np.clip(np.round(blocks / scales[..., None]), -8, 7) + 8).astype(np.uint8)
        packed = self.constant(codes[..., 0::2] | codes[..., 1::2] << 4, inputs[1] + "_codes")
        scales = self.constant(scales.astype(np.float32).reshape(-1), inputs[1] + "_scales")
        return super().node("MatMulNBits", inputs[0], packed, scales, domain="com.microsoft", K=w.shape[1], N=w.shape[0], bits=4, block_size=16)


def ids_of(g):
    return g.input("input_ids", ["batch", "seq"])


def logits_of(g, logits):
    g.output(logits, "logits", ["batch", "seq", WORDS])


# ---- forms; each returns its opset ----


def whole(g, places=True, mask=None, change=None, last=None):
    """No past. mask(rows, keys): bool, or numbers. last: picks a token before the head."""
    ids = ids_of(g)
    n = g.length(ids, 1)
    rows = g.places(g.ints(0), n)
    added = mask(rows, rows) if mask else g.hide(g.before(rows, rows))
    logits_of(g, g.decoder(ids, rows if places else None, lambda _, q, k, v: g.join(g.scores(g.split(q), g.split(k), g.split(v), added)), change, last=last))
    return 20


def embeddings(g):
    """Activations come in instead of ids."""
    x = g.input("inputs_embeds", ["batch", "seq", WIDTH], T.FLOAT)
    rows = g.places(g.ints(0), g.length(x, 1))
    added = g.hide(g.before(rows, rows))
    logits_of(g, g.decoder(None, rows, lambda _, q, k, v: g.join(g.scores(g.split(q), g.split(k), g.split(v), added)), x=x))
    return 20


def last_sliced(g):
    """Logits of the last token alone: sliced before the head."""
    return whole(g, last=lambda x: g.node("Slice", x, g.ints(-1), g.ints(2**63 - 1), g.ints(1)))


def last_gathered(g):
    """The same, gathered at the length that the mask has, without its axis."""

    def last(x):
        n = g.node("ReduceSum", g.input("attention_mask", ["batch", "seq"]), g.ints(1), keepdims=0)
        at = g.node("Squeeze", g.node("Sub", n, g.ints(1)), g.ints(0))
        return g.node("Gather", x, at, axis=1)

    return whole(g, last=last)


def mask_given(g):
    """The host gives the whole mask."""
    return whole(g, mask=lambda rows, keys: g.hide(g.input("attention_mask", ["batch", 1, "seq", "seq"], T.BOOL)))


def grown_body(g, ids, past, given=None, combined=False, window=None):
    """past(layer): names of the past keys and values, [B, heads, P, size] each."""
    presents = []
    n = g.length(ids, 1)
    first = g.length(past(0)[0], 2)
    rows, keys = g.places(first, n), g.places(g.ints(0), g.node("Add", first, n))
    seen = g.before(rows, keys)
    if window:
        low = g.node("Sub", g.node("Unsqueeze", rows, g.ints(1)), g.ints(window))
        seen = g.node("And", seen, g.node("Greater", g.node("Unsqueeze", keys, g.ints(0)), low))
    if given:
        kept = g.node("Cast", g.node("Unsqueeze", given, g.ints(1, 2)), to=T.BOOL)
        seen = g.node("And", seen, kept)
    added = g.hide(seen)

    def attend(layer, q, k, v):
        pair = [g.node("Concat", p, g.split(x), axis=2) for p, x in zip(past(layer), (k, v))]
        presents.append(g.node("Concat", *(g.node("Unsqueeze", x, g.ints(0)) for x in pair), axis=0) if combined else pair)
        return g.join(g.scores(g.split(q), *pair, added))

    return g.decoder(ids, rows, attend), presents


def pasts(g, rows="past"):
    names = [[f"past_key_values.{i}.{what}" for what in ("key", "value")] for i in range(LAYERS)]
    for pair in names:
        for name in pair:
            g.input(name, ["batch", HEADS, rows, SIZE], T.FLOAT)
    return lambda layer: names[layer]


def give(g, presents, rows="total"):
    for i, pair in enumerate(presents):
        for what, x in zip(("key", "value"), pair):
            g.output(x, f"present.{i}.{what}", ["batch", HEADS, rows, SIZE])


def grown(g, **options):
    ids = ids_of(g)
    given = g.input("attention_mask", ["batch", "past + seq"])
    logits, presents = grown_body(g, ids, pasts(g), given, **options)
    logits_of(g, logits)
    give(g, presents)
    return 20


def combined(g):
    ids = ids_of(g)
    for i in range(LAYERS):
        g.input(f"past_{i}", [2, "batch", HEADS, "past", SIZE], T.FLOAT)
    logits, presents = grown_body(g, ids, lambda i: [g.node("Gather", f"past_{i}", g.constant(np.array(k, np.int64))) for k in range(2)], combined=True)
    logits_of(g, logits)
    for i, x in enumerate(presents):
        g.output(x, f"present_{i}", [2, "batch", HEADS, "total", SIZE])
    return 20


def merged(g):
    """Both decoders within an If, as optimum merges them."""
    ids = ids_of(g)
    past = pasts(g)
    names = ["logits"] + [f"present.{i}.{what}" for i in range(LAYERS) for what in ("key", "value")]
    bodies = []
    for cached in (True, False):
        b = Graph(g)
        empty = b.constant(np.zeros((1, HEADS, 0, SIZE), np.float32))
        logits, presents = grown_body(b, ids, past if cached else lambda _, e=empty: [e, e])
        outs = [logits] + [x for pair in presents for x in pair]
        infos = [h.make_tensor_value_info(x, T.FLOAT, None) for x in outs]
        bodies.append(h.make_graph(b.nodes, "with_past" if cached else "without_past", [], infos))
    g.input("use_cache_branch", [1], T.BOOL)
    g.node("If", "use_cache_branch", names=names, then_branch=bodies[0], else_branch=bodies[1])
    g.outputs += [h.make_tensor_value_info(x, T.FLOAT, ["batch", "seq", WORDS] if x == "logits" else ["batch", HEADS, "total", SIZE]) for x in names]
    return 20


def attention(g):
    ids, past, presents = ids_of(g), pasts(g), []
    rows = g.places(g.length(past(0)[0], 2), g.length(ids, 1))

    def attend(layer, q, k, v):
        y, *pair = g.node("Attention", g.split(q), g.split(k), g.split(v), "", *past(layer), outputs=3, is_causal=1)
        presents.append(pair)
        return g.join(y)

    logits_of(g, g.decoder(ids, rows, attend))
    give(g, presents)
    return 24


def tensor_scatter(g):
    ids, past, presents = ids_of(g), pasts(g, ROOM), []
    at, keys = g.input("write_indices", ["batch"]), g.input("nonpad_kv_seqlen", ["batch"])
    rows = g.node("Add", g.places(g.ints(0), g.length(ids, 1)), g.node("Unsqueeze", at, g.ints(1)))

    def attend(layer, q, k, v):
        pair = [g.node("TensorScatter", p, g.split(x), at, axis=2) for p, x in zip(past(layer), (k, v))]
        presents.append(pair)
        return g.join(g.node("Attention", g.split(q), *pair, "", "", "", keys, is_causal=1))

    logits_of(g, g.decoder(ids, rows, attend))
    give(g, presents, ROOM)
    return 24


def written(g, write):
    """A buffer of fixed size. write(past, new): keys or values [B, heads, room, size]."""
    ids, past, presents = ids_of(g), pasts(g, ROOM), []
    rows = g.input("cache_position", ["seq"])
    added = g.hide(g.before(rows, g.constant(np.arange(ROOM))))

    def attend(layer, q, k, v):
        pair = [write(p, g.split(x), rows) for p, x in zip(past(layer), (k, v))]
        presents.append(pair)
        return g.join(g.scores(g.split(q), *pair, added))

    logits_of(g, g.decoder(ids, rows, attend))
    give(g, presents, ROOM)
    return 20


def scatter_nd(g):
    def write(past, new, rows):
        turn = {"perm": [2, 0, 1, 3]}
        made = g.node("ScatterND", g.node("Transpose", past, **turn), g.node("Unsqueeze", rows, g.ints(1)), g.node("Transpose", new, **turn))
        return g.node("Transpose", made, perm=[1, 2, 0, 3])

    return written(g, write)


def scatter_elements(g):
    def write(past, new, rows):
        at = g.node("Expand", g.node("Unsqueeze", rows, g.ints(0, 1, 3)), g.node("Shape", new))
        return g.node("ScatterElements", past, at, new, axis=2)

    return written(g, write)


def scatter_elsewhere(g):
    def write(past, new, rows):
        at = g.node("Expand", g.node("Unsqueeze", g.node("Add", rows, g.ints(1)), g.ints(0, 1, 3)), g.node("Shape", new))
        return g.node("ScatterElements", past, at, new, axis=2)

    return written(g, write)


def multi_head(g):
    ids, past, presents = ids_of(g), pasts(g), []
    rows = g.places(g.length(past(0)[0], 2), g.length(ids, 1))

    def attend(layer, q, k, v):
        y, *pair = g.node("MultiHeadAttention", q, k, v, "", "", "", *past(layer), outputs=3, domain="com.microsoft", num_heads=HEADS, unidirectional=1)
        presents.append(pair)
        return y

    logits_of(g, g.decoder(ids, rows, attend))
    give(g, presents)
    return 20


def group_query(g):
    ids, past, presents = ids_of(g), pasts(g), []
    last = g.input("seqlens_k", ["batch", 1], T.INT32)
    total = g.input("total_sequence_length", [1], T.INT32)
    rows = g.input("position_ids", ["batch", "seq"])

    def attend(layer, q, k, v):
        y, *pair = g.node("GroupQueryAttention", q, k, v, *past(layer), last, total, outputs=3, domain="com.microsoft", num_heads=HEADS, kv_num_heads=HEADS)
        presents.append(pair)
        return y

    logits_of(g, g.decoder(ids, rows, attend))
    give(g, presents)
    return 20


def distances(g, rows, keys):
    """key - row, float [rows, keys]."""
    away = g.node("Sub", g.node("Unsqueeze", keys, g.ints(0)), g.node("Unsqueeze", rows, g.ints(1)))
    return g.node("Cast", away, to=T.FLOAT)


def alibi(g):
    slopes = g.constant(np.array([[[0.5]], [[0.0625]]], np.float32))
    return whole(g, False, lambda rows, keys: g.node("Add", g.node("Mul", distances(g, rows, keys), slopes), g.hide(g.before(rows, keys))))


# ---- what has no row form ----


def both_ways(g):
    return whole(g, mask=lambda rows, keys: g.node("Mul", distances(g, rows, keys), g.number(0)))


def relative_table(g):
    table = g.weight("table", HEADS, ROOM)

    def mask(rows, keys):
        away = g.node("Sub", g.node("Unsqueeze", rows, g.ints(1)), g.node("Unsqueeze", keys, g.ints(0)))
        near = g.node("Max", away, g.constant(np.array(0)))
        return g.node("Add", g.node("Gather", table, near, axis=1), g.hide(g.before(rows, keys)))

    return whole(g, mask=mask)


def with_holes(g):
    def mask(rows, keys):
        away = g.node("Sub", g.node("Unsqueeze", rows, g.ints(1)), g.node("Unsqueeze", keys, g.ints(0)))
        even = g.node("Equal", g.node("Mod", away, g.ints(3)), g.ints(0))
        return g.hide(g.node("And", g.before(rows, keys), even))

    return whole(g, mask=mask)


def windows_apart(g):
    def mask(rows, keys):
        away = g.node("Sub", g.node("Unsqueeze", rows, g.ints(1)), g.node("Unsqueeze", keys, g.ints(0)))
        near = g.node("Less", away, g.constant(np.array([[[4]], [[9]]])))
        return g.hide(g.node("And", g.before(rows, keys), near))

    return whole(g, mask=mask)


def rows_mixed(g):
    return whole(g, change=lambda x: g.node("Sub", x, g.node("ReduceMean", x, g.ints(1))))


def rows_shifted(g):
    def change(x):
        shifted = g.node("Pad", x, g.ints(0, 1, 0, 0, -1, 0))
        return g.node("Add", x, shifted)

    return whole(g, change=change)


def by_length(g):
    def change(x):
        n = g.node("Cast", g.length(x, 1), to=T.FLOAT)
        return g.node("Mul", x, g.node("Log", n))

    return whole(g, change=change)


def branch_on_length(g):
    def change(x):
        n = g.length(x, 1)
        factor = g.node("Where", g.node("Greater", n, g.ints(12)), g.number(0.5), g.number(1))
        return g.node("Mul", x, factor)

    return whole(g, change=change)


def branch_on_table(g):
    """One of two tables, by the length."""

    def change(x):
        longer = g.node("Greater", g.node("Squeeze", g.length(x, 1)), g.constant(np.array(12)))
        bodies = []
        for which in ("long", "short"):
            b = Graph(g)
            out = b.node("Identity", g.weight(f"table_{which}", WIDTH, spread=1))
            bodies.append(h.make_graph(b.nodes, which, [], [h.make_tensor_value_info(out, T.FLOAT, None)]))
        return g.node("Mul", x, g.node("If", longer, then_branch=bodies[0], else_branch=bodies[1]))

    return whole(g, change=change)


def recurrent(g):
    state = g.input("past_state", ["batch", 1, WIDTH], T.FLOAT)

    def change(x):
        y = g.node("Add", x, state)
        g.output(g.node("ReduceMean", y, g.ints(1)), "present_state", ["batch", 1, WIDTH])
        return y

    return whole(g, change=change)


def convolved(g):
    """A causal convolution whose last inputs are a state."""
    state = g.input("past_conv", ["batch", WIDTH, 2], T.FLOAT)

    def change(x):
        y = g.node("Concat", state, g.node("Transpose", x, perm=[0, 2, 1]), axis=2)
        y = g.node("Conv", y, g.weight("filter", WIDTH, 1, 3), group=WIDTH)
        return g.node("Add", x, g.node("Transpose", y, perm=[0, 2, 1]))

    return whole(g, change=change)


def crossed(g):
    memory = g.input("encoder_hidden_states", ["batch", "encoded", WIDTH], T.FLOAT)

    def change(x):
        k = g.node("MatMul", memory, g.weight("kc", WIDTH, WIDTH))
        y = g.scores(g.split(x), g.split(k), g.split(k), g.number(0))
        return g.node("Add", x, g.join(y))

    return whole(g, change=change)


FORMS = {"whole": whole, "grown": grown, "combined": combined, "merged": merged, "attention": attention, "tensor_scatter": tensor_scatter,
         "scatter_nd": scatter_nd, "scatter_elements": scatter_elements, "multi_head": multi_head, "group_query": group_query,
         "window": lambda g: grown(g, window=5), "alibi": alibi, "embeddings": embeddings, "mask_given": mask_given, "last_sliced": last_sliced, "last_gathered": last_gathered,
         "both_ways": both_ways, "relative_table": relative_table, "with_holes": with_holes, "windows_apart": windows_apart, "rows_mixed": rows_mixed,
         "rows_shifted": rows_shifted, "by_length": by_length, "branch_on_length": branch_on_length, "branch_on_table": branch_on_table, "recurrent": recurrent, "convolved": convolved,
         "crossed": crossed, "scatter_elsewhere": scatter_elsewhere, "few_bits": group_query}


def main():
    for name in sys.argv[1:] or FORMS:
        g = FewBits() if name == "few_bits" else Graph()
        g.save(name, FORMS[name](g))


if __name__ == "__main__":
    main()

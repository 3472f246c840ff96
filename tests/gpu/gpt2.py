# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of any shape as an ONNX file with seeded weights beside it, with Python's standard library alone."""
import os
import random
import struct

from wire import FLOAT, INT64, floats, graph, longs, model, node, outside, tensor, value

SHAPES = {  # layers, width, heads
    "124M": (12, 768, 12), "350M": (24, 1024, 16), "774M": (36, 1280, 20), "1.5B": (48, 1600, 25),
    "1B": (4, 2048, 16), "7B": (4, 4096, 32),  # true width, few layers
    "tiny": (1, 32, 2), "small": (2, 64, 4), "middle": (2, 256, 4),
}
BFLOAT16 = 16
VOCABULARY = 50304  # of GPT-2, to a multiple of 128
MASKS = ["padding", "added-1e12", "added", "biased"]
BLOCK = 1 << 20     # random numbers that large weights repeat: no product sees zeros


def parameters(layers, width, vocabulary, tokens):
    return vocabulary * width + tokens * width + layers * (12 * width * width + 13 * width) + 2 * width


class Weights:
    """Initialisers in one file of external data, of fp32 or bf16."""

    def __init__(self, path, seed, half=False):
        self.draw = random.Random(seed)
        self.half = half
        self.file = open(path, "wb")
        self.location = os.path.basename(path)
        self.at = 0
        self.block = b""  # as much of it as was asked for
        self.entries = []

    def packed(self, numbers):
        """Numbers, cut to what bf16 has: a model of it has the weights of one of fp32."""
        wide = bytearray(struct.pack("<%df" % len(numbers), *numbers))
        n = len(numbers)
        if self.half:
            upper = bytearray(2 * n)
            upper[0::2], upper[1::2] = wide[2::4], wide[3::4]
            return bytes(upper)
        wide[0::4] = wide[1::4] = bytes(n)
        return bytes(wide)

    def numbers(self, n_bytes):
        """The block, or its beginning, if that is enough."""
        size = 2 if self.half else 4
        more = min(n_bytes // size, BLOCK) - len(self.block) // size
        self.block += self.packed([self.draw.gauss(0, 0.02) for _ in range(more)])
        return self.block

    def add(self, name, shape, fill=None):
        n = 2 if self.half else 4
        for size in shape:
            n *= size
        piece = self.numbers(n) if fill is None else self.packed([fill] * min(n, 4096))
        for begin in range(0, n, len(piece)):
            self.file.write(piece[: n - begin])
        self.entries.append(outside(name, BFLOAT16 if self.half else FLOAT, list(shape), location=self.location, offset=str(self.at), length=str(n)))
        self.at += n
        return name


def linear(nodes, weights, x, y, name, rows, columns):
    weights.add(name + ".w", [rows, columns])
    weights.add(name + ".b", [columns], 0.0)
    nodes.append(node("MatMul", "%s %s.w" % (x, name), y + ".m", name + ".product"))
    nodes.append(node("Add", "%s.m %s.b" % (y, name), y, name + ".bias"))


def norm(nodes, weights, x, y, name, width):
    weights.add(name + ".g", [width], 1.0)
    weights.add(name + ".b", [width], 0.0)
    nodes.append(node("LayerNormalization", "%s %s.g %s.b" % (x, name, name), y, name, axis=-1, epsilon=1e-5))


def mask(nodes, masks, heads, tokens, vocabulary):
    """Nodes that make the value `mask` of ids, and constants: "padding": bool [batch, 1, 1, T], a quarter of the tokens hidden, so that rows at
    the beginning see nothing; "added": float [batch, 1, T, T], the lowest number for these, or the one that follows the word, and -infinity for
    later ones; "biased": float [1, heads, T, T], the farther the less."""
    if masks is None:
        return []
    below = [float("-inf") if k > q else 0.0 for q in range(tokens) for k in range(tokens)]
    if masks == "biased":
        numbers = [(k - q) / 2.0 ** (h + 1) if k <= q else float("-inf") for h in range(heads) for q in range(tokens) for k in range(tokens)]
        return [tensor("mask", FLOAT, [1, heads, tokens, tokens], floats(*numbers))]
    shown = "mask" if masks == "padding" else "mask.shown"
    nodes += [node("Greater", "ids mask.limit", "mask.tokens", "mask.greater"), node("Unsqueeze", "mask.tokens mask.axes", shown, "mask.unsqueeze")]
    adds = masks.startswith("added")
    lowest = floats(float(masks[5:])) if adds and masks != "added" else struct.pack("<I", 0xff7fffff)
    if adds:
        nodes += [node("Where", "mask.shown mask.zero mask.lowest", "mask.padding", "mask.where"),
                  node("Add", "mask.padding mask.later", "mask", "mask.add")]
    inits = [tensor("mask.limit", INT64, [], longs(vocabulary // 4)), tensor("mask.axes", INT64, [2], longs(1, 2))]
    more = [tensor("mask.zero", FLOAT, [], floats(0.0)), tensor("mask.lowest", FLOAT, [], lowest),
            tensor("mask.later", FLOAT, [tokens, tokens], floats(*below))]
    return inits + (more if adds else [])


def block(nodes, weights, i, width, heads, past=0, masks=None):
    """past: keys and values of so many earlier tokens, constants here, which Attention reads before those of this one. masks: as
    mask()."""
    p = "h%d" % i
    norm(nodes, weights, "x%d" % i, p + ".n1", p + ".ln1", width)
    linear(nodes, weights, p + ".n1", p + ".qkv", p + ".attn", width, 3 * width)
    nodes.append(node("Split", "%s.qkv thirds" % p, "%s.q %s.k %s.v" % (p, p, p), p + ".split", axis=-1))
    inputs = [p + ".q", p + ".k", p + ".v"] + (["mask"] if masks else [])
    if past:
        inputs += [""] + [weights.add(p + ".past." + one, [1, heads, past, width // heads]) for one in "kv"]
    nodes.append(node("Attention", inputs, p + ".a", p + ".attention", q_num_heads=heads, kv_num_heads=heads,
                      is_causal=int(masks in (None, "padding"))))
    linear(nodes, weights, p + ".a", p + ".o", p + ".proj", width, width)
    nodes.append(node("Add", "x%d %s.o" % (i, p), p + ".r", p + ".residual1"))
    norm(nodes, weights, p + ".r", p + ".n2", p + ".ln2", width)
    linear(nodes, weights, p + ".n2", p + ".f", p + ".fc", width, 4 * width)
    nodes.append(node("Gelu", p + ".f", p + ".g", p + ".gelu", approximate="tanh"))
    linear(nodes, weights, p + ".g", p + ".m", p + ".out", 4 * width, width)
    nodes.append(node("Add", "%s.r %s.m" % (p, p), "x%d" % (i + 1), p + ".residual2"))


def names(shape, tokens, vocabulary):
    """[(name, shape)] of the weights, in the order of their file; those of linear layers are [inputs, outputs]."""
    layers, width, _ = SHAPES[shape]
    out = [("wte", [vocabulary, width]), ("wpe", [tokens, width])]
    for i in range(layers):
        p = "h%d." % i
        for part, rows, columns in (("ln1", 0, width), ("attn", width, 3 * width), ("proj", width, width), ("ln2", 0, width),
                                    ("fc", width, 4 * width), ("out", 4 * width, width)):
            out.append((p + part + (".w" if rows else ".g"), [rows, columns] if rows else [columns]))
            out.append((p + part + ".b", [columns]))
    return out + [("ln.g", [width]), ("ln.b", [width])]


def write(path, shape, tokens, vocabulary=VOCABULARY, seed=1, serves=False, past=0, half=None, masks=None):
    """The model at `path`, its weights at path + ".weights": ids [batch, tokens] -> logits; one that serves is of bf16 and
    tells the likeliest token after each: ids -> next, for one sample behind `past` earlier tokens. half: of bf16, or not (as it
    serves). masks: as mask(). The weights' bytes."""
    layers, width, heads = SHAPES[shape]
    half = serves if half is None else half
    weights = Weights(path + ".weights", seed, half)
    weights.add("wte", [vocabulary, width])
    weights.add("wpe", [tokens, width])
    nodes = [node("Gather", "wte ids", "e", "tokens"), node("Add", "e wpe", "x0", "positions")]
    made = mask(nodes, masks, heads, tokens, vocabulary)
    for i in range(layers):
        block(nodes, weights, i, width, heads, past, masks)
    norm(nodes, weights, "x%d" % layers, "n", "ln", width)
    nodes.append(node("Transpose", "wte", "head", "turned", perm=[1, 0]))
    nodes.append(node("MatMul", "n head", "logits", "scores"))
    weights.file.close()
    inits = weights.entries + made + [tensor("thirds", INT64, [3], longs(width, width, width))]
    outputs = [value("logits", ["batch", tokens, vocabulary], BFLOAT16 if half else FLOAT)]
    if serves:
        nodes.append(node("ArgMax", "logits", "next", "likeliest", axis=-1, keepdims=0))
        outputs = [value("next", ["batch", tokens], INT64)]
    body = graph(nodes, [value("ids", ["batch", tokens], INT64)], outputs, inits)
    with open(path, "wb") as file:
        file.write(model(body, version=23, ir=10))
    return weights.at


def ids(path, samples, tokens, vocabulary=VOCABULARY, seed=2):
    """Random tokens as a .npy file."""
    draw = random.Random(seed)
    head = "{'descr': '<i8', 'fortran_order': False, 'shape': (%d, %d), }" % (samples, tokens)
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        for _ in range(samples):
            file.write(struct.pack("<%dq" % tokens, *(draw.randrange(vocabulary) for _ in range(tokens))))

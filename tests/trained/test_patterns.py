#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""Each way a constant can reach the loss, under a module's name and under names that exporters make
up: what is trained, what is not, what is doubtful; then the same without the numbers."""
import json
import math
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from command import DONE, Count, need_command, run

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError as missing:
    print(f"SKIP: {missing}")
    sys.exit(77)

D, S, V, HEADS = 8, 16, 24, 2
RANDOM = np.random.default_rng(5)


def noise(*shape):
    return (RANDOM.standard_normal(shape) * 0.3).astype(np.float32)


def waves(rows, width, layout="halves"):
    place = np.arange(rows)[:, None] / 10000 ** (np.arange(width // 2) * 2 / width)
    if layout == "halves":
        return np.concatenate([np.sin(place), np.cos(place)], 1).astype(np.float32)
    return np.stack([np.sin(place), np.cos(place)], 2).reshape(rows, width).astype(np.float32)


def grid_waves():
    """Two-dimensional places, as MAE has them, behind a row of zeros for the class token."""
    half = waves(4, D // 2)
    y, x = np.repeat(half, 4, 0)[: S - 1], np.tile(half, (4, 1))[: S - 1]
    return np.concatenate([np.zeros((1, D), np.float32), np.concatenate([y, x], 1)])[None]


class Graph:
    """A stream of activations h [1, S, D], scores [1, HEADS, S, S] and logits, joined with constants."""

    def __init__(self):
        self.nodes, self.weights, self.wanted, self.n = [], [], {}, 0
        self.h = self.op("Gather", self.weight("embed.weight", noise(V, D)), "ids", axis=0)
        fp = {"to": TensorProto.FLOAT}
        ones = self.constant(np.array(1, np.int64))
        self.counts = self.op("Cast", self.op("CumSum", "mask", ones), **fp)  # [1, S] of integers
        self.flags = self.op("Unsqueeze", self.op("Cast", "mask", **fp), self.ints(-1))
        self.scores = self.op("Unsqueeze", self.op("MatMul", self.h, self.op("Transpose", self.h, perm=[0, 2, 1])), self.ints(1))
        self.logits = None

    def op(self, kind, *inputs, **attributes):
        self.n += 1
        self.nodes.append(helper.make_node(kind, inputs, [f"t.{self.n}"], **attributes))
        return f"t.{self.n}"

    def constant(self, array):
        self.n += 1
        self.nodes.append(helper.make_node("Constant", [], [f"t.{self.n}"], value=numpy_helper.from_array(array)))
        return f"t.{self.n}"

    def ints(self, *numbers):
        return self.constant(np.array(numbers, np.int64))

    def weight(self, name, array, wanted=True):
        self.weights.append(array if isinstance(array, TensorProto) else numpy_helper.from_array(array, name))
        self.wanted[name] = wanted
        return name

    # places
    def score(self, name):
        self.scores = self.op("Add", self.scores, name)

    def slope(self, name):
        line = self.op("Unsqueeze", self.counts, self.ints(1))
        slopes = self.op("Unsqueeze", name, self.ints(1))
        self.score(self.op("Unsqueeze", self.op("Mul", slopes, line), self.ints(2)))

    def half_slope(self, name):
        self.slope(self.op("Cast", name, to=TensorProto.FLOAT))

    def shift(self, name):
        self.h = self.op("Add", self.h, name)

    def scale(self, name):
        self.h = self.op("Mul", self.h, name)

    def exp_scale(self, name):
        self.scale(self.op("Exp", name))

    def product_scale(self, name):
        self.h = self.op("Mul", self.op("MatMul", self.h, self.weight(f"h.w{self.n}.weight", noise(D, D))), name)

    def table(self, name):
        self.shift(self.op("Gather", name, self.ints(*range(S)), axis=0))

    def ids_table(self, name):
        self.shift(self.op("Gather", name, "places", axis=0))

    def token(self, name):
        self.shift(self.op("Mul", self.flags, name))

    def left(self, name):
        width = self.weights[-1].dims[-1]
        self.shift(self.op("MatMul", name, self.weight(f"h.left{self.n}.weight", noise(width, D))))

    def right(self, name):
        self.h = self.op("MatMul", self.h, name)

    def guard(self, name):
        square = self.op("ReduceMean", self.op("Mul", self.h, self.h), self.ints(-1))
        self.h = self.op("Div", self.h, self.op("Sqrt", self.op("Add", square, name)))

    def grouped(self, name):
        other = self.constant(np.zeros(S, np.float32))
        self.h = self.op("InstanceNormalization", self.h, name, other)

    def picked(self, name):
        self.h = self.op("Where", self.op("Greater", self.flags, self.constant(np.array(0.5, np.float32))), self.h, name)

    def row(self, name):
        if self.logits is None:
            self.logits = self.op("MatMul", self.h, self.weight("lm_head.weight", noise(D, V)))
        self.logits = self.op("Add", self.logits, name)

    def add(self, place, name, array, wanted):
        getattr(self, place)(self.weight(name, array, wanted))

    def save(self, path, numbers):
        probabilities = self.op("ReduceMean", self.op("Softmax", self.scores, axis=-1), self.ints(1), keepdims=0)
        last = self.logits
        self.logits = self.op("MatMul", probabilities, self.op("MatMul", self.h, self.weight("mix.weight", noise(D, V))))
        rows = [n for n in self.nodes if last is not None and n.output[0] == last]
        if rows:  # a row lies on top of the sum
            rows[0].input[0] = self.op("Add", rows[0].input[0], self.logits)
            self.nodes.remove(rows[0])
            self.nodes.append(rows[0])
            self.logits = last
        ids, places = (helper.make_tensor_value_info(n, TensorProto.INT64, [1, S]) for n in ("ids", "places"))
        mask = helper.make_tensor_value_info("mask", TensorProto.INT64, [1, S])
        out = helper.make_tensor_value_info(self.logits, TensorProto.FLOAT, [1, S, V])
        graph = helper.make_graph(self.nodes, "patterns", [ids, mask, places], [out], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.checker.check_model(model)
        if numbers:
            onnx.save(model, path)
            return
        onnx.save(model, path, save_as_external_data=True, location="gone.data", size_threshold=0)
        os.remove(os.path.join(os.path.dirname(path), "gone.data"))


def swin_mask():
    mask = np.zeros((1, 1, S, S), np.float32)
    mask[..., S // 2 :, : S // 2] = -100  # the first rows are zeros alone
    return mask


def bf16(name, array):
    bits = (np.asarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return helper.make_tensor(name, TensorProto.BFLOAT16, array.shape, bits.tobytes(), raw=True)


def slopes(n=HEADS):
    return (2.0 ** (-8.0 * np.arange(1, n + 1) / n)).astype(np.float32)


COORDINATES = np.stack(np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 4)), -1).reshape(1, S, 2).astype(np.float32)
MIX = noise(D)
BIAS = noise(1, HEADS, S, S)
TOEPLITZ = noise(2 * S - 1)[np.arange(S)[:, None] - np.arange(S) + S - 1][None, None]

# place, module's name, dynamo's, TorchScript's, numbers, trained?
# A name that is not there: the exporter keeps the module's.
CASES = [
    ("score", "h.0.attn_mask", "unsqueeze_11", "onnx::Add_301", swin_mask(), False),
    ("score", "h.1.attn_mask", "masked_fill_1", "onnx::Add_302", np.triu(np.full((S, S), -3.4e38, np.float32), 1), False),
    ("score", "h.2.causal", "full_2", "onnx::Add_303", np.triu(np.full((S, S), -1e9, np.float32), 1), False),
    ("score", "h.0.rel.table", "unsqueeze_9", "onnx::Add_304", BIAS, True),
    ("score", "h.1.rel.table", "permute_3", "onnx::Add_305", TOEPLITZ, True),
    ("score", "h.2.rel.table", None, None, np.zeros((1, HEADS, S, S), np.float32), True),
    ("score", "alibi", "squeeze", "onnx::Add_306", -(slopes()[:, None, None] * np.arange(S, dtype=np.float32)), False),
    ("score", "h.3.alibi", "slice_1", "onnx::Add_307", slopes()[None, :, None, None] * (np.arange(S)[None, :] - np.arange(S)[:, None]).astype(np.float32), False),
    ("slope", "h.4.slopes", "unsqueeze_1", "onnx::Mul_308", slopes(), False),
    ("half_slope", "h.5.slopes", "_to_copy", "onnx::Cast_309", "bf16", False),
    ("token", "embed.mask_token", None, None, noise(1, 1, D), True),
    ("table", "pos.0.weight", "embedding_1", "onnx::Gather_310", waves(S + 2, D), False),
    ("table", "pos.1.weight", "cat_4", "onnx::Gather_311", waves(S, D, "pairs"), False),
    ("ids_table", "pos.2.weight", "_to_copy_3", "onnx::Gather_312", waves(S, D), False),
    ("shift", "vit.pos_embed", "add_17", "onnx::Add_313", grid_waves(), False),
    ("table", "pos.3.weight", None, None, noise(S + 2, D), True),
    ("table", "pos.4.weight", None, None, np.zeros((S, D), np.float32), True),
    ("shift", "pos_embed", "embedding", "onnx::Add_314", noise(1, S, D), True),
    ("scale", "rope.cos", "cos_2", "onnx::Mul_315", np.tile(np.cos(np.arange(S)[:, None] * 0.3 ** np.arange(D // 2)), 2).astype(np.float32), False),
    ("left", "rel.coords_table", "stack_2", "onnx::MatMul_316", COORDINATES, False),
    ("left", "probe.latents", "val_145", "onnx::MatMul_317", noise(1, S, 3), True),
    ("right", "h.0.fc.weight", "val_3", "onnx::MatMul_318", noise(D, D), True),
    ("shift", "h.0.fc.bias", None, None, np.zeros(D, np.float32), True),
    ("scale", "h.0.gamma", None, None, np.full(D, 1e-5, np.float32), True),
    ("scale", "h.1.gamma", "val_9", "onnx::Mul_319", noise(D), True),
    ("exp_scale", "h.0.A_log", None, None, np.log(np.arange(1, D + 1)).astype(np.float32) * 0.1, True),
    ("shift", "h.0.state", "zeros_1", "onnx::Add_320", np.zeros((1, 1, D), np.float32), "module"),
    ("scale", "h.0.ones", "ones_like", "onnx::Mul_321", np.ones((1, 1, D), np.float32), "module"),
    ("scale", "h.0.decay", "neg_1", None, -np.exp(noise(D)), "module"),
    ("scale", "h.0.mix", None, None, MIX, True),
    ("scale", None, "rsub_1", "onnx::Mul_325", 1 - MIX, False),
    ("grouped", "h.0.group.weight", None, None, noise(S), True),
    ("grouped", None, "val_28", "onnx::InstanceNormalization_326", np.ones(S, np.float32), False),
    ("exp_scale", "logit_scale", None, None, np.array(math.log(1 / 0.07), np.float32), True),
    ("shift", "logit_bias", None, "onnx::Add_322", np.array([-0.87135241], np.float32), True),
    ("product_scale", "temperature", None, None, np.array(1.0, np.float32), True),
    ("product_scale", "h.0.scale_attn", "val_170", None, np.array(math.sqrt(D), np.float32), False),
    ("scale", None, "val_12", "onnx::Mul_323", np.array(0.125, np.float32), False),
    ("scale", None, "val_171", None, np.array(0.044715, np.float32), False),
    ("scale", None, "exp", None, np.array(0.8271062, np.float32), False),
    ("guard", "h.0.norm.eps", "val_135", None, np.array(1e-6, np.float32), False),
    ("picked", "embed.cls", None, None, noise(1, 1, D), True),
    ("shift", "h.0.two.bias", None, None, np.repeat(np.array([0, 1], np.float32), D // 2), True),
    ("row", "lm_head.bias", None, None, np.zeros(V, np.float32), True),
    ("row", "final_logits_bias", None, "onnx::Add_324", np.zeros((1, V), np.float32), False),
]
DOUBTFUL = {"temperature", "exp", "neg_1", "rsub_1", "onnx::Mul_325", "embedding", "val_9", "onnx::Add_322", "embed.mask_token"}
# Without numbers: what places and names alone leave open.
OPEN = {"h.0.rel.table", "h.1.rel.table", "h.2.rel.table", "pos.3.weight", "pos.4.weight", "h.0.attn_mask", "alibi",
        "pos.0.weight", "rel.coords_table", "probe.latents", "embed.mask_token", "h.0.scale_attn"}
SURE = {"h.0.fc.weight", "h.0.fc.bias", "embed.weight", "mix.weight", "lm_head.weight"}


def build(path, column, numbers=True):
    """column 0: the module's names, 1: dynamo's, 2: TorchScript's."""
    graph = Graph()
    for place, *names, array, wanted in CASES:
        name = names[column] or names[0]
        if name is None:
            continue
        kept = name == names[0]
        if isinstance(array, str):
            array = bf16(name, slopes())
        graph.add(place, name, array, kept if wanted == "module" else wanted)
    graph.save(path, numbers)
    return graph.wanted


def report(path, *options):
    result = run("inspect", "--train", "--json", *options, path)
    if result.status != DONE:
        return None, f"status {result.status}: {result.err[:300]}"
    return {e["name"]: e for e in json.loads(result.out)["initializers"]}, None


def check_names(count, folder, column):
    path = os.path.join(folder, f"named{column}.onnx")
    wanted = build(path, column)
    entries, problem = report(path)
    count.check(f"names {column}", problem)
    for name, trained in wanted.items() if entries else ():
        entry = entries.get(name)
        if entry is None:  # folded: nothing of it is trained
            count.check(name, "is not there" if trained else None)
            continue
        wrong = entry["trained"] != trained
        count.check(name, f"trained is {entry['trained']}: {entry['why']}" if wrong else None)
        if name in DOUBTFUL:
            count.check(name, None if "doubt" in entry else "is not doubtful")
    for name in SURE if entries else ():
        doubt = entries.get(name, {}).get("doubt")
        count.check(name, f"is doubtful: {doubt}" if doubt else None)


def check_without_numbers(count, folder):
    path = os.path.join(folder, "graph.onnx")
    wanted = build(path, 0, numbers=False)
    entries, problem = report(path, "--graph-only")
    count.check("no numbers", problem)
    for name in OPEN if entries else ():
        count.check(name, None if "doubt" in entries[name] else "is not doubtful without numbers")
    for name in SURE if entries else ():
        entry = entries[name]
        count.check(name, None if entry["trained"] == wanted[name] and "doubt" not in entry else f"{entry}")


def report_loss(path, nodes, arrays):
    """A model of a graph from ids [S] to its own loss."""
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [S])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "loss", [ids], [loss], [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return report(path)


def check_loss_in_graph(count, folder):
    """The row on top of the logits, where the graph itself makes the loss of them."""
    node = helper.make_node
    nodes = [node("Gather", ["embed.weight", "ids"], ["a.1"]), node("MatMul", ["a.1", "lm_head.weight"], ["a.2"]),
             node("Add", ["a.2", "lm_head.bias"], ["a.3"]), node("Add", ["a.3", "final_logits_bias"], ["a.4"]),
             node("SoftmaxCrossEntropyLoss", ["a.4", "ids"], ["loss"], reduction="mean")]
    arrays = {"embed.weight": noise(V, D), "lm_head.weight": noise(D, V), "lm_head.bias": noise(V),
              "final_logits_bias": noise(1, V)}
    entries, problem = report_loss(os.path.join(folder, "loss.onnx"), nodes, arrays)
    count.check("loss", problem)
    for name in arrays if entries else ():
        count.check(name, None if entries[name]["trained"] == ("." in name) else f"{entries[name]}")


def check_terms(count, folder):
    """Numbers that only scale or shift terms of the loss, which has no minimum in them."""
    node = helper.make_node
    nodes = [node("Gather", ["embed.weight", "ids"], ["a.1"]), node("MatMul", ["a.1", "lm_head.weight"], ["a.2"]),
             node("Mul", ["a.2", "heat"], ["a.3"]), node("SoftmaxCrossEntropyLoss", ["a.3", "ids"], ["b.1"], reduction="mean"),
             node("Mul", ["b.1", "half"], ["b.2"]), node("Add", ["b.2", "zero"], ["b.3"]),
             node("Mul", ["b.3", "loss.factor"], ["b.4"]), node("Div", ["b.4", "width"], ["loss"])]
    arrays = {"embed.weight": noise(V, D), "lm_head.weight": noise(D, V)}
    numbers = {"heat": 1, "half": 0.5, "zero": 0, "loss.factor": 1, "width": 0.8271062}
    arrays.update((name, np.array(number, np.float32)) for name, number in numbers.items())
    entries, problem = report_loss(os.path.join(folder, "terms.onnx"), nodes, arrays)
    count.check("terms", problem)
    for name in arrays if entries else ():
        entry = entries[name]
        good = entry["trained"] == (name not in ("half", "zero")) and ("doubt" in entry) == (name in ("half", "zero", "heat"))
        count.check(name, None if good else f"{entry}")


def check_image(count, folder):
    """Means and deviations of channels meet the graph's input itself."""
    fp = TensorProto.FLOAT
    node = helper.make_node
    nodes = [node("Sub", ["x", "norm.mean"], ["a.1"]), node("Div", ["a.1", "norm.std"], ["a.2"]),
             node("Conv", ["a.2", "stem.weight", "stem.bias"], ["a.3"]),
             node("Add", ["a.3", "stem.shift"], ["y"])]
    arrays = {"norm.mean": noise(1, 3, 1, 1), "norm.std": noise(1, 3, 1, 1) + 2, "stem.weight": noise(4, 3, 2, 2),
              "stem.bias": noise(4), "stem.shift": noise(1, 4, 1, 1)}
    x = helper.make_tensor_value_info("x", fp, [1, 3, 4, 4])
    y = helper.make_tensor_value_info("y", fp, [1, 4, 3, 3])
    graph = helper.make_graph(nodes, "image", [x], [y], [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    path = os.path.join(folder, "image.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    entries, problem = report(path)
    count.check("image", problem)
    for name in arrays if entries else ():
        count.check(name, None if entries[name]["trained"] == name.startswith("stem") else f"{entries[name]}")


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for column in range(3):
            check_names(count, folder, column)
        check_without_numbers(count, folder)
        check_image(count, folder)
        check_loss_in_graph(count, folder)
        check_terms(count, folder)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

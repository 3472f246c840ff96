#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""An initializer is one parameter, wherever it lives: in the body of a Loop, in a branch of an If
inside of it, in a function that is called twice, in an external file. Training treats it as PyTorch
does, and --save-model writes it where it is. And the other way round: an Identity that means a tie
stays one, numbers of operators are not trained."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from command import DONE, SHARED, Count, need_command, run

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError as missing:
    print(f"SKIP: {missing}")
    sys.exit(77)

TRIALS = os.path.join(SHARED, "trials")
FP, D = TensorProto.FLOAT, 4
RANDOM = np.random.default_rng(7)
# folder, options, losses, norms
VALUES = [
    ("loop_body_weight", ["--loss", "mse:output=y,target=t", "--batch", "8", "--steps", "2", "--optimizer", "sgd:lr=0.5",
                          "--stages", "2", "--microbatches", "2"], [1.3799199, 0.9296133], None),
    ("tie_through_identity", ["--loss", "cross-entropy:logits=logits,labels=labels", "--optimizer", "sgd:lr=0.5", "--clip",
                              "0.3", "--batch", "8", "--steps", "3"], [7.606956, 7.745281, 6.93442], [9.0209, 9.5592, 8.3088]),
    ("onehot_constants", ["--loss", "output:loss", "--optimizer", "sgd:lr=0.1", "--batch", "8", "--steps", "2"],
     [4.561484, 4.858439], [2.1652, 2.1508]),
]
FILES = {"loop_body_weight": {"x": "x8.npy", "t": "t8.npy"}}


def near(got, wanted, slack):
    return wanted is None or (len(got) == len(wanted) and all(abs(a - b) <= slack * abs(b) for a, b in zip(got, wanted)))


def check_values(count):
    for name, options, losses, norms in VALUES:
        folder = os.path.join(TRIALS, name)
        if not os.path.isdir(folder):
            count.skip(f"{folder} is not there")
            continue
        files = FILES.get(name)
        data = [p for n, f in files.items() for p in ("--data", f"{n}={folder}/{f}")] if files else ["--data", folder]
        result = run("train", os.path.join(folder, "model.onnx"), *data, *options, "--json", "--reference")
        if result.status != DONE:
            count.check(name, f"status {result.status}: {result.err[:300]}")
            continue
        steps = json.loads(result.out)["steps"]
        got = [s["loss"] for s in steps], [s["gradient_norm"] for s in steps]
        good = near(got[0], losses, 1e-5) and near(got[1], norms, 1e-4)
        count.check(name, None if good else f"losses {got[0]}, norms {got[1]}")


def noise(*shape):
    return (RANDOM.standard_normal(shape) * 0.3).astype(np.float32)


def info(name, kind=FP, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def tensor(name, array):
    return numpy_helper.from_array(array, name)


def loop(weights, nodes, name="loop", domain=""):
    """A Loop of three trips over `cur`, whose body has initializers of its own."""
    body = helper.make_graph([*nodes, helper.make_node("Identity", ["go"], ["on"])], "body",
                             [info("trip", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("cur")],
                             [info("on", TensorProto.BOOL, []), info("next")], weights)
    return helper.make_node("Loop", ["trips", "", "h"], ["y"], name=name, body=body)


def write(path, nodes, weights=(), functions=(), external=False, outputs=("y",)):
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "first.weight"], ["h"]), *nodes], "bodies",
                              [info("x", FP, [2, D])], [info(o, FP, [2, D]) for o in outputs],
                              [tensor("first.weight", FIRST), tensor("trips", np.array(3, np.int64)), *weights])
    imports = [helper.make_opsetid("", 18), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9, functions=list(functions))
    if external:
        onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    else:
        onnx.save(model, path)


FIRST, INNER, DEEP = noise(D, D), noise(D, D), noise(D, D)


def every_tensor(graph):
    for t in graph.initializer:
        yield t
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                yield from every_tensor(a.g)


def tensors_of(model):
    lists = list(every_tensor(model.graph))
    for f in model.functions:
        for node in f.node:
            for a in node.attribute:
                if a.type == onnx.AttributeProto.GRAPH:
                    lists += every_tensor(a.g)
    return lists


def simple(path, external=False):
    write(path, [loop([tensor("loop.weight", INNER)], [helper.make_node("MatMul", ["cur", "loop.weight"], ["m"]),
                                                       helper.make_node("Tanh", ["m"], ["next"])])], external=external)
    return {"loop.weight": (INNER, lambda h, w: np.tanh(h @ w["loop.weight"]), 3)}


def external(path):
    return simple(path, True)


def nested(path):
    """A matrix and a number in a branch of an If in the body."""
    branch = helper.make_graph([helper.make_node("MatMul", ["cur", "deep.weight"], ["m"]),
                                helper.make_node("Mul", ["m", "deep.scale"], ["one"])], "then", [],
                               [info("one")], [tensor("deep.weight", DEEP), tensor("deep.scale", np.array([0.83], np.float32))])
    other = helper.make_graph([helper.make_node("Identity", ["cur"], ["two"])], "else", [], [info("two")])
    nodes = [helper.make_node("If", ["go"], ["m1"], then_branch=branch, else_branch=other), helper.make_node("Tanh", ["m1"], ["next"])]
    write(path, [loop([], nodes)])
    step = lambda h, w: np.tanh((h @ w["deep.weight"]) * w["deep.scale"])
    return {"deep.weight": (DEEP, step, 3), "deep.scale": (np.array([0.83], np.float32), step, 3)}


def called(path):
    """A function with such a loop, called twice."""
    inner = loop([tensor("loop.weight", INNER)], [helper.make_node("MatMul", ["cur", "loop.weight"], ["m"]),
                                                  helper.make_node("Tanh", ["m"], ["next"])])
    inner.output[0] = "out"
    body = helper.make_function("local", "Twice", ["h"], ["out"],
                                [helper.make_node("Constant", [], ["trips"], value=tensor("", np.array(3, np.int64))), inner],
                                [helper.make_opsetid("", 18)])
    write(path, [helper.make_node("Twice", ["h"], ["k"], domain="local", name="a"),
                 helper.make_node("Twice", ["k"], ["y"], domain="local", name="b")], functions=[body])
    return {"loop.weight": (INNER, lambda h, w: np.tanh(h @ w["loop.weight"]), 6)}


def loss_of(weights, step, trips, x, t):
    h = x @ weights["first.weight"]
    for _ in range(trips):
        h = step(h, weights)
    return float(np.mean((h - t) ** 2))


def slope_of(name, weights, step, trips, x, t):
    """The gradient by differences, in float64."""
    weights = {n: w.astype(np.float64) for n, w in weights.items()}
    out = np.zeros(weights[name].shape)
    for at in np.ndindex(*out.shape):
        for sign in (1, -1):
            moved = {n: w.copy() for n, w in weights.items()}
            moved[name][at] += sign * 1e-5
            out[at] += sign * loss_of(moved, step, trips, x.astype(np.float64), t.astype(np.float64)) / 2e-5
    return out


def check_kind(count, folder, make):
    kind, place = make.__name__, os.path.join(folder, make.__name__)
    os.mkdir(place)
    path = os.path.join(place, "model.onnx")
    inner = make(path)
    before = {t.name: numpy_helper.to_array(t, place) for t in tensors_of(onnx.load(path, load_external_data=False))}
    x, t = noise(2, D), noise(2, D)
    np.save(os.path.join(place, "x.npy"), x)
    np.save(os.path.join(place, "t.npy"), t)
    out = os.path.join(place, "out")
    os.mkdir(out)
    result = run("train", path, "--data", f"x={place}/x.npy", "--data", f"t={place}/t.npy", "--loss", "mse:output=y,target=t",
                 "--batch", "2", "--steps", "1", "--optimizer", "sgd:lr=0.5", "--stages", "2", "--json",
                 "--save-model", os.path.join(out, "new.onnx"))
    if result.status != DONE:
        count.check(kind, f"status {result.status}: {result.err[:300]}")
        return
    report = json.loads(result.out)
    wanted = {"float_initializers": len(inner) + 1, "trained": len(inner) + 1, "parameters": len(inner) + 1,
              "not_trained": [], "several": {}, "no_initializer": []}
    count.check(f"{kind}: the account", None if report["file"] == wanted else f"{report['file']}")
    names = report["plan"]["training"]["trained"]
    good = sorted(n.split("/")[-1] for n in names) == sorted(["first.weight", *inner])
    count.check(f"{kind}: trained", None if good else f"{names}")
    weights = {"first.weight": FIRST, **{n: v[0] for n, v in inner.items()}}
    first = next(iter(inner.values()))
    loss = loss_of(weights, *first[1:], x, t)
    got = report["steps"][0]["loss"]
    count.check(f"{kind}: loss", None if abs(got - loss) <= 1e-5 * loss else f"{got}, not {loss}")
    new = onnx.load(os.path.join(out, "new.onnx"), load_external_data=False)
    onnx.checker.check_model(os.path.join(out, "new.onnx"))
    after = {t.name: numpy_helper.to_array(t, out) for t in tensors_of(new)}
    count.check(f"{kind}: its initializers", None if list(before) == list(after) else f"{list(after)}")
    for name, (value, step, trips) in {**inner, "first.weight": (FIRST, *first[1:])}.items():
        wanted = value - 0.5 * slope_of(name, weights, step, trips, x, t)
        off = float(np.abs(after[name] - wanted).max())
        count.check(f"{kind}: saved {name}", None if off <= 1e-5 else f"off by {off}")
    again = run("run", os.path.join(out, "new.onnx"), "--input", f"x={place}/x.npy", "--output", os.path.join(place, "y"))
    problem = f"status {again.status}: {again.err[:200]}" if again.status != DONE else None
    if problem is None:
        now = {n: after[n] for n in weights}
        h = x @ now["first.weight"]
        for _ in range(first[2]):
            h = first[1](h, now)
        off = float(np.abs(np.load(os.path.join(place, "y", "y.npy")) - h).max())
        problem = None if off <= 1e-5 else f"off by {off}"
    count.check(f"{kind}: runs with them", problem)


def main():
    need_command()
    count = Count()
    check_values(count)
    with tempfile.TemporaryDirectory() as folder:
        for make in (simple, external, nested, called):
            check_kind(count, folder, make)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

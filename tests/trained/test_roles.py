#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""The role of a constant follows from where it is read, whatever its name: numbers of operators,
means of images, one-element parameters in functions of their own, norms without weights, buffers
that repeat; lost names that the file's nodes tell; merged parameters; patterns of --trainable."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from command import DONE, USAGE, Count, need_command, run

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError as missing:
    print(f"SKIP: {missing}")
    sys.exit(77)

FP, D = TensorProto.FLOAT, 16
RANDOM = np.random.default_rng(11)


def noise(*shape):
    return (RANDOM.standard_normal(shape) * 0.3).astype(np.float32)


def one(number, rank=0):
    return np.full([1] * rank, number, np.float32)


class Net:
    """h [2, 3, D] of a layer, on which constants act; which of them are trained."""

    def __init__(self, shape=(2, 3, D), kind=FP):
        self.nodes, self.weights, self.wanted, self.doubtful, self.n = [], [], {}, {}, 0
        self.shape, self.kind = list(shape), kind
        self.h = "x"

    def op(self, kind, *inputs, name="", **attributes):
        self.n += 1
        node = helper.make_node(kind, inputs, [f"t.{self.n}"], name=name, **attributes)
        self.nodes.append(node)
        return f"t.{self.n}"

    def value(self, name, array, trained, doubtful=False):
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        if np.asarray(array).dtype == np.float32:
            self.wanted[name], self.doubtful[name] = trained, doubtful
        return name

    def layer(self, name, width=D):
        self.h = self.op("MatMul", self.h, self.value(f"{name}.weight", noise(width, D), True))
        self.h = self.op("Add", self.h, self.value(f"{name}.bias", noise(D), True))

    def act(self, kind, *inputs, **attributes):
        self.h = self.op(kind, self.h, *inputs, **attributes)

    def save(self, path):
        self.nodes.append(helper.make_node("Identity", [self.h], ["y"]))
        graph = helper.make_graph(self.nodes, "roles", [helper.make_tensor_value_info("x", self.kind, self.shape)],
                                  [helper.make_tensor_value_info("y", FP, None)], self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)


def numbers():
    net = Net()
    net.layer("h.0.fc")
    places = net.op("ArgMax", net.h, axis=-1, keepdims=0)
    hot = net.op("OneHot", places, net.value("depth", np.array(D, np.int64), False), net.value("onoff", np.array([0, 1], np.float32), False))
    net.act("Mul", hot)
    net.layer("h.1.fc")
    net.act("Max", net.value("floor_row", noise(D), False, True))
    net.act("Min", net.value("roof", one(3.7), False))
    net.act("Pow", net.value("twice", one(2.0), False))
    net.act("Pow", net.value("cube", one(1.7, 1), False, True))
    net.act("Clip", net.value("lo", one(1e-3), False), net.value("hi", one(7.3), False))
    net.act("Pow", net.value("h.1.pool.p", one(2.9, 1), True, True))
    net.layer("h.2.fc")
    return net


def counted():
    """Constants under names that were counted up, integers among them."""
    net = Net()
    net.layer("h.0.fc")
    for i, number in enumerate((0.5, 0.044715, 0.7978845608)):
        net.act("Mul", net.value(f"c{i}", one(number), False))
        net.act("Reshape", net.value(f"c{i + 10}", np.array([2, 3, D], np.int64), False))
    net.act("Add", net.value("c20", one(0.25), False))
    net.layer("h.1.fc")
    return net


def image(layout):
    net = Net((2, 8, 8, 3) if layout == "last" else (2, 3, 8, 8), TensorProto.UINT8 if layout == "bytes" else FP)
    if layout == "bytes":
        net.act("Cast", to=FP)
    net.act("Div", net.value("full", one(255.0), False))
    shape = (3,) if layout == "last" else (1, 3, 1, 1)
    net.act("Sub", net.value("img_mean", np.abs(noise(*shape)), False))
    net.act("Div", net.value("img_std", np.abs(noise(*shape)) + 1, False))
    if layout == "last":
        net.layer("stem.fc", 3)
    else:
        net.h = net.op("Conv", net.h, net.value("stem.weight", noise(4, 3, 2, 2), True), net.value("stem.bias", noise(4), True))
    net.act("Add", net.value("stem.shift", noise(1, 1, 1, D) if layout == "last" else noise(1, 4, 1, 1), True))
    return net


def image_last():
    return image("last")


def image_bytes():
    return image("bytes")


def image_first():
    return image("first")


def features():
    """Means and deviations of features; one number on the input."""
    net = Net()
    net.act("Sub", net.value("mean_row", noise(D), False, True))
    net.act("Mul", net.value("gain", one(4.0), False))
    net.layer("h.0.fc")
    net.layer("h.1.fc")
    return net


def xielu():
    net = Net()
    for n in range(2):
        act = f"h.{n}.act"
        net.layer(f"h.{n}.fc")
        beta = net.value(f"{act}.beta", one(0.5), False, True)
        eps = net.value(f"{act}.eps", one(-1e-6), False, True)
        high = net.op("Softplus", net.value(f"{act}.alpha_p", one(0.2, 1), True))
        low = net.op("Add", beta, net.op("Softplus", net.value(f"{act}.alpha_n", one(-1.05, 1), True)))
        line = net.op("Mul", beta, net.h)
        up = net.op("Add", net.op("Mul", high, net.op("Mul", net.h, net.h)), line)
        less = net.op("Sub", net.op("Sub", net.op("Exp", net.op("Min", net.h, eps)), net.value("val_1", one(1.0), False)), net.h)
        down = net.op("Add", net.op("Mul", less, low), line)
        net.h = net.op("Where", net.op("Greater", net.h, net.value("val_0", one(0.0), False)), up, down)
        net.weights = [w for i, w in enumerate(net.weights) if w.name not in {v.name for v in net.weights[:i]}]
    return net


def folded():
    """Constants that an exporter computed from one-element parameters."""
    net = Net()
    net.layer("h.0.fc")
    net.act("Mul", net.value("softplus", one(0.83698255, 1), False, True))
    net.act("Add", net.value("add_3", one(0.7791436, 1), False, True))
    net.act("Mul", net.value("neg", -np.exp(noise(D)), False, True))
    net.act("Mul", net.value("neg_1", -np.arange(1, D + 1, dtype=np.float32), False, True))
    net.layer("h.1.fc")
    return net


def plain_norm():
    """LayerNorm without weights: the exporter writes ones."""
    net = Net()
    net.layer("h.0.fc")
    net.act("LayerNormalization", net.value("val_72", np.ones(D, np.float32), False, True), axis=-1)
    net.layer("h.1.fc")
    net.act("LayerNormalization", net.value("h.1.norm.weight", noise(D) + 1, True), net.value("h.1.norm.bias", noise(D), True), axis=-1)
    net.act("LayerNormalization", net.value("val_80", noise(D) + 1, True), axis=-1)
    return net


def factors():
    net = Net()
    net.layer("h.0.fc")
    net.act("Mul", net.value("h.0.mup_vector", np.repeat(np.array([0.5, 1.25, 0.7, 1.3], np.float32), 4)[None, None], False))
    net.layer("h.1.fc")
    net.act("Mul", net.value("h.1.mup_vector", np.ones((1, 1, D), np.float32), True, True))
    net.act("Mul", net.value("h.1.gamma", np.full(D, 1e-5, np.float32), True))
    net.act("Mul", net.value("h.1.gate", noise(1, 1, D), True))
    return net


def merged():
    """Equal norms that became one initializer; one that an Identity names; one that means a tie."""
    net = Net()
    for n in range(3):
        net.layer(f"h.{n}.fc")
        if n == 0:
            net.value("h.0.norm.weight", np.ones(D, np.float32), True, True)
        net.act("LayerNormalization", "h.0.norm.weight", axis=-1)
    net.nodes.append(helper.make_node("Identity", ["h.0.norm.weight"], ["h.5.norm.weight"]))
    net.wanted["h.5.norm.weight"], net.doubtful["h.5.norm.weight"] = True, False
    net.act("LayerNormalization", "h.5.norm.weight", axis=-1)
    table = net.value("table", noise(D, D), True)
    net.h = net.op("MatMul", net.h, table)
    net.h = net.op("MatMul", net.h, net.op("Transpose", net.op("Identity", table)))
    return net


def report(path, *options):
    result = run("inspect", "--train", "--json", *options, path)
    if result.status != DONE:
        return None, result, f"status {result.status}: {result.err[:300]}"
    return json.loads(result.out), result, None


def check_net(count, folder, make):
    net, path = make(), os.path.join(folder, make.__name__ + ".onnx")
    net.save(path)
    found, result, problem = report(path)
    count.check(make.__name__, problem)
    entries = {e["name"]: e for e in found["initializers"]} if found else {}
    for name, wanted in net.wanted.items() if found else ():
        entry = entries.get(name, {"trained": False, "why": "is not there"})
        count.check(f"{make.__name__}: {name}", None if entry["trained"] == wanted else f"trained is {entry['trained']}: {entry['why']}")
        doubtful = "doubt" in entry
        count.check(f"{make.__name__}: {name}, a doubt", None if doubtful == net.doubtful[name] else f"{entry}")
    extra = [n for n, e in entries.items() if e["trained"] and n not in net.wanted]
    count.check(f"{make.__name__}: no others", f"{extra}" if extra else None)
    return found, result


def check_merged(count, folder):
    found, result = check_net(count, folder, merged)
    if found is None:
        return
    said = "h.0.norm.weight' is read by 3 layers" in result.err and "'h.5.norm.weight' is taken for a parameter" in result.err
    count.check("merged: warnings", None if said else result.err[:400])
    several = found["file"]["several"]
    count.check("merged: the account", None if several == {"h.0.norm.weight": ["h.0.norm.weight", "h.5.norm.weight"]} else f"{found['file']}")
    check_saved(count, folder, found)
    text = run("inspect", "--train", os.path.join(folder, "merged.onnx")).out
    lines = ("float initializers: ", "initializer h.0.norm.weight became 2 parameters: h.0.norm.weight, h.5.norm.weight")
    count.check("merged: the account, in words", None if all(line in text for line in lines) else text[-400:])


def check_saved(count, folder, found):
    """A parameter that an Identity named has an initializer of its own in what is saved."""
    path, out = os.path.join(folder, "merged.onnx"), os.path.join(folder, "merged_new.onnx")
    for name in "xt":
        np.save(os.path.join(folder, name + ".npy"), noise(4, 3, D))
    result = run("train", path, "--data", f"x={folder}/x.npy", "--data", f"t={folder}/t.npy", "--loss", "mse:output=y,target=t",
                 "--batch", "2", "--steps", "2", "--optimizer", "sgd:lr=0.1", "--save-model", out)
    if result.status != DONE:
        count.check("merged: saved", f"status {result.status}: {result.err[:300]}")
        return
    model = onnx.load(out)
    new = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    apart = "h.5.norm.weight" in new and not np.array_equal(new["h.5.norm.weight"], new["h.0.norm.weight"])
    left = [n.op_type for n in model.graph.node if "h.5.norm.weight" in n.output]
    count.check("merged: saved", None if apart and not left else f"{list(new)} {left}")


def lost(path, how):
    """Weights under made-up names; `how` the file tells what they were."""
    net = Net()
    for n, part in enumerate(("q", "q.lora_A", "q.lora_B")):
        module = f"h.0.{part}"
        weight = net.value(f"val_{n + 70}" if how != "names" else f"onnx::MatMul_{n + 70}", noise(D, D), True)
        net.h = net.op("MatMul", net.h, weight, name=f"/{module.replace('.q', '/q').replace('.lora', '/lora')}/MatMul" if how == "names" else f"node_{n}")
        if how == "names":
            continue
        scopes = "['', 'h.0', " + ("" if n == 0 else "'h.0.q', ") + f"'{module}', 'linear_{n}']"
        helper.set_metadata_props(net.nodes[-1], {"pkg.torch.onnx.name_scopes": scopes, **({} if how == "scopes" else {
            "pkg.torch.onnx.fx_node": f"%linear_{n} : [num_users=1] = call_function[target=torch.ops.aten.linear.default]"
                                      f"(args = (%mul, %p_{module.replace('.', '_')}_weight, %p_{module.replace('.', '_')}_bias), kwargs = {{}})"})})
    net.act("Mul", net.value("h.0.mup", noise(1, 1, D), how != "arguments"))
    if how == "arguments":
        helper.set_metadata_props(net.nodes[-1], {"pkg.torch.onnx.fx_node": "%mul : (args = (%linear, %b_h_0_mup), kwargs = {})"})
    net.layer("h.1.fc")
    net.save(path)
    return net


def check_lost(count, folder):
    for how in ("scopes", "arguments", "names"):
        path = os.path.join(folder, f"lost_{how}.onnx")
        net = lost(path, how)
        found, _, problem = report(path)
        count.check(f"lost, {how}", problem)
        entries = {e["name"]: e for e in found["initializers"]} if found else {}
        names = {e.get("module_name") for e in entries.values()}
        good = {"h.0.q.weight", "h.0.q.lora_A.weight", "h.0.q.lora_B.weight"} <= names
        count.check(f"lost, {how}: names", None if good else f"{names}")
        wrong = [n for n, wanted in net.wanted.items() if n in entries and entries[n]["trained"] != wanted]
        count.check(f"lost, {how}: trained", f"{wrong}" if wrong else None)
        text = run("inspect", "--train", path).out
        count.check(f"lost, {how}: in words", None if " (h.0.q.lora_A.weight)" in text else text[:300])
        found, _, problem = report(path, "--trainable", "*lora_*")
        trained = [e.get("module_name") for e in found["initializers"] if e["trained"]] if found else problem
        count.check(f"lost, {how}: a pattern alone", None if sorted(trained) == ["h.0.q.lora_A.weight", "h.0.q.lora_B.weight"] else f"{trained}")
        found, _, problem = report(path, "--frozen", "*", "--trainable", "h.0.q.weight")
        trained = [e.get("module_name") for e in found["initializers"] if e["trained"]] if found else problem
        count.check(f"lost, {how}: a full name", None if trained == ["h.0.q.weight"] else f"{trained}")
        found, _, problem = report(path, "--trainable", "*lora_*", "--frozen", "h.1.*")
        trained = sorted(e["name"] for e in found["initializers"] if e["trained"]) if found else problem
        rest = sorted(n for n, wanted in net.wanted.items() if wanted and not n.startswith("h.1."))
        count.check(f"lost, {how}: with others", None if trained == rest else f"{trained}")


def check_unmatched(count, folder):
    path = os.path.join(folder, "lost_names.onnx")
    np.save(os.path.join(folder, "x.npy"), noise(4, 3, D))
    np.save(os.path.join(folder, "t.npy"), noise(4, 3, D))
    train = ["--data", f"x={folder}/x.npy", "--data", f"t={folder}/t.npy", "--loss", "mse:output=y,target=t", "--batch", "2", "--steps", "1"]
    for option in ("trainable", "frozen"):
        for command in (["inspect", "--train", path], ["train", path, *train]):
            result = run(*command, f"--{option}", "*lora_C*")
            said = result.status == USAGE and f"--{option} '*lora_C*' matches no initializer" in result.err
            count.check(f"{command[0]} --{option} of nothing", None if said else f"status {result.status}: {result.err[:200]}")
    result = run("train", path, *train, "--trainable", "*lora_*", "--json")
    trained = json.loads(result.out)["plan"]["training"]["trained"] if result.status == DONE else result.err[:300]
    count.check("train, a pattern alone", None if len(trained) == 2 else f"{trained}")
    result = run("train", os.path.join(folder, "xielu.onnx"), *train)
    said = result.status == DONE and "doubtful: h.0.act.beta" in result.out and "the file has " in result.out
    count.check("train says doubts and the account", None if said else f"status {result.status}: {result.out[:600]}{result.err[:300]}")


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for make in (numbers, counted, image_last, image_first, image_bytes, features, xielu, folded, plain_norm, factors):
            check_net(count, folder, make)
        check_merged(count, folder)
        check_lost(count, folder)
        check_unmatched(count, folder)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

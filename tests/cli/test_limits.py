#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=240
"""Large graphs, and what lies at the edge of what is taken: 10,000 inputs whose dimensions depend on one another, 100,000
inputs of one node, many initialisers in bounded memory, expressions that cost too much; IR versions; outputs that are inputs;
schedules whose file says its ranks, orders of too many actions, deep plans; arrays that nothing asks for; ids in int32."""
import json
import os
import struct
import sys
import tempfile
import zipfile

from command import DATA, DONE, REFUSED, SANITIZED, USAGE, Count, need_command, run

sys.path.insert(0, os.path.join(DATA, "attacks"))
from wire import FLOAT, INT64, blob, graph, model, node, tensor, value  # noqa: E402

GPT = os.path.join(DATA, "gpt_8block", "model.onnx")
SECONDS = 100 if SANITIZED else 20  # each takes a fraction of a second; what was cubic took minutes


X, Y = value("x", ["batch", 4]), value("y", ["batch", 4])


def relus(n, dims):
    """n inputs, each with a Relu; dims(i) are the dimensions of input i."""
    return model(graph([node("Relu", f"x{i}", f"y{i}") for i in range(n)],
                       [value(f"x{i}", dims(i)) for i in range(n)],
                       [value(f"y{i}", ["?", "?"]) for i in range(n)]))


def sum_of(n):
    return model(graph([node("Sum", " ".join(f"x{i}" for i in range(n)), "y")],
                       [value(f"x{i}", ["batch", 4]) for i in range(n)], [Y]))


def weights(n):
    before, after = tensor("w0000000", FLOAT, [1], b"\0\0\0\0").split(b"w0000000")
    many = b"".join(blob(5, before + b"w%07d" % i + after) for i in range(n))
    return model(graph([node("Relu", "x", "y")], [X], [Y], more=many))


def costly(n):
    """Expressions of 500 characters that are solved for one name each: more than the budget."""
    return relus(n, lambda i: [f"a{i}" + " + 1" * 120, f"b{i}"])


def unfitting(n):
    """Whatever lengths are tried, the last node refuses them."""
    body = graph([*(node("Relu", f"x{i}", f"y{i}") for i in range(n)), node("MatMul", "y0 w", "y")],
                 [value(f"x{i}", [f"a{i}", 4]) for i in range(n)], [value("y", ["?", 2])],
                 [tensor("w", FLOAT, [5, 2], b"\0" * 40)])
    return model(body)


def sound(n):
    """A convolution over sound that takes 300 samples, beside so many inputs that no sums are left to try."""
    body = graph([*(node("Relu", f"x{i}", f"y{i}") for i in range(n)), node("Conv", "sound w", "y")],
                 [*(value(f"x{i}", [f"a{i}", 4]) for i in range(n)), value("sound", [1, 1, "samples"])],
                 [value("y", [1, 1, "?"])], [tensor("w", FLOAT, [1, 1, 300], b"\0" * 1200)])
    return model(body)


def wrong(result, status=DONE, text="", mib=4096):
    if result.broken(SECONDS, mib):
        return result.broken(SECONDS, mib)
    if result.status != status:
        return f"status {result.status}, expected {status}: {(result.err or result.out)[-300:]}"
    return None if text in result.err + result.out else f"not said: {text!r}: {(result.err + result.out)[-300:]}"


def write(folder, name, data):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(data)
    return path


def large(count, folder):
    cases = {
        "sums": (relus(5000, lambda i: [f"a{i} + a{i + 1}", f"a{i}"]), 256),
        "chain": (relus(5000, lambda i: ["s0" if i == 0 else f"s{i} + s{i - 1}", 4]), 256),
        "nameless": (relus(10000, lambda i: ["", 4]), 256),
        "one node": (sum_of(20000), 256),
        "initialisers": (weights(300000), 160),
    }
    for name, (data, mib) in cases.items():
        path = write(folder, "large.onnx", data)
        count.check(name, wrong(run("inspect", path, timeout=SECONDS), mib=mib))
    path = write(folder, "large.onnx", costly(10000))
    solved = run("inspect", path, "--bind", ",".join(f"x{i}.0=130" for i in range(10000)), timeout=SECONDS)
    count.check("expressions beyond the budget", wrong(solved, REFUSED, "to solve; the limit is 67108864"))
    solved = run("inspect", path, "--bind", "x7.0=130", timeout=SECONDS)
    count.check("one of them", wrong(solved))
    path = write(folder, "large.onnx", unfitting(10000))
    count.check("no default fits", wrong(run("run", path, timeout=SECONDS), USAGE, "not every combination"))
    path = write(folder, "large.onnx", sound(10000))
    count.check("longer lengths are tried", wrong(run("run", path, timeout=SECONDS), DONE, "are set to 512: nothing shorter fits"))


def odd_graphs(count, folder):
    body = graph([node("Relu", "x", "y")], [X], [Y])
    path = write(folder, "new.onnx", model(body, ir=15))
    count.check("IR version", wrong(run("inspect", path), REFUSED, "IR version 15; 3 to 14 are supported"))
    body = graph([node("Relu", "x", "y")], [X], [Y, X, value("w", [1])], [tensor("w", FLOAT, [1], b"\0\0\0\0")])
    path = write(folder, "through.onnx", model(body))
    out = os.path.join(folder, "out")
    count.check("outputs that are inputs", wrong(run("run", path, "--output", out)))
    found = sorted(os.listdir(out)) if os.path.isdir(out) else []
    count.check("their names", None if found == ["w.npy", "x.npy", "y.npy"] else f"{found}")
    for operator in ("Div", "Mod"):
        body = graph([node(operator, "a b", "y")], [value("a", [2], INT64), value("b", [2], INT64)], [value("y", [2], INT64)])
        path = write(folder, "divide.onnx", model(body))
        for divisors, status, text in (((3, 0), REFUSED, "division by zero: element 1"), ((-1, 5), DONE, "")):
            arrays = {"a": (-(1 << 63), 7), "b": divisors}
            inputs = [part for name, array in arrays.items() for part in
                      ("--input", f"{name}=" + write(folder, name + ".npy", npy((2,), "<i8", struct.pack("<2q", *array))))]
            result = run("run", path, *inputs)
            count.check(f"{operator} by {divisors}", wrong(result, status, text) or wrong(result, status, text and "victim"))
    for operator in ("Div", "Mod"):
        pair = [tensor(name, INT64, [2], struct.pack("<2q", *numbers)) for name, numbers in (("a", (7, 7)), ("b", (2, 0)))]
        body = graph([node(operator, "a b", "c"), node("Cast", "c", "d", to=FLOAT), node("Add", "d z", "y")],
                     [value("z", [2])], [value("y", [2])], pair)
        result = run("run", write(folder, "fold.onnx", model(body)))
        count.check(f"{operator} by 0 of constants", wrong(result, REFUSED, "division by zero") or wrong(result, REFUSED, "victim"))
    many = model(graph([node("Sum", " ".join(f"x{i}" for i in range(300)), "y")],
                       [value(f"x{i}", [f"d{i}", 4]) for i in range(300)], [value("y", ["?", 4])]))
    count.check("300 inputs", wrong(run("run", write(folder, "many.onnx", many), "--stages", "1")))


def schedules(count, folder):
    text = os.path.join(folder, "order.txt")
    for command in ("plan", "run"):
        shown = run("schedule", "lower", "gpipe", "--ranks", "2", "--microbatches", "3", "--forward", "-o", text)
        count.check("a schedule is written", wrong(shown))
        result = run(command, GPT, "--schedule", "file:" + text, "--bind", "batch=3", "--json")
        count.check(f"{command} takes ranks from the file", wrong(result))
        if command == "plan" and result.status == DONE:
            plan = json.loads(result.out)
            said = json.dumps(plan)
            count.check("micro-batches of the file", None if '"microbatches": 3' in said else said[:200])


    shown = run("schedule", "lower", "1f1b", "--ranks", "2", "--microbatches", "4", "-o", text)
    count.check("a training schedule is written", wrong(shown))
    common = ["--data", "text:" + os.path.join(DATA, "README.md"), "--loss", "cross-entropy:logits=logits,labels=labels,shift=1",
              "--bind", "seq=8", "--batch", "4", "--steps", "3", "--json"]
    ways = (["--schedule", "file:" + text], ["--schedule", "1f1b", "--ranks", "2", "--microbatches", "4"])
    results = [run("train", GPT, *common, *way) for way in ways]
    problem = next((p for p in map(wrong, results) if p), None)
    if problem is None:
        plans = [json.loads(result.out) for result in results]
        if [s["loss"] for s in plans[0]["steps"]] != [s["loss"] for s in plans[1]["steps"]]:
            problem = "other losses than by name"
    count.check("train takes all from the file", problem)


def sizes(count):
    """Orders that come to more actions than there may be: both numbers, before anything of that size is allocated."""
    for verb in ("show", "lower", "check"):
        result = run("schedule", verb, "1f1b", "--ranks", "10000", "--microbatches", "10000", timeout=SECONDS)
        count.check(f"{verb} of 700 million actions",
                    wrong(result, REFUSED, "699960000 actions once lowered: at most 134217728 are possible", mib=160))
    result = run("schedule", "check", "1f1b", "--ranks", "16777216", "--microbatches", "1", timeout=SECONDS)
    count.check("ranks beyond all bounds", wrong(result, REFUSED, "16777216 ranks, 0 stages: at most 1048576", mib=160))


def deep(count, folder):
    """A plan file whose slots come round after 65,535 requests."""
    path, again = os.path.join(folder, "plan.json"), os.path.join(folder, "deep.json")
    for stages in ("1", "3"):
        count.check("a plan", wrong(run("plan", GPT, "--bind", "batch=1,seq=8", "--stages", stages, "-o", path)))
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
        plan["depth"] = 65535
        del plan["hash"]
        with open(again, "w", encoding="utf-8") as file:
            json.dump(plan, file)
        count.check(f"a deep plan of {stages} stages", wrong(run("plan", GPT, "--plan", again, timeout=SECONDS), text="requests of a stream"))


def npy(shape, dtype, data):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def data(count, folder):
    ids = [i * 7 % 30 for i in range(8 * 6)]
    path, losses = os.path.join(folder, "data.npz"), []
    for kind, code in (("<i8", "q"), ("<i4", "i"), ("<u2", "H")):
        array = npy((8, 6), kind, struct.pack(f"<{len(ids)}{code}", *ids))
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("input_ids.npy", array)
            archive.writestr("labels.npy", array)
            archive.writestr("lengths.npy", npy((), "<f8", struct.pack("<d", 1)))
            archive.writestr("notes.txt", b"nothing")
        result = run("train", GPT, "--data", path, "--loss", "cross-entropy:logits=logits,labels=labels", "--steps", "2",
                     "--batch", "4", "--optimizer", "sgd:lr=0.1", "--json")
        count.check(f"train on {kind}", wrong(result, text="'lengths' is not an input of the model and is not used"))
        if result.status == DONE:
            losses.append([step["loss"] for step in json.loads(result.out)["steps"]])
    count.check("the same losses", None if len(losses) == 3 and losses[0] == losses[1] == losses[2] else f"{losses}")
    narrow = write(folder, "ids.npy", npy((8, 6), "<i4", struct.pack("<48i", *ids)))
    count.check("run on int32", wrong(run("run", GPT, "--input", "input_ids=" + narrow)))


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for part in (large, odd_graphs, schedules, deep, data):
            part(count, folder)
        sizes(count)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

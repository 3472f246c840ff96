#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""Backends that take some nodes only, beside others: a plan may use them where the ranks' stages hold what each takes. The
planner finds such a cut, a given one that is none is refused by rank and node, and so is what nobody takes."""
import json
import os

from command import BUILD, DATA, DONE, REFUSED, run
from small import check, write_data, write_model

PLUGIN = ["--plugin", os.path.join(BUILD, "tests", "plugins", "opipe-backend-impaired.so")]


def refusing(operator, *args):
    os.environ["OPIPE_REFUSES"] = operator
    result = run(*args)
    del os.environ["OPIPE_REFUSES"]
    return result


def devices(*names):
    return [word for name in names for word in ("--device", name)]


def expect(count, what, result, status, text=""):
    wrong = result.status != status or text not in result.err + result.out
    count.check(what, f"status {result.status}: {result.err[-300:]}" if wrong else None)


def found(count, folder):
    """Wherever the rank that takes all is."""
    model = write_model(os.path.join(folder, "m.onnx"))
    outputs = {}
    for name, ranks in (("cpu", ("cpu",) * 3), ("first", ("cpu", "impaired", "impaired")),
                        ("middle", ("impaired", "cpu", "impaired")), ("last", ("impaired", "impaired", "cpu"))):
        target = os.path.join(folder, name)
        result = refusing("Relu", "run", model, "--bind", "batch=4", "--stages", "3", *PLUGIN, *devices(*ranks), "--output",
                          target, "--reference", "--json")
        expect(count, f"cpu is the {name}", result, DONE)
        if result.status == DONE:
            rank = next(s["rank"] for s in json.loads(result.out)["plan"]["stages"] if any("h4" in n for n in s["nodes"]))
            count.check(f"whose the node is, cpu the {name}", None if ranks[rank] == "cpu" else str(rank))
            with open(os.path.join(target, "y.npy"), "rb") as file:
                outputs[name] = file.read()
    count.check("all have the same bits", None if len(outputs) == 4 and len(set(outputs.values())) == 1 else str(len(outputs)))


def trained(count, folder):
    model, data = write_model(os.path.join(folder, "m.onnx")), write_data(folder)
    losses = set()
    for first in ("cpu", "impaired"):
        result = refusing("Relu", "train", model, *data, "--stages", "2", "--batch", "8", "--microbatches", "2", "--steps", "3",
                          *PLUGIN, *devices(first, "cpu"), "--reference", "--json")
        expect(count, f"training on {first} and cpu", result, DONE)
        losses.add(str([step["loss"] for step in json.loads(result.out or '{"steps": []}')["steps"]]))
    count.check("the losses are the same", None if len(losses) == 1 else str(losses))


def refused(count, folder):
    model = write_model(os.path.join(folder, "m.onnx"))
    command = ["run", model, "--bind", "batch=4", *PLUGIN]
    everywhere = refusing("Relu", *command, "--stages", "2", *devices("impaired"))
    expect(count, "nobody takes it", everywhere, REFUSED, "backend 'impaired' refuses 1 of 11 nodes: 'h4' (Relu): impaired")
    count.check("the reason is one line", None if "impaired\n" not in everywhere.err.split("(Relu)")[1][:10] else everywhere.err)
    given = refusing("Relu", *command, "--stages", "2", "--cut", "h2", *devices("cpu", "impaired"))
    expect(count, "a given cut", given, REFUSED, "rank 1: backend 'impaired' refuses 1 of 8 nodes: 'h4' (Relu): impaired")
    other = refusing("Relu", *command, "--stages", "2", "--cut", "h5", *devices("cpu", "impaired"))
    expect(count, "a given cut that suits", other, DONE)
    plan = os.path.join(folder, "plan.json")
    expect(count, "a plan for cpu", run("plan", model, "--bind", "batch=4", "--stages", "2", "--cut", "h2", *PLUGIN,
                                        *devices("cpu", "impaired"), "-o", plan), DONE)
    expect(count, "its file, where the node is not taken", refusing("Relu", *command, "--plan", plan), REFUSED, "'h4' (Relu)")


def nothing(count, folder):
    """A rank that takes one node gets that one; where it can't, the plan is refused and says what the rank does not take."""
    command = ["run", write_model(os.path.join(folder, "m.onnx")), "--bind", "batch=4", *PLUGIN, "--reference", "--json"]
    between = refusing("!Relu", *command, "--stages", "3", *devices("cpu", "impaired", "cpu"))
    expect(count, "its one node", between, DONE)
    stages = json.loads(between.out or '{"plan": {"stages": []}}')["plan"]["stages"]
    count.check("which it is", None if [stage["nodes"] for stage in stages][1:2] == [["h4"]] else str(stages))
    for order in (("cpu", "impaired"), ("impaired", "cpu")):
        without = refusing("!Relu", *command, "--stages", "2", *devices(*order))
        expect(count, f"none, {order}", without, REFUSED, f"rank {order.index('impaired')} takes no node of its stages: "
               "backend 'impaired' refuses 10 of 11 nodes: 'h0' (MatMul): impaired")


if __name__ == "__main__":
    raise SystemExit(check(found, trained, refused, nothing))

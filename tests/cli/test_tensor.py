#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""run and train --tensor: products, tables and heads of every stage divided among ranks, bit-equal to the plan's reference and close to
the uncut model; checkpoints that know no width; what cannot be divided or combined is refused by name, with the numbers."""
import glob
import json
import os
import re
import sys
import tempfile

from command import BUILD, DATA, DONE, REFUSED, SHARED, SOURCE, USAGE, Count, need_command, run
from equal import labels_of

MODERN = os.path.join(SHARED, "models", "modern")
MODEL = os.path.join(DATA, "gpt_8block", "model.onnx")
SHAPE = ["--bind", "batch=3,seq=8", "--requests", "4"]
# Model, words: bit-equal to the reference.
EQUAL = [
    ("gpt_8block", ["--tensor", "2"]),
    ("gpt_8block", ["--tensor", "3", "--stages", "2", "--microbatches", "3"]),
    ("llama_8block", ["--tensor", "2", "--ranks", "4", "--schedule", "interleaved:chunks=2", "--microbatches", "2"]),
    ("encoder", ["--tensor", "2", "--stages", "2", "--replicas", "2", "--microbatches", "2", "--schedule", "sequential"]),
    ("llama_8block", ["--tensor", "2,scattered=1", "--stages", "2", "--microbatches", "2", "--transport", "emulated"]),
    ("gpt_8block", ["--tensor", "3,scattered=1", "--stages", "2", "--microbatches", "2", "--device", "emulated:16,async=1,time_us=100"]),
    ("llama_8block", ["--tensor", "3,sequence=1", "--stages", "2", "--microbatches", "2"]),
    ("encoder", ["--tensor", "2,sequence=1", "--stages", "2", "--replicas", "2", "--microbatches", "2",
                 "--transport", "emulated:rule=edge,jitter_us=300"]),
    ("llama_8block", ["--tensor", "3", "--stages", "2", "--microbatches", "2", "--schedule", "terapipe:slices=3"]),
    ("gpt_8block", ["--tensor", "2,sequence=1", "--stages", "2", "--schedule", "terapipe:slices=2",
     "--transport", "emulated:rule=grouped,jitter_us=300"]),
    ("gpt_8block", ["--auto", "--tensor", "2", "--device", "cpu", "--device", "cpu"]),
]
TRAIN = ["train", MODEL, "--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=8", "--loss",
         "cross-entropy:logits=logits,labels=input_ids", "--batch", "6"]
SGD, ADAMW = ["--optimizer", "sgd:lr=0.01,momentum=0.9"], ["--optimizer", "adamw:lr=0.001,decay=0.1", "--clip", "0.5"]
TRAINED = [
    [*ADAMW, "--tensor", "2", "--stages", "2", "--microbatches", "3", "--schedule", "1f1b"],
    [*ADAMW, "--tensor", "3", "--stages", "2", "--replicas", "2", "--microbatches", "6", "--shard", "optimizer"],
    [*SGD, "--tensor", "2", "--ranks", "4", "--microbatches", "4", "--schedule", "2bw"],
    [*ADAMW, "--tensor", "2", "--ranks", "4", "--microbatches", "6", "--schedule", "dualpipev"],
    [*SGD, "--tensor", "2", "--ranks", "4", "--microbatches", "2", "--schedule", "zbv", "--device", "emulated:3,async=1,time_us=20"],
    [*ADAMW, "--tensor", "2", "--stages", "2", "--microbatches", "2", "--recompute", "stage", "--compute", "bf16"],
    [*ADAMW, "--tensor", "3,sequence=1", "--stages", "2", "--replicas", "2", "--microbatches", "6", "--shard", "optimizer"],
    [*SGD, "--tensor", "2,sequence=1", "--ranks", "4", "--microbatches", "2", "--schedule", "zbv", "--device", "emulated:3,async=1,time_us=20"],
    [*ADAMW, "--tensor", "2,scattered=1", "--ranks", "4", "--microbatches", "2", "--schedule", "chimera:concat=halving", "--recompute", "stage",
     "--transport", "emulated:rule=grouped,jitter_us=300,seed=7"],
    [*SGD, "--tensor", "2,scattered=1", "--ranks", "4", "--microbatches", "4", "--schedule", "interleaved:chunks=2", "--transport", "shm"],
    [*ADAMW, "--tensor", "3,sequence=1", "--stages", "2", "--microbatches", "4", "--schedule", "terapipe:slices=3", "--shard", "optimizer"],
]
# Exports, and what a training plan may ask for besides groups: members of unequal sizes recompute the same blocks, masks and scales of an
# optimizer are those of the whole model, and rounding to bf16 moves gradients of some exports further than the tolerance.
FORMS = [
    ("phi3", ["--tensor", "2,sequence=1", "--recompute", "block"]),
    ("qwen2_moe", ["--tensor", "3,sequence=1", "--recompute", "block", "--shard", "optimizer"]),
    ("olmo2", ["--tensor", "2", "--compute", "bf16"]),
    ("t5", ["--tensor", "3", "--compute", "bf16"]),
]
# Close to outputs of the uncut model that the folder holds.
CLOSE = [("gpt_8block", "2"), ("llama_8block", "3"), ("encoder_legacy", "2")]
IMPAIRED = ["--plugin", os.path.join(BUILD, "tests", "plugins", "opipe-transport-impaired.so"), "--transport", "impaired"]
REFUSALS = [
    (["--tensor", "0"], USAGE, "tensor"),
    (["--tensor", "2,rows=1"], USAGE, "tensor"),
    (["--tensor", "1,sequence=1"], REFUSED, "needs tensor groups of at least 2 members, not 1"),
    (["--tensor", "1,scattered=1"], REFUSED, "needs tensor groups of at least 2 members, not 1"),
    (["--tensor", "2,sequence=1,scattered=1", "--stages", "1"], REFUSED, "scattered=1 has nothing to divide"),
    (["--tensor", "2,scattered=2"], USAGE, "0 or 1"),
    (["--tensor", "2", "--ranks", "3"], REFUSED, "groups of 2 members cannot share 3 ranks"),
    (["--tensor", "2", "--replicas", "2,1"], REFUSED, "replicas that share micro-batches"),
    (["--tensor", "2", "--stages", "1", "--device", "cpu,threads=1", "--device", "cpu,threads=2"], REFUSED, "other numbers of threads"),
    (["--tensor", "2", *IMPAIRED], REFUSED, "has no collectives"),
]


def problem_of(*words):
    """Why a run does not have its reference's bits, or is not close to the uncut model."""
    result = run("run", *words, "--reference")
    problem = result.broken(60, 1024)
    far = re.search(r"largest difference from the uncut model: (\S+)", result.out)
    if not problem and (result.status != DONE or "identical to the plan's reference" not in result.out):
        problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
    elif not problem and (far is None or not float(far[1]) < 1e-4):
        problem = f"not close to the uncut model: {far and far[1]}"
    return problem


def check_equal(count):
    for name, words in EQUAL:
        count.check(f"{name} {' '.join(words)}", problem_of(os.path.join(DATA, name, "model.onnx"), *SHAPE, *words))


def check_modern(count):
    """Every family of exports, by width 2 or 3 and 1, 2 or 4 stages in turn."""
    models = sorted(glob.glob(os.path.join(MODERN, "*", "infer", "model.onnx")))
    if not models:
        count.skip(f"{MODERN} is not there")
    for i, path in enumerate(models):
        words = ["--tensor", str(2 + i % 2), "--stages", str((1, 2, 4)[i % 3]), "--requests", "2"]
        count.check(f"{path.split(os.sep)[-3]} {' '.join(words)}", problem_of(path, *words))


def check_close(count):
    for name, tensor in CLOSE:
        result = run("run", os.path.join(DATA, name), "--check", "--tensor", tensor, "--stages", "2")
        problem = result.broken(60, 1024)
        if not problem and result.status != DONE:
            problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
        count.check(f"{name} close to the uncut model, width {tensor}", problem)


def check_trained(count):
    """Losses, norms, gradients and weights."""
    for words in TRAINED:
        count.check(f"train {' '.join(words)}", trained(*TRAIN, *words, "--steps", "3"))
    for name, words in FORMS:
        folder = os.path.join(MODERN, name, "train")
        if not os.path.isdir(folder):
            count.skip(f"{folder} is not there")
            continue
        model = ["train", os.path.join(folder, "model.onnx"), *labels_of(folder), "--microbatches", "2", "--stages", "2", "--steps", "10"]
        count.check(f"train {name} {' '.join(words)}", trained(*model, *words))


def trained(*words):
    """Why a training does not have its reference's bits, or is not close to the uncut model."""
    result = run(*words, "--reference")
    problem = result.broken(60, 1024)
    if not problem and (result.status != DONE or "bit-equal" not in result.out or not re.search("uncut model +close", result.out)):
        problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
    return problem


def check_rows(count, scratch):
    """The sequence form has the plain form's outputs and loss to the bit, and its plan is another one; graphs that cannot be cut alike are named."""
    outputs, losses, hashes = [], [], []
    for tensor in ("2", "2,sequence=1"):
        folder, path = os.path.join(scratch, f"out-{tensor}"), os.path.join(scratch, f"rows-{tensor}.json")
        made = run("plan", MODEL, "--bind", "batch=3,seq=7", "--tensor", tensor, "--stages", "2", "-o", path)
        result = run("run", MODEL, "--bind", "batch=3,seq=7", "--requests", "1", "--seed", "3", "--plan", path, "-o", folder)
        problem = next((f"{r.status}: {r.err[-300:]}" for r in (made, result) if r.status != DONE), None)
        count.check(f"outputs of --tensor {tensor}", problem)
        outputs.append([open(file, "rb").read() for file in sorted(glob.glob(os.path.join(folder, "*")))])
        hashes.append(json.load(open(path, encoding="utf-8"))["hash"] if not problem else tensor)
        result = run(*TRAIN, *SGD, "--tensor", tensor, "--stages", "1", "--steps", "1", "--json")
        losses.append(re.findall(r'"loss": (\S+),', result.out))
    count.check("outputs of both forms", None if outputs[0] and outputs[0] == outputs[1] else "they differ")
    count.check("losses of both forms", None if losses[0] and losses[0] == losses[1] else str(losses))
    count.check("plans of both forms", None if hashes[0] != hashes[1] else "one hash")
    folder = os.path.join(MODERN, "qwen2_moe", "train")
    if not os.path.isdir(folder):
        count.skip(f"{folder} is not there")
        return
    told = run("plan", os.path.join(MODERN, "qwen2_moe", "infer", "model.onnx"), "--tensor", "2,sequence=1", "--stages", "1")
    count.check("a plan in rows says what needs all", None if "needs all rows: node_Unsqueeze_324: " in told.out else told.out[-300:] + told.err)
    for name in ("qwen2_moe", "whisper", "vit"):  # members' messages differ; one sample in rows; 2 samples and 1
        folder = os.path.join(MODERN, name, "train")
        words = ["train", os.path.join(folder, "model.onnx"), *labels_of(folder), "--tensor", "2,sequence=1", "--stages", "2"]
        result = run(*words, "--microbatches", "2", "--steps", "2", "--reference")
        good = result.status == DONE and "bit-equal" in result.out and re.search("uncut model +close", result.out)
        count.check(f"{name} in rows", None if good else f"{result.status}: {(result.err or result.out)[-300:]}")
    result = run(*TRAIN, "--tensor", "2,sequence=1", "--ranks", "4", "--microbatches", "2", "--schedule", "chimera:concat=halving", "--steps", "1")
    good = result.status == REFUSED and "a tensor group of 2 has some rows" in result.err and "in 2 parts" in result.err
    count.check("halves in rows", None if good else f"{result.status}: {(result.err or result.out)[-300:]}")


def check_scattered(count, scratch):
    """Between stages each member sends its part, unless the receiver's memory is written in place: bytes, hash, and the plain form's outputs."""
    made, outputs = {}, {}
    forms = {"plain": ("3", "emulated"), "parts": ("3,scattered=1", "emulated"), "link": ("3", "emulated:scattered=1"), "direct": ("3,scattered=1", "local")}
    for name, (tensor, transport) in forms.items():
        path, folder = os.path.join(scratch, f"{name}.json"), os.path.join(scratch, f"sent-{name}")
        plan = run("plan", MODEL, "--bind", "batch=3,seq=7", "--tensor", tensor, "--stages", "2", "--transport", transport, "-o", path)
        result = run("run", MODEL, "--bind", "batch=3,seq=7", "--requests", "1", "--seed", "3", "--plan", path, "-o", folder)
        problem = next((f"{r.status}: {r.err[-300:]}" for r in (plan, result) if r.status != DONE), None)
        count.check(f"{name}: --tensor {tensor} --transport {transport}", problem)
        if problem:
            return
        made[name] = (json.load(open(path, encoding="utf-8")), plan.out)
        outputs[name] = [open(file, "rb").read() for file in sorted(glob.glob(os.path.join(folder, "*")))]
    total = {name: sum(crossing["bytes"] for crossing in plan["crossings"]) for name, (plan, _) in made.items()}
    for name in ("parts", "link"):
        sent = [crossing for crossing in made[name][0]["crossings"] if "whole_bytes" in crossing]
        good = sent and all(crossing["bytes"] * 3 == crossing["whole_bytes"] for crossing in sent) and made[name][0]["tensor"]["scattered"]
        saved = sum(crossing["whole_bytes"] - crossing["bytes"] for crossing in sent)
        count.check(f"{name}: a third of the bytes", None if good and total["plain"] - total[name] == saved else f"{total}, {sent}")
        count.check(f"{name}: what plan says", None if " in parts, whole " in made[name][1] and "send parts over links" in made[name][1] else made[name][1][-300:])
    direct = total["direct"] == total["plain"] and "send parts" not in made["direct"][1]
    count.check("direct: whole", None if direct else f"{total}: {made['direct'][1][-300:]}")
    count.check("hashes", None if len({plan["hash"] for plan, _ in made.values()}) == 4 else "equal ones")
    count.check("outputs", None if outputs["plain"] and all(own == outputs["plain"] for own in outputs.values()) else "they differ")


def check_sent_once(count):
    """A tensor that several stretches of a stage read is one message a member, and so is its gradient."""
    model, words = os.path.join(DATA, "llama_8block", "model.onnx"), ["--tensor", "2", "--stages", "2", "--transport", "emulated", "--cut", "add_23"]
    n_bytes = 3 * 8 * 24 * 4
    made = run("plan", model, "--bind", "batch=3,seq=8", *words, "--json")
    crossings = json.loads(made.out)["crossings"] if made.status == DONE else []
    good = [crossing["bytes"] for crossing in crossings] == [2 * n_bytes]
    count.check("a residual is sent once", None if good else f"{crossings}, {made.err[-300:]}")
    made = run("plan", model, "--train", *TRAIN[2:], "--batch", "3", *words)
    good = f"0 made where they are read, 4 copied ({4 * n_bytes / 1024:.1f} KiB)" in made.out
    count.check("its gradient too", None if good else f"{made.out[-300:]}, {made.err[-300:]}")


def header_of(path):
    """Name: type, shape and place of every tensor of a safetensors file."""
    with open(path, "rb") as file:
        return {name: (t["dtype"], t["shape"]) for name, t in json.loads(file.read(int.from_bytes(file.read(8), "little"))).items()
                if name != "__metadata__"}


def files_of(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors"))


def check_checkpoints(count, scratch):
    """A checkpoint of width 2 goes on in widths 1, 3, 1 and 2, with and without a shared state: at a learning rate of 0 the weights keep
    their bits; otherwise losses are those of one rank. The model that a group saves is the one that a rank saves."""
    first = os.path.join(scratch, "first")
    made = run(*TRAIN, *ADAMW, "--tensor", "2", "--stages", "2", "--steps", "2", "--save", first)
    count.check("save of width 2", None if made.status == DONE else f"{made.status}: {made.err[-300:]}")
    still, models = [], []
    shared = ["--replicas", "2", "--microbatches", "2", "--shard", "optimizer"]
    for width, more in (("1", []), ("3", shared), ("1", shared), ("2", [])):
        still.append(os.path.join(scratch, f"still-{len(still)}"))
        models.append(os.path.join(scratch, f"model-{len(models)}.onnx"))
        words = [*TRAIN, "--optimizer", "adamw:lr=0", "--tensor", width, "--stages", "1", "--steps", "1", *more]
        result = run(*words, "--resume", still[-2] if len(still) > 1 else first, "--save", still[-1], "--save-model", models[-1])
        count.check(f"resume in width {width}", None if result.status == DONE else f"{result.status}: {result.err[-300:]}")
    weights = [open(next(f for f in files_of(folder) if "weights" in f), "rb").read() for folder in (first, *still)]
    count.check("weights through all widths", None if all(w == weights[0] for w in weights) else "they differ")
    saved = [open(path, "rb").read() for path in models]
    count.check("models saved in all widths", None if all(m == saved[0] for m in saved) else "they differ")
    names = [header_of(path) for path in files_of(still[1])]
    count.check("tensors of width 3", None if names == [header_of(path) for path in files_of(still[0])] else "other names or shapes")
    losses = []
    for width in ("1", "2", "3"):
        result = run(*TRAIN, *ADAMW, "--tensor", width, "--stages", "1", "--steps", "2", "--resume", first)
        losses.append([float(x) for x in re.findall(r"loss (\S+) +norm (\S+)", result.out) for x in x])
    near = all(len(own) == 4 and all(abs(a - b) < 1e-4 * abs(b) for a, b in zip(own, losses[0])) for own in losses)
    count.check("steps after a resume", None if near else str(losses))


def check_plan_file(count, scratch):
    """A plan's file holds the width and how parameters are divided; both are checked when it is read."""
    path = os.path.join(scratch, "plan.json")
    made = run("plan", MODEL, "--bind", "batch=3,seq=8", "--tensor", "2", "--stages", "2", "-o", path)
    count.check("plan --tensor", None if made.status == DONE else f"{made.status}: {made.err[-300:]}")
    count.check("run --plan", problem_of(MODEL, *SHAPE, "--plan", path))
    text = open(path, encoding="utf-8").read()
    edits = [
        ("width 3", text.replace('"width": 2', '"width": 3'), "tensor groups of 3 members on 4 devices"),
        ("width 1", text.replace('"width": 2', '"width": 1'), "a width above 1 must divide"),
        ("width 4", text.replace('"width": 2', '"width": 4'), "where no tensor group of 4 members begins"),
        ("parts", re.sub(r'"parts": "[0-9a-f]{4}', '"parts": "0123', text), "it must be planned anew"),
        ("no hash", re.sub(r' *"hash": .*', "", text), None),
    ]
    for name, changed, wanted in edits:
        with open(path, "w", encoding="utf-8") as file:
            file.write(changed)
        result = run("run", MODEL, *SHAPE, "--plan", path)
        good = result.status == DONE if wanted is None else result.status != DONE and wanted in result.err
        count.check(f"plan file: {name}", None if good else f"{result.status}: {(result.err or result.out)[-300:]}")


def fields(data):
    """(number, value) of a protobuf message: numbers and bytes."""
    at = 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
            if data[at - 1] < 128:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 2:
            n = number()
            yield key >> 3, data[at:at + n]
            at += n
        elif key & 7 == 0:
            yield key >> 3, number()
        else:
            n = 4 if key & 7 == 5 else 8
            yield key >> 3, data[at:at + n]
            at += n


def inner(messages, *numbers):
    for n in numbers:
        messages = [value for message in messages for number, value in fields(message) if number == n]
    return messages


def check_annotated(count, scratch):
    """IR 11 says how parameters in equal parts lie on the devices of their stage; the others are named."""
    path = os.path.join(scratch, "annotated.onnx")
    made = run("plan", MODEL, "--bind", "batch=3,seq=8", "--tensor", "2", "--stages", "2", "--annotate", path)
    count.check("plan --annotate", None if made.status == DONE and "16 of 49 divided parameters" in made.err and "'h.0.qkv.weight'" in made.err
                else f"{made.status}: {made.err[-300:]}")
    with open(path, "rb") as file:
        specs = inner([file.read()], 7, 1, 10, 2)  # graph, node, device_configurations, sharding_spec
    found = {}
    for spec in specs:
        dims = inner([spec], 4)
        simple = dict(fields(inner(dims, 2)[0]))
        found[inner([spec], 1)[0].decode()] = (inner([spec], 2), inner(dims, 1), simple[1], simple[3])
    wanted = {"wte.weight": ([0, 1], [0], 344, 2), "h.0.up.weight": ([0, 1], [1], 96, 2), "h.7.proj.weight": ([2, 3], [0], 24, 2)}
    good = len(found) == 33 and all(found.get(name) == spec for name, spec in wanted.items())
    count.check("sharding specs", None if good else f"{len(found)}: {[found.get(name) for name in wanted]}")
    count.check("a model with sharding specs", problem_of(path, *SHAPE, "--tensor", "2"))
    check_specs(count, scratch, path)


def check_specs(count, scratch, path):
    """A file's specs give the width, and say how the model is divided; what cannot be used is refused by name."""
    shape = ["--bind", "batch=3,seq=8"]
    plan = run("plan", path, *shape, "--json")
    read = json.loads(plan.out) if plan.status == DONE else {}
    count.check("the width of a file's specs", None if read.get("tensor", {}).get("width") == 2 and len(read["stages"]) == 2 else plan.err[-300:])
    count.check("a run by a file's specs", problem_of(path, *SHAPE))
    plain = run("plan", path, *shape, "--ignore-annotations", "--json")
    count.check("specs that are ignored", None if plain.status == DONE and "tensor" not in json.loads(plain.out) else plain.err[-300:])
    wider = run("plan", path, *shape, "--tensor", "3", "--stages", "2")
    count.check("another width", None if wider.status == REFUSED and "groups of 3 members; the file's sharding specs are of 2" in wider.err else wider.err[-300:])
    try:
        import onnx
    except ImportError:
        count.skip("the package onnx is not there: no specs by others")
        return

    def changed(change):
        model = onnx.load(path)
        by_tensor = {}
        for node in model.graph.node:
            for entry in node.device_configurations:
                for spec in entry.sharding_spec:
                    by_tensor.setdefault(spec.tensor_name, []).append((node, entry, spec))
        change(by_tensor)
        other = os.path.join(scratch, "specs.onnx")
        onnx.save(model, other)
        return run("plan", other, *shape)

    def turn(specs):
        for _, _, spec in specs["h.0.up.weight"]:
            spec.sharded_dim[0].axis = 0

    def group(specs):
        specs["h.0.up.weight"][0][2].index_to_device_group_map.add(key=-1, value=[0, 1])

    def activation(specs):
        node, entry, spec = specs["h.0.up.weight"][0]
        entry.sharding_spec.add().CopyFrom(spec)
        entry.sharding_spec[-1].tensor_name = node.output[0]

    def whole(specs):
        node, entry, spec = specs["h.0.up.weight"][0]
        entry.sharding_spec.add().CopyFrom(spec)
        entry.sharding_spec[-1].tensor_name = "wpe.weight"

    def more(specs):
        specs["h.0.up.weight"][0][2].sharded_dim.add().axis = 0

    cases = ((turn, "'h.0.up.weight'", "axis 0, operators' rules divide it along axis 1"), (group, "'h.0.up.weight'", "index_to_device_group_map"),
             (activation, "at node", "only parameters are divided"), (whole, "'wpe.weight'", "do not divide it"),
             (more, "'h.0.up.weight'", "more than one of its axes"))
    for change, name, text in cases:
        made = changed(change)
        good = made.status == REFUSED and name in made.err and text in made.err
        count.check(f"specs: {change.__name__}", None if good else f"{made.status}: {made.err[-300:]}")
    made = changed(lambda specs: None)
    count.check("specs that onnx wrote", None if made.status == DONE and "tensor groups of 2 members" in made.out else f"{made.status}: {made.err[-300:]}")


def check_sent_gradients(count):
    """T5: gradients are summed in the stage that makes them and go to another one at once, also in the reference."""
    folder = os.path.join(MODERN, "t5", "train")
    if not os.path.isdir(folder):
        count.skip(f"{folder} is not there")
        return
    result = run("train", os.path.join(folder, "model.onnx"), *labels_of(folder), "--tensor", "3", "--stages", "2", "--microbatches", "2",
                 "--steps", "2", "--reference")
    good = result.status == DONE and "bit-equal" in result.out and re.search("uncut model +close", result.out)
    count.check("sums that other stages need", None if good else f"{result.status}: {(result.err or result.out)[-300:]}")


def check_shared_heads(count, scratch):
    """Keys and values that two members hold: their gradients are sums over both, count once in the norm, and every holder has the same weights.
    Checkpoints know neither them nor the width."""
    for name in ("llama", "phi3"):
        folder = os.path.join(MODERN, name, "train")
        if not os.path.isdir(folder):
            count.skip(f"{folder} is not there")
            return
        words = ["train", os.path.join(folder, "model.onnx"), *labels_of(folder), *ADAMW]
        both = ["--tensor", "3", "--stages", "2", "--replicas", "2", "--microbatches", "2", "--shard", "optimizer"]
        result = run(*words, *both, "--steps", "3", "--reference", "--save", os.path.join(scratch, name))
        problem = result.broken(60, 1024)
        if not problem and (result.status != DONE or "bit-equal" not in result.out or not re.search("uncut model +close", result.out)):
            problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
        count.check(f"shared keys of {name}", problem)
        lines = []
        for width in ("1", "3", "4"):
            result = run(*words, "--tensor", width, "--stages", "1", "--steps", "2", "--resume", os.path.join(scratch, name))
            lines.append([float(x) for pair in re.findall(r"loss (\S+) +norm (\S+)", result.out) for x in pair])
        near = all(len(own) == 4 and all(abs(a - b) < 1e-4 * abs(b) for a, b in zip(own, lines[0])) for own in lines)
        count.check(f"steps of {name} after a resume", None if near else str(lines))


def check_team(count):
    """Members in processes of their own: what each computes from its parts of parameters has one name, and other values."""
    words = ["run", MODEL, *SHAPE, "--tensor", "2", "--stages", "2", "--schedule", "terapipe:slices=2", "--reference"]
    result = run("launch", "-n", "4", "--", *words)
    good = result.status == DONE and "identical to the plan's reference" in result.out
    count.check("a process for every member", None if good else f"{result.status}: {(result.err or result.out)[-300:]}")


def check_refusals(count):
    os.environ["OPIPE_WITHOUT_COLLECTIVES"] = "1"  # of the impaired transport
    for words, status, text in REFUSALS:
        result = run("run", MODEL, *SHAPE, *words)
        problem = result.broken(30, 512)
        if not problem and (result.status != status or text not in result.err):
            problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
        count.check(f"refused: {' '.join(words)}", problem)


def main():
    need_command()
    count = Count()
    check_equal(count)
    check_modern(count)
    check_close(count)
    check_trained(count)
    with tempfile.TemporaryDirectory() as scratch:
        check_checkpoints(count, scratch)
        check_plan_file(count, scratch)
        check_shared_heads(count, scratch)
        check_rows(count, scratch)
        check_scattered(count, scratch)
        check_annotated(count, scratch)
    check_sent_once(count)
    check_sent_gradients(count)
    check_team(count)
    check_refusals(count)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

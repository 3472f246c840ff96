#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""train: published losses, bits that neither schedule nor a checkpoint changes, models saved with all
other bytes in place, data sources, and what is refused."""
import json
import os
import random
import shutil
import struct
import tempfile
import zipfile

from command import DATA, DONE, REFUSED, SHARED, SOURCE, USAGE, Count, need_command, run

GPT = os.path.join(DATA, "demo", "model.onnx")
EXTERNAL = os.path.join(DATA, "llama_external", "model.onnx")
TEXT = "text:" + os.path.join(SOURCE, "README.md")
LOSS = ["--loss", "cross-entropy:logits=logits,labels=labels"]
COMMON = ["--data", TEXT, *LOSS, "--shuffle", "--seed", "3", "--clip", "1", "--microbatches", "4"]
ADAM = ["--optimizer", "adamw:lr=0.003", "--lr-schedule", "cosine:warmup=2,total=8"]


def wrong(result, status=DONE, text=""):
    problem = result.broken(200, 2048)
    if problem:
        return problem
    if result.status != status:
        return f"status {result.status}, expected {status}: {(result.err or result.out)[-400:]}"
    return None if text in result.err else f"not in the message: {text!r}: {result.err[:300]}"


def losses(result):
    return [step["loss"] for step in json.loads(result.out)["steps"]]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def npy(shape, dtype, data):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def published_losses(count):
    folder = os.path.join(SHARED, "models", "training_ort", "training_api")
    if not os.path.exists(folder):
        count.skip("../shared/models/training_ort is not there")
        return
    tensors = os.path.join(folder, "params_pb")
    arguments = []
    for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
        arguments += ["--parameter", f"{name}={tensors}/{name}.pb"]
    for name in ("input-0", "labels"):
        arguments += ["--data", f"{name}={tensors}/{name}.pb"]
    result = run(
        "train", os.path.join(folder, "eval_model.onnx"), *arguments, "--steps", "2", "--json",
        "--optimizer", "adamw:lr=0.001,beta1=0.9,beta2=0.999,eps=1e-6,decay=0,eps-mode=hf",
    )
    problem = wrong(result)
    if not problem:
        found = losses(result)
        for loss, published in zip(found, (2.1786249, 0.36050943)):
            if abs(loss - published) > 1e-5 * published:
                problem = f"losses {found}"
    count.check("two published losses", problem)
    result = run(
        "train", os.path.join(folder, "eval_model.onnx"), *arguments, "--steps", "3", "--reference",
        "--stages", "2", "--microbatches", "2", "--schedule", "1f1b", "--optimizer",
        "sgd:lr=0.01,momentum=0.9",
    )
    count.check("a loss of the graph over two micro-batches", wrong(result))
    for cut in (["--replicas", "2,1"], ["--stages", "2", "--schedule", "chimera:concat=halving"]):
        result = run("train", os.path.join(folder, "eval_model.onnx"), *arguments, "--steps", "3",
                     "--reference", "--optimizer", "sgd:lr=0.01,momentum=0.9", *cut)
        count.check("a loss of the graph, " + " ".join(cut), wrong(result))


def same_bits(count, folder):
    """Whole, and stopped half-way under other stages and another schedule."""
    whole, half, rest = (os.path.join(folder, name) for name in ("whole", "half", "rest"))
    first = ["train", GPT, *COMMON, *ADAM, "--json"]
    stages = {
        whole: ["--stages", "4", "--schedule", "1f1b", "--steps", "6", "--save-gradients",
                whole + ".safetensors"],
        half: ["--stages", "4", "--schedule", "gpipe", "--steps", "3"],
        rest: ["--stages", "2", "--schedule", "1f1b", "--steps", "3", "--resume", half,
               "--save-gradients", rest + ".safetensors", "--save-model",
               os.path.join(folder, "saved.onnx")],
    }
    results = {}
    for name, arguments in stages.items():
        results[name] = run(*first, *arguments, "--save", name, timeout=200)
        count.check(f"train {os.path.basename(name)}", wrong(results[name]))
    if count.failed:
        return
    together = losses(results[half]) + losses(results[rest])
    count.check("losses of both halves", "" if together == losses(results[whole]) else str(together))
    for file in ("weights-1.safetensors", "state-1.safetensors"):
        equal = read(os.path.join(whole, file)) == read(os.path.join(rest, file))
        count.check(f"{file} of a resumed run", "" if equal else "differs")
    equal = read(whole + ".safetensors") == read(rest + ".safetensors")
    count.check("gradients of a resumed run", "" if equal else "differ")
    if losses(results[whole])[-1] >= losses(results[whole])[0]:
        count.check("the loss falls", str(losses(results[whole])))
    saved_model(count, folder, rest)
    not_fitting(count, folder, half)


def tensors(path):
    data = read(path)
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    header.pop("__metadata__", None)
    return {k: data[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]]
            for k, v in header.items()}


def traces(count, folder):
    """One box per program, measured and planned, and no two of a rank at once."""
    arguments = ["train", GPT, *COMMON, "--stages", "4", "--schedule", "zb-h1", "--steps", "2"]
    path = os.path.join(folder, "trace.json")
    problem = wrong(run(*arguments, "--trace", path))
    if not problem:
        events = [e for e in json.loads(read(path))["traceEvents"] if e["ph"] == "X"]
        for kind in (0, 1):
            of_kind = [e for e in events if e["pid"] == kind and e["cat"] != "update"]
            if len(of_kind) != 4 * 4 * 3:
                problem = f"{len(of_kind)} boxes of kind {kind}, not 48"
            for rank in range(4):
                lane = sorted((e["ts"], e["dur"]) for e in of_kind if e["tid"] == rank)
                if any(a[0] + a[1] > b[0] + 0.01 for a, b in zip(lane, lane[1:])):
                    problem = f"boxes of rank {rank} lie over each other"
    count.check("a trace", problem)
    problem = wrong(run(*arguments[:-4], "--schedule", "2bw", "--steps", "3", "--trace", path))
    if not problem:
        boxes = [e for e in json.loads(read(path))["traceEvents"] if e["ph"] == "X"]
        names = [sorted((e["tid"], e["name"]) for e in boxes if e["pid"] == kind
                        and e["cat"] != "update") for kind in (0, 1)]
        if len(names[0]) != 4 * 4 * 2 or names[0] != names[1]:
            problem = f"{len(names[0])} measured and {len(names[1])} planned boxes"
        planned = [(e["ts"], e["dur"]) for e in boxes if e["pid"] == 1]
        if not problem and (min(planned)[0] != 0 or any(dur <= 0 for _, dur in planned)):
            problem = f"planned boxes from {min(planned)}"
    count.check("a double-buffered trace", problem)
    path = os.path.join(folder, "trace.svg")
    problem = wrong(run(*arguments, "--trace", path))
    if not problem and read(path).count(b"<rect") != 2 * 48 + 4:
        problem = f"{read(path).count(b'<rect')} boxes"
    count.check("a picture", problem)


def saved_model(count, folder, checkpoint):
    """The weights are in the file, and nothing else has changed."""
    old, new = read(GPT), read(os.path.join(folder, "saved.onnx"))
    before = run("train", GPT, "--data", TEXT, *LOSS, "--steps", "1", "--resume", checkpoint,
                 "--optimizer", "adamw:lr=0.003", "--json", "--batch", "4")
    after = run("train", os.path.join(folder, "saved.onnx"), "--data", TEXT, *LOSS, "--steps", "1",
                "--json", "--batch", "4")
    count.check("continue from the checkpoint", wrong(before))
    count.check("train the saved model", wrong(after))
    restored = bytearray(new)
    for name, data in tensors(os.path.join(checkpoint, "weights-1.safetensors")).items():
        at = new.find(data)
        if at < 0:
            count.check(f"weights of {name} in the saved model", "not found")
            return
        restored[at : at + len(data)] = old[at : at + len(data)]
    count.check("all other bytes survive", "" if bytes(restored) == old else "some changed")


def not_fitting(count, folder, checkpoint):
    result = run("train", GPT, *COMMON, "--optimizer", "sgd:lr=0.1", "--steps", "1", "--resume",
                 checkpoint)
    count.check("another optimizer", wrong(result, REFUSED, "2 moments"))
    result = run("train", GPT, *COMMON, *ADAM, "--steps", "1", "--resume", checkpoint, "--frozen",
                 "*bias")
    count.check("other parameters", wrong(result, REFUSED, "trained parameters"))
    broken = os.path.join(folder, "broken")
    shutil.copytree(checkpoint, broken)
    path = os.path.join(broken, "weights-1.safetensors")
    data = read(path)
    with open(path, "wb") as file:
        file.write(data[:-4])
    result = run("train", GPT, *COMMON, *ADAM, "--steps", "1", "--resume", broken)
    count.check("a truncated checkpoint", wrong(result, REFUSED, "the file has"))


def external(count, folder):
    """Weights in a file beside the model: copied with new values, never written over."""
    ids = random.Random(1)
    rows = struct.pack("<128q", *(ids.randrange(96) for _ in range(128)))
    data = os.path.join(folder, "data")
    os.mkdir(data)
    for name in ("input_ids", "labels"):
        with open(os.path.join(data, name + ".npy"), "wb") as file:
            file.write(npy((16, 8), "<i8", rows))
    out = os.path.join(folder, "elsewhere")
    os.mkdir(out)
    arguments = ["--data", data, "--loss", LOSS[1] + ",shift=1", "--batch", "8", "--steps", "2"]
    before = read(EXTERNAL + ".data")
    result = run("train", EXTERNAL, *arguments, "--stages", "2", "--microbatches", "3",
                 "--save-model", os.path.join(out, "new.onnx"))
    count.check("external weights", wrong(result))
    if not result.status:
        old, new = read(EXTERNAL), read(os.path.join(out, "new.onnx"))  # norms are embedded
        differ = sum(a != b for a, b in zip(old, new))
        equal = len(old) == len(new) and 0 < differ <= 4 * 5 * 32
        count.check("the model file keeps its form", "" if equal else f"{differ} bytes changed")
        after = read(os.path.join(out, "model.onnx.data"))
        same = len(after) == len(before) and after != before
        count.check("the weights are new", "" if same else "their file did not change")
        count.check("the saved model runs", wrong(run("run", os.path.join(out, "new.onnx"))))
    beside = os.path.join(folder, "beside")
    shutil.copytree(os.path.dirname(EXTERNAL), beside)
    result = run("train", os.path.join(beside, "model.onnx"), *arguments, "--save-model",
                 os.path.join(beside, "new.onnx"))
    count.check("weights beside the model", wrong(result, REFUSED, "would write over"))
    count.check("a vocabulary below 256", wrong(
        run("train", EXTERNAL, "--data", TEXT, *LOSS, "--steps", "1"), REFUSED, "vocabulary of 96"))
    archives(count, folder, arguments, rows)


def archives(count, folder, arguments, rows):
    """The same samples from an archive give the same losses; compressed ones are refused."""
    kinds = {"stored.npz": zipfile.ZIP_STORED, "packed.npz": zipfile.ZIP_DEFLATED}
    for name, kind in kinds.items():
        with zipfile.ZipFile(os.path.join(folder, name), "w", kind) as archive:
            for array in ("input_ids", "labels"):
                with archive.open(array + ".npy", "w", force_zip64=True) as file:
                    file.write(npy((16, 8), "<i8", rows))
    arguments = [*arguments, "--json"]
    first = run("train", EXTERNAL, *arguments)
    arguments[1] = os.path.join(folder, "stored.npz")
    second = run("train", EXTERNAL, *arguments)
    count.check("a folder", wrong(first))
    count.check("an archive", wrong(second))
    if not first.status and not second.status:
        equal = losses(first) == losses(second)
        count.check("losses from an archive", "" if equal else f"{losses(first)} {losses(second)}")
    arguments[1] = os.path.join(folder, "packed.npz")
    count.check("a packed archive", wrong(run("train", EXTERNAL, *arguments), REFUSED, "compressed"))


def refusals(count):
    text = ["train", GPT, "--data", TEXT]
    cases = [
        (["train", GPT, *LOSS], USAGE, "needs --data"),
        ([*text, *LOSS, "--batch", "1000000"], USAGE, "the data have"),
        ([*text, *LOSS, "--batch", "4", "--microbatches", "5"], USAGE, "has 4 samples"),
        ([*text, "--loss", "hinge:a=b"], USAGE, "hinge"),
        ([*text, "--loss", "cross-entropy:logits=logits,margin=1"], USAGE, "margin"),
        ([*text, *LOSS, "--optimizer", "adamw:beta1=0.5"], USAGE, "lr=X is needed"),
        ([*text, *LOSS, "--optimizer", "sgd:lr=0.1,beta1=1"], USAGE, "beta1"),
        ([*text, *LOSS, "--lr-schedule", "step"], USAGE, "step"),
        ([*text, *LOSS, "--save-every", "2"], USAGE, "--save DIR"),
        ([*text, *LOSS, "--resume", "/nowhere"], USAGE, "/nowhere"),
        ([*text, "--steps", "1"], REFUSED, "logits"),
        ([*text, *LOSS, "--frozen", "no_such_*"], USAGE, "no_such_"),
        (["train", EXTERNAL, "--data", "input_ids=" + GPT, *LOSS], REFUSED, "not a .npy file"),
        (["train", GPT, "--parameter", "nothing=" + GPT, "--data", TEXT], REFUSED, "model.onnx"),
    ]
    for arguments, status, said in cases:
        result = run(*arguments)
        count.check(" ".join(arguments[1:])[-70:], wrong(result, status, said))


def references(count):
    sgd = ["--optimizer", "sgd:lr=0.05,momentum=0.9,nesterov=1", "--steps", "3", "--reference"]
    adam = ["--optimizer", "adamw:lr=0.003", "--steps", "3", "--reference"]
    half = [*sgd, "--compute", "bf16"]
    for schedule, optimizer in (
        ("gpipe", sgd), ("1f1b", adam), ("chimera", adam), ("2bw", sgd), ("1f1b", half)
    ):
        result = run("train", GPT, *COMMON, *optimizer, "--stages", "4", "--schedule", schedule,
                     "--bind", "seq=16", "--batch", "8", timeout=200)
        count.check(f"{schedule} and its reference: {' '.join(optimizer)}", wrong(result))
    result = run("inspect", "--train", GPT, *LOSS, "--frozen", "*bias", "--json")
    problem = wrong(result)
    if not problem:
        why = {row["name"]: row["trained"] for row in json.loads(result.out)["initializers"]}
        if not any(why.values()) or any(on for name, on in why.items() if name.endswith("bias")):
            problem = str(why)[:200]
    count.check("inspect --train", problem)


def close(a, b, tolerance):
    """Why two runs' losses are further apart, or None."""
    x, y = losses(a), losses(b)
    far = max(abs(p - q) / abs(q) for p, q in zip(x, y))
    return None if len(x) == len(y) and far <= tolerance else f"losses {x} and {y}"


def slices(count):
    """Token slices in every compute type, fused and not, have the losses of whole sequences."""
    common = ["--data", TEXT, *LOSS, "--batch", "4", "--bind", "seq=12", "--steps", "3", "--json"]
    common += ["--optimizer", "sgd:lr=0.05", "--microbatches", "2"]
    for compute, tolerance in (("fp32", 1e-5), ("bf16", 2e-2), ("fp16", 2e-3)):
        for fuse in ([], ["--no-fuse"]):
            how = [*common, "--compute", compute, *fuse]
            whole = run("train", GPT, *how)
            sliced = run("train", GPT, *how, "--schedule", "terapipe:slices=3", "--ranks", "2")
            problem = wrong(whole) or wrong(sliced) or close(sliced, whole, tolerance)
            count.check(f"token slices in {compute} {''.join(fuse)}", problem)


def write_ids(folder, padded):
    """Inputs and labels [4, 8]; `padded`: half of the sequences begin with padding."""
    os.makedirs(folder)
    some = random.Random(5)
    for name in ("input_ids", "attention_mask", "labels"):
        ids = [some.randrange(50) for _ in range(32)]
        if name == "attention_mask":
            ids = [int(not padded or i < 16 or i % 8 > 4) for i in range(32)]
        with open(os.path.join(folder, name + ".npy"), "wb") as file:
            file.write(npy("(4, 8)", "<i8", struct.pack("<32q", *ids)))


def masked_rows(count, folder):
    """Rows whose every key is masked come out alike, fused and not, in half types too."""
    model = os.path.join(SHARED, "models", "modern", "gpt2", "train", "model.onnx")
    if not os.path.exists(model):
        count.skip("../shared/models/modern is not there")
        return
    folder = os.path.join(folder, "padded")
    write_ids(folder, True)
    how = ["train", model, "--data", folder, "--steps", "2", "--json", "--optimizer", "sgd:lr=0.1",
           "--loss", "cross-entropy:logits=logits,labels=labels"]
    for compute, tolerance in (("bf16", 2e-3), ("fp16", 5e-4)):
        fused = run(*how, "--compute", compute)
        plain = run(*how, "--compute", compute, "--no-fuse")
        problem = wrong(fused) or wrong(plain) or close(fused, plain, tolerance)
        count.check(f"masked rows in {compute}", problem)


def named_apart(count, folder):
    """Exporters name the dimensions of each input apart: their tokens are sliced together."""
    model = os.path.join(SHARED, "models", "modern", "gpt2", "train", "model.onnx")
    if not os.path.exists(model):
        count.skip("../shared/models/modern is not there")
        return
    data = read(model)
    at = data.rindex(b"attention_mask")  # the graph input; its dimensions come behind its name
    mask = data[at:].replace(b"batch", b"s4321", 1).replace(b"seq", b"s53", 1)
    path = os.path.join(folder, "apart.onnx")
    with open(path, "wb") as file:
        file.write(data[:at] + mask)
    data = os.path.join(folder, "apart")
    write_ids(data, False)
    how = ["train", path, "--data", data, *LOSS, "--steps", "2", "--json", "--optimizer",
           "sgd:lr=0.1"]
    whole = run(*how)
    sliced = run(*how, "--schedule", "seq1f1b:slices=3", "--ranks", "2")
    problem = wrong(whole) or wrong(sliced) or close(sliced, whole, 1e-5)
    count.check("token slices of inputs whose lengths are named apart", problem)


def encoders(count):
    """A model that is not causal is refused with the row and the token."""
    model = os.path.join(DATA, "encoder", "model.onnx")
    loss = ["--loss", "cross-entropy:logits=scores,labels=labels"]
    for fuse, node in (([], "(Attention)"), (["--no-fuse"], "(Softmax)")):
        result = run("train", model, "--data", TEXT, *loss, *fuse, "--bind", "seq=6",
                     "--schedule", "terapipe:slices=2")
        said = f"{node}: tokens cannot be sliced: it is not causal: row 0 may read token 1"
        count.check(f"an encoder in slices {''.join(fuse)}", wrong(result, REFUSED, said))


def main():
    need_command()
    count = Count()
    published_losses(count)
    refusals(count)
    references(count)
    slices(count)
    encoders(count)
    with tempfile.TemporaryDirectory() as folder:
        external(count, folder)
        traces(count, folder)
        same_bits(count, folder)
        masked_rows(count, folder)
        named_apart(count, folder)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

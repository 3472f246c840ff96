# SPDX-License-Identifier: Apache-2.0
"""How far results on the GPU are from the CPU backend's in fp32, and gradients from PyTorch's in fp64: what a device and its
libraries do wrong always is found by no comparison of the device with itself."""
import array
import glob
import json
import math
import os
import shutil
import struct
import sys

import gpt2
from bundle_kit import COMMAND, HERE, SMALL, Failed, NotRun, command, each, peer, torch_missing, work

SHAPE, T, VOCABULARY, SAMPLES = ("tiny", 32, 128, 2) if SMALL else ("middle", 128, 1024, 8)
LOSS = "cross-entropy:logits=logits,labels=ids,shift=1"
STEPS = 2 if SMALL else 10


# ---- files ----

def floats_of(kind, data):
    """Numbers of a tensor's bytes: F32, BF16 or F16."""
    if kind == "F32":
        return array.array("f", data)
    if kind == "BF16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        return array.array("f", bytes(wide))
    if kind == "F16":
        return array.array("f", struct.unpack("<%de" % (len(data) // 2), data))
    raise Failed("a tensor of type %s" % kind)


def safetensors(path):
    """{name: numbers}"""
    with open(path, "rb") as file:
        body = file.read()
    (n,) = struct.unpack("<Q", body[:8])
    head = json.loads(body[8:8 + n])
    head.pop("__metadata__", None)
    return {name: floats_of(one["dtype"], body[8 + n + one["data_offsets"][0]:8 + n + one["data_offsets"][1]]) for name, one in head.items()}


def numbers(body, kind):
    """The numbers in a .npy file's bytes."""
    (n,) = struct.unpack("<H", body[8:10])
    return floats_of(kind, body[10 + n:])


def npy(path, kind):
    with open(path, "rb") as file:
        return numbers(file.read(), kind)


# ---- distances ----

def norm(x):
    return math.sqrt(math.fsum(v * v for v in x))


def distance(x, y):
    if len(x) != len(y):
        raise Failed("%d numbers and %d" % (len(x), len(y)))
    return math.sqrt(math.fsum((a - b) * (a - b) for a, b in zip(x, y)))


def farthest(ours, theirs):
    """The largest ||a - b|| / max(||b||, 0.2 RMS sqrt(n)) of all tensors, and whose it is; RMS: of all gradients."""
    if set(ours) != set(theirs):
        raise Failed("gradients of other parameters: %s" % sorted(set(ours) ^ set(theirs))[:4])
    n_all = sum(len(b) for b in theirs.values())
    rms = math.sqrt(math.fsum(norm(b) ** 2 for b in theirs.values()) / n_all)
    return max((distance(ours[name], b) / max(norm(b), 0.2 * rms * math.sqrt(len(b))), name) for name, b in theirs.items())


def judge(found, allowed):
    """found: {what: distance}; Failed, with all of them, where one is not within what is allowed."""
    beyond = ["%s: %.3g, %g allowed" % (what, found[what], allowed[what]) for what in found if not found[what] <= allowed[what]]
    if beyond:
        raise Failed("; ".join(beyond), said=found)
    return found


# ---- outputs ----

def outputs(clock):
    """Scores of a whole network against the CPU's in fp32: products with their epilogues, attention, norms. TF32 is asked for and
    must show."""
    rows = [("fp32", "cuda", False, 1e-5), ("fp32, cudnn=0", "cuda,cudnn=0", False, 1e-5), ("tf32", "cuda,tf32=1", False, 1e-3),
            ("bf16", "cuda", True, 2e-2), ("bf16, cudnn=0", "cuda,cudnn=0", True, 2e-2), ("bf16, graphs=1", "cuda,graphs=1", True, 2e-2)]
    data = work("near-ids.npy")
    gpt2.ids(data, SAMPLES, T, VOCABULARY)
    for half in (False, True):
        gpt2.write(work("near-%d.onnx" % half), SHAPE, T, VOCABULARY, half=half)

    def scores(what, device, half):
        folder = work("near-" + "".join(c for c in what if c.isalnum()))
        shutil.rmtree(folder, ignore_errors=True)
        command([COMMAND, "run", work("near-%d.onnx" % half), "--device", device, "--stages", "1", "--input", "ids=" + data,
                 "--output", folder], clock)
        return npy(os.path.join(folder, "logits.npy"), "BF16" if half else "F32")

    truth = scores("cpu", "cpu", False)
    size = norm(truth)
    far = dict(each(lambda row: (row[0], distance(scores(*row[:3]), truth) / size), rows))
    judge(far, {row[0]: row[3] for row in rows})
    if not SMALL and not far["tf32"] > far["fp32"]:
        raise Failed("tf32=1 changed nothing", said=far)
    return far


def steps(clock):
    """Scores of a token behind earlier ones, against the CPU's in fp32; and their bits, however its launches are given to the device,
    in the last of many requests."""
    past, requests = (40, 2) if SMALL else (512, 200)
    data = work("step-ids.npy")
    gpt2.ids(data, 1, 1, VOCABULARY)
    for half in (False, True):
        gpt2.write(work("step-%d.onnx" % half), SHAPE, 1, VOCABULARY, half=half, past=past)

    def scores(what, device, half):
        folder = work("step-" + what)
        shutil.rmtree(folder, ignore_errors=True)
        command([COMMAND, "run", work("step-%d.onnx" % half), "--device", device, "--stages", "1", "--input", "ids=" + data,
                 "--output", folder, "--requests", str(requests)], clock)
        with open(os.path.join(folder, "logits.npy"), "rb") as file:
            return file.read()

    truth = numbers(scores("cpu", "cpu", False), "F32")
    found = {}
    for what, half, limit in (("fp32", False, 1e-5), ("bf16", True, 2e-2)):
        bits = scores(what, "cuda,pdl=0", half)
        far = distance(numbers(bits, "BF16" if half else "F32"), truth) / norm(truth)
        found[what] = judge({what: far}, {what: limit})[what]
        for options in ("pdl=1", "graphs=1,pdl=0", "graphs=1,pdl=1", "graphs=1,few_rows=8"):
            if scores("%s-%s" % (what, options), "cuda," + options, half) != bits:
                raise Failed("%s: other bits with %s than with pdl=0" % (what, options), said=found)
    return found


# ---- training ----

def gradients_file(what, device, compute, clock, model, data, refuse=()):
    path = work("near-%s.safetensors" % "".join(c for c in what if c.isalnum()))
    command([COMMAND, "train", model, "--device", device, "--compute", compute, "--ranks", "1", "--schedule", "gpipe", "--batch", str(SAMPLES),
             "--microbatches", "2", "--steps", "1", "--dropout", "off", "--data", "ids=" + data, "--loss", LOSS, "--save-gradients", path], clock, refuse)
    return path


def trained_model():
    model, data = work("near-0.onnx"), work("near-ids.npy")
    gpt2.write(model, SHAPE, T, VOCABULARY)
    gpt2.ids(data, SAMPLES, T, VOCABULARY)
    return model, data


def gradients(clock):
    """Gradients of every parameter against the CPU's in fp32."""
    rows = [("fp32", "cuda", "fp32", 1e-4), ("tf32", "cuda,tf32=1", "fp32", 1e-2), ("bf16", "cuda", "bf16", 3e-2),
            ("bf16, cudnn=0", "cuda,cudnn=0", "bf16", 3e-2), ("bf16, deterministic=0", "cuda,deterministic=0", "bf16", 3e-2),
            ("fp16", "cuda", "fp16", 3e-2)]
    model, data = trained_model()

    def made(what, device, compute):
        refuse = ("our own kernels",) if device.startswith("cuda") and compute != "fp32" and "cudnn=0" not in device else ()
        return safetensors(gradients_file(what, device, compute, clock, model, data, refuse))

    truth = made("cpu", "cpu", "fp32")
    found = dict(each(lambda row: (row[0], farthest(made(*row[:3]), truth)[0]), rows))
    return judge(found, {row[0]: row[3] for row in rows})


def masked(clock):
    """Gradients of networks with masks in front of every softmax, some of whose rows see nothing: by cuDNN, which has to do all of it,
    and by our own kernels, against the CPU's in fp32."""
    data = work("masked-ids.npy")
    gpt2.ids(data, SAMPLES, T, VOCABULARY)
    names = gpt2.MASKS[:2] if SMALL else gpt2.MASKS
    for name in names:
        gpt2.write(work("masked-%s.onnx" % name), SHAPE, T, VOCABULARY, masks=name)
    rows = [("bf16", "cuda", "bf16"), ("bf16, dnn_masks=0", "cuda,dnn_masks=0", "bf16"), ("bf16, deterministic=0", "cuda,deterministic=0", "bf16"),
            ("fp16", "cuda", "fp16")]

    def made(name, what, device, compute):
        refuse = () if device == "cpu" or "dnn_masks=0" in device else ("our own kernels",)
        return safetensors(gradients_file("masked %s %s" % (name, what), device, compute, clock, work("masked-%s.onnx" % name), data, refuse))

    truth = {name: made(name, "cpu", "cpu", "fp32") for name in names}
    cases = [(name, *row) for name in names for row in (rows[:2] if SMALL else rows)]
    found = dict(each(lambda case: ("%s, %s" % case[:2], farthest(made(*case), truth[case[0]])[0]), cases))
    return judge(found, {what: 3e-2 for what in found})


def losses(clock):
    """Losses of some steps against the CPU's in fp32: the farthest, relative."""
    rows = [("fp32", "cuda", "fp32", 1e-4), ("bf16", "cuda", "bf16", 1e-2), ("fp16", "cuda", "fp16", 1e-2)]
    model, data = trained_model()

    def told(device, compute):
        out = command([COMMAND, "train", model, "--device", device, "--compute", compute, "--ranks", "1", "--schedule", "gpipe", "--batch", "2",
                       "--microbatches", "2", "--steps", str(STEPS), "--dropout", "off", "--data", "ids=" + data, "--loss", LOSS,
                       "--optimizer", "adamw:lr=1e-3", "--json"], clock)
        return [one["loss"] for one in json.loads(out)["steps"]]

    truth = told("cpu", "fp32")
    if len(truth) != STEPS:
        raise Failed("%d losses, %d are wanted" % (len(truth), STEPS))
    found = dict(each(lambda row: (row[0], max(abs(a - b) / abs(b) for a, b in zip(told(row[1], row[2]), truth))), rows))
    return judge(found, {row[0]: row[3] for row in rows})


def beside_pytorch(clock):
    """Gradients of all parameters together against PyTorch's in fp64, ours in bf16 beside PyTorch's own in bf16."""
    model, data = trained_model()
    ours = [gradients_file("peer " + compute, "cuda", compute, clock, model, data) for compute in ("fp32", "bf16")]
    said = peer(clock, "gradients", SHAPE, SAMPLES, T, VOCABULARY, model + ".weights", data, *ours)
    said["bf16 over PyTorch's"] = said["ours bf16"] / said["PyTorch bf16"]
    return judge(said, {"ours fp32": 1e-4, "ours bf16": 3e-2, "PyTorch bf16": math.inf, "bf16 over PyTorch's": 1.2})


def tensors_of_pytorch(clock):
    """The example of a host in PyTorch: its tensors go in and come out by their pointers, on its stream."""
    if torch_missing():
        raise NotRun(torch_missing())
    library = glob.glob(os.path.join(HERE, "lib", "libonnxpipe.so*"))
    return command([sys.executable, os.path.join(HERE, "examples", "gpu_torch.py"), library[0],
                    os.path.join(HERE, "models", "gpt_8block", "model.onnx"), "20"], clock).strip()

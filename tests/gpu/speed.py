# SPDX-License-Identifier: Apache-2.0
"""Speed: training steps of GPT-2's shapes in bf16, and inference. Random tokens and weights, the median of the steps behind
the first; FLOP per token 6N + 6LCT (attention counted causal, half)."""
import json
import os
import statistics
import sys

import gpt2
from bundle_kit import COMMAND, HERE, SMALL, Failed, NotRun, ceilings, command, work

T = 16 if SMALL else 1024
VOCABULARY = 256 if SMALL else gpt2.VOCABULARY
PEAK = 989e12  # bf16 of an H100 or H200, by its data sheet
SHAPES = {"124M": (32, 512), "350M": (16, 512), "774M": (16, 512), "1.5B": (8, 128)}  # micro-batch, samples of a step
LEAST = "small" if SMALL else "124M"  # of lines that want one shape
if SMALL:
    SHAPES = {"small": (1, 4)}
STEPS = 4
REQUESTS = 4 if SMALL else 100
PAST = 40 if SMALL else 512


def flop_per_token(shape):
    layers, width, _ = gpt2.SHAPES[shape]
    n = gpt2.parameters(layers, width, VOCABULARY, T)
    return 6 * n + 6 * layers * width * T


def roofline(shape, left):
    """Tokens per second of a step that only the chip limits: products at 0.87 of the rate of 8192^3, which is what the library has
    at these shapes, attention (causal, half) at 0.45 of it forward and 0.34 backward, 38 passes over activations a layer,
    logits and the optimizer at the speed of copies."""
    measured = ceilings(left)
    flops, bandwidth = (max(measured[one], 1e-6) * unit for one, unit in (("bf16_tflops", 1e12), ("copy_read_and_write_gb_per_s", 1e9)))
    layers, width, _ = gpt2.SHAPES[shape]
    n = gpt2.parameters(layers, width, VOCABULARY, T)
    tokens = SHAPES[shape][1] * T
    attention = 2 * T * width * layers
    seconds = 6 * (n - T * width) / (0.87 * flops) + attention / (0.45 * flops) + 2.5 * attention / (0.34 * flops)
    seconds += (38 * 2 * width * layers + 4 * VOCABULARY + 30 * n / tokens) / bandwidth
    return 1 / seconds


def model_of(shape, tokens=T, serves=False):
    path = work("gpt2-%s-%d%s.onnx" % (shape, tokens, "-serves" if serves else ""))
    if not os.path.exists(path):
        gpt2.write(path, shape, tokens, VOCABULARY, serves=serves)
    return path


def step(shape, left, more=()):
    micro, samples = SHAPES[shape]
    data = work("ids-%d.npy" % samples)
    if not os.path.exists(data):
        gpt2.ids(data, samples, T, VOCABULARY)
    out = command([COMMAND, "train", model_of(shape), "--device", "cuda", "--compute", "bf16", "--data", "ids=" + data, "--batch", str(samples),
                   "--microbatches", str(samples // micro), "--steps", str(STEPS), "--dropout", "off", "--json",
                   "--loss", "cross-entropy:logits=logits,labels=ids,shift=1", "--optimizer", "adamw:lr=1e-4", *more], left)
    steps = json.loads(out)["steps"]
    seconds = statistics.median(one["seconds"] for one in steps[1:])
    return samples * T / seconds, [one["loss"] for one in steps]


def train(shape):
    def line(left):
        rate, losses = step(shape, left / 2)
        return {"tokens_per_s": round(rate), "of_989_tflops": round(rate * flop_per_token(shape) / PEAK, 4),
                "of_roofline": round(rate / roofline(shape, left / 4), 4), "losses": losses}
    return line


def ranks(shape, n):
    def line(left):
        one, _ = step(shape, left / 3)
        several, _ = step(shape, left / 3, ["--ranks", str(n), "--schedule", "1f1b"])
        return {"tokens_per_s": round(several), "of_one_rank": round(several / one, 4)}
    return line


def prefill(device):
    def line(left):
        data = work("ids-1.npy")
        gpt2.ids(data, 1, T, VOCABULARY)
        out = command([COMMAND, "run", model_of(LEAST, serves=True), "--device", device, "--stages", "1", "--input", "ids=" + data,
                       "--requests", str(REQUESTS), "--json"], left)
        told = json.loads(out)
        return {"ms_per_request": round(1e3 * told["seconds"] / REQUESTS, 3), "latency_ms": told["latency_ms"]}
    return line


def peer(left, *arguments):
    """What peer.py says; NotRun without PyTorch."""
    try:
        said = command([sys.executable, "-c", "import torch; print(torch.cuda.is_available(), torch.__version__)"], min(left, 120)).split()
    except Failed as why:
        raise NotRun("there is no PyTorch: " + str(why)) from why
    if said[0] != "True":
        raise NotRun("PyTorch %s sees no GPU" % said[1])
    return json.loads(command([sys.executable, os.path.join(HERE, "peer.py"), *(str(x) for x in arguments)], left))


def train_beside(shape):
    def line(left):
        """Ours over the faster of PyTorch's two ways."""
        micro, samples = SHAPES[shape]
        theirs = {way: samples * T / statistics.median(peer(left / 3, "train", shape, micro, samples, T, STEPS, way)["seconds"][1:])
                  for way in ("autocast", "masters")}
        ours, _ = step(shape, left / 3)
        return {"tokens_per_s": round(ours), **{way: round(rate) for way, rate in theirs.items()},
                "ratio": round(ours / max(theirs.values()), 4)}
    return line


def prefill_beside(left):
    """A request after another, of bf16, graphs on both sides."""
    theirs = 1e3 * statistics.median(peer(left / 2, "prefill", LEAST, T, REQUESTS)["seconds"])
    ours = prefill("cuda,graphs=1")(left / 2)["ms_per_request"]
    return {"pytorch_ms": round(theirs, 3), "ours_ms": ours, "ratio": round(theirs / ours, 4)}


def decode(shape):
    def line(left):
        """One token behind 512, a request after another: bytes of weights and cache over the time, beside PyTorch's with a cache
        that stands still."""
        path, data = work("gpt2-%s-decode.onnx" % shape), work("ids-one.npy")
        n_bytes = gpt2.write(path, shape, 1, VOCABULARY, serves=True, past=PAST)
        gpt2.ids(data, 1, 1, VOCABULARY)
        told = json.loads(command([COMMAND, "run", path, "--device", "cuda,graphs=1", "--stages", "1", "--input", "ids=" + data,
                                   "--requests", str(REQUESTS), "--json"], left / 3))
        own = told["seconds"] / REQUESTS
        said = {"ms": round(1e3 * own, 3), "gb_per_s": round(n_bytes / own / 1e9, 1)}
        if not SMALL:
            theirs = statistics.median(peer(left / 2, "decode", shape, PAST, REQUESTS)["seconds"])
            said.update(pytorch_ms=round(1e3 * theirs, 3), ratio=round(theirs / own, 4))
        return said
    return line


def not_built(what):
    def line(left):
        raise NotRun(what)
    return line


TRAIN = [("GPT-2 " + shape, train(shape)) for shape in SHAPES] + [
    ("124M, 2 ranks on the GPU", ranks(LEAST, 2)), ("124M, 4 ranks on the GPU", ranks(LEAST, 4)),
    *((shape + " beside PyTorch", train_beside(shape)) for shape in SHAPES),
    ("deterministic=1 beside 0", not_built("the plugin has one set of kernels yet, which is deterministic")),
]
INFER = [
    ("prefill of 124M at 1 x 1024", prefill("cuda")),
    ("prefill of 124M at 1 x 1024, as graphs", prefill("cuda,graphs=1")),
    ("a decode step of 1B at past 512", decode("small" if SMALL else "1B")),
    ("a decode step of 7B at past 512", decode("small" if SMALL else "7B")),
    ("prefill beside PyTorch", prefill_beside),
]

# SPDX-License-Identifier: Apache-2.0
"""Speed of training: steps of GPT-2's shapes in bf16, random tokens and weights, the median of the steps behind the first; FLOP
per token 6N + 6LCT (attention counted causal, half). Figures to be compared are measured in one call of gpu.py: a figure that
one line has is another's, too."""
import json
import os
import re
import statistics

import gpt2
import overlap
import profile_kernels
from bundle_kit import COMMAND, SMALL, Failed, Line, NotRun, ceilings, command, once, peer, work

T = 16 if SMALL else 1024
VOCABULARY = 256 if SMALL else gpt2.VOCABULARY
PEAK = 989e12  # bf16 of an H100 or H200, by its data sheet
SHAPES = {"124M": (32, 512), "350M": (16, 512), "774M": (16, 512), "1.5B": (8, 128)}  # micro-batch, samples of a step
STEPS = {"124M": 8, "350M": 6, "774M": 4, "1.5B": 6}  # with the first
LEAST = "tiny" if SMALL else "124M"  # of lines that want one shape
if SMALL:
    SHAPES, STEPS = {LEAST: (1, 4)}, {LEAST: 2}
FASTEST = "cuda,deterministic=0"


def flop_per_token(shape):
    layers, width, _ = gpt2.SHAPES[shape]
    n = gpt2.parameters(layers, width, VOCABULARY, T)
    return 6 * n + 6 * layers * width * T


def roofline(shape, clock):
    """Tokens per second of a step that only the chip limits: products at 0.87 of the rate of 8192^3, which is what the library has
    at these shapes, attention (causal, half) at 0.45 of it forward and 0.34 backward, 38 passes over activations a layer,
    logits and the optimizer at the speed of copies."""
    measured = ceilings(clock)
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
    if not os.path.exists(path):  # written last, behind its weights
        gpt2.write(path, shape, tokens, VOCABULARY, serves=serves)
    return path


def ids_of(samples, tokens=T):
    return once(work("ids-%d-%d.npy" % (samples, tokens)), lambda path: gpt2.ids(path, samples, tokens, VOCABULARY))


def arguments_of(shape, device):
    """Options that a plan of the shape needs."""
    micro, samples = SHAPES[shape]
    return [model_of(shape), "--device", device, "--compute", "bf16", "--microbatches", str(samples // micro), "--dropout", "off",
            "--loss", "cross-entropy:logits=logits,labels=ids,shift=1", "--optimizer", "adamw:lr=1e-4"]


def step(shape, clock, device=FASTEST, more=("--ranks", "1", "--schedule", "1f1b"), plan=None):
    """(tokens per second, losses of the steps)"""
    samples = SHAPES[shape][1]
    how = [model_of(shape), "--plan", plan, "--tuned", "require"] if plan else [*arguments_of(shape, device), *more]
    out = command([COMMAND, "train", *how, "--data", "ids=" + ids_of(samples), "--batch", str(samples), "--steps", str(STEPS[shape]), "--json"],
                  clock)
    steps = json.loads(out)["steps"]
    return samples * T / statistics.median(one["seconds"] for one in steps[1:]), [one["loss"] for one in steps]


MEASURED = {}


def alone(shape, clock, device=FASTEST):
    """The same of one rank, as this call of gpu.py measured it."""
    if (shape, device) not in MEASURED:
        MEASURED[shape, device] = step(shape, clock, device)
    return MEASURED[shape, device]


def one_rank(shape):
    def line(clock):
        rate, losses = alone(shape, clock)
        micro, samples = SHAPES[shape]
        return {"tokens_per_s": round(rate), "of_989_tflops": round(rate * flop_per_token(shape) / PEAK, 4),
                "of_roofline": round(rate / roofline(shape, clock), 4), "micro_batch": micro, "samples": samples, "steps": STEPS[shape],
                "losses": losses}
    return line


def ranks(shape, n):
    """Several ranks on the GPU over one, and how their work lies over each other by the streams' own time."""
    def line(clock):
        one, _ = alone(shape, clock)
        trace = work("ranks-%d.json" % n)
        several, _ = step(shape, clock, more=["--ranks", str(n), "--schedule", "1f1b"])
        said = {"tokens_per_s": round(several), "of_one_rank": round(several / one, 4)}
        samples = SHAPES[shape][1]
        command([COMMAND, "train", *arguments_of(shape, FASTEST), "--ranks", str(n), "--schedule", "1f1b", "--data", "ids=" + ids_of(samples),
                 "--batch", str(samples), "--steps", "2", "--trace", trace], clock)
        return {**said, "overlap": overlap.overlap(trace)}
    return line


def processes(shape, n):
    """Ranks that are processes of their own on the GPU, whose messages go straight to each other's device memory by the driver's handles,
    over one rank; with the losses of the same ranks as threads. Another way than that is told by the session, and fails the line."""
    def line(clock):
        one, _ = alone(shape, clock)
        samples = SHAPES[shape][1]
        several = ["--ranks", str(n), "--schedule", "1f1b", "--transport", "shm"]
        threads, wanted = step(shape, clock, more=several)
        out = command([COMMAND, "launch", "-n", str(n), "--", "train", *arguments_of(shape, FASTEST), *several, "--data", "ids=" + ids_of(samples),
                       "--batch", str(samples), "--steps", str(STEPS[shape]), "--json"], clock, refuse=["travel through"])
        steps = json.loads(re.sub(r"(?m)^\[rank 0\] ", "", out))["steps"]
        rate = samples * T / statistics.median(one["seconds"] for one in steps[1:])
        said = {"tokens_per_s": round(rate), "of_one_rank": round(rate / one, 4), "of_threads": round(rate / threads, 4)}
        if [one["loss"] for one in steps] != wanted:
            raise Failed("losses %s, of threads %s" % ([one["loss"] for one in steps], wanted), said=said)
        return said
    return line


def best(shape, clock):
    """The faster of one rank as it is and as it was tuned, if it was: (tokens per second, which)."""
    rates = [(alone(shape, clock)[0], "untuned")]
    if (shape, "tuned") in MEASURED:
        rates.append((MEASURED[shape, "tuned"][0], "tuned"))
    return max(rates)


def beside_pytorch(shape):
    """Ours over the faster of PyTorch's two ways."""
    def line(clock):
        micro, samples = SHAPES[shape]
        ours, which = best(shape, clock)
        said, rates = {"tokens_per_s": round(ours), "ours": which}, []
        for way in ("autocast", "masters"):
            try:
                told = peer(clock, "train", shape, micro, samples, T, STEPS[shape], way)
                rates.append(samples * T / statistics.median(told["seconds"][1:]))
                said[way] = round(rates[-1])
            except (NotRun, Failed) as why:
                said[way] = str(why)
        if not rates:
            raise NotRun("PyTorch did not run", said=said)
        return {**said, "ratio": round(ours / max(rates), 4)}
    return line


def in_order(clock):
    """Sums in one order over sums in any."""
    free, _ = alone(LEAST, clock)
    ordered, _ = alone(LEAST, clock, "cuda")
    return {"tokens_per_s": round(ordered), "of_deterministic_0": round(ordered / free, 4)}


def sums_along(clock):
    """Sums over rows that norms' gradients make along, over sums by themselves."""
    along, _ = alone(LEAST, clock)
    apart, _ = alone(LEAST, clock, FASTEST + ",norm_sums=0")
    return {"tokens_per_s": round(along), "of_norm_sums_0": round(along / apart, 4)}


def tuned(shape):
    """A plan whose products are chosen by measurement, over the library's first choices."""
    def line(clock):
        plan, better = work("tune-%s.json" % shape), work("tuned-%s.json" % shape)
        samples = SHAPES[shape][1]
        command([COMMAND, "plan", *arguments_of(shape, FASTEST), "--train", "--ranks", "1", "--schedule", "1f1b", "--bind",
                 "batch=%d" % samples, "-o", plan], clock)
        said = command([COMMAND, "tune", model_of(shape), "--plan", plan, "--device", "cuda:0", *(["--runs", "4"] if SMALL else []), "-o",
                        better], clock).strip().splitlines()
        MEASURED[shape, "tuned"] = step(shape, clock, plan=better)
        rate, untuned = MEASURED[shape, "tuned"][0], alone(shape, clock)[0]
        return {"tokens_per_s": round(rate), "of_untuned": round(rate / untuned, 4), "of_roofline": round(rate / roofline(shape, clock), 4),
                "tune": said[-3:]}
    return line


def kernels(vocabulary):
    """A micro-batch's kernels, forward and backward, and a step's update, of two micro-batches."""
    def line(clock):
        micro, _ = SHAPES[LEAST]
        model = work("gpt2-%s-%d-%d.onnx" % (LEAST, T, vocabulary))
        if not os.path.exists(model):
            gpt2.write(model, LEAST, T, vocabulary)
        data = once(work("ids-%d-%d-%d.npy" % (2 * micro, T, vocabulary)), lambda path: gpt2.ids(path, 2 * micro, T, vocabulary))
        return profile_kernels.kernels([COMMAND, "train", model, "--device", FASTEST, "--compute", "bf16", "--microbatches", "2", "--dropout",
                                        "off", "--loss", "cross-entropy:logits=logits,labels=ids,shift=1", "--optimizer", "adamw:lr=1e-4",
                                        "--ranks", "1", "--schedule", "1f1b", "--data", "ids=" + data, "--batch", str(2 * micro), "--steps",
                                        "1"], 2, clock)
    return line


def seconds_of(shape):
    return {"124M": 180, "350M": 180, "774M": 240, "1.5B": 240, "tiny": 120}[shape]


LINES = [
    *(Line("GPT-2 " + shape, one_rank(shape), seconds_of(shape), {"of_roofline": 0.85}) for shape in SHAPES),
    *(Line(shape + ", tuned", tuned(shape), seconds_of(shape), {"of_untuned": 1.0, "of_roofline": 0.85}) for shape in SHAPES),
    *(Line(shape + " beside PyTorch", beside_pytorch(shape), 2 * seconds_of(shape), {"ratio": 1.1 if shape in ("124M", "350M") else 1.05})
      for shape in SHAPES),
    Line("124M, 2 ranks on the GPU", ranks(LEAST, 2), 180, {"of_one_rank": 0.95}),
    Line("124M, 2 ranks in 2 processes", processes(LEAST, 2), 180, {"of_one_rank": 0.95}),
    Line("124M, 4 ranks on the GPU", ranks(LEAST, 4), 180, {"of_one_rank": 0.95}),
    Line("deterministic=1 beside 0", in_order, 120, {"of_deterministic_0": 0.88}),
    Line("norm_sums=1 beside 0", sums_along, 120, {"of_norm_sums_0": 1.0}),
    Line("124M, its kernels", kernels(VOCABULARY), 90),
    Line("124M of 50257 columns, its kernels", kernels(VOCABULARY if SMALL else 50257), 90),
]

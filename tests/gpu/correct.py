# SPDX-License-Identifier: Apache-2.0
"""Whether it computes what it should: kernels, the backend's promises, models, training, memory."""
import glob
import os
import re
import shutil

import accuracy
import gpt2
import train
from bundle_kit import COMMAND, HERE, KERNEL_TESTS, PLUGINS, SMALL, Failed, Line, NotRun, command, each, kernel_tests, kernels_image, log, run, work

MODELS = os.path.join(HERE, "models")
SCHEDULES = ["gpipe", "1f1b", "1f1b:policy=pb", "interleaved:chunks=2", "looped-bfs:chunks=2", "chimera", "2bw", "zb-h1", "zb-h2", "zb-auto",
             "zb-interleaved:chunks=2", "zbv", "v-half", "v-min", "dualpipev"]
# micro-batches that every one of them takes, for 1, 2 and 4 ranks
SHAPE, BATCH, STEPS = ("tiny", "4", "1") if SMALL else ("small", "8", "2")
TRAINING = ["--compute", "fp32", "--batch", BATCH, "--microbatches", BATCH, "--steps", STEPS, "--optimizer", "adamw:lr=1e-3"]


def verdicts(out):
    return [" ".join(line.split()) for line in out.splitlines() if re.search(r"\s(bit-equal|close|differs)\s", line)]


def kernels(clock):
    """The kernels' own tests against double, on the device."""
    folder = kernel_tests() or ""
    image = kernels_image() if folder else ""
    names = sorted(os.path.basename(path) for path in glob.glob(os.path.join(folder, KERNEL_TESTS)) if folder)

    def one(name):
        out = command([os.path.join(folder, name)], clock, OPIPE_KIT_IMAGE=image)
        counts = re.search(r"tests\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", out)
        return "%s of %s passed" % (counts[3], counts[2]) if counts else "passed"

    if not names:
        raise NotRun("the bundle has no tests of kernels")
    return dict(zip(names, each(one, names)))


def promises(clock):
    """The conformance program, with the CPU backend for what the device lacks."""
    out = command([os.path.join(HERE, "bin", "conformance-backend"), os.path.join(PLUGINS, "opipe-backend-cuda.so"),
                   os.path.join(PLUGINS, "opipe-backend-cpu.so")], clock)
    return out.strip().splitlines()[-1]


def models(clock):
    """Small models of every kind, on 1, 2 and 4 ranks: their data sets, bits of the plan's reference, close to the uncut model."""
    cases = [(os.path.basename(folder), stages) for folder in sorted(glob.glob(os.path.join(MODELS, "gpt_raw" if SMALL else "*")))
             for stages in ("1", "2", "4")]

    def one(case):
        out = command([COMMAND, "run", os.path.join(MODELS, case[0]), "--device", "cuda", "--stages", case[1], "--check", "--reference"], clock)
        if "passed" not in out:
            raise Failed("no data set was compared")

    if not cases:
        raise NotRun("the bundle has no models")
    return "%d runs" % len(each(one, cases))


def training(ranks):
    def line(clock):
        """Bits of the plan's reference and close to the uncut model, under every schedule that has so many ranks."""
        model, data = work("small-%d.onnx" % ranks), work("small-%d-ids.npy" % ranks)
        gpt2.write(model, SHAPE, 16, 256)
        gpt2.ids(data, 8, 16, 256)

        def one(schedule):
            out = command([COMMAND, "train", model, "--device", "cuda", "--ranks", str(ranks), "--schedule", schedule, "--data", "ids=" + data,
                           "--loss", "cross-entropy:logits=logits,labels=ids,shift=1", "--reference", *TRAINING], clock)
            return verdicts(out)

        schedules = ["gpipe"] if ranks == 1 else ["1f1b"] if SMALL else SCHEDULES
        return dict(zip(schedules, each(one, schedules)))
    return line


def half_types(clock):
    """The same in bf16 and fp16 on two ranks, with enough tokens for attention by tiles."""
    model, data = work("small-48.onnx"), work("small-48-ids.npy")
    gpt2.write(model, SHAPE, 48, 256)
    gpt2.ids(data, 8, 48, 256)

    def one(compute):
        arguments = [{"fp32": compute, BATCH: "2" if SMALL else BATCH}.get(x, x) for x in TRAINING]
        out = command([COMMAND, "train", model, "--device", "cuda", "--ranks", "2", "--schedule", "1f1b", "--data", "ids=" + data,
                       "--loss", "cross-entropy:logits=logits,labels=ids,shift=1", "--reference", *arguments], clock)
        return verdicts(out)

    types = ("bf16",) if SMALL else ("bf16", "fp16")
    return dict(zip(types, each(one, types)))


def host(clock):
    """A host with a stream and tensors of its own on the GPU: in and out without a copy, bits of host memory."""
    libraries = glob.glob(os.path.join(HERE, "lib", "libonnxpipe.so*"))
    model = os.path.join(MODELS, "gpt_8block", "model.onnx")
    if not libraries or not os.path.exists(model):
        raise NotRun("the bundle has no library, or no model")
    out = command([os.path.join(HERE, "bin", "gpu-host"), libraries[0], model, "4" if SMALL else "50", driver()], clock).strip()
    if out.startswith("not run"):
        raise NotRun(out)
    return out


def driver():
    """Where the driver's library is, for programs that open it themselves."""
    path = os.path.join(os.environ.get("OPIPE_CUDA_PATH", ""), "libcuda.so.1")
    return path if os.path.exists(path) else "libcuda.so.1"


def memory(clock):
    """Sessions take the bytes of their plans exactly; the driver's own count is near."""
    libraries = glob.glob(os.path.join(HERE, "lib", "libonnxpipe.so*"))
    model, tokens, batch = train.model_of(train.LEAST), train.T, 8 if SMALL else 16
    return [command([os.path.join(HERE, "bin", "gpu-memory"), libraries[0], model, ranks, str(batch), str(tokens), driver()], clock).strip()
            for ranks in (("2",) if SMALL else ("1", "2", "4"))]


SANITIZED = [("memcheck", "test_rows"), ("memcheck", "test_loss"), ("racecheck", "test_loss"), ("racecheck", "test_rows"), ("memcheck", "test_attention"),
             ("memcheck", "test_norm_sums"), ("racecheck", "test_norm_sums"), ("memcheck", "test_mask"), ("memcheck", "test_attention_few"),
             ("racecheck", "test_attention_few"), ("racecheck", "test_train")]


def sanitizer(clock):
    """compute-sanitizer over kernels' tests. Where the time does not do, the line was not run, and says what has ended."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    folder = kernel_tests()
    if not os.path.exists(tool):
        raise NotRun("there is no compute-sanitizer")
    if folder is None:
        raise NotRun("the bundle has no tests of kernels")
    said = {}
    for way, name in SANITIZED:
        arguments = [tool, "--tool", way, "--error-exitcode", "1", os.path.join(folder, name)]
        try:
            done = run(arguments, clock, OPIPE_KIT_IMAGE=kernels_image())
        except Failed as why:
            raise NotRun("%d of %d runs have ended: %s" % (len(said), len(SANITIZED), why), said=said) from why
        out = done.stdout + done.stderr
        if "Device not supported" in out or "not supported on this device" in out:
            raise NotRun("compute-sanitizer does not support this device", said=said)
        said["%s of %s" % (way, name)] = (out.strip().splitlines() or ["it said nothing"])[-1]
        if done.returncode != 0:
            log(arguments, "status %d" % done.returncode, done.stdout, done.stderr)
            raise Failed("%s of %s: status %d" % (way, name, done.returncode), said=said)
    return said


LINES = [
    Line("kernels against fp64", kernels, 240),
    Line("outputs beside the CPU's", accuracy.outputs, 90),
    Line("steps of decoding", accuracy.steps, 90),
    Line("gradients beside the CPU's", accuracy.gradients, 90),
    Line("gradients of masked attention", accuracy.masked, 90),
    Line("losses beside the CPU's", accuracy.losses, 60),
    Line("promises of the backend", promises, 120),
    Line("models", models, 120),
    Line("training on 1 rank", training(1), 30),
    Line("training on 2 ranks", training(2), 120),
    Line("training on 4 ranks", training(4), 180),
    Line("training in half types", half_types, 60),
    Line("tensors and streams of a host", host, 60),
    Line("tensors of PyTorch", accuracy.tensors_of_pytorch, 90),
    Line("memory", memory, 120),
    Line("gradients beside PyTorch's", accuracy.beside_pytorch, 120),
    Line("compute-sanitizer", sanitizer, 240),
]

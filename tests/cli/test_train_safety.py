#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=240
"""train: steps that are not finite, checkpoints that are damaged, targets that cannot be written, full
disks, signals, and the plan that is printed before the first step."""
import json
import math
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time

from command import CHECK_FAILED, COMMAND, DATA, DONE, REFUSED, SANITIZED, SOURCE, USAGE, Count, need_command, run
from test_train import npy

sys.path.insert(0, os.path.join(DATA, "attacks"))
import wire  # noqa: E402

GPT = os.path.join(DATA, "demo", "model.onnx")
EXTERNAL = os.path.join(DATA, "llama_external", "model.onnx")
LOSS = ["--loss", "cross-entropy:logits=logits,labels=labels"]
SMALL = ["--batch", "4", "--bind", "seq=16", *LOSS]
COMMON = ["--data", "text:" + os.path.join(SOURCE, "README.md"), *SMALL, "--microbatches", "4"]
TWO = ["--stages", "2", "--schedule", "1f1b"]
DIVERGES = ["--optimizer", "sgd:lr=1e25"]


def wrong(result, status=DONE, *texts):
    problem = result.broken(100, 2048)
    if problem:
        return problem
    if result.status != status:
        return f"status {result.status}, expected {status}: {(result.err or result.out)[-400:]}"
    lacking = [text for text in texts if text not in result.err]
    return f"not in the message: {lacking}: {result.err[-400:]}" if lacking else None


def content(folder):
    """Content of every file below a folder, by name."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(path, name), "rb") as file:
                found[os.path.join(path, name)] = file.read()
    return found


def not_finite(count, folder):
    """The step is not applied, its node is named, the checkpoint before it stays."""
    good = os.path.join(folder, "good")
    count.check("a good checkpoint", wrong(run("train", GPT, *COMMON, "--steps", "1", "--save", good)))
    before = content(good)
    for way in ([], TWO, ["--stages", "2", "--schedule", "2bw"],
                [*TWO, "--replicas", "2", "--clip", "1"], ["--stages", "2", "--schedule", "chimera:sync=eager"]):
        what = " ".join(way)
        result = run("train", GPT, *COMMON, *way, *DIVERGES, "--steps", "6", "--save", good, "--overwrite",
                     "--save-every", "5", "--json")
        problem = wrong(result, CHECK_FAILED, "was not applied", "node '", " is ")
        if not problem:
            report = json.loads(result.out)
            last = report["steps"][-1]
            if not (last["skipped"] and last["why"] == "not finite" and "node '" in report["stopped"]):
                problem = f"the report says {last}, {report['stopped']}"
            elif content(good) != before:
                problem = "the checkpoint was written over"
        count.check(f"a step that is not finite {what}", problem)
    result = run("train", GPT, *COMMON, *TWO, *DIVERGES, "--steps", "5", "--go-on", "--json")
    problem = wrong(result, DONE, "of 5 steps were not finite and were not applied")
    if not problem:
        report = json.loads(result.out)
        if report["not_finite"] != sum(s["skipped"] for s in report["steps"]) or len(report["steps"]) != 5:
            problem = str(report["steps"])
    count.check("--go-on", problem)
    result = run("train", GPT, *COMMON, *TWO, *DIVERGES, "--steps", "5", "--check-finite")
    count.check("--check-finite", wrong(result, CHECK_FAILED, "node '"))
    result = run("train", GPT, *COMMON, "--check-finite", "--go-on")
    count.check("--check-finite with --go-on", wrong(result, USAGE, "--go-on"))


def damaged(count, folder):
    saved = os.path.join(folder, "damaged")
    problem = wrong(run("train", GPT, *COMMON, *TWO, "--steps", "1", "--save", saved))
    count.check("a checkpoint", problem)
    if problem:
        return
    for name, place in (("weights-1.safetensors", -5), ("weights-1.safetensors", 200),
                        ("state-1.safetensors", -5000), ("manifest.json", 100), ("manifest.json", -10)):
        path = os.path.join(saved, name)
        with open(path, "r+b") as file:
            file.seek(place, os.SEEK_END if place < 0 else os.SEEK_SET)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 4]))
        result = run("train", GPT, *COMMON, *TWO, "--steps", "1", "--resume", saved)
        texts = ("damaged: tensor '", "XXH3", "manifest.json says") if place == -5 else (name,)
        count.check(f"a wrong bit at {place} of {name}", wrong(result, REFUSED, *texts))
        with open(path, "r+b") as file:
            file.seek(place, os.SEEK_END if place < 0 else os.SEEK_SET)
            file.write(bytes([byte]))
    result = run("train", GPT, *COMMON, *TWO, "--steps", "1", "--resume", saved)
    count.check("the bits put back", wrong(result))


def targets(count, folder):
    """Tried before the first step; nothing is left of the trial."""
    blocked = os.path.join(folder, "file")
    with open(blocked, "w", encoding="ascii") as file:
        file.write("no folder")
    other = os.path.join(folder, "other")
    os.mkdir(other)
    with open(os.path.join(other, "manifest.json"), "w", encoding="ascii") as file:
        file.write('{"format": "somebody else\'s"}')
    before = content(folder)
    for option, path in (("--save", blocked), ("--save", os.path.join(folder, "no", "such", "folder")),
                         ("--save", other), ("--save-model", os.path.join(folder, "no", "model.onnx")),
                         ("--save-model", folder), ("--trace", os.path.join(folder, "no", "trace.json")),
                         ("--save-gradients", os.path.join(blocked, "g.safetensors")), ("--trace", folder)):
        result = run("train", GPT, *COMMON, "--steps", "1", option, path)
        problem = wrong(result, REFUSED, path)
        if not problem and "step 1 " in result.out:
            problem = "it was trained first"
        if not problem and content(folder) != before:
            problem = "something is left"
        count.check(f"{option} {os.path.relpath(path, folder)}", problem)


def limit_files(most):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def full_disk(count, folder):
    """A limit on the size of files stands for it."""
    kept = os.path.join(folder, "kept")
    problem = wrong(run("train", GPT, *COMMON, "--steps", "1", "--save", kept))
    count.check("a first checkpoint", problem)
    before = content(folder)

    for option, path in (("--save", kept), ("--save", os.path.join(folder, "fresh")),
                         ("--save-model", os.path.join(folder, "model.onnx")),
                         ("--save-gradients", os.path.join(folder, "g.safetensors")),
                         ("--trace", os.path.join(folder, "trace.json"))):
        more = {"--trace": ["--microbatches", "64", "--batch", "64", "--stages", "2"], "--save": ["--overwrite"]}.get(option, [])
        done = subprocess.run([COMMAND, "train", GPT, *COMMON, *more, "--steps", "1", option, path],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False,
                              preexec_fn=lambda: limit_files(20000))
        if done.returncode != REFUSED:
            problem = f"status {done.returncode}: {done.stderr[-300:]}"
        elif path not in done.stderr or " bytes" not in done.stderr:
            problem = f"it says {done.stderr[-300:]}"
        else:
            problem = "something is left" if content(folder) != before else None
        count.check(f"a full disk, {option} {os.path.basename(path)}", problem)
    external(count, folder)


def external(count, folder):
    """A model with files beside it: all of them are the old ones, or all are new."""
    saved = os.path.join(folder, "external")
    os.mkdir(saved)
    ids = os.path.join(folder, "ids.npy")
    with open(ids, "wb") as file:
        file.write(npy((4, 8), "<i8", struct.pack("<32q", *(i * 37 % 96 for i in range(32)))))
    arguments = [COMMAND, "train", EXTERNAL, "--data", f"input_ids={ids}", "--data", f"labels={ids}", *LOSS,
                 "--save-model", os.path.join(saved, "model.onnx"), "--steps"]
    first = run(*arguments[1:], "1")
    count.check("a model with external files", wrong(first))
    before = content(saved)
    sizes = sorted(len(data) for data in before.values())
    if len(sizes) < 2:
        count.check("external files", f"{len(sizes)} files")
        return
    problem = None
    for most in (sizes[0] - 1, sizes[-1] - 1):
        done = subprocess.run([*arguments, "2"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
                              check=False, preexec_fn=lambda bytes_most=most: limit_files(bytes_most))
        if done.returncode != REFUSED or saved not in done.stderr or content(saved) != before:
            problem = f"limit {most}: status {done.returncode}: {done.stderr[-300:]}"
    count.check("a full disk, a model with external files", problem)


def signals(count, folder):
    for number, name in ((signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")):
        saved = os.path.join(folder, name)
        status, out, err = stop(["--save", saved], [number])
        problem = None
        if status != 128 + number or name not in err or saved not in err:
            problem = f"status {status}: {err[-300:]}"
        else:
            steps = sum(line.startswith("step ") for line in out.splitlines())
            with open(os.path.join(saved, "manifest.json"), encoding="utf-8") as file:
                if json.load(file)["steps"] != steps:
                    problem = f"the checkpoint is not of {steps} steps"
        problem = problem or wrong(run("train", GPT, *COMMON, "--steps", "1", "--resume", saved))
        count.check(f"{name}: a checkpoint", problem)
    status, _, err = stop([], [signal.SIGINT])
    count.check("without --save", None if status == 130 else f"status {status}: {err[-300:]}")
    status, _, err = stop(["--batch", "64", "--microbatches", "1"], [signal.SIGINT, signal.SIGTERM])
    count.check("a second signal ends at once",
                None if status == -signal.SIGTERM else f"status {status}: {err[-300:]}")


def stop(arguments, numbers):
    """Trains until it has made some steps, then sends signals."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([COMMAND, "train", GPT, *COMMON, *arguments, "--steps", "1000000"],
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        begun = time.monotonic()
        while process.poll() is None and time.monotonic() - begun < 60:
            if "step 2 " in os.pread(out.fileno(), 1 << 20, 0).decode():
                break
            time.sleep(0.01)
        for number in numbers:
            process.send_signal(number)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for file in (out, err):
            file.seek(0)
        return process.returncode, out.read(), err.read()


def plans(count, folder):
    """plan --train shows and writes, and train prints and runs, the same plan."""
    shape = [*COMMON, *TWO, "--optimizer", "adam:lr=0.01", "--recompute", "stage", "--steps", "2", "--seed", "5"]
    path = os.path.join(folder, "plan.json")
    planned = run("plan", GPT, "--train", *shape, "--json", "-o", path)
    trained = run("train", GPT, *shape, "--json")
    problem = wrong(planned) or wrong(trained)
    if not problem and json.loads(planned.out) != json.loads(trained.out)["plan"]:
        problem = "train has another plan"
    count.check("plan --train", problem)
    if not problem:
        again = run("train", GPT, *COMMON[: COMMON.index("--microbatches")], "--plan", path, "--steps", "2", "--seed",
                    "5", "--json")
        problem = wrong(again)
        if not problem and [s["loss"] for s in json.loads(again.out)["steps"]] != [
                s["loss"] for s in json.loads(trained.out)["steps"]]:
            problem = "other losses"
        count.check("the plan as it was written", problem)
        for more in (["--optimizer", "sgd:lr=1"], ["--clip", "1"], ["--frozen", "*"], ["--recompute", "block"]):
            result = run("train", GPT, *COMMON[: COMMON.index("--microbatches")], "--plan", path, *more)
            count.check(f"--plan with {more[0]}", wrong(result, USAGE, f"already settles {more[0]}"))
    for more in (["--optimizer", "sgd:lr=0.5,momentum=0.9", "--compute", "bf16", "--clip", "1"],
                 ["--optimizer", "adam:lr=0.02", "--compute", "fp16", "--lr-schedule", "linear:total=4"]):
        problem = wrong(run("plan", GPT, "--train", *COMMON, *TWO, *more, "-o", path))
        if not problem: # the uncut model trains as the file says, and is judged by its type
            result = run("train", GPT, *COMMON[: COMMON.index("--microbatches")], "--plan", path, "--steps", "2",
                         "--reference")
            problem = wrong(result)
            if not problem and not ("bit-equal" in result.out and "uncut model      close" in result.out):
                problem = result.out[-300:]
        count.check(f"--plan of {' '.join(more)} --reference", problem)
    problem = wrong(run("plan", GPT, "--bind", "batch=4,seq=16", *TWO, "-o", path))
    result = run("train", GPT, *COMMON[: COMMON.index("--microbatches")], "--plan", path)
    count.check("--plan for inference", problem or wrong(result, REFUSED, "is a plan for inference: 'onnx-pipe run' takes it"))
    result = run("plan", GPT, "--train", *SMALL, *TWO, "--microbatches", "4")
    text = run("train", GPT, *COMMON, *TWO, "--steps", "1")
    problem = wrong(result) or wrong(text)
    for line in [] if problem else result.out.splitlines():
        if line.startswith(("plan: ", "training: ", "   0 ", "   1 ")) and line not in text.out:
            problem = f"train does not print {line!r}"
    if not problem and not ("training: AdamW" in result.out and text.out.startswith("plan: ")):
        problem = result.out[:300]
    count.check("plan --train without data", problem)
    result = run("plan", GPT, "--optimizer", "sgd:lr=1")
    count.check("plan --optimizer", wrong(result, USAGE, "add --train"))


def doubts(count, folder):
    """A doubtful parameter is named before the first step, with the reason."""
    body = wire.graph(
        [wire.node("Add", "x val_12", "h"), wire.node("MatMul", "h fc.weight", "m"), wire.node("Add", "m fc.bias", "logits")],
        [wire.value("x", ["batch", 8])], [wire.value("logits", ["batch", 8])],
        [wire.tensor(name, wire.FLOAT, shape, struct.pack(f"<{n}f", *(math.sin(3.7 * i * i + 1) for i in range(n))))
         for name, shape, n in (("fc.weight", [8, 8], 64), ("fc.bias", [8], 8), ("val_12", [8], 8))])
    files = {"model.onnx": wire.model(body), "x.npy": npy((6, 8), "<f4", struct.pack("<48f", *range(48))),
             "labels.npy": npy((6,), "<i8", struct.pack("<6q", *range(6)))}
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
    data = [part for name in ("x", "labels") for part in ("--data", f"{name}={folder}/{name}.npy")]
    said = "doubtful: val_12: an exporter's name, and numbers without a pattern"
    for more, n in (([], 1), (["--frozen", "val_12"], 0)):
        result = run("train", os.path.join(folder, "model.onnx"), *data, *LOSS, "--batch", "6", "--steps", "1", *more)
        problem = wrong(result)
        if not problem and result.out.split("step 1 ")[0].count(said) != n:
            problem = result.out[:500]
        count.check(f"doubtful ones {' '.join(more)}", problem)


def recomputation(count):
    """Said where it saves nothing, and only there."""
    fused = run("plan", GPT, "--train", *SMALL, "--recompute", "attention")
    plain = run("plan", GPT, "--train", *SMALL, "--recompute", "attention", "--no-fuse")
    stage = run("plan", GPT, "--train", *SMALL, "--recompute", "stage")
    for name, result in (("attention", fused), ("attention, unfused", plain), ("stage", stage)):
        said = "saves nothing: the stages keep" in result.err
        problem = wrong(result) or (None if said == (name == "attention") else result.err[-300:] or "nothing said")
        count.check(f"--recompute {name}", problem)


def references(count):
    """Right training under Adam passes, in half types too."""
    for compute in ("bf16", "fp16"):
        for optimizer in ("adam:lr=0.001", "adamw:lr=0.01"):
            result = run("train", GPT, *COMMON, *TWO, "--compute", compute, "--optimizer", optimizer, "--steps", "8",
                         "--reference", "--clip", "1")
            count.check(f"--reference, {compute}, {optimizer}", wrong(result))
    result = run("train", GPT, *COMMON, "--stages", "2", "--schedule", "2bw", "--compute", "bf16", "--optimizer",
                 "adam:lr=0.001", "--steps", "6", "--reference")
    count.check("--reference, double-buffered", wrong(result))


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for part in (not_finite, damaged, targets, full_disk, signals, plans, doubts):
            own = os.path.join(folder, part.__name__)
            os.mkdir(own)
            part(count, own)
    recomputation(count)
    if not SANITIZED:
        references(count)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

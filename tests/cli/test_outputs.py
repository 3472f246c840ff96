#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=240
"""Where results go: through links, into devices, pipes and the standard output, with the permissions of
what is there; several trainings into one folder; what cannot be written at all,
or only over the model itself."""
import os
import shutil
import stat
import struct
import subprocess
import tempfile

from command import COMMAND, DATA, DONE, REFUSED, SOURCE, Count, need_command, run

GPT = os.path.join(DATA, "demo", "model.onnx")
TRAIN = ["train", GPT, "--data", "text:" + os.path.join(SOURCE, "README.md"), "--loss",
         "cross-entropy:logits=logits,labels=labels", "--bind", "seq=16", "--batch", "4"]
RUN = ["run", GPT, "--bind", "batch=1,seq=4", "--stages", "1"]


def call(*arguments, stdout=subprocess.PIPE):
    return subprocess.run([COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
                          timeout=100, check=False)


def ways(folder):
    """Every option that takes a file."""
    plan = ["plan", GPT, "--bind", "batch=1,seq=4"]
    return {"plan -o": [*plan, "-o"], "--annotate": [*plan, "--annotate"], "--html": [*plan, "--html"],
            "run --trace": [*RUN, "--trace"], "schedule -o": ["schedule", "draw", "1f1b", "--ranks", "2",
                                                              "--microbatches", "4", "-o"],
            "train --trace": [*TRAIN, "--steps", "1", "--trace"],
            "--save-gradients": [*TRAIN, "--steps", "1", "--save-gradients"],
            "--save-model": [*TRAIN, "--steps", "1", "--save-model"]}


IN_PLACE = ("plan -o", "--annotate", "--html", "run --trace", "schedule -o", "train --trace")


def links(count, folder):
    """The target is written, with its permissions; the link stays."""
    for number, (name, arguments) in enumerate(ways(folder).items()):
        there = os.path.join(folder, f"there{number}")
        os.mkdir(there)
        for kind, before in (("a file", b"old"), ("nothing", None)):
            target = os.path.join(there, kind.replace(" ", "_"))
            first, second = os.path.join(folder, f"first{number}{kind[0]}"), os.path.join(there, f"second{kind[0]}")
            os.symlink(os.path.relpath(second, folder), first)
            os.symlink(os.path.basename(target), second)
            if before is not None:
                with open(target, "wb") as file:
                    file.write(before)
                os.chmod(target, 0o640)
            result = call(*arguments, first)
            problem = None
            if result.returncode != DONE:
                problem = f"status {result.returncode}: {result.stderr[-300:]}"
            elif not (os.path.islink(first) and os.path.islink(second)) or os.path.islink(target):
                problem = "a link is gone"
            elif os.path.getsize(target) < 100:
                problem = "the target was not written"
            elif before is not None and stat.S_IMODE(os.stat(target).st_mode) != 0o640:
                problem = f"the permissions are {os.stat(target).st_mode:o}"
            elif len(os.listdir(there)) != (2 if kind == "a file" else 4):
                problem = f"there are {os.listdir(there)}"
            count.check(f"{name} through links to {kind}", problem)


def devices(count, folder):
    """Written to where that is of use, else refused before the first step; never replaced."""
    null = os.path.join(folder, "null")
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        count.skip("no device can be made here")
        return
    for name, arguments in ways(folder).items():
        result = call(*arguments, null)
        if not stat.S_ISCHR(os.lstat(null).st_mode):
            problem = "the device is gone"
        elif name in IN_PLACE:
            problem = None if result.returncode == DONE else result.stderr[-300:]
        else:
            problem = None if (result.returncode == REFUSED and b"a device" in result.stderr and
                               b"step 1 " not in result.stdout) else f"{result.returncode}: {result.stderr[-300:]}"
        count.check(f"{name} into a device", problem)


def streams(count, folder):
    """/proc/self/fd/1 as a name: a pipe, and a file that the shell has opened."""
    link = os.path.join(folder, "out")
    os.symlink("/proc/self/fd/1", link)
    for name, arguments in ways(folder).items():
        path = os.path.join(folder, "text")
        for kind in ("pipe", "file"):
            with open(path, "wb") as file:
                result = call(*arguments, link, stdout=subprocess.PIPE if kind == "pipe" else file)
            with open(path, "rb") as file:
                text = result.stdout if kind == "pipe" else file.read()
            if not os.path.islink(link):
                problem = "the link is gone"
            elif name not in IN_PLACE:
                problem = None if result.returncode == REFUSED else f"status {result.returncode}"
            elif result.returncode != DONE:
                problem = result.stderr[-300:]
            else: # what is printed, and what is written
                head = {"schedule -o": b"<svg"}.get(name, b"plan: ")
                tail = {"plan -o": b"}", "--annotate": b"", "--html": b"</html>", "schedule -o": b"</svg>",
                        "run --trace": b"]}", "train --trace": b"]}"}[name]
                problem = None if head in text and tail in text else f"{len(text)} bytes: {text[:60]} ... {text[-60:]}"
            count.check(f"{name} into the standard output, a {kind}", problem)


def own_files(count, folder):
    """No result takes the place of the model that it is of, nor of its weights, whatever they are called; that is said
    before anything is computed. An annotated model may take its own place."""
    files = {name: os.path.join(folder, name) for name in ("model.onnx", "model.onnx.data")}
    source = os.path.join(DATA, "llama_external")
    before = {}
    for name, path in files.items():
        shutil.copyfile(os.path.join(source, name), path)
        with open(path, "rb") as file:
            before[path] = file.read()
    model, weights = files.values()
    ids = os.path.join(folder, "ids.npy")
    header = "{'descr': '<i8', 'fortran_order': False, 'shape': (8, 16), }".ljust(117) + "\n"
    with open(ids, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack("<128q", *range(1, 65), *range(1, 65)))

    def of_copy(arguments):
        """The same of the copy, whose vocabulary is too small for bytes."""
        of = [model if text == GPT else f"input_ids={ids}" if text.startswith("text:") else text for text in arguments]
        return [*of[:2], "--allow-hardlinks", *(["--data", f"labels={ids}"] if of[0] == "train" else []), *of[2:]]

    names = {"the model": model, "the weights": weights, "a link to the weights": os.path.join(folder, "link"),
             "another name of the weights": os.path.join(folder, "name")}
    os.symlink("model.onnx.data", names["a link to the weights"])
    os.link(weights, names["another name of the weights"])
    for option, arguments in ways(folder).items():
        if option == "schedule -o": # of no model
            continue
        for name, target in names.items():
            result = call(*of_copy(arguments), target)
            lost = [path for path, content in before.items() if not os.path.exists(path) or
                    open(path, "rb").read() != content]
            if name == "the model" and option in ("--annotate", "--save-model"):
                problem = None # its own new state, or refused because of the weights beside it
                with open(model, "wb") as file:
                    file.write(before[model])
            elif result.returncode != REFUSED or b"written over" not in result.stderr:
                problem = f"status {result.returncode}: {result.stderr[-300:]}"
            elif b"step 1 " in result.stdout or b"throughput" in result.stdout:
                problem = "it was computed first"
            else:
                problem = f"lost: {lost}" if lost else None
            count.check(f"{option} over {name}", problem)
    result = call("plan", model, "--allow-hardlinks", "--bind", "batch=1,seq=4", "--annotate", model)
    count.check("--annotate in place", None if result.returncode == DONE else result.stderr[-300:])
    # A checkpoint sweeps its folder by names, which may be those of weights.
    checkpoint = os.path.join(folder, "saved")
    os.mkdir(checkpoint)
    swept = os.path.join(checkpoint, "weights-7.safetensors")
    os.link(weights, swept)
    result = call(*of_copy(TRAIN), "--steps", "1", "--save", checkpoint)
    count.check("--save into a folder with the weights", None if result.returncode == REFUSED and os.path.exists(swept) and
                b"it would be written over" in result.stderr else f"status {result.returncode}: {result.stderr[-300:]}")


def together(count, folder):
    """Three trainings that save after every step into a folder that none of them found."""
    for attempt in range(3):
        saved = os.path.join(folder, f"saved{attempt}")
        arguments = [COMMAND, *TRAIN, "--stages", "1", "--threads", "1", "--steps", "6", "--save-every", "1",
                     "--save", saved, "--overwrite"]
        runs = [subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE) for _ in range(3)]
        says = [process.communicate(timeout=100)[1] for process in runs]
        problem = next((f"status {p.returncode}: {err[-300:]}" for p, err in zip(runs, says) if p.returncode != DONE),
                       None)
        if not problem and len(os.listdir(saved)) != 3:
            problem = f"there are {os.listdir(saved)}"
        if not problem:
            result = run(*TRAIN, "--steps", "1", "--resume", saved)
            problem = None if result.status == DONE else result.err[-300:]
        count.check(f"three savers, try {attempt}", problem)


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for part in (links, devices, streams, own_files, together):
            own = os.path.join(folder, part.__name__)
            os.mkdir(own)
            part(count, own)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

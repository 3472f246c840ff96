#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900 label=full serial
"""How many files it takes to add an operator with its gradient, an optimizer, a schedule, a storage type, an option and a
field of plan files: each is added to a copy of the tree, all of it is built once, each is used, and the files that it touched
are counted (documents and tests aside). A number that grows is a failure: what belongs together has come apart."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from math import tanh

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "cli"), os.path.join(HERE, "..", "data", "attacks")]
import command  # noqa: E402
from additions import ADDITIONS  # noqa: E402
from command import DONE, SOURCE, Count, run  # noqa: E402
from wire import FLOAT, INT64, floats, graph, longs, model, node, tensor, value  # noqa: E402

CC = os.environ.get("OPIPE_CC", "cc")
JOBS = os.environ.get("OPIPE_JOBS") or str(os.cpu_count())
TARGETS = ("onnxpipe", "onnx-pipe", "opipe-backend-cpu", "opipe-schedule-gpipe", "opipe-transport-local",
           "opipe-schedule-lastfirst")
FLAGS = "-O0 -Wno-sign-conversion"  # unoptimised, intrinsics are macros that convert
SECONDS = 60


# ---- the copy ------------------------------------------------------------------------------------


def tracked():
    """Paths of the tree's files: what git knows and what it would take; without git all but what builds leave."""
    if os.path.exists(os.path.join(SOURCE, ".git")) and shutil.which("git"):
        listed = subprocess.run(["git", "-C", SOURCE, "ls-files", "-z", "-co", "--exclude-standard"], check=False,
                                stdout=subprocess.PIPE)
        if listed.returncode == 0:
            paths = listed.stdout.decode().split("\0")
            return [path for path in paths if path and os.path.isfile(os.path.join(SOURCE, path))]
    found = []
    for folder, folders, files in os.walk(SOURCE):
        folders[:] = [f for f in folders if not f.startswith((".", "build")) and f != "__pycache__"]
        found += [os.path.relpath(os.path.join(folder, f), SOURCE) for f in files]
    return found


def copy_tree(root):
    for path in tracked():
        if path.startswith("tests/data/"):  # the larger half, and nothing that is built
            continue
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        shutil.copy2(os.path.join(SOURCE, path), os.path.join(root, path))


def contents(root):
    """Bytes by path, of all that counts."""
    found = {}
    for folder, _, files in os.walk(root):
        for name in files:
            path = os.path.relpath(os.path.join(folder, name), root)
            if not path.startswith("tests/") and not path.endswith(".md"):
                with open(os.path.join(folder, name), "rb") as file:
                    found[path] = file.read()
    return found


def insert(root, path, anchor, text):
    """Puts `text` before the anchor, which stands in the file once; without an anchor the file is new. Returns the error, or
    None."""
    whole = os.path.join(root, path)
    before = ""
    if anchor is None:
        if os.path.exists(whole):
            return f"{path} is there already: choose another name"
        os.makedirs(os.path.dirname(whole), exist_ok=True)
    else:
        if not os.path.exists(whole):
            return f"{path} is not there any more: say in additions.py where this goes now"
        with open(whole, encoding="utf-8") as file:
            before = file.read()
        times = before.count(anchor)
        if times != 1:
            return f"{path}: the anchor {anchor!r} stands there {times} times, not once: say in additions.py where this goes now"
        text = before.replace(anchor, text + anchor)
    with open(whole, "w", encoding="utf-8") as file:
        file.write(text)
    return None


def add(count, root):
    """Everything in turn, with the number of files of each; False: something could not be added."""
    before, whole = contents(root), True
    for what, most, edits in ADDITIONS:
        problems = [problem for problem in (insert(root, *edit) for edit in edits) if problem]
        after = contents(root)
        touched = sorted(path for path in after if after[path] != before.get(path))
        before, whole = after, whole and not problems
        print(f"{what}: {len(touched)} file{'' if len(touched) == 1 else 's'}, at most {most}: {' '.join(touched)}", flush=True)
        if len(touched) > most:
            problems.append(f"{len(touched)} files, at most {most} are allowed")
        count.check(f"adding {what}", "; ".join(problems))
    return whole


def build(root, tree):
    """Returns the failure, or None."""
    environment = dict(os.environ, CCACHE_BASEDIR=os.path.dirname(root), CCACHE_NOHASHDIR="1", CCACHE_DEPEND="1")
    launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    steps = (
        ["cmake", "-S", root, "-B", tree, "-G", "Ninja", f"-DCMAKE_C_COMPILER={CC}", "-DCMAKE_BUILD_TYPE=None",
         f"-DCMAKE_C_FLAGS={FLAGS}", "-DOPIPE_BUILD_TESTS=OFF", "-DOPIPE_WERROR=ON", *launcher],
        ["ninja", "-C", tree, "-j", JOBS, *TARGETS],
    )
    for step in steps:
        done = subprocess.run(step, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            print(done.stdout.decode(errors="replace")[-6000:])
            return f"{step[0]} ended with {done.returncode}"
    return None


# ---- use of the additions ------------------------------------------------------------------------

XS, TARGET, WEIGHT = (0.5, -1.25, 2.0, -0.75), (0.1, -0.2, 0.9, 0.3), 0.8
LR, BETA1, BETA2 = 0.05, 0.5, 0.25


def command_of(*arguments):
    """Standard output; raises where the command does not do it."""
    result = run(*arguments)
    if result.broken(SECONDS, 4096) or result.status != DONE:
        raise AssertionError(f"{' '.join(arguments)}: status {result.status}: {(result.err or result.out)[-400:]}")
    return result.out


def expect(holds, text):
    if not holds:
        raise AssertionError(text)


def close(found, wanted, what):
    expect(len(found) == len(wanted) and all(abs(a - b) <= 1e-5 * (1 + abs(b)) for a, b in zip(found, wanted)),
           f"{what}: {found}, expected {wanted}")


def write(folder, name, data):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(data)
    return path


def npy(shape, dtype, data):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def npy_data(path):
    with open(path, "rb") as file:
        data = file.read()
    return data[10 + struct.unpack_from("<H", data, 8)[0]:]


def shrink(x):
    return x - tanh(x)


def loss(w):
    return sum((shrink(w * x) - t) ** 2 for x, t in zip(XS, TARGET)) / len(XS)


def gradient(w):
    return sum(2 * (shrink(w * x) - t) * tanh(w * x) ** 2 * x for x, t in zip(XS, TARGET)) / len(XS)


class Files:
    """Models and data in a folder. The model is y = shrink(x w) with one weight."""

    def __init__(self, folder):
        n, self.folder = len(XS), folder
        body = graph([node("MatMul", "x w", "h"), node("Tanhshrink", "h", "y")], [value("x", ["batch", 1])],
                     [value("y", ["batch", 1])], [tensor("w", FLOAT, [1, 1], floats(WEIGHT))])
        self.model = write(folder, "model.onnx", model(body))
        self.x = write(folder, "x.npy", npy((n, 1), "<f4", floats(*XS)))
        self.target = write(folder, "target.npy", npy((n, 1), "<f4", floats(*TARGET)))

    def at(self, name):
        return os.path.join(self.folder, name)

    def train(self, *arguments):
        return json.loads(command_of(
            "train", self.model, "--data", f"x={self.x}", "--data", f"target={self.target}", "--loss",
            "mse:output=y,target=target", "--trainable", "w", "--batch", str(len(XS)), "--stages", "1", "--reference", "--json",
            *arguments))


def use_operator(files):
    command_of("run", files.model, "--input", f"x={files.x}", "--output", files.at("out"), "--reference")
    close(struct.unpack(f"<{len(XS)}f", npy_data(files.at("out/y.npy"))), [shrink(WEIGHT * x) for x in XS], "outputs")
    path = files.at("gradients.safetensors")
    files.train("--steps", "1", "--optimizer", "sgd:lr=0.1", "--save-gradients", path)
    with open(path, "rb") as file:
        data = file.read()
    close(struct.unpack("<f", data[-4:]), [gradient(WEIGHT)], "gradient")


def use_optimizer(files):
    """Its losses are those of the same arithmetic here."""
    wanted, w, m = [], WEIGHT, 0
    for _ in range(3):
        wanted.append(loss(w))
        g = gradient(w)
        c = BETA1 * m + (1 - BETA1) * g
        m = BETA2 * m + (1 - BETA2) * g
        w -= LR * c / (1 + abs(c))
    out = files.train("--steps", "3", "--optimizer", f"softlion:lr={LR},beta1={BETA1},beta2={BETA2}")
    close([step["loss"] for step in out["steps"]], wanted, "losses")


def use_schedule(files):
    for name in ("lastfirst", "lastfirst:order=falling"):
        command_of("schedule", "check", name, "--ranks", "4", "--microbatches", "8")
    out = command_of("run", files.model, "--bind", "batch=4", "--microbatches", "4", "--stages", "2", "--schedule", "lastfirst",
                     "--reference")
    expect("schedule lastfirst" in out, f"the plan is not said to be of it: {out[:200]}")


def use_dtype(files):
    """A table of it: rows are picked and written."""
    kind = 27
    body = graph([node("Gather", "table i", "y")], [value("i", [2], INT64)], [value("y", [2, 3], kind)],
                 [tensor("table", kind, [4, 3], bytes(range(12)))])
    path = write(files.folder, "stored.onnx", model(body))
    index = write(files.folder, "i.npy", npy((2,), "<i8", longs(3, 1)))
    expect("float8e3m4" in command_of("inspect", path), "inspect does not name it")
    command_of("run", path, "--input", f"i={index}", "--output", files.at("stored"), "--stages", "1")
    expect(npy_data(files.at("stored/y.npy")) == bytes([9, 10, 11, 3, 4, 5]), "other bytes were read")


def use_option(files):
    out = command_of("run", files.model, "--input", f"x={files.x}", "--label", "of four samples")
    expect("of four samples\n" in out, f"the label is not there: {out[-200:]}")
    expect("--label TEXT" in command_of("run", "--help"), "--help does not list it")


def decisions(text):
    """A plan's hash, and its members without it and without the figures that are counted anew where somebody changed a decision."""
    plan = json.loads(text)
    found = plan.pop("hash")
    for figure in ("memory", "flops", "peak_flops", "utilisation"):
        plan.pop(figure, None)
    return found, plan


def use_field(files):
    first, second = files.at("first.json"), files.at("second.json")
    command_of("plan", files.model, "--stages", "1", "-o", first)
    with open(first, encoding="utf-8") as file:
        text = file.read()
    before, wanted = decisions(text)
    expect(wanted.get("colour") == 0, "it is not written")
    wanted["colour"] = 7
    with open(first, "w", encoding="utf-8") as file:
        file.write(text.replace('"colour": 0,', '"colour": 7,').replace(f'  "hash": "{before}",\n', ""))
    command_of("plan", files.model, "--plan", first, "-o", second)
    with open(second, encoding="utf-8") as file:
        after, found = decisions(file.read())
    expect(found == wanted, "the plan that was read is written otherwise")
    expect(after != before, "it is no decision: the hash is the same")


USES = (use_operator, use_optimizer, use_schedule, use_dtype, use_option, use_field)


def main():
    if not (shutil.which("cmake") and shutil.which("ninja")):
        print("SKIP: cmake and ninja are needed")
        return 77
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        root, tree = os.path.join(folder, "copy"), os.path.join(folder, "build")
        copy_tree(root)
        if add(count, root):
            problem = build(root, tree)
            count.check("building the copy", problem)
            command.COMMAND = os.path.join(tree, "bin", "onnx-pipe")
            for use, (what, _, _) in zip(USES, ADDITIONS) if problem is None else ():
                try:
                    use(Files(tempfile.mkdtemp(dir=folder)))
                    problem = None
                except (AssertionError, OSError, ValueError, KeyError) as error:
                    problem = str(error)
                count.check(f"using {what}", problem)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every level of ONNX Runtime's graph optimiser over the models of the bookshelf (a part of ./dev real): each model below
../shared/models is written anew by ONNX Runtime at the levels basic, extended and all, for its CPU. Where the command takes
the model, it must take all three.

A model is run against the values that lie beside it; where there are none, against those that ONNX Runtime computes from
seeded inputs of small sizes, without optimisation; where it computes none (a kernel that its CPU build lacks), the files are
loaded and described. A level that ONNX Runtime itself cannot write, or whose file it cannot run on these inputs ("theirs"),
is named, with its reason; so is a model without values. Two more kinds are named and fail nothing: results that are random
by the model's own word, and files of the level all with nodes of a layout for the processor at hand, which ONNX Runtime
itself warns of ("machine").

The table goes to build/real/levels.md. The status is 1 where a value is wrong or a level is refused of a model that is taken.

usage: levels.py [--only TEXT,...] [--record]
  --only    models whose path has one of these texts
  --record  writes the table to tests/bench/records/DATE-levels.md, too
"""
import argparse
import datetime
import glob
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cli"))
sys.path.insert(0, os.path.join(HERE, "..", "data", "export"))
from command import REFUSED, SOURCE, USAGE, need_command, run  # noqa: E402
import graphs  # noqa: E402
import trial  # noqa: E402

MODELS = os.path.join(SOURCE, "..", "shared", "models")
ROOT = os.path.join(SOURCE, "build", "real", "levels")
LEVELS = {"basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "all": "ORT_ENABLE_ALL"}
SECONDS, MIB = 60, 8192
SIZES = ((2, 8), (1, 4), (4, 4), (1, 1))  # of a first free axis and of the others: tried in turn


# ---- ONNX Runtime's part, in a process of its own: it may end in any way ----


def optimise(source, target, level):
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    options.optimized_model_filepath = target
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


class Drawn(ValueError):
    """Results that differ from session to session."""


def seeded(argument, sizes, known, random):
    """An array for an input: equal symbols have equal sizes; integers are 0 or 1, which masks, ids and positions allow."""
    shape = []
    for axis, size in enumerate(argument.shape):
        symbol = size if isinstance(size, str) else f"{argument.name}:{axis}"
        shape.append(size if isinstance(size, int) else known.setdefault(symbol, sizes[0 if axis == 0 else 1]))
    kind = argument.type[len("tensor(") : -1]
    if kind in ("float", "double", "float16"):
        wide = shape[-1] if len(shape) > 1 and shape[-1] > 16 else 1  # products stay near 1
        return (random.standard_normal(shape) / wide**0.5).astype({"float": np.float32, "double": np.float64, "float16": np.float16}[kind])
    if kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    return random.integers(0, 2, shape).astype(kind)


def values(source, target):
    """Writes test_data_set_0 below target: seeded inputs, ONNX Runtime's outputs."""
    runner, other, problem = graphs.session(source), graphs.session(source), None
    for sizes in SIZES:
        random, known = np.random.default_rng(7), {}
        try:
            inputs = {one.name: seeded(one, sizes, known, random) for one in runner.get_inputs()}
            outputs = runner.run(None, inputs)
            if not all(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f") for a, b in zip(outputs, other.run(None, inputs))):
                raise Drawn("two sessions have two results: it draws random numbers")
            found = dict(zip([one.name for one in runner.get_outputs()], outputs))
        except Drawn:  # fewer numbers may be equal by chance
            raise
        except Exception as reason:  # its kernels refuse in many ways
            problem = reason
            continue
        if all(np.isfinite(value).all() for value in found.values() if isinstance(value, np.ndarray) and value.dtype.kind == "f"):
            graphs.write_set(target, 0, inputs, found)
            return
        problem = problem or ValueError("an output is not finite")
    raise problem


def read(path):
    with open(path, "rb") as file:
        return numpy_helper.to_array(onnx.TensorProto.FromString(file.read()))


def again(folder):
    """Fails where ONNX Runtime refuses its own file, or has other values by it than by the model as it is."""
    runner, data = graphs.session(os.path.join(folder, "model.onnx")), os.path.join(folder, "test_data_set_0")
    names = [one.name for one in runner.get_inputs()]
    inputs = {name: read(os.path.join(data, f"input_{i}.pb")) for i, name in enumerate(names)}
    for i, value in enumerate(runner.run(None, inputs)):
        np.testing.assert_allclose(value, read(os.path.join(data, f"output_{i}.pb")), rtol=1e-2, atol=1e-2)


def parts(source, folder, names):
    """The parts of one model, a line for each when it is done: its name and why it failed."""
    for name in names:
        problem = ""
        try:
            if name.startswith("again:"):
                again(os.path.join(folder, name[len("again:") :]))
            elif name == "values":
                values(source, os.path.join(folder, "none"))
            else:
                optimise(source, os.path.join(folder, name, "model.onnx"), name)
        except Exception as reason:
            problem = " ".join(f"{type(reason).__name__}: {reason}".split())[:200]
        print(json.dumps([name, problem]), flush=True)


def made(source, folder, names):
    """{name: why it was not made, or ""}; a part that ends the process is begun anew behind it."""
    problems = {}
    while len(problems) < len(names):
        rest = [name for name in names if name not in problems]
        try:
            said = trial.said_in([sys.executable, "-B", os.path.abspath(__file__), "--parts", source, folder, *rest], SECONDS)
            why = f"ended with {said.returncode}: " + " ".join(said.stderr.split())[-120:]
            problems.update(json.loads(line) for line in said.stdout.splitlines() if line.startswith("["))
        except subprocess.TimeoutExpired:
            why = f"more than {SECONDS} s"
        behind = [name for name in names if name not in problems]
        if behind:
            problems[behind[0]] = why
    return problems


def of_one_machine(path):
    """Has the file nodes of a layout that ONNX Runtime's optimiser chose for the processor at hand?"""
    return any(node.domain == "com.microsoft.nchwc" for node in graphs.walk(onnx.load(path, load_external_data=False).graph))


# ---- one model ----


def linked(source, target):
    """Makes target, with the model as model.onnx, its data sets and the files of its weights. Are there data sets?"""
    graphs.fresh(target)
    os.symlink(source, os.path.join(target, "model.onnx"))
    for path in glob.glob(os.path.join(os.path.dirname(source), "*")):
        sets = os.path.basename(path).startswith("test_data_set_")
        if (sets and os.path.basename(source) == "model.onnx") or (os.path.isfile(path) and not path.endswith(".onnx")):
            os.symlink(path, os.path.join(target, os.path.basename(path)))
    return bool(glob.glob(os.path.join(target, "test_data_set_*")))


def tried(folder, has_values, loose):
    """The verdict on folder/model.onnx, in the trial's words."""
    command = ["run", folder, "--check", "--threads", "1"] + (["--atol", str(loose)] if loose else [])
    result = run(*command if has_values else ("inspect", os.path.join(folder, "model.onnx")), timeout=SECONDS)
    if result.status == USAGE:  # what it lacks is asked for: the value of an input that decides a shape
        result.status = REFUSED
    return trial.verdict(result, Limits)


class Limits:
    command, mib = SECONDS, MIB


def tolerance(source):
    """0: the command's own; else what a difference may be. A code of 8 bits that is made of an activation may fall to either
    side; in half precision ONNX Runtime rounds at other places."""
    model = onnx.load(source, load_external_data=False)
    makers = ("DynamicQuantizeLinear", "QuantizeLinear", "DynamicQuantizeMatMul", "QAttention", "MatMulIntegerToFloat")
    if any(node.op_type in makers for node in graphs.walk(model.graph)):
        return 0.05
    types = [one.type.tensor_type.elem_type for one in [*model.graph.input, *model.graph.output]]
    types += [one.data_type for one in model.graph.initializer]
    return 0.01 if onnx.TensorProto.FLOAT16 in types or onnx.TensorProto.BFLOAT16 in types else 0


def one_model(source, name):
    """{"name", "values": whose, "verdicts": [of the model, of each level]}"""
    root = os.path.join(ROOT, name)
    plain = os.path.join(root, "none")
    has_values, loose = linked(source, plain), tolerance(source)
    for level in LEVELS:
        graphs.fresh(os.path.join(root, level))
    problems = made(source, root, [*([] if has_values else ["values"]), *LEVELS])
    whose = "its own" if has_values else "none" if problems["values"] else "seeded"
    verdicts = [tried(plain, whose != "none", loose)]
    for level in LEVELS:
        folder = os.path.join(root, level)
        for path in glob.glob(os.path.join(plain, "test_data_set_*")):
            os.symlink(os.path.realpath(path), os.path.join(folder, os.path.basename(path)))
        text = "not made: " + problems[level] if problems[level] else tried(folder, whose != "none", loose)
        if text.startswith("refused") and level == "all" and of_one_machine(os.path.join(folder, "model.onnx")):
            text = "machine: its nodes are for one kind of processor; here " + text
        elif text.startswith(("refused", "WRONG")) and verdicts[0] == "ok" and whose != "none":
            theirs = made(source, root, ["again:" + level])["again:" + level]
            text = f"theirs: ONNX Runtime's own run of it fails: {theirs}; here {text}" if theirs else text
        verdicts.append(text)
    return {"name": name, "values": whose, "why": problems.get("values", ""), "verdicts": verdicts}


# ---- all of them ----


def report(results, title):
    """Lines; how many fail: a level is wrong, or refused where the model is taken."""
    lines = [f"# {title}", "", trial.machine() + f", ONNX Runtime {ort.__version__}", "", "| model | values | as it is | " + " | ".join(LEVELS) + " |"]
    lines.append("|---" * (3 + len(LEVELS)) + "|")
    notes, failed = [], 0
    for one in results:
        short = [trial.short(text) for text in one["verdicts"]]
        lines.append(f"| {one['name']} | {one['values']} | " + " | ".join(short) + " |")
        notes += [f"- {one['name']}, values: none: {one['why']}"] if one["why"] else []
        for level, text in zip(("as it is", *LEVELS), one["verdicts"]):
            bad = text.startswith(("WRONG", "late")) or (level != "as it is" and text.startswith("refused") and short[0] == "ok")
            failed += bad
            if text != "ok":
                notes.append(f"- {one['name']}, {level}{', FAILED' if bad else ''}: {text}")
    written = sum(1 for one in results for text in one["verdicts"][1:] if not text.startswith("not made"))
    taken = sum(1 for one in results for text in one["verdicts"][1:] if text == "ok")
    lines += ["", *notes, "", f"{len(results)} models, {written} files by ONNX Runtime, {taken} of them taken and right, {failed} failed. By {trial.version()}."]
    return lines, failed


def main():
    if sys.argv[1:2] == ["--parts"]:
        return parts(sys.argv[2], sys.argv[3], sys.argv[4:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    need_command()
    if not os.path.isdir(MODELS):
        print("SKIP: ../shared/models is not there")
        return 0
    shutil.rmtree(ROOT, ignore_errors=True)
    found, results = sorted(glob.glob(os.path.join(MODELS, "**", "*.onnx"), recursive=True)), []
    for source in found:
        name = os.path.relpath(source, MODELS)[: -len(".onnx")].removesuffix("/model")
        if any(text in name for text in args.only.split(",")):
            results.append(one_model(os.path.abspath(source), name))
            print(f"{name}: " + ", ".join(trial.short(text) for text in results[-1]["verdicts"]), flush=True)
            shutil.rmtree(os.path.join(ROOT, name))
    today = datetime.date.today().isoformat()
    lines, failed = report(results, f"Levels of ONNX Runtime's optimiser over the bookshelf's models, {today}")
    paths = [os.path.join(SOURCE, "build", "real", "levels.md")]
    paths += [os.path.join(SOURCE, "tests", "bench", "records", f"{today}-levels.md")] if args.record else []
    for path in paths:
        trial.write(path, lines, os.path.abspath(MODELS))
    print("\n".join(line for line in lines[6:] if not line.startswith("|")))
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())

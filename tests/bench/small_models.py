# SPDX-License-Identifier: Apache-2.0
"""Rows of `small.py` for whole models that quantize_static wrote: a block of a transformer and a small convolutional net
(tests/data/quantized/make.py, larger), as QDQ pairs with a scale a channel and in QOperator form, beside ONNX Runtime with
all its graph optimisations, in alternating turns of one process."""
import importlib.util
import os
import tempfile

import engines
import numpy as np
import onnx
from kernels import rounds_of

HERE = os.path.dirname(os.path.abspath(__file__))
WIDTH, IMAGE = 256, 96
MODELS = [(kind, form) for kind in ("block", "conv") for form in ("qdq", "qoperator")]
SHAPES = {"block": (1, 64, WIDTH), "conv": (1, 3, IMAGE, IMAGE)}
HEAD = ("| threads | model, x | form | ours, ms best / median | ONNX Runtime | theirs : ours | off, steps of the largest "
        "| noisy | aim | |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
AIM = 1.0  # as fast as ONNX Runtime


def maker():
    """make.py, as a module: it is no package."""
    path = os.path.join(HERE, "..", "data", "quantized", "make.py")
    spec = importlib.util.spec_from_file_location("make_quantized", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def race(folder, make, kind, form, threads, seconds, clock, fewest):
    """The text of a row, and whether it held."""
    path, given = os.path.join(folder, f"{kind}_{form}.onnx"), os.path.join(folder, f"{kind}.npz")
    onnx.save(make.quantized(getattr(make, kind), WIDTH, IMAGE, form), path)
    np.savez(given, x=np.random.default_rng(5).standard_normal(SHAPES[kind], np.float32))
    library = os.path.join(os.environ.get("OPIPE_BUILD_DIR") or os.path.join(HERE, "..", "..", "build"), "lib", "libonnxpipe.so")
    job = {"path": path, "inputs": given, "dims": {"batch": 1}, "stages": 1, "threads": threads, "library": library}
    ours, peer = engines.Pipe(job), engines.Ort(job)
    rounds, noise = rounds_of([ours.run, peer.run], seconds, clock, fewest)
    mine, theirs = (np.array([t for found in rounds for t in found[i]]) * 1e3 for i in range(2))
    ratio = np.median([np.median(found[1]) / np.median(found[0]) for found in rounds])
    off = np.abs(ours.result() - peer.result()).max() / np.abs(peer.result()).max() * 127
    ours.close()
    cells = [
        threads, f"{kind}, {'x'.join(map(str, SHAPES[kind]))}", form, f"{np.percentile(mine, 5):.2f} / {np.median(mine):.2f}",
        f"{np.percentile(theirs, 5):.2f} / {np.median(theirs):.2f}",
        f"{np.percentile(theirs, 5) / np.percentile(mine, 5):.2f} / {ratio:.2f}", f"{off:.2f}", f"{100 * noise:.0f} %",
        f"ONNX Runtime {ratio:.2f}, wanted {AIM:g}", "held" if ratio >= AIM else "MISSED",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |", bool(ratio >= AIM)


def rows_of(threads, seconds, clock, fewest):
    """The lines of all models, and whether each held."""
    make = maker()
    with tempfile.TemporaryDirectory() as folder:
        for kind, form in MODELS:
            yield race(folder, make, kind, form, threads, seconds, clock, fewest)

# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests inside ONNX Runtime: sessions of its CPU provider and of ours, comparisons, failures.

Arguments of the process: ADAPTER SOURCE_DIR SHARED_DIR WORK_DIR few|all, as versions.py gives them.
"""

import os
import sys

import numpy
import onnxruntime

ADAPTER, SOURCE, SHARED, WORK, EXTENT = sys.argv[1:6]
BUILD = os.path.dirname(os.path.dirname(ADAPTER))
NAME = "OnnxPipeExecutionProvider"
ALL = EXTENT == "all"
CLOSE = 1e-5
failures = []
counts = {"sessions": 0, "runs": 0}


def check(good, *what):
    if not good:
        failures.append(" ".join(str(part) for part in what))
        print("FAILED:", failures[-1])


def raises(what, part, call):
    try:
        call()
    except Exception as error:
        check(part in str(error), what, "says:", str(error)[:400], "not:", part)
        return
    check(False, what, "was accepted")


def devices():
    return [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME][:1]


def session(model, own=None, whole=True, **options):
    """own: options of our provider, which must take the whole graph unless whole is False; None: ONNX Runtime's CPU
    provider alone. options: of SessionOptions."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    for key, value in options.items():
        setattr(settings, key, value)
    counts["sessions"] += 1
    if own is None:
        return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    if whole:
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    settings.add_provider_for_devices(devices(), {k: str(v) for k, v in own.items()})
    return onnxruntime.InferenceSession(model, settings)


# ---- comparisons ----


def difference(found, wanted):
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    if found.size == 0:
        return 0.0
    a, b = found.astype(numpy.float64), wanted.astype(numpy.float64)
    scale = numpy.max(numpy.abs(b))
    return float(numpy.max(numpy.abs(a - b)) / (scale + 1.0 if scale < 1 else scale))


def tolerance(array):
    return {"float32": 1e-4, "float64": 1e-4, "float16": 3e-3}.get(str(array.dtype), 0)


def compare(what, found, wanted, most=None):
    """most: of outputs in float32; else, and of other types, what `onnx-pipe run --check` allows."""
    check(len(found) == len(wanted), what, "outputs", len(found), len(wanted))
    for i, (a, b) in enumerate(zip(found, wanted)):
        bound = tolerance(b) if most is None or b.dtype != numpy.float32 else most
        away = difference(a, b)
        check(away <= bound, what, "output", i, "differs by", away, "of", bound)
    counts["runs"] += 1


# ---- one small transformer ----


def demo():
    return os.path.join(SOURCE, "tests", "data", "gpt_8block", "model.onnx")


def ids(batch, seq):
    rows = numpy.arange(batch * seq, dtype=numpy.int64).reshape(batch, seq)
    return {"input_ids": (rows * 7 + 3) % 50}

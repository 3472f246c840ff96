#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One file's time and memory beside ONNX Runtime's, as JSON: milliseconds of a run of its first data set, in alternating turns
of two processes (tests/bench/engines.py), and MiB that either took at most, its interpreter and modules not counted.

usage: race.py FOLDER --library FILE [--threads N] [--rounds N] [--seconds S]
"""
import argparse
import glob
import json
import os
import statistics
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))
from engines import Worker  # noqa: E402

CLEAN = 0.08  # of a core, that others may take in a turn
MODULES = {"ort": ["onnxruntime"], "pipe": []}


def first_set(folder):
    found = {}
    for path in glob.glob(os.path.join(folder, "test_data_set_0", "input_*.pb")):
        with open(path, "rb") as file:
            tensor = onnx.TensorProto.FromString(file.read())
        found[tensor.name] = numpy_helper.to_array(tensor)
    return found


def dims_of(model, arrays):
    """Free dimensions by name, as the arrays have them; expressions follow from these."""
    found = {}
    for value in model.graph.input:
        if value.name in arrays:
            for dim, n in zip(value.type.tensor_type.shape.dim, arrays[value.name].shape):
                if dim.dim_param.isidentifier():
                    found[dim.dim_param] = n
    return found


def race(jobs, rounds, seconds):
    """({engine: [ms of each round]}, share of a core that others took at most, {engine: MiB})"""
    workers, times, others = {}, {name: [] for name in jobs}, 0.0
    try:
        for name, job in jobs.items():
            workers[name] = Worker(job)
            if workers[name].error:
                raise SystemExit(f"{name}: {workers[name].error}")
        once = max(worker.turn("runs", 3)[0][-1] for worker in workers.values())
        count = max(1, min(500, int(seconds / once)))
        for i in range(rounds):
            for name in list(workers)[:: 1 if i % 2 == 0 else -1]:
                found, taken = workers[name].turn("runs", count)
                times[name].append(1e3 * statistics.median(found))
                others = max(others, taken)
        mib = {name: max(0, worker.peak_mib - worker.bare_mib) for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.close()
    return times, others, mib


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder")
    parser.add_argument("--library", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    args = parser.parse_args()
    path = os.path.join(args.folder, "model.onnx")
    model, arrays = onnx.load(path, load_external_data=False), first_set(args.folder)
    plain = all(v.type.tensor_type.elem_type == TensorProto.FLOAT for v in model.graph.output)
    with tempfile.TemporaryDirectory() as scratch:
        inputs = os.path.join(scratch, "inputs.npz")
        np.savez(inputs, **arrays)
        job = {"model": "", "path": path, "inputs": inputs, "dims": dims_of(model, arrays), "threads": args.threads, "stages": 1,
               "library": args.library, "buffers": plain}  # fmt: skip
        times, others, mib = race({n: dict(job, engine=n, modules=m) for n, m in MODULES.items()}, args.rounds, args.seconds)
    ratios = sorted(a / b for a, b in zip(times["pipe"], times["ort"]))
    weights = sum(os.path.getsize(file) for file in glob.glob(os.path.join(args.folder, "model.onnx*")))
    found = {"ms": {name: statistics.median(all_) for name, all_ in times.items()}, "ratio": [ratios[0], statistics.median(ratios), ratios[-1]],
             "mib": mib, "file_mib": weights / 2**20, "clean": others < CLEAN}  # fmt: skip
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

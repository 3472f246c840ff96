# SPDX-License-Identifier: Apache-2.0
"""The packed product beside ONNX Runtime's MatMul, in alternating turns of one process.

Every shape runs with weights from memory, as in a model: as many copies as make 160 MB (up to 16 rows)
or 40 MB, all of them in one graph, so that the peer's call overhead is shared; what an empty call costs
is subtracted once more. Printed: GFLOP/s best (95th percentile) / median of both, their ratio, whether
the results are equal bit for bit, else the largest difference.

Usage: kernels.py SHIM.so [--threads N] [--isa NAME] [--rows 1,5,...] [--shapes 768x768,...] [--seconds S]
                  [--clock cpu]
"""
import argparse
import ctypes
import os
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SHAPES = "768x768,768x2304,768x3072,3072x768,768x50257"
ROWS = "1,5,16,128,512"
SETTLE_SECONDS = 0.03


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


class Own:
    def __init__(self, path, isa, threads):
        self.lib = ctypes.CDLL(path)
        self.lib.shim_open.restype = ctypes.c_void_p
        self.lib.shim_isa.restype = ctypes.c_char_p
        self.lib.shim_pack.restype = ctypes.c_void_p
        self.exec = ctypes.c_void_p(self.lib.shim_open(isa.encode(), threads))
        if not self.exec:
            raise SystemExit(f"kernels.py: no kernels for {isa!r} with {threads} threads")
        self.isa = self.lib.shim_isa(self.exec).decode()
        self.libc = ctypes.CDLL(None)

    def prepare(self, weights, x):
        k, n = weights[0].shape
        packed = [self.lib.shim_pack(self.exec, pointer(w), ctypes.c_int64(k), ctypes.c_int64(n)) for w in weights]
        table = (ctypes.c_void_p * len(packed))(*packed)
        y = np.empty((x.shape[0], n), np.float32)
        sizes = [ctypes.c_int64(v) for v in (x.shape[0], k, n)]
        copies = ctypes.c_int64(len(packed))

        def run():
            self.lib.shim_matmul(self.exec, *sizes, pointer(x), table, copies, pointer(y))

        def release():
            for p in packed:
                self.libc.free(ctypes.c_void_p(p))

        return run, y, release


def peer(weights, x, threads):
    """A session with one MatMul per weight; returns a call and its outputs."""
    n = weights[0].shape[1]
    names = range(len(weights))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"]) for i in names], "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [x.shape[0], n]) for i in names],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs = [np.empty((x.shape[0], n), np.float32) for _ in names]
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    for i, y in enumerate(outputs):
        binding.bind_output(f"y{i}", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    return lambda: session.run_with_iobinding(binding), outputs


def others_seconds():
    """Processor time that others than this process have used so far."""
    with open("/proc/stat", encoding="ascii") as f:
        field = [int(v) for v in f.readline().split()[1:9]]
    busy = sum(field) - field[3] - field[4]  # less idle and waiting
    return busy / os.sysconf("SC_CLK_TCK") - time.process_time()


def turn(call, record, clock):
    """Calls for at least 60 ms; the first call after a change of hands is not counted. Before it, the
    other contestant's idle threads get the time to stop spinning on the cores."""
    time.sleep(SETTLE_SECONDS)
    start = time.perf_counter()
    call()
    while True:
        t0 = clock()
        call()
        record.append(clock() - t0)
        elapsed = time.perf_counter() - start
        if elapsed > 0.06:
            return elapsed


def rounds_of(calls, seconds, clock=time.perf_counter, fewest=4):
    """Rounds of alternating turns, each a list of seconds per call of every contestant. Rounds in which others used
    more than a tenth of a core are left out, unless there are hardly any without; also says which share was left out.
    Goes on until `fewest` rounds were clean, or there were three times as many."""
    clean, dirty = [], []
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or (len(clean) < fewest and len(clean) + len(dirty) < 3 * fewest):
        found = [[] for _ in calls]
        before = others_seconds()
        wall = sum(turn(call, record, clock) for call, record in zip(calls, found))
        quiet = others_seconds() - before < 0.1 * wall + 0.02
        (clean if quiet else dirty).append(found)
    share = len(dirty) / (len(clean) + len(dirty))
    return (clean, share) if len(clean) >= 3 else (clean + dirty, 1.0)


def turns(calls, seconds, clock=time.perf_counter, fewest=4):
    """The same, rounds behind each other: seconds per call of every contestant, and the share left out."""
    rounds, left_out = rounds_of(calls, seconds, clock, fewest)
    return [np.array([t for found in rounds for t in found[i]]) for i in range(len(calls))], left_out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shim")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", default="")
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall",
                        help="cpu: processor time of the process, for one thread on a busy machine")
    args = parser.parse_args()
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    own = Own(args.shim, args.isa, args.threads)
    one = np.ones((1, 1), np.float32)
    empty_call, empty_outputs = peer([one], one, args.threads)
    empty = np.median(turns([empty_call], 0.3, clock)[0][0])
    del empty_call, empty_outputs
    print(f"{own.isa}, {args.threads} thread(s), ONNX Runtime {onnxruntime.__version__}; its empty call of "
          f"{1e6 * empty:.1f} us is subtracted")
    print("| rows, KxN | ours, GFLOP/s best / median | ONNX Runtime | ours : theirs best / median | equal bits | noisy |")
    print("|---|---|---|---|---|---|")
    for shape in args.shapes.split(","):
        k, n = map(int, shape.split("x"))
        for rows in map(int, args.rows.split(",")):
            copies = max(1, int((160e6 if rows <= 16 else 40e6) / (4 * k * n)))
            rng = np.random.default_rng(1)
            x = rng.standard_normal((rows, k), np.float32)
            weights = [rng.standard_normal((k, n), np.float32) * np.float32(0.1) for _ in range(copies)]
            run, y, release = own.prepare(weights, x)
            peer_run, outputs = peer(weights, x, args.threads)  # which the binding points at
            del weights
            z = outputs[-1]
            (mine, theirs), noise = turns([run, peer_run], args.seconds, clock)
            theirs = theirs - empty
            flops = 2e-9 * rows * k * n * copies
            rate = [(flops / np.percentile(t, 5), flops / np.median(t)) for t in (mine, theirs)]
            equal = "yes" if np.array_equal(y.view(np.uint32), z.view(np.uint32)) else f"{np.abs(y - z).max():.1e}"
            print(f"| {rows}, {shape} | {rate[0][0]:.1f} / {rate[0][1]:.1f} | {rate[1][0]:.1f} / {rate[1][1]:.1f} "
                  f"| {rate[0][0] / rate[1][0]:.2f} / {rate[0][1] / rate[1][1]:.2f} | {equal} | {100 * noise:.0f} % |", flush=True)
            release()


if __name__ == "__main__":
    main()

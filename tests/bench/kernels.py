# SPDX-License-Identifier: Apache-2.0
"""The packed product beside ONNX Runtime's MatMul, in alternating turns of one process.

Every shape runs with weights from memory, as in a model: as many copies as make 160 MB (up to 16 rows)
or 40 MB, all of them in one graph, so that the peer's call overhead is shared; what an empty call costs
is subtracted once more. Printed: GFLOP/s best (95th percentile) / median of both, their ratio, whether
the results are equal bit for bit, else the largest difference; and what share of the machine's limit a product
takes: of reading its weights, up to 16 rows, else of multiply-adds on registers. Aims are printed behind the rows.

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
from inference import verdicts_text
from onnx import TensorProto, helper, numpy_helper

SHAPES = "768x768,768x2304,768x3072,3072x768,768x50257"
ROWS = "1,5,16,128,512"
SETTLE_SECONDS = 0.03
FEW_ROWS = 16
PEAK_STEPS = 400000  # a millisecond or two
# One row, of the read bandwidth; the time of one row over that of up to 16; more rows, over ONNX Runtime; 512 rows, of the peak.
AIM_READ, AIM_FEW, AIM_SPEED, AIM_PEAK = 0.95, 0.8, 1.10, 0.92


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

        return run, y, packed, release


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


class Limit:
    """The contestant that says how fast the machine could be: reading the weights, up to 16 rows; products on registers, for
    more. `share` of it is what a product takes of the bandwidth, or of the peak."""

    def __init__(self, own, rows, packed, n_bytes, flops):
        self.kind, self.scale = ("read bandwidth", 1.0) if rows <= FEW_ROWS else ("peak", 0.0)
        lib = own.lib
        lib.shim_read.restype, lib.shim_peak.restype = ctypes.c_uint64, ctypes.c_double

        def read():
            for p in packed:
                lib.shim_read(own.exec, ctypes.c_void_p(p), ctypes.c_uint64(n_bytes))

        def multiply():
            self.scale = flops / max(1.0, lib.shim_peak(own.exec, ctypes.c_int64(PEAK_STEPS)))

        self.run = read if rows <= FEW_ROWS else multiply

    def share(self, rounds):
        """The share of the limit, in the median of rounds, where both stand beside each other."""
        return float(np.median([np.median(found[2]) * self.scale / np.median(found[0]) for found in rounds]))


def row_of(own, shape, rows, threads, seconds, clock, empty):
    """A row's text, and (rows, speed over the peer, kind of limit, share of it, median seconds of a product)."""
    k, n = map(int, shape.split("x"))
    copies = max(1, int((160e6 if rows <= FEW_ROWS else 40e6) / (4 * k * n)))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, k), np.float32)
    weights = [rng.standard_normal((k, n), np.float32) * np.float32(0.1) for _ in range(copies)]
    run, y, packed, release = own.prepare(weights, x)
    peer_run, outputs = peer(weights, x, threads)  # which the binding points at
    del weights
    z = outputs[-1]
    flops = 2.0 * rows * k * n * copies
    limit = Limit(own, rows, packed, 4 * k * n, flops)
    rounds, noise = rounds_of([run, peer_run, limit.run], seconds, clock)
    mine, theirs = (np.array([t for found in rounds for t in found[i]]) - (empty if i else 0.0) for i in range(2))
    rate = [(1e-9 * flops / np.percentile(t, 5), 1e-9 * flops / np.median(t)) for t in (mine, theirs)]
    speed = float(np.median([(np.median(found[1]) - empty) / np.median(found[0]) for found in rounds]))
    share = limit.share(rounds)
    equal = "yes" if np.array_equal(y.view(np.uint32), z.view(np.uint32)) else f"{np.abs(y - z).max():.1e}"
    text = (f"| {rows}, {shape} | {rate[0][0]:.1f} / {rate[0][1]:.1f} | {rate[1][0]:.1f} / {rate[1][1]:.1f} | {rate[0][0] / rate[1][0]:.2f} / "
            f"{speed:.2f} | {share:.2f} of the {limit.kind} | {equal} | {100 * noise:.0f} % |")
    release()
    return text, (rows, speed, limit.kind, share, float(np.median(mine)) / copies)


def verdicts(found, threads):
    """Returns (what, found, aim, held) of rows {(shape, rows): numbers}."""
    judged = []
    for (shape, rows), (_, speed, kind, share, seconds) in found.items():
        what = f"fp32 product, {rows} rows, {shape}, t{threads}"
        if rows == 1:
            judged.append((f"{what}: share of the {kind}", share, AIM_READ))
        elif rows <= FEW_ROWS and (shape, 1) in found:
            judged.append((f"{what}: time of one row over theirs", found[shape, 1][4] / seconds, AIM_FEW))
        elif 64 <= rows <= 512:
            judged.append((f"{what}: speed over ONNX Runtime's", speed, AIM_SPEED))
            if rows == 512:
                judged.append((f"{what}: share of the {kind}", share, AIM_PEAK))
    return [(what, value, aim, value >= aim) for what, value, aim in judged]


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
    print("| rows, KxN | ours, GFLOP/s best / median | ONNX Runtime | ours : theirs best / median | limit | equal bits | noisy |")
    print("|---|---|---|---|---|---|---|")
    found = {}
    for shape in args.shapes.split(","):
        for rows in map(int, args.rows.split(",")):
            text, found[shape, rows] = row_of(own, shape, rows, args.threads, args.seconds, clock, empty)
            print(text, flush=True)
    print("\n".join(["", *verdicts_text(verdicts(found, args.threads))]), flush=True)


if __name__ == "__main__":
    main()

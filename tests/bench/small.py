# SPDX-License-Identifier: Apache-2.0
"""Products with weights of 2, 4 and 8 bits beside ONNX Runtime's MatMulNBits, in alternating turns of one process,
and beside reading the packed bytes.

Usage: small.py SHIM.so [--threads N] [--isa NAME] [--rows 1,16,128] [--shapes 4096x4096,...] [--forms 4:32:0,...]
                [--seconds S] [--clock cpu]

A form is bits:block:accuracy level. Shapes are those of models of 1 to 8 billion parameters; weights come from memory:
as many copies as make 64 MB. Printed: milliseconds a product, best (5th percentile) / median, their ratio (above 1:
ours is faster), what share of the read bandwidth measured in the same turns the packed bytes take, the largest
difference relative to the largest result.
"""
import argparse
import ctypes
import time

import numpy as np
import onnxruntime
from kernels import Own, pointer, turns
from onnx import TensorProto, helper, numpy_helper

SHAPES = "2048x2048,2048x8192,4096x4096,4096x14336"
ROWS = "1,16,128"
FORMS = "4:32:0,4:32:4,8:32:4,2:64:4"


class Codes(ctypes.Structure):
    """cpu_codes of kernels/codes.h."""

    _fields_ = [("k", ctypes.c_int64), ("n", ctypes.c_int64), ("block", ctypes.c_int64), ("bits", ctypes.c_uint32),
                ("scale", ctypes.c_int), ("zeros", ctypes.c_int), ("zero", ctypes.c_int32)]


def peer(form, weights, x, level, threads):
    """A session with one MatMulNBits per weight; returns a call and its outputs."""
    names = range(len(weights))
    tensors = [numpy_helper.from_array(a, f"{kind}{i}") for i, w in enumerate(weights) for kind, a in zip("bs", w)]
    attributes = {"K": form.k, "N": form.n, "bits": form.bits, "block_size": form.block, "accuracy_level": level}
    nodes = [helper.make_node("MatMulNBits", ["x", f"b{i}", f"s{i}"], [f"y{i}"], domain="com.microsoft", **attributes)
             for i in names]
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [x.shape[0], form.n]) for i in names]
    graph = helper.make_graph(nodes, "products", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                              outputs, tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = [np.empty((x.shape[0], form.n), np.float32) for _ in names]
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    for i, y in enumerate(found):
        binding.bind_output(f"y{i}", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    return lambda: session.run_with_iobinding(binding), found


def row(own, args, form, level, rows, clock):
    """One line of the table."""
    blocks = (form.k + form.block - 1) // form.block
    copies = max(1, int(64e6 / (form.k * form.n * form.bits / 8)))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, form.k), np.float32)
    weights = [(rng.integers(0, 256, (form.n, blocks, form.block * form.bits // 8), np.uint8),
                rng.standard_normal(form.n * blocks, np.float32) * np.float32(0.01)) for _ in range(copies)]
    size = ctypes.c_uint64()
    own.lib.shim_codes_pack.restype = ctypes.c_void_p
    own.lib.shim_read.restype = ctypes.c_uint64
    packed = [ctypes.c_void_p(own.lib.shim_codes_pack(own.exec, ctypes.byref(form), pointer(b), pointer(s),
                                                      ctypes.byref(size))) for b, s in weights]
    y = np.empty((rows, form.n), np.float32)

    def run():
        for p in packed:
            own.lib.shim_codes(own.exec, ctypes.byref(form), p, ctypes.c_int64(rows), pointer(x), int(level == 4),
                               pointer(y))

    def read():
        for p in packed:
            own.lib.shim_read(own.exec, p, size)

    peer_run, outputs = peer(form, weights, x, level, args.threads)
    (mine, theirs, bare), noise = turns([run, peer_run, read], args.seconds, clock)
    mine, theirs, bare = (1e3 / copies * np.array([np.percentile(t, 5), np.median(t)]) for t in (mine, theirs, bare))
    off = np.abs(y - outputs[-1]).max() / np.abs(outputs[-1]).max()
    print(f"| {rows}, {form.k}x{form.n} | {form.bits} bits, {form.block}, level {level} | {mine[0]:.3f} / {mine[1]:.3f} "
          f"| {theirs[0]:.3f} / {theirs[1]:.3f} | {theirs[0] / mine[0]:.2f} / {theirs[1] / mine[1]:.2f} "
          f"| {bare[0] / mine[0]:.2f} of {size.value / bare[0] / 1e6:.1f} GB/s | {off:.0e} | {100 * noise:.0f} % |",
          flush=True)
    for p in packed:
        own.libc.free(p)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shim")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", default="")
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--forms", default=FORMS)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    args = parser.parse_args()
    own = Own(args.shim, args.isa, args.threads)
    print(f"{own.isa}, {args.threads} thread(s), ONNX Runtime {onnxruntime.__version__}")
    print("| rows, KxN | weights | ours, ms best / median | ONNX Runtime | theirs : ours | of the read bandwidth | off | noisy |")
    print("|---|---|---|---|---|---|---|---|")
    for text in args.forms.split(","):
        bits, block, level = map(int, text.split(":"))
        for shape in args.shapes.split(","):
            k, n = map(int, shape.split("x"))
            form = Codes(k, n, block, bits, 0, 0, 1 << (bits - 1))
            for rows in map(int, args.rows.split(",")):
                row(own, args, form, level, rows, time.perf_counter if args.clock == "wall" else time.process_time)


if __name__ == "__main__":
    main()

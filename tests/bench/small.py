#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Products with weights of 2, 4 and 8 bits beside ONNX Runtime's of the same accuracy level, in alternating turns of one
process, and beside reading the packed bytes.

A form is BITS:BLOCK:LEVEL, of MatMulNBits; qBITS:BLOCK is DequantizeLinear (block 0: a scale for each column) before
MatMul, which asks for no level. Ours reads one packed copy whatever the form of the file is. Shapes KxN are those of
models of 1, 3 and 8 billion parameters. Codes, scales and rows are random; where rows are few, weights come from memory:
as many copies as make 256 MB, of which caches hold little.

Printed: milliseconds a product, best (5th percentile) / median; of the best ones / the median of rounds, in each of which
contestants stand beside each other: their ratio (above 1: ours is faster), and what share of the read bandwidth the packed
bytes take; the largest difference relative to the largest result, and the aim, judged by the median of at least 7 clean
rounds where the machine lets them be:
  level 4, 1 row, blocks from 32 on, processors with VNNI: 0.8 of the read bandwidth
  all others but level 4 with more rows on such processors: as fast as ONNX Runtime

Behind them: whole models in QDQ and QOperator form (small_models.py), which should be as fast as ONNX Runtime.

usage: small.py SHIM.so [--threads 1,2] [--isa NAME] [--rows 1,16,128] [--shapes 2048x8192,...] [--forms 4:32:0,q4:32,...]
                [--seconds S] [--clock cpu] [--quick] [--only-models] [--no-models] [--record DIR]
exit status: 1 when an aim is missed
"""
import argparse
import ctypes
import datetime
import os
import time

import numpy as np
import onnxruntime
import small_models
from inference import machine
from kernels import Own, pointer, rounds_of
from onnx import TensorProto, helper, numpy_helper

SHAPES = "2048x8192,3072x3072,4096x14336"
ROWS = "1,16,128"
FORMS = "4:32:0,4:32:1,4:32:4,8:32:0,8:32:4,2:64:4,q4:32,q8:0"
QUICK = {"rows": "1,16", "shapes": "2048x2048", "seconds": 0.05, "threads": "1"}
COPIES_BYTES, FEW_ROWS, CLEAN_ROUNDS = 256e6, 16, 7
BANDWIDTH, LEVEL = 0.8, 1.0


class Codes(ctypes.Structure):
    """cpu_codes of kernels/codes.h."""

    _fields_ = [("k", ctypes.c_int64), ("n", ctypes.c_int64), ("block", ctypes.c_int64), ("bits", ctypes.c_uint32),
                ("scale", ctypes.c_int), ("zeros", ctypes.c_int), ("zero", ctypes.c_int32)]


class Form:
    """A form of --forms for weights [K,N]."""

    def __init__(self, text, k, n):
        numbers = [int(word) for word in text.lstrip("q").split(":")]
        self.qdq, self.bits, self.k, self.n = text.startswith("q"), numbers[0], k, n
        self.block, self.level = numbers[1] or k, 0 if self.qdq else numbers[2]
        self.blocks = (k + self.block - 1) // self.block
        self.codes = Codes(k, n, self.block, self.bits, 0, 0, 1 << (self.bits - 1))

    def title(self):
        block = "a column" if self.block == self.k else self.block
        return f"{'QDQ' if self.qdq else 'MatMulNBits'}, {self.bits} bits, {block}, level {self.level}"

    def draw(self, rng):
        """Codes as MatMulNBits has them, [n, blocks, bytes], and scales [n * blocks]."""
        codes = rng.integers(0, 256, (self.n, self.blocks, self.block * self.bits // 8), np.uint8)
        return codes, rng.standard_normal(self.n * self.blocks, np.float32) * np.float32(0.01)


# ---- ONNX Runtime's ----


def nbits_node(form, i, codes, scales):
    tensors = [numpy_helper.from_array(codes, f"b{i}"), numpy_helper.from_array(scales, f"s{i}")]
    attributes = {"K": form.k, "N": form.n, "bits": form.bits, "block_size": form.block, "accuracy_level": form.level}
    return [helper.make_node("MatMulNBits", ["x", f"b{i}", f"s{i}"], [f"y{i}"], domain="com.microsoft", **attributes)], tensors


def qdq_nodes(form, i, codes, scales):
    """The same numbers as [K,N] of signed integers."""
    rows = codes.reshape(form.n, -1)
    if form.bits == 4:
        rows = np.stack([rows & 15, rows >> 4], axis=-1).reshape(form.n, -1)
    low = np.ascontiguousarray(rows[:, : form.k].T).astype(np.int16) - (1 << (form.bits - 1))
    flat = (low.reshape(-1) & 0xFF).astype(np.uint8)
    kind = TensorProto.INT8
    if form.bits == 4:
        flat, kind = (flat[0::2] & 15) | (flat[1::2] << 4), TensorProto.INT4
    one = form.blocks == 1
    table = scales if one else np.ascontiguousarray(scales.reshape(form.n, form.blocks).T)
    tensors = [helper.make_tensor(f"b{i}", kind, [form.k, form.n], flat.tobytes(), raw=True), numpy_helper.from_array(table, f"s{i}")]
    how = {"axis": 1} if one else {"axis": 0, "block_size": form.block}
    return [helper.make_node("DequantizeLinear", [f"b{i}", f"s{i}"], [f"w{i}"], **how),
            helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"])], tensors  # fmt: skip


def session_of(form, weights, threads):
    """A session with one product per weight, for any number of rows."""
    made = [(qdq_nodes if form.qdq else nbits_node)(form, i, *w) for i, w in enumerate(weights)]
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, ["rows", form.n]) for i in range(len(weights))]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", form.k])
    graph = helper.make_graph([node for nodes, _ in made for node in nodes], "products", [given], outputs,
                              [tensor for _, tensors in made for tensor in tensors])  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", str(form.level))  # 4 where nobody says
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def bound(session, form, x):
    """A call of the session, and its outputs."""
    found = [np.empty((x.shape[0], form.n), np.float32) for _ in session.get_outputs()]
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    for i, y in enumerate(found):
        binding.bind_output(f"y{i}", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    return lambda: session.run_with_iobinding(binding), found


# ---- one form and shape ----


class Weights:
    """Copies of a matrix on both sides; numbers of rows below `few` read all of them, others one."""

    def __init__(self, own, form, few, threads):
        copies = max(1, int(COPIES_BYTES / (form.k * form.n * form.bits / 8))) if few else 1
        rng = np.random.default_rng(1)
        weights = [form.draw(rng) for _ in range(copies)]
        self.own, self.form, self.size = own, form, ctypes.c_uint64()
        own.lib.shim_codes_pack.restype = ctypes.c_void_p
        own.lib.shim_read.restype = ctypes.c_uint64
        self.packed = [ctypes.c_void_p(own.lib.shim_codes_pack(own.exec, ctypes.byref(form.codes), pointer(b), pointer(s),
                                                               ctypes.byref(self.size))) for b, s in weights]  # fmt: skip
        if not all(self.packed):
            raise SystemExit(f"small.py: no packed copy of {form.title()}, {form.k}x{form.n}")
        self.session = session_of(form, weights, threads)

    def measure(self, rows, seconds, clock):
        """Seconds of a product, [5th percentile, median], of ours, the peer and reading; how often the peer and reading
        take ours, in the same round; more of it."""
        form, lib = self.form, self.own.lib
        x = np.random.default_rng(rows).standard_normal((rows, form.k), np.float32)
        y = np.empty((rows, form.n), np.float32)
        peer, outputs = bound(self.session, form, x)

        def run():
            for p in self.packed:
                if lib.shim_codes(self.own.exec, ctypes.byref(form.codes), p, ctypes.c_int64(rows), pointer(x),
                                  int(form.level == 4), pointer(y)) != 0:  # fmt: skip
                    raise SystemExit(f"small.py: no memory for a product of {rows} rows")

        def read():
            for p in self.packed:
                lib.shim_read(self.own.exec, p, self.size)

        rounds, noise = rounds_of([run, peer, read], seconds, clock, CLEAN_ROUNDS)
        times = [np.array([t for found in rounds for t in found[i]]) / len(self.packed) for i in range(3)]
        middles = np.array([[np.median(t) for t in found] for found in rounds])
        off = np.abs(y - outputs[-1]).max() / np.abs(outputs[-1]).max()
        return {"cost": [np.array([np.percentile(t, 5), np.median(t)]) for t in times],
                "beside": np.median(middles[:, 1:] / middles[:, :1], axis=0), "noise": noise, "off": off}  # fmt: skip

    def free(self):
        for p in self.packed:
            self.own.libc.free(p)


# ---- the table ----

HEAD = ("| threads | rows, KxN | weights | ours, ms best / median | ONNX Runtime | theirs : ours | of the read bandwidth "
        "| off | noisy | aim | |\n|---|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip


def aim_of(form, rows, vnni, ratio, share):
    """(name of the aim, found, wanted), or None."""
    if form.level == 4 and vnni:
        return ("bandwidth", share, BANDWIDTH) if rows == 1 and form.block >= 32 else None
    return "ONNX Runtime", ratio, LEVEL


def line_of(threads, form, rows, found, vnni):
    """The text of a row, and whether it held; None: it has no aim."""
    (mine, theirs, bare), noise, off = found["cost"], found["noise"], found["off"]
    ratio, share = found["beside"]
    aim = aim_of(form, rows, vnni, ratio, share)
    held = None if aim is None else aim[1] >= aim[2]
    cells = [
        threads, f"{rows}, {form.k}x{form.n}", form.title(), f"{1e3 * mine[0]:.3f} / {1e3 * mine[1]:.3f}",
        f"{1e3 * theirs[0]:.3f} / {1e3 * theirs[1]:.3f}", f"{theirs[0] / mine[0]:.2f} / {ratio:.2f}",
        f"{bare[0] / mine[0]:.2f} / {share:.2f} of {found['bytes'] / bare[1] / 1e9:.1f} GB/s", f"{off:.0e}",
        f"{100 * noise:.0f} %", "-" if aim is None else f"{aim[0]} {aim[1]:.2f}, wanted {aim[2]:g}",
        "-" if held is None else "held" if held else "MISSED",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |", held


def rows_of(args, own, text, shape, threads, vnni):
    """The lines of a form and a shape."""
    form = Form(text, *map(int, shape.split("x")))
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    numbers = [int(rows) for rows in args.rows.split(",")]
    for few in (True, False):
        chosen = [rows for rows in numbers if (rows <= FEW_ROWS) == few]
        if not chosen:
            continue
        weights = Weights(own, form, few, threads)
        for rows in chosen:
            found = weights.measure(rows, args.seconds, clock)
            yield line_of(threads, form, rows, {**found, "bytes": weights.size.value}, vnni)
        weights.free()


def head_of(about, isa):
    return [
        f"# Weights of few bits, {datetime.date.today().isoformat()}", "",
        f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}, {about['memory_gib']} GiB; kernels {isa}, "
        f"ONNX Runtime {onnxruntime.__version__}", "",
        "Milliseconds of a product. Aims: level 4 at 1 row, blocks from 32 on, with VNNI: 0.8 of the read bandwidth; other levels,",
        "and all where there is no VNNI: as fast as ONNX Runtime at its same level. Judged by the median of rounds.", "", HEAD,
    ]  # fmt: skip


def keep(args, lines):
    if args.record:
        os.makedirs(args.record, exist_ok=True)
        with open(os.path.join(args.record, f"{datetime.date.today().isoformat()}-small.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("shim")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--isa", default="")
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--forms", default=FORMS)
    parser.add_argument("--seconds", type=float, default=0.5, help="of every contestant of a row, at least")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--only-models", action="store_true", help="no products: the models alone")
    parser.add_argument("--no-models", action="store_true", help="products alone")
    parser.add_argument("--quick", action="store_true", help="one shape for a moment: does all of it run")
    parser.add_argument("--record", help="folder for YYYY-MM-DD-small.md")
    args = parser.parse_args()
    if args.quick:
        vars(args).update(QUICK)
    return args


def models_of(args):
    """The lines of the table of quantized models, and whether each held; None: no row."""
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    yield from ((text, None) for text in ("", "Quantized models, milliseconds a request", "", small_models.HEAD))
    for threads in map(int, args.threads.split(",")):
        yield from small_models.rows_of(threads, args.seconds, clock, 1 if args.quick else CLEAN_ROUNDS)


def main():
    args, about = arguments(), machine()
    lines, verdicts = None, []
    for threads in map(int, args.threads.split(",")):
        own = None if args.only_models else Own(args.shim, args.isa, threads)
        vnni = own is not None and own.isa == "avx512" and "avx512_vnni" in about["isa"]
        if lines is None:
            lines = head_of(about, "of the machine" if own is None else own.isa)
            print("\n".join(lines), flush=True)
        for form in [] if args.only_models else args.forms.split(","):
            for shape in args.shapes.split(","):
                for line, held in rows_of(args, own, form, shape, threads, vnni):
                    print(line, flush=True)
                    lines.append(line)
                    verdicts.append(held)
                    keep(args, lines)
    without = verdicts.count(None)
    for line, held in [] if args.no_models else models_of(args):
        print(line, flush=True)
        lines.append(line)
        verdicts.append(held)
        keep(args, lines)
    last = f"{verdicts.count(True)} held, {verdicts.count(False)} MISSED, {without} without an aim"
    print(f"\n{last}")
    keep(args, [*lines, "", last])
    return 1 if False in verdicts else 0


if __name__ == "__main__":
    raise SystemExit(main())

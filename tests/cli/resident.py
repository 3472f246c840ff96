# SPDX-License-Identifier: Apache-2.0
"""Peak resident memory of a run in a fresh process, loading included, against what the weights take as they are stored:
models of one kind of weight in a sparse file, so that sizes cost no disk."""
import json
import os
import sys
import tempfile

from command import DATA, DONE, Count, run

sys.path.insert(0, os.path.join(DATA, "attacks"))
from wire import FLOAT, graph, model, node, opset, outside, value  # noqa: E402

UINT8, FLOAT16, BFLOAT16 = 2, 10, 16
MIB = 1 << 20
MOST_RATIO, MOST_MORE_MIB = 1.25, 64
HOST = opset(1, "com.microsoft")


class File:
    """One file of external data: tensors one behind the other, all zeros."""

    def __init__(self):
        self.n_bytes, self.weights = 0, []

    def add(self, name, kind, shape, n_bytes):
        entries = {"location": "w.bin", "offset": str(self.n_bytes), "length": str(n_bytes)}
        self.weights.append(outside(name, kind, shape, **entries))
        self.n_bytes += (n_bytes + 63) // 64 * 64


def plain(kind, size):
    """Products by [K,N] and [N,K] weights in turn."""

    def layer(file, i, last, width):
        file.add(f"w{i}", kind, [width, width], width * width * size)
        if i % 2 == 0:
            return [node("MatMul", f"{last} w{i}", f"h{i}", name=f"layer{i}")]
        return [node("Gemm", f"{last} w{i}", f"h{i}", name=f"layer{i}", transB=1)]

    return kind, size, layer


def nbits(bits):
    def layer(file, i, last, width):
        blocks = width // 32
        file.add(f"w{i}", UINT8, [width, blocks, 4 * bits], width * blocks * 4 * bits)
        file.add(f"s{i}", FLOAT, [width * blocks], width * blocks * 4)
        more = {"K": width, "N": width, "bits": bits, "block_size": 32}
        return [node("MatMulNBits", f"{last} w{i} s{i}", f"h{i}", name=f"layer{i}", domain="com.microsoft", **more)]

    return FLOAT, bits / 8 + 4 / 32, layer


def linear8(file, i, last, width):
    file.add(f"w{i}", UINT8, [width, width], width * width)
    file.add(f"s{i}", FLOAT, [width], width * 4)
    file.add(f"z{i}", UINT8, [width], width)
    return [
        node("DequantizeLinear", f"w{i} s{i} z{i}", f"d{i}", name=f"unpack{i}", axis=1),
        node("MatMul", f"{last} d{i}", f"h{i}", name=f"layer{i}"),
    ]


KINDS = {
    "fp32": plain(FLOAT, 4),
    "fp16": plain(FLOAT16, 2),
    "bf16": plain(BFLOAT16, 2),
    "8 bits": nbits(8),
    "4 bits": nbits(4),
    "8 bits, DequantizeLinear": (FLOAT, 1, linear8),
}


def write(folder, kind, mib, width):
    """A table of tokens that is gathered and, where it is fp32 or fp16, multiplied by too, and layers up to `mib`."""
    float_kind, size, layer = KINDS[kind]
    file = File()
    nodes = [node("Gather", "table ids", "rows", name="embed")]
    tied = layer.__qualname__.startswith("plain")
    bytes_of = 4 if float_kind == FLOAT else 2
    n_tokens = max(64, int(mib * MIB * (0.3 if tied else 0.05) / width / bytes_of) // 64 * 64)
    file.add("table", float_kind, [n_tokens, width], n_tokens * width * bytes_of)
    last, i = "rows", 0
    while file.n_bytes < mib * MIB:
        nodes += layer(file, i, last, width)
        last, i = f"h{i}", i + 1
    out = width
    if tied:
        nodes.append(node("Gemm", f"{last} table", "logits", name="head", transB=1))
        last, out = "logits", n_tokens
    ends = [value("ids", [4], 7)], [value(last, [4, out], float_kind)]
    path = os.path.join(folder, "model.onnx")
    with open(path, "wb") as out_file:
        out_file.write(model(graph(nodes, *ends, file.weights), version=21, ir=10, more=HOST))
    with open(os.path.join(folder, "w.bin"), "wb") as out_file:
        out_file.truncate(file.n_bytes)
    return path, file.n_bytes


def planned(path, options):
    """The plan's bytes of all ranks without parameters."""
    result = run("plan", path, "--json", *options, timeout=300)
    if result.status != DONE:
        return 0
    memory = json.loads(result.out)["memory"]
    return sum(rank["total_bytes"] - rank["params_bytes"] for rank in memory)


def check(count, kind, mib, width, *options):
    with tempfile.TemporaryDirectory() as folder:
        path, stored = write(folder, kind, mib, width)
        result = run("run", path, *options, timeout=600)
        more = planned(path, options)
    most = MOST_RATIO * stored / MIB + more / MIB + MOST_MORE_MIB
    text = f"{kind}, {stored // MIB} MiB{' ' + ' '.join(options) if options else ''}"
    print(f"{text}: {result.peak_mib} MiB, {(result.peak_mib - more / MIB) * MIB / stored:.2f} of it; {result.seconds:.1f} s", flush=True)
    problem = result.broken(600, most)
    if problem is None and result.status != DONE:
        problem = result.err[:300]
    count.check(text, problem)


def main(sizes, width, *more):
    count = Count()
    for mib in sizes:
        for kind in KINDS:
            check(count, kind, mib, width, "--stages", "1")
    for kind, mib, options in more:
        check(count, kind, mib, width, *options)
    return count.finish()

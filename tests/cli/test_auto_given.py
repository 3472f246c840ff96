#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""--auto where not every cut is a candidate: what it decides freely is no worse than what it finds
where the number of stages or ranks is given; and what is given is laid out, where it can be."""
import json
import os
import random
import tempfile

from command import DONE, Count, need_command, run

# seed, nodes, devices of a node, layers, batch, what is given
CASES = (
    (13, 3, 3, 13, 16, ["--stages", "8"], ["--ranks", "9"]),
    (14, 3, 3, 13, 16, ["--stages", "8"], ["--ranks", "4"]),
    (24, 3, 3, 13, 16, ["--stages", "8"], ["--stages", "4"]),
    (4, 2, 8, 11, 8, ["--stages", "2"], ["--ranks", "2"]),
    (5, 2, 8, 8, 4, ["--ranks", "11"], ["--ranks", "13"], ["--microbatches", "1"], ["--microbatches", "3"]),
)


def write(folder, name, content):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)
    return path


def profile(folder, seed, n_layers):
    """Layers of unequal times, messages and stashes."""
    drawn = random.Random(seed)
    scale = 10 ** drawn.uniform(5, 6.5)
    costs = []
    for k in range(n_layers):
        cut = 0 if k == n_layers - 1 else int(10 ** drawn.uniform(4, 6))
        costs.append({"flops": 0, "forward_ns": scale * drawn.uniform(0.5, 2), "input_ns": scale * drawn.uniform(0.5, 2),
                      "weight_ns": scale * drawn.uniform(0.3, 1), "output_bytes": cut, "cut_bytes": cut,
                      "stash_bytes": int(10 ** drawn.uniform(5, 7)), "param_bytes": int(10 ** drawn.uniform(5, 7.5)),
                      "width_share": 0, "width_bytes": 0})
    return write(folder, f"profile{seed}.json", {
        "format": "onnx-pipe profile 1", "name": "drawn", "tokens": 0, "weight_bytes": 4, "halves": True,
        "layers": [f"l{k}" for k in range(n_layers)], "sizes": [{"samples": 1, "costs": costs}]})


def cluster(folder, n_nodes, n_devices):
    tiers = [{"name": "in", "latency_ns": 2000, "bandwidth": 2e10}]
    if n_nodes > 1:
        tiers[0]["devices"] = n_devices
        tiers.append({"name": "net", "latency_ns": 10000, "bandwidth": 2e9})
    return write(folder, f"cluster{n_nodes}x{n_devices}.json", {
        "format": "onnx-pipe cluster 1", "nodes": n_nodes, "tiers": tiers,
        "devices": [{"kind": "cuda", "count": n_devices, "index": 0, "memory_bytes": 0, "flops": 1e13, "bandwidth": 5e11,
                     "launch_ns": 2000, "alignment": 256}],
        "links": [{"transport": "nccl", "rule": "tag", "latency_ns": 5000, "bandwidth": 1e10}]})


def whole_samples(count, folder):
    """16 samples on 9 replicas: one of them has two."""
    path = profile(folder, 6, 1)
    with open(path, encoding="utf-8") as file:
        costs = json.load(file)["sizes"][0]["costs"][0]
    result = run("plan", "--profile", path, "--cluster", cluster(folder, 1, 9), "--auto", "--batch", "16", "--stages", "1",
                 "--microbatches", "1", "--json", timeout=120)
    least = 2 * (costs["forward_ns"] + costs["input_ns"] + costs["weight_ns"])
    ns = json.loads(result.out)["objective_ns"] if result.status == DONE else 0
    count.check("samples are whole", None if ns >= least else f"{result.status}: {ns} ns, two samples take {least}: {result.err[-200:]}")


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        whole_samples(count, folder)
        for seed, n_nodes, n_devices, n_layers, batch, *given in CASES:
            ask = ["plan", "--profile", profile(folder, seed, n_layers), "--cluster", cluster(folder, n_nodes, n_devices),
                   "--auto", "--batch", str(batch), "--json"]
            best, said = None, ""
            for more in ([], *given):
                result = run(*ask, *more, timeout=120)
                if result.status != DONE:
                    said = said or f"{more}: {result.status}: {result.err[-300:]}"
                    continue
                ns = json.loads(result.out)["objective_ns"]
                best = ns if not more else best
                if more and best is not None and ns < best * (1 - 1e-9):
                    said = said or f"{best / ns:.4f} of what {' '.join(more)} takes"
            count.check(f"{n_layers} layers on {n_nodes} x {n_devices} devices", said or None)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())

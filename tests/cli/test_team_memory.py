#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=180 label=nosan
"""Memory of ranks as processes. A process reads nothing of other stages: their ranges of the model's file have no access there. Its private
memory and its segments grow by what the plan says of its ranks, within 3 % and 16 MiB."""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time

from command import COMMAND, DATA, DONE, SOURCE, run
from small import check

sys.path.insert(0, os.path.join(DATA, "attacks"))
import wire  # noqa: E402

WIDTH, LAYERS, ROWS = 1024, 24, 32  # 4 MiB a layer
LAYER = WIDTH * WIDTH * 4
MIB = 1 << 20


def build_preload(folder):
    path = os.path.join(folder, "forbid.so")
    subprocess.run([os.environ.get("OPIPE_CC", "cc"), "-shared", "-fPIC", "-O1", os.path.join(SOURCE, "tests", "cli", "forbid.c"), "-ldl", "-o", path],
                   check=True)
    return path


def output(i):
    return "y" if i == LAYERS - 1 else f"h{i}"


def write_model(folder):
    """y [batch, WIDTH] of x; layer i's weight is the i-th part of w.bin, which takes no disk."""
    nodes, weights, last = [], [], "x"
    for i in range(LAYERS):
        weights.append(wire.outside(f"w{i}", wire.FLOAT, [WIDTH, WIDTH], location="w.bin", offset=str(i * LAYER), length=str(LAYER)))
        nodes.append(wire.node("MatMul", f"{last} w{i}", output(i), output(i)))
        last = output(i)
    ends = [wire.value("x", ["batch", WIDTH])], [wire.value("y", ["batch", WIDTH])]
    path = os.path.join(folder, "model.onnx")
    with open(path, "wb") as file:
        file.write(wire.model(wire.graph(nodes, *ends, weights)))
    with open(os.path.join(folder, "w.bin"), "wb") as file:
        file.truncate(LAYERS * LAYER)
    return path


def write_data(folder):
    words = []
    for name in ("x", "t"):
        path = os.path.join(folder, name + ".pb")
        with open(path, "wb") as file:
            file.write(wire.tensor(name, wire.FLOAT, [ROWS, WIDTH], struct.pack("<f", 0.5) * (ROWS * WIDTH)))
        words += ["--data", f"{name}={path}"]
    return [*words, "--loss", "mse:output=y,target=t", "--batch", str(ROWS)]


def layers_of(plan):
    """By rank: the layers whose weights it holds."""
    held = {}
    for stage in plan["stages"]:
        held.setdefault(stage["rank"], set()).update(i for i in range(LAYERS) if output(i) in stage["nodes"])
    return held


def forbidden(held):
    """For forbid.c: all other ranks' weights."""
    out = {}
    for rank, layers in held.items():
        out[f"OPI_FORBID_{rank}"] = ",".join(f"{i * LAYER}+{LAYER}" for i in range(LAYERS) if i not in layers)
    return out


# ---- memory of the processes ----


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def rank_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        found = [word for word in file.read().split(b"\0") if word.startswith(b"RANK=")]
    return int(found[0][5:]) if found else None


def held_bytes(pid):
    """Private memory, and segments that the process has made: it keeps their descriptors, of others' it has mappings alone."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        anon = int(re.search(r"RssAnon:\s+(\d+)", file.read()).group(1)) * 1024
    segments = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        if os.readlink(path).startswith("/memfd:onnx-pipe"):
            info = os.stat(path)
            segments[info.st_ino] = info.st_blocks * 512
    return anon, sum(segments.values())


def watch(process):
    """By rank: the most of private memory and segments together, and the segments then."""
    most = {}
    while process.poll() is None:
        for pid in children(process.pid):
            try:
                rank = rank_of(pid)
                anon, segments = held_bytes(pid)
            except (OSError, AttributeError):
                continue
            if rank is not None and anon + segments > sum(most.get(rank, (0, 0))):
                most[rank] = (anon, segments)
        time.sleep(0.02)
    return most


def measure(count, what, folder, preload, planning, words):
    """Launches two processes that may read only their own; compares what they hold with the plan. The plan is made before: whoever makes one
    reads a little of every tensor, to know what is a parameter."""
    path = os.path.join(folder, "plan.json")
    planned = run("plan", *planning, "--ranks", "2", "--transport", "shm", "-o", path)
    if planned.status != DONE:
        count.check(what, planned.err[:500])
        return
    with open(path, encoding="utf-8") as file:
        plan = json.load(file)
    held = layers_of(plan)
    count.check(f"{what}: two ranks share the layers out", None if len(held) == 2 and all(len(one) > 4 for one in held.values()) else held)
    environment = dict(os.environ, LD_PRELOAD=preload, OPI_FORBID_FILE="/w.bin", **forbidden(held))
    with tempfile.TemporaryFile("w+", dir=folder) as said:
        process = subprocess.Popen([COMMAND, "launch", "-n", "2", "--", *words, "--plan", path], env=environment, stdout=said, stderr=said)
        most = watch(process)
        said.seek(0)
        text = said.read()
    count.check(f"{what}: reads only its own", None if process.returncode == 0 else f"status {process.returncode}: {text[-700:]}")
    count.check(f"{what}: the others' ranges had no access", None if text.count("forbidden in rank") == 2 else text[-700:])
    for rank, memory in enumerate(plan["memory"]):
        predicted = memory["total_bytes"] - memory.get("mapped_bytes", 0)
        anon, segments = most.get(rank, (0, 0))
        off = anon + segments - predicted
        print(f"{what}, rank {rank}: predicted {predicted / MIB:.1f} MiB, private {anon / MIB:.1f}, segments {segments / MIB:.2f}", flush=True)
        count.check(f"{what}: rank {rank} grows by the prediction",
                    None if abs(off) <= 0.03 * predicted + 16 * MIB else f"{off / MIB:.1f} MiB off {predicted / MIB:.1f}")


def only_process_0_plans(count, folder, preload, model, size):
    """Without a plan's file process 0 makes the plan, and reads a little of every tensor; process 1 still reads nothing of rank 0's."""
    path = os.path.join(folder, "plan.json")
    planned = run("plan", model, *size, "--ranks", "2", "--transport", "shm", "-o", path)
    with open(path, encoding="utf-8") as file:
        held = layers_of(json.load(file))
    environment = dict(os.environ, LD_PRELOAD=preload, OPI_FORBID_FILE="/w.bin", OPI_FORBID_1=forbidden(held)["OPI_FORBID_1"])
    done = subprocess.run([COMMAND, "launch", "-n", "2", "--", "run", model, *size], env=environment, capture_output=True, text=True, check=False)
    held_back = done.stderr.count("forbidden in rank 1") == 1
    count.check("no plan file: process 1 reads only its own",
                None if planned.status == DONE and done.returncode == 0 and held_back else f"status {done.returncode}: {done.stderr[-700:]}")


def two_processes(count, folder):
    preload, model = build_preload(folder), write_model(folder)
    size, requests = ["--bind", f"batch={ROWS}"], ["--requests", "60"]
    measure(count, "inference", folder, preload, [model, *size], ["run", model, *requests])
    only_process_0_plans(count, folder, preload, model, size)
    data = write_data(folder)
    measure(count, "training", folder, preload,
            [model, "--train", *data, "--microbatches", "4", "--schedule", "1f1b", "--optimizer", "sgd:lr=0.01"], ["train", model, *data, "--steps", "8"])


if __name__ == "__main__":
    if not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
        print("SKIP: /proc does not list the children of a process here")
        sys.exit(77)
    sys.exit(check(two_processes))

# SPDX-License-Identifier: Apache-2.0
"""Shared by tests of training by several processes: processes with torchrun's variables, and the tensors of a checkpoint."""
import json
import os
import re
import struct
import subprocess
import time

from command import COMMAND, DATA

TRAIN = ["train", os.path.join(DATA, "demo", "model.onnx"), "--data", "text:" + os.path.join(DATA, "text", "ferry.txt"), "--loss",
         "cross-entropy:logits=logits,labels=labels,shift=1", "--batch", "4", "--microbatches", "4"]
jobs = [0]


def command(*words, timeout=120, **more):
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=timeout, **more)


def launch(n, *words, options=(), **more):
    return command("launch", "-n", str(n), *options, "--", *words, **more)


def steps(done):
    """Losses and norms of a run that printed JSON, with or without launch's "[rank 0] "."""
    text = re.sub(r"(?m)^\[rank 0\] ", "", done.stdout)
    return [(s["step"], s["loss"], s["gradient_norm"]) for s in json.loads(text)["steps"]]


def manifest(folder):
    with open(os.path.join(folder, "manifest.json")) as file:
        return json.load(file)


def tensors_of(path):
    """{name: (type, shape, bytes)} of a safetensors file."""
    with open(path, "rb") as file:
        data = file.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    body = data[8 + n:]
    return {name: (e["dtype"], tuple(e["shape"]), body[e["data_offsets"][0]:e["data_offsets"][1]]) for name, e in header.items()}


def tensors(folder):
    """All tensors of a checkpoint, of one shard or several; no name twice."""
    found, listed = {}, manifest(folder)
    for shard in listed.get("shards", [listed]):
        for kind in ("weights", "state"):
            more = tensors_of(os.path.join(folder, shard[kind]))
            assert not set(more) & set(found), set(more) & set(found)
            found.update(more)
    return found


class Job:
    """Processes as a launcher starts them, without one. more: words of each; folders: where each runs."""

    def __init__(self, n, *words, more=None, folders=None):
        jobs[0] += 1
        self.all = []
        for rank in range(n):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + jobs[0]),
                       TORCHELASTIC_RUN_ID=f"team-{os.getpid()}")
            own = list(more[rank]) if more else []
            self.all.append(subprocess.Popen([COMMAND, *words, *own], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                             cwd=folders[rank] if folders else None))

    def until(self, start):
        """Reads process 0's output until a line begins so."""
        for line in self.all[0].stdout:
            if line.startswith(start):
                return True
        return False

    def end(self, but=None, timeout=60):
        """[(status, error text, output)] of all but one."""
        ended = []
        for rank, process in enumerate(self.all):
            if rank == but:
                ended.append(None)
                continue
            try:
                out, err = process.communicate(timeout=timeout)
                ended.append((process.returncode, err, out))
            except subprocess.TimeoutExpired:
                ended.append((None, "it hangs", ""))
        for process in self.all:
            if process.poll() is None:
                process.kill()
                process.communicate()
        return ended


class Checks:
    """Counts what does not hold, and runs the tests of a file."""

    def __init__(self):
        self.wrong = []

    def __call__(self, holds, what):
        if not holds:
            self.wrong.append(what)
            print("WRONG: " + what)

    def run(self, names):
        for name, test in sorted(names.items()):
            if name.startswith("test_"):
                began = time.monotonic()
                test()
                print(f"{name}: {time.monotonic() - began:.1f} s")
        return 1 if self.wrong else 0

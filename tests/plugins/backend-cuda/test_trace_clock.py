#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""train --trace of two ranks on one GPU of the doubles, whose streams have clocks that no host's runs with: boxes are in an
order that the device can have had, and as long as its work, by the time of events on the streams."""
import json
import os
import re
import subprocess
import sys
import tempfile

BUILD = os.environ["OPIPE_BUILD_DIR"]
SOURCE = os.environ["OPIPE_SOURCE_DIR"]
DOUBLES = os.path.join(BUILD, "tests", "cuda")
COMMAND = os.path.join(BUILD, "bin", "onnx-pipe")
RANKS, MICRO, KERNEL_US = 2, 4, 100000
TRAIN = ["train", os.path.join(SOURCE, "tests", "data", "gpt_8block", "model.onnx"), "--bind", "seq=8", "--data",
         "text:" + os.path.join(SOURCE, "README.md"), "--loss", "cross-entropy:logits=logits,labels=labels,shift=1", "--optimizer", "sgd:lr=0.1", "--batch", str(MICRO), "--steps", "2",
         "--ranks", str(RANKS), "--microbatches", str(MICRO), "--schedule", "1f1b", "--plugin", os.path.join(DOUBLES, "plugins")]
NAME = re.compile(r"([FB]) stage (\d+), micro-batch (\d+)")
NEAR = 1e-6  # of the longest time that is asked for: a float's
failed = []


def trace(folder, seed, device):
    path = os.path.join(folder, "trace.json")
    done = subprocess.run([COMMAND, *TRAIN, "--device", device, "--trace", path], capture_output=True, text=True, check=False,
                          env=dict(os.environ, OPIPE_CUDA_PATH=DOUBLES, OPIPE_CUDA_DOUBLE_SEED=str(seed),
                                   OPIPE_CUDA_DOUBLE_KERNEL_US=str(KERNEL_US)))
    if done.returncode != 0:
        raise RuntimeError("status %d: %s" % (done.returncode, done.stderr[-400:]))
    with open(path, encoding="utf-8") as file:
        return json.load(file)["traceEvents"]


def problem_of(events):
    clocks = [e["args"].get("clock") for e in events if e["name"] == "thread_name" and e["pid"] == 0 and e["tid"] < RANKS]
    if clocks != ["device"] * RANKS:
        return "clocks %s" % clocks
    boxes = {(m[1], int(m[2]), int(m[3])): (e["ts"], e["ts"] + e["dur"], e["tid"]) for e in events
             for m in [NAME.fullmatch(e["name"])] if m and e["ph"] == "X" and e["pid"] == 0}
    if len(boxes) != 2 * RANKS * MICRO:
        return "%d boxes" % len(boxes)
    near = NEAR * max(end for _, end, _ in boxes.values())
    for rank in range(RANKS):
        lane = sorted(box for box in boxes.values() if box[2] == rank)
        if any(a[1] > b[0] + near for a, b in zip(lane, lane[1:])):
            return "boxes of rank %d lie over each other" % rank
    lanes = [[box for box in boxes.values() if box[2] == rank] for rank in range(RANKS)]
    if not any(a[0] < b[1] - near and b[0] < a[1] - near for a in lanes[0] for b in lanes[1]):
        return "no two ranks run at once"
    lengths = {}
    for (name, stage, m), (start, end, _) in boxes.items():
        reads = [("F", stage - 1, m)] if name == "F" else [("F", stage, m), ("B", stage + 1, m)]
        if any(key in boxes and boxes[key][1] > start + near for key in reads):
            return "%s of stage %d, micro-batch %d begins before what it reads" % (name, stage, m)
        if end - start < 2 * KERNEL_US:
            return "%s of stage %d, micro-batch %d takes %.3f us, its kernels 100 ms each" % (name, stage, m, end - start)
        lengths.setdefault((name, stage), []).append(end - start)
    for key, found in lengths.items():  # what is queued at once takes the same time; the host's never would
        if sum(abs(one - min(found)) <= near for one in found) < 2:
            return "programs of %s take %s us" % (key, sorted(found))
    return ""


def main():
    if not os.path.exists(os.path.join(DOUBLES, "libcuda.so.1")):
        print("SKIP: the doubles of CUDA need a C++ compiler at build")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        for seed, device in ((1, "cuda"), (2, "cuda"), (3, "cuda,graphs=1")):
            try:
                problem = problem_of(trace(folder, seed, device))
            except RuntimeError as why:
                problem = str(why)
            if problem:
                failed.append("%s, seed %d: %s" % (device, seed, problem))
    for line in failed:
        print("FAILED:", line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

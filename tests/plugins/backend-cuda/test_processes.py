#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 label=twice
"""Training as processes of one machine with a GPU of the doubles each: messages go straight to the other process's device memory, by the
driver's handles, or through pinned memory where a device or the driver does not share; losses have the bits of threads either way, and
whoever looks is told which it is. A process that is killed is every process's error."""
import json
import os
import re
import signal
import subprocess
import sys

BUILD = os.environ["OPIPE_BUILD_DIR"]
SOURCE = os.environ["OPIPE_SOURCE_DIR"]
DOUBLES = os.path.join(BUILD, "tests", "cuda")
COMMAND = os.path.join(BUILD, "bin", "onnx-pipe")
TRAIN = ["train", os.path.join(SOURCE, "tests", "data", "gpt_8block", "model.onnx"), "--bind", "seq=8", "--data",
         "text:" + os.path.join(SOURCE, "README.md"), "--loss", "cross-entropy:logits=logits,labels=labels,shift=1", "--optimizer",
         "sgd:lr=0.1", "--batch", "2", "--steps", "2", "--ranks", "2", "--microbatches", "2", "--schedule", "1f1b", "--plugin",
         os.path.join(DOUBLES, "plugins")]
ONE, TWO = ["--device", "cuda:0"], ["--device", "cuda:0", "--device", "cuda:1"]
failed = []


def check(holds, what):
    if not holds:
        failed.append(what)
        print("WRONG: " + what)


def environment(**doubles):
    return dict(os.environ, OPIPE_CUDA_PATH=DOUBLES, OPIPE_CUDA_DOUBLE_ALIKE="1", **{"OPIPE_CUDA_DOUBLE_" + k: v for k, v in doubles.items()})


def run(*words, **doubles):
    return subprocess.run([COMMAND, *words], env=environment(**doubles), capture_output=True, text=True, timeout=120, check=False)


def losses(done):
    """With the bits that are printed; with or without launch's "[rank 0] "."""
    text = re.sub(r"(?m)^\[rank 0\] ", "", done.stdout)
    try:
        return [(s["step"], s["loss"], s["gradient_norm"]) for s in json.loads(text)["steps"]]
    except (ValueError, KeyError):
        return None


def launched(devices, **doubles):
    return run("launch", "-n", "2", "--", *TRAIN, *devices, "--json", **doubles)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def a_killed_process_ends_the_job():
    """Between two steps or within one: the other has its memory open, and messages to it on the way."""
    job = subprocess.Popen([COMMAND, "launch", "-n", "2", "--", *TRAIN[:12], "--steps", "1000", *TRAIN[14:], *ONE], env=environment(),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in job.stdout:
            if "step 1 " in line:
                break
        os.kill(children(job.pid)[-1], signal.SIGKILL)
        out, err = job.communicate(timeout=60)
        check(job.returncode != 0, f"a killed process: status {job.returncode}")
        check(re.search("has ended|was killed|signal 9|SIGKILL", out + err), f"a killed process: {(out + err)[-500:]}")
        check("cuda double" not in err, f"a killed process: {err[-500:]}")
    finally:
        if job.poll() is None:
            job.kill()


def through_ucx(wanted):
    """Where UCX is: never device memory."""
    plan = run("plan", *TRAIN[1:12], *TRAIN[14:], "--train", *ONE, "--transport", "ucx:together=1")
    done = run("launch", "-n", "2", "--", *TRAIN, *ONE, "--json", "--transport", "ucx:together=1")
    if "libucp" in done.stderr:
        print("SKIP: a case needs libucx0")
        return
    check("through pinned host memory" in plan.stdout, f"UCX: {plan.stdout[-300:]}{plan.stderr[-300:]}")
    check(losses(done) == wanted, f"UCX: {losses(done)}, threads {wanted}: {done.stderr[-600:]}")
    check("travel" not in done.stderr, f"UCX: {done.stderr[-600:]}")


# Devices, the doubles' environment; what the plan says; a warning of the session's, None: there is none.
CASES = [
    (ONE, {}, "straight to device memory of the other process", None),
    (ONE, {"IPC": "0"}, "through pinned host memory", None),
    (ONE, {"IPC": "2"}, "straight to device memory of the other process", "travel through pinned host memory: rank . lends no device memory"),
    (ONE, {"IPC": "3"}, "straight to device memory of the other process", "travel through pinned host memory: .*CUDA_ERROR_MAP_FAILED"),
    (TWO, {"PEERS": "1"}, "straight to device memory of the other process", None),
    (TWO, {"PEERS": "0"}, "through pinned host memory", None),
]


def main():
    if not os.path.exists(COMMAND) or not os.path.exists(os.path.join(DOUBLES, "libcuda.so.1")):
        print("SKIP: the command, or the doubles of CUDA, which need a C++ compiler, are not there")
        return 77
    cover = os.environ.get("OPIPE_TEST_COVER")
    turn = 1 + int(cover or 0) % (len(CASES) - 1)
    wanted = losses(run(*TRAIN, *ONE, "--json", "--transport", "shm"))
    check(wanted is not None, "threads train")
    for number, (devices, doubles, told, warned) in enumerate(CASES):
        if cover and number not in (0, turn):
            continue
        what = f"{' '.join(devices)} {doubles}"
        plan = run("plan", *TRAIN[1:12], *TRAIN[14:], "--train", *devices, "--transport", "shm", **doubles)
        check(told in plan.stdout, f"{what}: the plan says no '{told}': {plan.stdout[-600:]}{plan.stderr[-300:]}")
        done = launched(devices, **doubles)
        check(losses(done) == wanted, f"{what}: {losses(done)}, threads {wanted}: {done.stderr[-600:]}")
        found = re.search(warned or "messages of rank . to rank . travel", done.stderr)
        check((found is not None) == (warned is not None), f"{what}: {warned}: {done.stderr[-600:]}")
    if not cover:
        through_ucx(wanted)
    a_killed_process_ends_the_job()
    print(f"{len(failed)} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

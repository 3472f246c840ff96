#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900
"""The bundle for machines with a GPU, made of this build and the doubles: where there is no device every line says so, part
by part; where the doubles act as one, lines of every part run, a part that was cut short goes on, a line that fails is told."""
import glob
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.environ["OPIPE_BUILD_DIR"]
SOURCE = os.environ["OPIPE_SOURCE_DIR"]
DOUBLES = os.path.join(BUILD, "tests", "cuda")
PARTS = ("facts", "correct", "train", "infer")
SANITIZED = os.path.basename(BUILD) in ("asan", "tsan")
LINES = {"facts": ["libraries", "device", "ceilings", "attention of cuDNN"],
         "correct": ["kernels against fp64", "outputs beside the CPU's", "steps of decoding", "gradients beside the CPU's", "gradients of masked attention",
                     "losses beside the CPU's", "promises of the backend", "models", "training on 1 rank", "training on 2 ranks", "training on 4 ranks",
                     "training in half types", "tensors and streams of a host", "memory"],
         "train": ["GPT-2 tiny", "124M, 2 ranks on the GPU", "124M, 2 ranks in 2 processes", "deterministic=1 beside 0", "norm_sums=1 beside 0", "tiny, tuned"],
         "infer": ["prefill of 124M at 1 x 1024", "prefill of 124M at 1 x 1024, as graphs", "a decode step of 1B at past 512",
                   "a decode step of 1B, pdl=1 beside 0"]}
failed = []


def chosen(part):
    """Lines of the part to run: in a cover every second one, which ones changes with the sources."""
    if not os.environ.get("OPIPE_TEST_COVER"):
        return LINES[part]
    state = hashlib.sha256()
    for path in sorted(glob.glob(os.path.join(SOURCE, "tests", "gpu", "*.py"))):
        with open(path, "rb") as file:
            state.update(file.read())
    return [name for i, name in enumerate(LINES[part]) if part == "facts" or (i + state.digest()[0]) % 2 == 0 or name == "promises of the backend"]


def expect(condition, what):
    if not condition:
        failed.append(what)


def gpu(bundle, *arguments, device=True):
    own = {key: value for key, value in os.environ.items() if key != "OPIPE_CUDA_PATH" and not key.startswith("OPIPE_PLUGIN")}
    own.update(OPIPE_GPU_SMALL="1", **({"OPIPE_CUDA_PATH": DOUBLES} if device else {}))
    done = subprocess.run([sys.executable, os.path.join(bundle, "gpu.py"), *arguments], env=own, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def whole(bundle):
    with open(os.path.join(bundle, "record.json"), encoding="utf-8") as file:
        return json.load(file)


def record(bundle):
    return whole(bundle)["lines"]


def without_device(bundle):
    for part in PARTS:
        status, said = gpu(bundle, part, device=False)
        expect(status == 3 and "no device: " in said, "%s without a device: status %d: %s" % (part, status, said))
        for name, result in record(bundle)[part].items():
            if name not in ("machine", "versions", "peers"):
                expect(result["status"] == "not run" and result["value"].startswith("no device: "), "%s, %s: %s" % (part, name, result))


def with_doubles(bundle):
    for part in PARTS:
        lines = chosen(part)
        only = [word for name in lines for word in ("--only", name)]
        status, said = gpu(bundle, part, *only)
        expect(status == 0 and "%d ok, 0 failed, 0 missed, 0 not run" % len(lines) in said, "%s: status %d: %s" % (part, status, said))
    status, said = gpu(bundle, "facts", "--only", "libraries")
    expect("is in the record" in said, "a line that is there is run again: " + said)
    told = record(bundle)["facts"]["attention of cuDNN"]["value"]
    expect(told["cuda"] == told["cuda,deterministic=0"] == "all of it", "attention of cuDNN: %s" % told)
    os.environ["OPIPE_CUDA_DOUBLE_DNN_REFUSES"] = "1"
    gpu(bundle, "facts", "--again", "--only", "attention of cuDNN")
    told = record(bundle)["facts"]["attention of cuDNN"]["value"]
    expect("our own kernels, cuDNN: no engine" in told["cuda"][0], "attention that cuDNN refuses: %s" % told)
    del os.environ["OPIPE_CUDA_DOUBLE_DNN_REFUSES"]
    status, said = gpu(bundle, "facts", "--only", "two NCCL ranks on one GPU")
    expect("0 ok, 0 failed, 0 missed, 1 not run" in said and "there is no transport over NCCL yet" in said, said)


def a_failure(bundle):
    os.remove(os.path.join(bundle, "bin", "conformance-backend"))
    shutil.copy("/bin/false", os.path.join(bundle, "bin", "conformance-backend"))
    status, said = gpu(bundle, "correct", "--again", "--only", "promises of the backend")
    expect(status == 1 and "conformance-backend: status 1" in said, "a line that fails: status %d: %s" % (status, said))
    status, said = gpu(bundle, "record")
    with open(said.strip().splitlines()[-1], encoding="utf-8") as file:
        page = file.read()
    for text in ("| promises of the backend | failed | ", "| device | ok | ", "| compute-sanitizer | not run | ", "commit "):
        expect(text in page, "the page lacks '%s':\n%s" % (text, page))


def a_cut(bundle):
    """A line that a signal ended, and one that was begun when all ended: said, the page written, results before them kept."""
    slow = os.path.join(bundle, "bin", "conformance-backend")
    with open(slow, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\nexec sleep 600\n")
    os.chmod(slow, 0o755)
    own = {key: value for key, value in os.environ.items() if not key.startswith("OPIPE_PLUGIN")}
    own.update(OPIPE_GPU_SMALL="1", OPIPE_CUDA_PATH=DOUBLES)
    for number, status in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        with subprocess.Popen([sys.executable, os.path.join(bundle, "gpu.py"), "correct", "--again", "--only", "promises of the backend"], env=own,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            until = time.monotonic() + 60
            while "begun" not in whole(bundle) and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(0.2)
            run.send_signal(number)
            ended = run.wait(60)
        expect(ended == status, "signal %d: status %d" % (number, ended))
        subprocess.run(["pkill", "-P", str(run.pid)], check=False)
        told = gpu(bundle, "record")
        expect(told[0] == 0 and record(bundle)["correct"]["promises of the backend"]["status"] in ("cut off", "failed"), "a line that was cut off: %s"
               % record(bundle)["correct"]["promises of the backend"])
        expect(record(bundle)["facts"]["device"]["status"] == "ok", "a result is lost with a line that was cut off")
    status, said = gpu(bundle, "lease", "--seconds", "1")
    expect(status == 1 and "the 1 s were over" in said and record(bundle)["facts"]["device"]["status"] == "ok", "a lease of a second: " + said)
    os.environ["OPIPE_GPU_WORK"] = os.path.join(bundle, "gpu.py", "no folder")
    status, said = gpu(bundle, "facts", "--again", "--only", "ceilings", "--only", "device")
    expect(status == 1 and "1 ok, 1 failed" in said and "NotADirectoryError" in said, "what nobody foresaw: " + said)
    del os.environ["OPIPE_GPU_WORK"]


def main():
    if not os.path.exists(os.path.join(DOUBLES, "libcuda.so.1")):
        print("SKIP: the doubles of CUDA need a C++ compiler at build")
        return 77
    if SANITIZED:
        print("SKIP: a bundle is made of a plain build")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        bundle = os.path.join(folder, "bundle")
        image = os.path.join(folder, "image")
        with open(image, "wb") as file:
            file.write(b"shim")
        made = subprocess.run([sys.executable, os.path.join(SOURCE, "tests", "gpu", "bundle.py"), BUILD, bundle, "--image", image,
                               "--plugin", os.path.join(DOUBLES, "plugins", "opipe-backend-cuda.so")], capture_output=True, text=True, check=False,
                              env=dict(os.environ, OPIPE_GPU_SMALL="1"))
        if made.returncode != 0:
            print("FAILED:", made.stdout, made.stderr)
            return 1
        if subprocess.run("ldconfig -p | grep -q libcuda.so.1", shell=True, check=False).returncode != 0:
            without_device(bundle)
        with_doubles(bundle)
        a_failure(bundle)
        a_cut(bundle)
    for line in failed:
        print("FAILED:", line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

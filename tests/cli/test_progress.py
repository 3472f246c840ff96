#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""Reports of a run about itself: progress on a terminal and nowhere else, what was measured before SIGINT, what was
saved where, disks without room, inputs that were pinned and streams over nothing."""
import json
import os
import pty
import re
import signal
import subprocess
import tempfile

import small
from command import COMMAND, DATA, DONE, REFUSED, SHARED, SOURCE, USAGE, run
from test_train_safety import wrong

MODEL = os.path.join(DATA, "demo", "model.onnx")
TEXT = ["--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=16", "--loss", "cross-entropy:logits=logits,labels=labels"]
BRANCH = os.path.join(SHARED, "trials", "data_dependent_if")


def on_terminal(*arguments, until=None):
    """Standard error is a terminal: (status, output, what the terminal got). until: SIGINT is sent when it shows this."""
    ours, theirs = pty.openpty()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=theirs)
        os.close(theirs)
        got = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                break
            if not part:
                break
            got += part
            if until and re.search(until, got):
                process.send_signal(signal.SIGINT)
                until = None
        os.close(ours)
        status = process.wait(60)
        out.seek(0)
        return status, out.read().decode(), got.decode()


def terminal(count, _):
    stream = ["run", MODEL, "--stages", "2", "--bind", "batch=8,seq=64", "--requests", "400"]
    train = ["train", MODEL, *TEXT, "--batch", "8", "--steps", "30"]
    for arguments, lines in ((stream, [r"loading .*model\.onnx", r"request \d+ of 400  [\d.e+]+ per second, \d+:\d\d min left"]),
                             (train, [r"step \d+ of 30  [\d.e+]+ samples/s, [\d.e+]+ tokens/s, \d+:\d\d min left"])):
        status, out, shown = on_terminal(*arguments)
        lacking = [line for line in lines if not re.search(line, shown)]
        problem = None if status == DONE and not lacking else f"{status}, not shown: {lacking}: {shown[-300:]}"
        if not problem and (" min left" in out or not shown.endswith("\x1b[K")):
            problem = "progress stands in the output, or stays on the terminal"
        count.check(arguments[0] + " on a terminal", problem)
        plain = run(*arguments)
        count.check(arguments[0] + " without one", wrong(plain) or (plain.err if "\r" in plain.err or " min left" in plain.err else None))


def stopped(count, _):
    """SIGINT ends a stream in order; what it has measured so far is its answer."""
    for more in ([], ["--json"]):
        status, out, err = on_terminal("run", MODEL, "--stages", "2", "--requests", "5000000", *more, until=rb"request [1-9]\d* of")
        said = re.search(r"SIGINT: stopped after (\d+) of 5000000 requests", err)
        problem = None if status == 128 + signal.SIGINT and said else f"{status}: {err[-200:]}"
        if not problem:
            n = int(said.group(1))
            told = json.loads(out)["requests"] if more else int(re.search(r"(\d+) requests in .* per second", out).group(1))
            problem = None if told == n > 0 else f"{told} and {n}"
        count.check(f"SIGINT {' '.join(more)}", problem)


def latency(count, _):
    one, many = (run("run", MODEL, "--stages", "1", *more) for more in ([], ["--requests", "3"]))
    count.check("one request", wrong(one) or (None if one.out.count("latency") == 1 and "median" not in one.out else one.out[-200:]))
    count.check("three", wrong(many) or (None if "99 %" in many.out else many.out[-200:]))


def saved(count, folder):
    data, model = small.write_data(folder), small.write_model(os.path.join(folder, "model.onnx"))
    train = ["train", model, *data, "--batch", "8"]
    plain = run(*train, "--steps", "2")
    problem = wrong(plain, DONE, "warning: the trained weights will not be saved: --save DIR")
    count.check("nothing is saved", problem or (None if "saved:" not in plain.out and "2 steps in " in plain.out else plain.out))
    count.check("tokens of rows of numbers", None if "tokens" not in plain.out and " samples per second\n" in plain.out else plain.out[-200:])
    paths = {option: os.path.join(folder, option) for option in ("save", "save-model", "save-gradients", "trace")}
    result = run(*train, "--epochs", "3", *(part for option, path in paths.items() for part in ("--" + option, path)))
    problem = wrong(result) or ("a warning: " + result.err if "not be saved" in result.err else None)
    lacking = [path for path in paths.values() if not re.search(rf"^saved: .*of step 6 (in|as) {re.escape(path)}$", result.out, re.M)]
    count.check("what is saved, of three epochs of two mini-batches", problem or (f"not said: {lacking}: {result.out}" if lacking else None))


def disks(count, folder):
    """A small file system: what is needed and what is free are said before the first step."""
    disk = os.path.join(folder, "disk")
    os.mkdir(disk)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, check=False).returncode:
        count.skip("disks without room: no file system can be mounted here")
        return
    try:
        train = ["train", MODEL, *TEXT, "--batch", "4", "--steps", "2"]
        for what in (["--save", "c"], ["--save-model", "m.onnx", "--save-gradients", "g.safetensors"]):
            places = [os.path.join(disk, word) if i % 2 else word for i, word in enumerate(what)]
            result = run(*train, *places)
            problem = wrong(result, REFUSED, *what[::2], places[-1], " MiB) are needed, and ", " MiB) are free on that disk")
            count.check(" ".join(what), problem or ("it was trained first" if "step 1" in result.out else None) or
                        (f"something is left: {os.listdir(disk)}" if os.listdir(disk) else None))
        count.check("one that fits", wrong(run(*train, "--save-gradients", os.path.join(disk, "g.safetensors"))))
        os.remove(os.path.join(disk, "g.safetensors"))
        count.check("two that fit on disks of their own", wrong(run(*train, "--save-gradients", os.path.join(disk, "g.safetensors"), "--save-model",
                                                                     os.path.join(folder, "m.onnx"))))
    finally:
        subprocess.run(["umount", disk], check=False)


def pinned(count, folder):
    """An If that the data decide: said, and no throughput of what is not computed."""
    if not os.path.isdir(BRANCH):
        count.skip(f"{BRANCH} is not there")
        return
    arguments = ["run", os.path.join(BRANCH, "model.onnx"), "--input", "x=" + os.path.join(BRANCH, "x.npy")]
    why = "input 'x' is pinned to the values of --input: node 'n_node_49_If' (If)"
    result = run(*arguments)
    problem = wrong(result, DONE, why, "depends on graph input 'x'") or (result.out if "per second" in result.out else None)
    count.check("one request", problem or (None if "no node is left to compute" in result.out else result.out[-200:]))
    for more in (["--requests", "100"], ["--requests", "1"], ["--requests", "100", "--reference"], ["--requests", "3", "--stages", "2", "--json"]):
        result = run(*arguments, *more)
        problem = wrong(result, USAGE, why, f"--requests {more[1]}: with input 'x' pinned", "no node is left")
        count.check(" ".join(more), problem or (result.out or None))
    through = os.path.join(DATA, "odd", "no_nodes", "model.onnx")
    count.check("a model without nodes", wrong(run("run", through, "--requests", "5"), USAGE, "the model has no node to compute"))
    count.check("the same, once", wrong(run("run", through)))
    del folder


if __name__ == "__main__":
    raise SystemExit(small.check(terminal, stopped, latency, saved, disks, pinned))

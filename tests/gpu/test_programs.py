#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the bundle's parts run programs: what a program started ends with it, a signal ends a line at once, and a warning that
something was computed another way than was asked for is a failure."""
import os
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bundle_kit  # noqa: E402


def expect(good, what):
    if not good:
        raise SystemExit("FAILED: " + what)


def failure(function, *arguments, **more):
    try:
        function(*arguments, **more)
    except bundle_kit.Failed as why:
        return str(why)
    return ""


def is_there(process):
    """Zombies of nobody's are not."""
    try:
        with open("/proc/%d/stat" % process, encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def groups(folder):
    told = os.path.join(folder, "child")
    why = failure(bundle_kit.run, ["sh", "-c", "sleep 60 & echo $! >%s; wait" % told], bundle_kit.Clock(1))
    expect("not done after " in why, "a program that takes too long: " + why)
    with open(told, encoding="utf-8") as file:
        child = int(file.read())
    until = time.monotonic() + 5
    while is_there(child) and time.monotonic() < until:
        time.sleep(0.05)
    expect(not is_there(child), "what it started lives on")


def signals():
    def handler(number, _):
        raise SystemExit(128 + number)

    bundle_kit.JOBS = 1
    signal.signal(signal.SIGALRM, handler)
    signal.alarm(1)
    begun, status = time.monotonic(), 0
    try:
        bundle_kit.each(lambda seconds: bundle_kit.run(["sleep", seconds], bundle_kit.Clock(60)), ["20", "21", "22"])
    except SystemExit as end:
        status = end.code
    expect(status == 128 + signal.SIGALRM, "the signal is lost")
    expect(time.monotonic() - begun < 10, "items that were not begun are waited for")


def warnings():
    says = "echo 'onnx-pipe: %s' >&2; echo out"
    for line, refuse, good in (("not captured; no graph: the binding's 3 steps are a launch each", (), False), ("our own kernels, heads", (), True),
                               ("our own kernels, heads", ("our own kernels",), False), ("anything", ("our own kernels",), True)):
        why = failure(bundle_kit.command, ["sh", "-c", says % line.replace("'", "")], bundle_kit.Clock(20), refuse)
        expect((why == "") == good and (good or line.replace("'", "") in why), "'%s' with %s: '%s'" % (line, refuse, why))


def main():
    with tempfile.TemporaryDirectory() as folder:
        bundle_kit.LOG = folder
        groups(folder)
        signals()
        warnings()
    print("programs end as they should")


if __name__ == "__main__":
    main()

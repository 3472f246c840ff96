#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bundle_kit.py ends what it starts: programs that are not done in time, with what they have started; those of a line that a signal
ends. If time is over, correct.py still reports the runs of its sanitizer that ended before."""
import os
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = os.environ["OPIPE_SOURCE_DIR"]
sys.path[:0] = [os.path.join(SOURCE, "tests", "gpu"), os.path.join(SOURCE, "tests", "data/attacks")]
import bundle_kit  # noqa: E402
import correct  # noqa: E402

WRAPPER = "sleep 300 & echo $! > %s; wait"  # as compute-sanitizer and ncu do
LINE = """
import signal, sys
sys.path.insert(0, sys.argv[1])
import bundle_kit
def handler(number, _):
    raise SystemExit(128 + number)
signal.signal(signal.SIGTERM, handler)
bundle_kit.LOG, bundle_kit.JOBS = sys.argv[2], int(sys.argv[3])
clock = bundle_kit.Clock(300)
bundle_kit.each(lambda i: bundle_kit.command(["sh", "-c", "sleep 20 & echo $! > %s/%s; wait" % (sys.argv[2], i)], clock), range(5))
"""
failed = []


def expect(condition, what):
    if not condition:
        failed.append(what)


def number_in(path):
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if os.path.exists(path) and os.path.getsize(path) > 0:
            with open(path, encoding="utf-8") as file:
                return int(file.read())
        time.sleep(0.02)
    return 0


def has_ended(number):
    """Whether the process is gone, or but a name that nobody has asked about yet."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            with open("/proc/%d/stat" % number, encoding="utf-8") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def what_is_late(folder):
    path = os.path.join(folder, "late")
    began = time.monotonic()
    try:
        bundle_kit.run(["sh", "-c", "echo so far; " + WRAPPER % path], bundle_kit.Clock(1))
        expect(False, "what is not done in time is no failure")
    except bundle_kit.Failed as why:
        expect("not done after" in str(why), "what is late: %s" % why)
    expect(time.monotonic() - began < 15, "it ended %.1f s after 1 s" % (time.monotonic() - began))
    expect(has_ended(number_in(path)), "what a program started outlives it")
    with open(os.path.join(folder, "failures.log"), encoding="utf-8") as file:
        expect("so far" in file.read(), "what it had said is lost")
    done = bundle_kit.run(["sh", "-c", "echo out; echo error >&2; exit 3"], bundle_kit.Clock(20))
    expect((done.returncode, done.stdout, done.stderr) == (3, "out\n", "error\n"), "what ends by itself: %s" % done)


def a_line_that_is_ended(folder, jobs):
    with subprocess.Popen([sys.executable, "-c", LINE, os.path.join(SOURCE, "tests", "gpu"), folder, str(jobs)]) as line:
        numbers = [number_in(os.path.join(folder, str(i))) for i in range(jobs)]
        began = time.monotonic()
        line.send_signal(signal.SIGTERM)
        status = line.wait(120)
    expect(status == 128 + signal.SIGTERM, "%d at once: status %d" % (jobs, status))
    expect(time.monotonic() - began < 10, "%d at once: it ended after %.1f s" % (jobs, time.monotonic() - began))
    expect(all(has_ended(number) for number in numbers), "%d at once: programs outlive their line" % jobs)
    expect(not os.path.exists(os.path.join(folder, str(jobs))), "%d at once: one began behind the signal" % jobs)


def a_sanitizer_that_is_late(folder):
    """As many runs as the time does for: first none, then one."""
    tool = os.path.join(folder, "compute-sanitizer")
    with open(tool, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\ncase \"$5\" in *%s) [ -e %s/quick ] && { echo 0 errors; exit 0; } ;; esac\nexec sleep 60\n" % (correct.SANITIZED[0][1], folder))
    os.chmod(tool, 0o755)
    os.environ["PATH"] = folder + ":" + os.environ["PATH"]
    correct.kernel_tests = lambda: folder
    correct.kernels_image = lambda: ""
    for n_ended in (0, 1):
        try:
            said = correct.sanitizer(bundle_kit.Clock(2))
            expect(False, "compute-sanitizer that is not done: %s" % said)
        except bundle_kit.NotRun as why:
            expect("%d of %d runs" % (n_ended, len(correct.SANITIZED)) in str(why) and len(why.said) == n_ended, "%s: %s" % (why, why.said))
        with open(os.path.join(folder, "quick"), "w", encoding="utf-8"):
            pass


def warnings_of_another_way():
    """A graph that was asked for and not made is a failure; another warning, where it is named."""
    says = "echo 'onnx-pipe: %s' >&2; echo out"
    for line, refuse, good in (("not captured; no graph: 3 steps are a launch each", (), False), ("our own kernels, heads", (), True),
                               ("our own kernels, heads", ("our own kernels",), False), ("anything", ("our own kernels",), True)):
        why = ""
        try:
            out = bundle_kit.command(["sh", "-c", says % line], bundle_kit.Clock(20), refuse)
            expect(out == "out\n", "'%s': '%s'" % (line, out))
        except bundle_kit.Failed as failure:
            why = str(failure)
        expect((why == "") == good and (good or line in why), "'%s' with %s: '%s'" % (line, refuse, why))


def the_libraries_of_pip(folder):
    """Libraries of Python packages are found first, unless something else is asked for."""
    own = os.path.join(folder, "site-packages")
    where = os.path.join(own, "nvidia", "cudnn", "lib")
    os.makedirs(where)
    with open(os.path.join(where, "libcudnn.so.9"), "w", encoding="utf-8"):
        pass
    before, sys.path = sys.path, [own]
    said = os.environ.pop("OPIPE_CUDA_PATH", None)
    expect(bundle_kit.environment()["OPIPE_CUDA_PATH"] == where, "the folder of pip's cuDNN: %s" % bundle_kit.environment().get("OPIPE_CUDA_PATH"))
    expect(bundle_kit.environment(OPIPE_CUDA_PATH="other")["OPIPE_CUDA_PATH"] == "other", "a folder that was said is lost")
    sys.path = [os.path.join(folder, "none")]
    expect("OPIPE_CUDA_PATH" not in bundle_kit.environment(), "a folder without libraries")
    sys.path = before
    if said is not None:
        os.environ["OPIPE_CUDA_PATH"] = said


def main():
    with tempfile.TemporaryDirectory() as folder:
        bundle_kit.LOG = folder
        what_is_late(folder)
        for jobs in (1, 2):
            own = os.path.join(folder, "jobs%d" % jobs)
            os.mkdir(own)
            a_line_that_is_ended(own, jobs)
        a_sanitizer_that_is_late(folder)
        warnings_of_another_way()
        the_libraries_of_pip(folder)
    for line in failed:
        print("FAILED:", line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the command: running it with limits, and counting checks.

A sanitizer's report is a failure whatever the status; so is a signal or a hang.
"""
import os
import subprocess
import sys
import tempfile
import threading
import time

SOURCE = os.environ.get("OPIPE_SOURCE_DIR") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", "..")
)
BUILD = os.environ.get("OPIPE_BUILD_DIR") or os.path.join(SOURCE, "build")
SHARED = os.environ.get("OPIPE_SHARED_DIR") or os.path.join(SOURCE, "..", "shared")
SANITIZED = os.environ.get("OPIPE_SANITIZE", "").upper() not in ("", "OFF", "NONE")
COMMAND = os.path.join(BUILD, "bin", "onnx-pipe")
DATA = os.path.join(SOURCE, "tests", "data")

DONE, CHECK_FAILED, USAGE, REFUSED = 0, 1, 2, 3
REPORTS = (
    "ERROR: AddressSanitizer",
    "ERROR: LeakSanitizer",
    "WARNING: ThreadSanitizer",
    "runtime error:",
)
# A sanitizer's own allocator ends the process where any other says no.
os.environ.setdefault("ASAN_OPTIONS", "allocator_may_return_null=1")


class Result:
    """seconds: of a clock or of the process's cores, whichever is less: a busy machine makes the one longer, threads the other."""

    def __init__(self, status, out, err, seconds, peak_mib):
        self.status, self.out, self.err = status, out, err
        self.seconds, self.peak_mib = seconds, peak_mib

    def broken(self, seconds, mib):
        """Why this is no orderly end, or None."""
        report = next((word for word in REPORTS if word in self.err), None)
        if report:
            at = self.err.index(report)
            return self.err[at : at + 200].replace("\n", " ")
        if self.status not in (DONE, CHECK_FAILED, USAGE, REFUSED):
            return f"ended with {self.status}"
        if self.seconds > seconds:
            return f"took {self.seconds:.1f} s, more than {seconds}"
        if not SANITIZED and self.peak_mib > mib:
            return f"took {self.peak_mib} MiB, more than {mib}"
        return None


def genai_double(folder):
    """A stand-in for ONNX Runtime GenAI's library (genai_double.c), whose tokens are bytes; built into the folder."""
    path = os.path.join(folder, "libgenai.so")
    command = [os.environ.get("OPIPE_CC", "cc"), "-std=gnu11", "-shared", "-fPIC", "-O1", os.path.join(SOURCE, "tests", "cli", "genai_double.c")]
    subprocess.run([*command, "-o", path], check=True)
    return path


def run(*arguments, timeout=120):
    """Runs the command; status None where it had to be killed. Output goes through files, so that
    the process can be waited for with its use of memory."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        _, code, usage = os.wait4(process.pid, 0)
        late = not timer.is_alive()
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(code)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    status = None if late else process.returncode
    seconds = min(time.monotonic() - start, usage.ru_utime + usage.ru_stime)
    return Result(status, *texts, seconds, usage.ru_maxrss // 1024)


class Count:
    """Passed and failed, with one line for each failure; skipped things say why."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def check(self, name, problem):
        if problem:
            self.failed += 1
            print(f"FAILED {name}: {problem}", flush=True)
        else:
            self.passed += 1

    def skip(self, reason):
        self.skipped += 1
        print(f"SKIP: {reason}", flush=True)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failed else 0


def need_command():
    if not os.path.exists(COMMAND):
        print(f"SKIP: {COMMAND} is not built")
        sys.exit(77)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 label=seeded
"""Every seeded defect ends a conformance program with status 1 and a line that says what is wrong: never with a signal, never with a hang.
Without a defect the same plugin passes. ./dev test takes every third defect, and each that ends the program; --all takes all."""
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from seeded import defects

BUILD = os.environ["OPIPE_BUILD_DIR"]
PLUGINS = os.path.join(BUILD, "lib", "onnx-pipe")
SANITIZED = os.environ.get("OPIPE_SANITIZE", "") != ""
PATIENCE = 30 if SANITIZED else 6  # seconds, where something never comes
SECONDS = 100  # a program that runs longer hangs


def patience(case):
    """Every check between processes waits for what never comes: they are given less."""
    return 60 if not case.text else PATIENCE // 2 if "--processes" in case.options else PATIENCE


def run(case):
    """The fault of the answer to one defect; None: none."""
    kind, inner = case.inner.split("-", 1)
    program = os.path.join(BUILD, "libexec", "onnx-pipe", "conformance-" + kind)
    plugin = os.path.join(BUILD, "tests", "conformance", "opipe-%s-seeded.so" % kind)
    environment = dict(os.environ, SEEDED_INNER=os.path.join(PLUGINS, "opipe-%s.so" % case.inner), SEEDED_DEFECT=case.defect,
                       OPIPE_CONFORMANCE_SECONDS=str(patience(case)))
    options = [text.replace("PLUGINS", PLUGINS) for text in case.options]
    command = [program] + options + [plugin] if "--processes" in options else [program, plugin] + options
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "hangs"
    said = done.stdout.decode("utf-8", "replace")
    lines = said.splitlines()
    if SANITIZED and case.defect in defects.WILD:
        return None if "ERROR: AddressSanitizer: " in said or ": runtime error: " in said else "no sanitizer's report: %s" % said[-500:]
    if not lines or " passed, " not in lines[-1] and not any(" passed, " in line for line in lines):
        return "status %d, no summary: %s" % (done.returncode, said[-500:])
    if not case.text:
        return None if done.returncode == 0 else "status %d where nothing is wrong: %s" % (done.returncode, said[-1000:])
    if done.returncode != 1:
        return "status %d, not 1: %s" % (done.returncode, said[-500:])
    if not any(line.startswith("FAILED: ") and case.text in line for line in lines):
        return "no line FAILED has '%s': %s" % (case.text, said[:1500])
    return None


def main():
    cases = [case for case in defects.CASES if not (SANITIZED and case.crash)]
    if os.environ.get("OPIPE_TEST_COVER"):
        cases = [case for i, case in enumerate(cases) if i % 3 == 0 or case.crash or not case.defect]
    cases = [case for case in cases if len(sys.argv) < 2 or sys.argv[1] in (case.defect, case.inner)]
    with ThreadPoolExecutor(max_workers=6) as pool:
        answers = list(pool.map(run, cases))
    n_bad = 0
    for case, answer in zip(cases, answers):
        if answer is not None:
            n_bad += 1
            print("%s %s, defect '%s': %s" % (case.inner, " ".join(case.options), case.defect, answer))
    print("%d defects, %d not found as they must be" % (len(cases), n_bad))
    sys.exit(1 if n_bad else 0)


if __name__ == "__main__":
    main()

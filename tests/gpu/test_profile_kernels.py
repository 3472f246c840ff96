#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: always
"""profile_kernels.py: what ncu writes, shortened and with its words around it, and what comes of it."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bundle_kit import Failed  # noqa: E402
from profile_kernels import by_kernel, durations  # noqa: E402

HEAD = '"ID","Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"'
WORDS = ["==PROF== Connected to process 798", "==WARNING== Note: Running with unmodified GPU clocks."]
failed = []


def row(number, name, unit, value, metric="gpu__time_duration.sum"):
    return '"%d","798","%s","(2, 66, 1)","%s","%s","%s"' % (number, name, metric, unit, value)


def expect(condition, what):
    if not condition:
        failed.append(what)


ROWS = [row(0, "void cublasLt::splitKreduce_kernel<32, 16, int>(cublasParams)", "us", "1,250.5"), row(1, "opipe_begin", "ns", "2,080"),
        row(2, "opipe_begin", "ns", "1,920"), row(3, "opipe_update", "ms", "3")]
found = durations([*WORDS, HEAD, *ROWS, "==PROF== Disconnected from process 798"])
expect([us for _, us in found] == [1250.5, 2.08, 1.92, 3000.0], "durations: %s" % found)
said = by_kernel(found, 2)
expect(said == {"launches": 2.0, "ms": 2.1273, "kernels": {"opipe_update": [0.5, 1.5], "cublasLt::splitKreduce_kernel": [0.5, 0.6252],
                                                           "opipe_begin": [1.0, 0.002]}}, "by kernel: %s" % said)
expect(list(said["kernels"]) == ["opipe_update", "cublasLt::splitKreduce_kernel", "opipe_begin"], "order: %s" % list(said["kernels"]))
expect(len(by_kernel([("k%d" % i, i + 1.0) for i in range(50)], 1)["kernels"]) == 30, "more kernels than are told")
expect(durations(WORDS) == [], "words alone")
for bad in (row(0, "k", "cycle", "5"), row(0, "k", "us", "5", "sm__cycles_active.avg")):
    try:
        durations([HEAD, bad])
        failed.append("taken: %s" % bad)
    except Failed:
        pass
for line in failed:
    print("FAILED:", line)
sys.exit(1 if failed else 0)

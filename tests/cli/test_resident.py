#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120 label=nosan
"""Weights are in memory once: the peak of a run, loading included, is at most 1.25 times the weights as they are stored,
and the plan's other bytes, and 64 MiB; for every type of weight. Larger files: test_resident_full.py."""
import sys

from command import need_command
from resident import main

if __name__ == "__main__":
    need_command()
    sys.exit(main([160], 2048, ("fp32", 160, ["--stages", "1", "--device", "cpu,mapped=0"]), ("fp16", 160, ["--stages", "2"])))

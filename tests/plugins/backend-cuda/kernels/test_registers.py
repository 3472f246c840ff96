#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900
"""Where an nvcc is: every kernel compiles for sm_90, in the registers and with the spills that the table gives it."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import registers  # noqa: E402

if __name__ == "__main__":
    sys.exit(registers.check(lambda known: ["sm_90"]))

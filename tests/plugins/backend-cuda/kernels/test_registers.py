#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900 label=nosan
"""The kernels that most time goes to, by nvcc for sm_90: they compile, nothing spills, no more registers than the table has. All
of them, and for other chips: test_registers_full.py."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import registers  # noqa: E402

PARTS = ("flash", "flash_f32", "flash_grad", "loss", "loss_rows", "norm", "norm_sums", "norm_warp", "softmax")

if __name__ == "__main__":
    sys.exit(registers.check(lambda known: [arch for arch in ("sm_90",) if arch in known], PARTS))

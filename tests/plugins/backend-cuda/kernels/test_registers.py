#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900 label=nosan
"""The kernels that most time goes to, by nvcc for sm_90: they compile, nothing spills, no more registers than the table has. In a
cover one of their sources, another one with another state of these. All kernels, and for other chips:
test_registers_full.py."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import registers  # noqa: E402

PARTS = ("flash_grad", "flash", "flash_f32", "loss", "norm", "norm_warp", "loss_rows", "norm_sums", "softmax")


def parts():
    if os.environ.get("OPIPE_TEST_COVER"):
        return (PARTS[registers.state_of_sources() % len(PARTS)],)
    return PARTS


if __name__ == "__main__":
    sys.exit(registers.check(lambda known: [arch for arch in ("sm_90",) if arch in known], parts()))

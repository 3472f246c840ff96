#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=1800 label=full,nosan
"""All kernels for sm_80, sm_90 and the data centre's and the desktop's newer ones, of those that this nvcc knows."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import registers  # noqa: E402

if __name__ == "__main__":
    sys.exit(registers.check(lambda known: [arch for arch in ("sm_80", "sm_90", "sm_100", "sm_120") if arch in known]))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=600 label=full
"""The commands of the guides that pages.txt calls full: they export with PyTorch."""
import sys

import test_pages

if __name__ == "__main__":
    sys.exit(test_pages.main("full"))

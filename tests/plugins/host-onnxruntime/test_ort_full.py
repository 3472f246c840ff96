#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=1800 label=full
"""The same with every model of this project and of the shared folder, 8 threads of 200 runs, and 200
sessions one after the other."""

import sys

import versions

if __name__ == "__main__":
    sys.exit(versions.run_all("all"))

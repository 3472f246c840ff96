#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: label=full
"""The committed table of ONNX Runtime's schemas is what the package says that the adapter's tests install."""
import os
import sys

from test_tables import check


def main():
    source = os.environ["OPIPE_SOURCE_DIR"]
    python = os.path.join(source, "build", "onnxruntime", "newest", "bin", "python")
    if not os.access(python, os.X_OK):
        print(f"SKIP: {python} is not there; ./dev test --all installs it")
        return 77
    return check(python, "onnxruntime")


if __name__ == "__main__":
    sys.exit(main())

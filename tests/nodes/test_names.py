#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The committed lists of node tests are what the data gives, and as long as is promised."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = {"min": 537, "further": 549, "noise": 2, "random": 4}


def main():
    source = os.environ.get("OPIPE_SOURCE_DIR") or os.path.join(HERE, "..", "..")
    data = os.path.join(source, "build", "nodes", "onnx-1.23.2")
    for name, size in SIZES.items():
        with open(os.path.join(HERE, f"names_{name}.txt"), encoding="ascii") as file:
            lines = file.read().split()
        if len(lines) != size or len(set(lines)) != size:
            print(f"names_{name}.txt has {len(lines)} names, expected {size} different ones")
            return 1
    if not os.path.isdir(data):
        print(f"SKIP: {data} is not there; tests/nodes/fetch.py build/nodes fetches it")
        return 77
    command = [sys.executable, "-B", os.path.join(HERE, "names.py"), data, "--check"]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

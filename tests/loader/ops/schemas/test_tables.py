#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The committed table of ONNX's schemas is what the installed package says."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def check(python, package):
    """Exit status for ctest: the table of `package` against the one that `python` imports."""
    command = [python, "-B", os.path.join(HERE, "make.py"), package, "--check", os.path.join(HERE, f"{package}.txt")]
    status = subprocess.run(command, check=False).returncode
    if status == 3:
        print(f"SKIP: the version of {package} that the table is of is not installed for {python}")
        return 77
    print(f"{package}.txt is{' not' if status else ''} what the package says")
    return status


if __name__ == "__main__":
    sys.exit(check(sys.executable, "onnx"))

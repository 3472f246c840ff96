#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=180
"""A wheel of this build, for this machine, passes the tests of the package in a new virtual environment with numpy and cffi alone.
(test_wheel_full.py: the one that ./dev wheel makes for others.)"""
import glob
import os
import subprocess
import sys
import tempfile

import kit

kit.begin("pip")

import wheels


def main():
    with tempfile.TemporaryDirectory() as folder:
        stage = os.path.join(folder, "stage")
        subprocess.run(["cmake", "--install", kit.BUILD, "--component", "python", "--prefix", stage], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([sys.executable, "-B", os.path.join(kit.SOURCE, "abi", "python", "wheel.py"), "--here", stage, folder], check=True)
        wheels.passes(glob.glob(os.path.join(folder, "onnxpipe-*.whl"))[0])
    print("the wheel passes the tests of the package")
    return 0


if __name__ == "__main__":
    sys.exit(main())

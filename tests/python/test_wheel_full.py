#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 label=full
"""The wheel that ./dev wheel made: what it holds, and the tests of the package by it, in a new virtual environment with numpy and cffi."""
import glob
import os
import sys
import zipfile

import kit
import wheels


def checked(wheel):
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        assert content.testzip() is None
    inside = {"libonnxpipe.so", "libopipe-ort-ep.so", "cdef.h", "_declared.py", "py.typed", "bin/onnx-pipe", "onnx-pipe/opipe-backend-cpu.so"}
    assert not inside - {name[len("onnxpipe/") :] for name in names}, names
    licences = [name for name in names if "/licenses/" in name]
    assert len(licences) == 4 and any("jansson" in name for name in licences), licences
    assert not [name for name in names if ".so." in name], "other libraries are linked in"
    assert "manylinux" in os.path.basename(wheel) and "py3-none" in os.path.basename(wheel)


def main():
    found = glob.glob(os.path.join(kit.SOURCE, "build", "wheel", "dist", "onnxpipe-*.whl"))
    if not found:
        kit.skip("no wheel in build/wheel/dist (./dev wheel)")
    kit.begin()  # numpy and cffi are there
    checked(found[0])
    wheels.passes(found[0])
    print("the wheel passes the tests of the package")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 label=full
"""The wheel that ./dev wheel made: what it holds, and the tests of the package by it, in a new virtual environment with numpy and cffi."""
import glob
import os
import subprocess
import sys
import tempfile
import zipfile

import kit


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
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = os.path.join(folder, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", found[0]], check=True)
        site = glob.glob(os.path.join(folder, "lib", "python3*", "site-packages"))[0]
        for name in ("numpy", "cffi", "_cffi_backend"):  # as pip would have brought them
            file = __import__(name).__file__
            source = os.path.dirname(file) if file.endswith("__init__.py") else file
            os.symlink(source, os.path.join(site, os.path.basename(source)))
            for libraries in glob.glob(source + ".libs"):
                os.symlink(libraries, os.path.join(site, os.path.basename(libraries)))
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ONNXPIPE_LIBRARY")}
        environment["OPIPE_TEST_PACKAGE"] = site
        for test in ("test_package.py", "test_bad_input.py"):
            subprocess.run([python, "-B", os.path.join(kit.SOURCE, "tests", "python", test)], check=True, env=environment, cwd=folder)
        said = subprocess.run([os.path.join(folder, "bin", "onnx-pipe"), "run", kit.DEMO], check=True, capture_output=True, text=True)
        assert "1 request in" in said.stdout, said.stdout
        maps = "import onnxpipe; onnxpipe.Model(r'%s'); print(open('/proc/self/maps').read())" % kit.DEMO
        said = subprocess.run([python, "-c", maps], check=True, capture_output=True, text=True, env=environment, cwd=folder)
        for line in said.stdout.splitlines():
            if "onnxpipe" in line or "jansson" in line:
                assert site in line, line
    print("the wheel passes the tests of the package")
    return 0


if __name__ == "__main__":
    sys.exit(main())

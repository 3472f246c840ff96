# SPDX-License-Identifier: Apache-2.0
"""The tests of the package by a wheel, in a new virtual environment with that wheel, numpy and cffi alone."""
import glob
import os
import subprocess
import sys
import tempfile

import kit


def environment(wheel, folder):
    """Makes the environment; its Python and where its packages lie. numpy and cffi are lent by this Python, as pip would have brought them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = os.path.join(folder, "bin", "python")
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", wheel], check=True)
    site = glob.glob(os.path.join(folder, "lib", "python3*", "site-packages"))[0]
    for name in ("numpy", "cffi", "_cffi_backend"):
        file = __import__(name).__file__
        source = os.path.dirname(file) if file.endswith("__init__.py") else file
        os.symlink(source, os.path.join(site, os.path.basename(source)))
        for libraries in glob.glob(source + ".libs"):
            os.symlink(libraries, os.path.join(site, os.path.basename(libraries)))
    return python, site


def passes(wheel):
    """Raises where the wheel does not pass them, its command does not run, or a process opens another library."""
    with tempfile.TemporaryDirectory() as folder:
        python, site = environment(wheel, folder)
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ONNXPIPE_LIBRARY", "LD_LIBRARY_PATH")}
        variables["OPIPE_TEST_PACKAGE"] = site
        tests = [[python, "-B", os.path.join(kit.SOURCE, "tests", "python", test)] for test in ("test_package.py", "test_bad_input.py")]
        kit.threads(2, lambda i: subprocess.run(tests[i], check=True, env=variables, cwd=folder))
        said = subprocess.run([os.path.join(folder, "bin", "onnx-pipe"), "run", kit.DEMO], check=True, capture_output=True, text=True, env=variables)
        assert "1 request in" in said.stdout, said.stdout
        maps = f"import onnxpipe; onnxpipe.Model({kit.DEMO!r}); print(open('/proc/self/maps').read())"
        said = subprocess.run([python, "-c", maps], check=True, capture_output=True, text=True, env=variables, cwd=folder)
        opened = [line for line in said.stdout.splitlines() if "onnxpipe" in line]
        assert opened and all(site in line for line in opened), opened

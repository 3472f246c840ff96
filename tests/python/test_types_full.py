#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 label=full
"""mypy --strict: the package, and the examples that use it. A wrong use of it is found, so that types are there at all."""
import glob
import os
import subprocess
import sys
import tempfile

import kit

WRONG = """import onnxpipe
plan = onnxpipe.Plan(onnxpipe.Model("model.onnx"), stages="two")
with onnxpipe.Session(plan) as session:
    print(session.nothing)
"""


def main():
    python = os.path.join(kit.SOURCE, "build", "venv", "types", "bin", "python")
    if not os.path.exists(python):
        kit.skip("no build/venv/types with mypy (./dev wheel)")
    environment = dict(os.environ, MYPYPATH=os.path.join(kit.SOURCE, "abi", "python"))
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "mypy", "--strict", "--ignore-missing-imports", "--cache-dir", folder]
        subprocess.run([*command, "-p", "onnxpipe"], check=True, env=environment, cwd=folder)
        for script in sorted(glob.glob(os.path.join(kit.SOURCE, "tests", "examples", "python", "*.py"))):
            subprocess.run([*command, script], check=True, env=environment, cwd=folder)
        with open(os.path.join(folder, "wrong.py"), "w", encoding="utf-8") as file:
            file.write(WRONG)
        said = subprocess.run([*command, "wrong.py"], check=False, env=environment, cwd=folder, capture_output=True, text=True).stdout
        assert "stages" in said and '"nothing"' in said and "Found 2 errors" in said, said
    return 0


if __name__ == "__main__":
    sys.exit(main())

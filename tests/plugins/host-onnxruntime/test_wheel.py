#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 label=full
"""The wheels that ./dev wheel made: what they hold, and a session in a clean virtual environment, with
ONNX Runtime's packages by path alone."""

import glob
import os
import subprocess
import sys
import tempfile
import zipfile

SOURCE = os.environ["OPIPE_SOURCE_DIR"]
TRY = """
import sys
sys.path.append(sys.argv[2])
import numpy, onnxruntime
import onnxruntime_ep_onnx_pipe as own
onnxruntime.register_execution_provider_library("onnx-pipe", own.get_library_path())
devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == own.get_ep_name()]
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
options.add_provider_for_devices(devices[:1], {"stages": "2"})
ours = onnxruntime.InferenceSession(sys.argv[1], options)
plain = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
fed = {"input_ids": numpy.arange(16, dtype=numpy.int64).reshape(2, 8)}
found, wanted = ours.run(None, fed)[0], plain.run(None, fed)[0]
assert numpy.max(numpy.abs(found - wanted)) <= 1e-5 * numpy.max(numpy.abs(wanted))
maps = open("/proc/self/maps").read()
for line in maps.splitlines():
    if "onnxpipe" in line or "opipe-" in line:
        assert "onnxpipe" in line and own.get_library_path().rsplit("/", 1)[0] in line, line
print("onnxruntime %s takes the wheel" % onnxruntime.__version__)
"""


def packages(version):
    found = glob.glob(
        os.path.join(SOURCE, "build", "onnxruntime", version, "lib", "python3*", "site-packages")
    )
    return found[0] if found else None


def main():
    wheels = glob.glob(os.path.join(SOURCE, "build", "wheel", "dist", "*.whl"))
    here = [p for p in map(packages, ("oldest", "newest")) if p is not None]
    if len(wheels) != 2 or not here:
        print("SKIP: no wheels in build/wheel/dist (./dev wheel), or no build/onnxruntime")
        return 77
    names = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as content:
            names += content.namelist()
            assert content.testzip() is None
    assert not any(name.startswith("onnxruntime/") for name in names), names
    assert any(name.endswith("/onnx-pipe/opipe-backend-cpu.so") for name in names), names
    assert "onnxruntime_ep_onnx_pipe/__init__.py" in names, names
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["/usr/bin/python3", "-m", "venv", folder], check=True)
        python = os.path.join(folder, "bin", "python")
        command = [python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", *wheels]
        subprocess.run(command, check=True)
        model = os.path.join(SOURCE, "tests", "data", "gpt_8block", "model.onnx")
        environment = {"PATH": os.environ["PATH"]}
        for path in here:
            subprocess.run(
                [python, "-c", TRY, model, path], check=True, cwd=folder, env=environment
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

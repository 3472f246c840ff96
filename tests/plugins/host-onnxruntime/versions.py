# SPDX-License-Identifier: Apache-2.0
"""Runs sessions.py with every version of ONNX Runtime that is here; arguments are names of its tests."""

import os
import subprocess
import sys
import tempfile

SOURCE = os.environ["OPIPE_SOURCE_DIR"]
BUILD = os.environ["OPIPE_BUILD_DIR"]
SHARED = os.environ.get("OPIPE_SHARED_DIR", os.path.join(SOURCE, "..", "shared"))
HERE = os.path.dirname(os.path.abspath(__file__))


def run_all(extent):
    tried, failed = 0, 0
    for version in ("oldest", "newest"):
        python = os.path.join(SOURCE, "build", "onnxruntime", version, "bin", "python")
        if not os.path.exists(python):
            print(
                "SKIP: build/onnxruntime/%s is not there (./dev test --all installs "
                "tests/plugins/host-onnxruntime/%s.txt)" % (version, version)
            )
            continue
        tried += 1
        with tempfile.TemporaryDirectory() as work:
            adapter = os.path.join(BUILD, "lib", "libopipe-ort-ep.so")
            command = [python, os.path.join(HERE, "sessions.py"), adapter, SOURCE, SHARED, work, extent, *sys.argv[1:]]
            failed += subprocess.run(command, check=False).returncode != 0
    return 77 if tried == 0 else failed

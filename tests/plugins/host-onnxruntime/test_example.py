#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120 label=nosan
"""The C++ example against ONNX Runtime's C interface, found at run time: the libraries of build/onnxruntime."""

import glob
import os
import subprocess
import sys
import tempfile

SOURCE = os.environ["OPIPE_SOURCE_DIR"]
BUILD = os.environ["OPIPE_BUILD_DIR"]


def main():
    libraries = sorted(glob.glob(os.path.join(SOURCE, "build", "onnxruntime", "*", "lib", "python3*", "site-packages", "onnxruntime", "capi", "libonnxruntime.so.1.*")))
    compiler = os.environ.get("OPIPE_CXX")
    if not libraries or not compiler:
        print("SKIP: no libonnxruntime below build/onnxruntime (./dev test --all installs it), or no C++ compiler")
        return 77
    example = os.path.join(SOURCE, "plugins", "host-onnxruntime", "example", "session.cpp")
    adapter = os.path.join(BUILD, "lib", "libopipe-ort-ep.so")
    model = os.path.join(SOURCE, "tests", "data", "gpt_8block", "model.onnx")
    with tempfile.TemporaryDirectory() as work:
        program = os.path.join(work, "session")
        subprocess.run([compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", example, "-ldl", "-o", program], check=True)
        for library in libraries:
            for stages in ("1", "3"):
                subprocess.run([program, library, adapter, model, stages], check=True)
        refused = subprocess.run([program, libraries[0], adapter, model, "many"], check=False, stderr=subprocess.PIPE)
        assert refused.returncode == 1 and b"stages=many is no number" in refused.stderr, refused.stderr
    return 0


if __name__ == "__main__":
    sys.exit(main())

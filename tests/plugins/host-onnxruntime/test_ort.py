#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 label=nosan
"""The adapter inside ONNX Runtime itself, the oldest and the newest version of those that are below
build/onnxruntime: a few models in every way (sessions.py)."""

import sys

import versions

if __name__ == "__main__":
    sys.exit(versions.run_all("few"))

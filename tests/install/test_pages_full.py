#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900 label=full
"""The commands of the guides that pages.txt calls full: they export with PyTorch, by build/venv/real's Python where it is there."""
import importlib.util
import os
import subprocess
import sys
import sysconfig

import test_pages


def main():
    python = os.path.join(test_pages.SOURCE, "build", "venv", "real", "bin", "python")
    if importlib.util.find_spec("torch") is not None or not os.path.exists(python):
        return test_pages.main("full")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), sysconfig.get_path("purelib")])}
    return subprocess.run([python, "-B", os.path.abspath(__file__)], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""python -m onnxpipe: the command onnx-pipe that came with the library."""
from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._library import FOLDER


def command() -> str:
    """Its path: inside the package (a wheel), in the build tree around it, or of the system."""
    for place in (os.path.join(FOLDER, "bin", "onnx-pipe"), os.path.join(FOLDER, "..", "..", "bin", "onnx-pipe")):
        if os.access(place, os.X_OK):
            return os.path.abspath(place)
    return "onnx-pipe"


def main() -> NoReturn:
    path = command()
    try:
        os.execvp(path, [path, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"onnxpipe: the command {path} cannot be run: {error}")


if __name__ == "__main__":
    main()

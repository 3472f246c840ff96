# SPDX-License-Identifier: Apache-2.0
"""onnx-pipe as an execution provider of ONNX Runtime (1.23 and later).

    import onnxruntime, onnxruntime_ep_onnx_pipe as onnx_pipe
    onnxruntime.register_execution_provider_library("onnx-pipe", onnx_pipe.get_library_path())
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == onnx_pipe.get_ep_name()]
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices(devices, {"stages": "2"})
"""

import importlib.util
import os

__all__ = ["get_library_path", "get_ep_name", "get_ep_names"]


def get_library_path():
    """Path of the library that ONNX Runtime registers."""
    found = importlib.util.find_spec("onnxpipe")  # which is not imported: numpy and cffi are of no use here
    if found is None or not found.submodule_search_locations:
        raise ImportError("the package onnxpipe, which holds the library, is not installed")
    return os.path.join(os.path.abspath(found.submodule_search_locations[0]), "libopipe-ort-ep.so")


def get_ep_name():
    """Name of the provider, as ONNX Runtime lists it."""
    return "OnnxPipeExecutionProvider"


def get_ep_names():
    """All names of providers in the library."""
    return [get_ep_name()]

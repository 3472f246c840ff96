#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900 label=full
"""The backend in a real server with real clients over HTTP on the loopback: clients.py, run by the Python of
build/triton/server, which also holds the server. Here models and data become what that Python can read."""

import glob
import os
import subprocess
import sys
import tempfile

SOURCE = os.environ["OPIPE_SOURCE_DIR"]
BUILD = os.environ["OPIPE_BUILD_DIR"]
HERE = os.path.dirname(os.path.abspath(__file__))
HOME = os.path.join(SOURCE, "build", "triton", "server")
MODELS = ("gpt_8block", "gpt_past", "gpt_bf16", "encoder", "llama_external", "vision")

try:
    import numpy
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError:
    print("SKIP: no onnx package (./dev test installs tests/requirements.txt)")
    sys.exit(77)


def tensor(path):
    with open(path, "rb") as file:
        return numpy_helper.to_array(onnx.load_tensor_from_string(file.read()))


def data_of(folder, model):
    """The model's own inputs and outputs: {in:NAME, out:NAME: array}"""
    constants = {t.name for t in model.graph.initializer}
    inputs = [i.name for i in model.graph.input if i.name not in constants]
    arrays = {}
    for i, name in enumerate(inputs):
        arrays["in:" + name] = tensor(os.path.join(folder, "input_%d.pb" % i))
    for i, value in enumerate(model.graph.output):
        arrays["out:" + value.name] = tensor(os.path.join(folder, "output_%d.pb" % i))
    return {k: a.astype(numpy.float32) if a.dtype.kind == "V" or a.dtype.itemsize == 2 else a for k, a in arrays.items()}


def save_shaped(path):
    """A model whose shape is a value of an input."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["z"]), helper.make_node("Neg", ["z"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "shaped",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    os.makedirs(path)
    onnx.save(model, os.path.join(path, "model.onnx"))


def main():
    python = os.path.join(HOME, "bin", "python")
    servers = glob.glob(os.path.join(HOME, "lib", "python3*", "site-packages", "pytriton", "tritonserver", "bin", "tritonserver"))
    if not servers or not os.path.exists(python):
        print("SKIP: build/triton/server is not there (./dev test --all installs tests/plugins/host-triton/server.txt)")
        return 77
    with tempfile.TemporaryDirectory() as work:
        for name in MODELS:
            folders = [os.path.dirname(p) for p in glob.glob(os.path.join(SOURCE, "tests", "data", name, "**", "model.onnx"), recursive=True)]
            for folder in sorted(folders)[:1]:
                model = onnx.load(os.path.join(folder, "model.onnx"), load_external_data=False)
                data = data_of(os.path.join(folder, "test_data_set_0"), model)
                numpy.savez(os.path.join(work, name + ".npz"), **data)
                os.symlink(folder, os.path.join(work, name))
        save_shaped(os.path.join(work, "shaped"))
        command = [python, os.path.join(HERE, "clients.py"), servers[0], BUILD, work, *sys.argv[1:]]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

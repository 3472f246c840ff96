# SPDX-License-Identifier: Apache-2.0
"""What export.py and build.py share: writing models and data sets, the same bytes every time.

A model folder has the layout of the ONNX backend tests: model.onnx and
test_data_set_K/{input_i,output_i}.pb, each one TensorProto with its name.
"""
import os
import shutil

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

PRODUCER = "onnx-pipe tests"


def walk(graph):
    """Every node of a graph and of the graphs inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.HasField("g") else []
            for sub in inner + list(attribute.graphs):
                yield from walk(sub)


def strip(model):
    """Drops what carries no meaning: stack traces, scopes, doc strings, shapes of inner values."""
    del model.metadata_props[:]
    model.doc_string = ""
    model.producer_version = ""
    graphs = [model.graph] + [function for function in model.functions]
    for owner in graphs:
        owner.doc_string = ""
        del owner.metadata_props[:]
        del owner.value_info[:]
        for node in walk(owner) if isinstance(owner, onnx.GraphProto) else owner.node:
            node.doc_string = ""
            del node.metadata_props[:]
    for value in [*model.graph.input, *model.graph.output, *model.graph.initializer]:
        value.doc_string = ""
        del value.metadata_props[:]
    return model


def session(path):
    """ONNX Runtime as the oracle: no graph optimisation, one thread."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def write_bytes(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def tensor(name, value):
    """A TensorProto from one, or from an array."""
    if isinstance(value, onnx.TensorProto):
        value.name = name
        return value
    value = np.asarray(value)
    return numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)


def write_set(folder, number, inputs, outputs):
    """inputs, outputs: {name: array or TensorProto} in graph order."""
    for kind, values in (("input", inputs), ("output", outputs)):
        for i, (name, value) in enumerate(values.items()):
            path = os.path.join(folder, f"test_data_set_{number}", f"{kind}_{i}.pb")
            write_bytes(path, tensor(name, value).SerializeToString(deterministic=True))


def run_sets(folder, sets):
    """Computes the outputs of model.onnx for each {name: array} and writes the data sets."""
    runner = session(os.path.join(folder, "model.onnx"))
    names = [output.name for output in runner.get_outputs()]
    results = []
    for number, inputs in enumerate(sets):
        outputs = dict(zip(names, runner.run(None, inputs)))
        for name, value in outputs.items():
            if np.asarray(value).dtype.kind == "f" and not np.isfinite(value).all():
                raise ValueError(f"{folder}: output {name} of set {number} is not finite")
        write_set(folder, number, inputs, outputs)
        results.append(outputs)
    return results


def folder_bytes(folder):
    return sum(
        os.path.getsize(os.path.join(base, name))
        for base, _, names in os.walk(folder)
        for name in names
    )

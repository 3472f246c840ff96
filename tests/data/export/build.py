# SPDX-License-Identifier: Apache-2.0
"""What the makers of hand-built models share: short ways to write nodes, values and models.

A model that runs gets data sets; one that is refused (at all, or only under some use) gets
expect.txt: lines of `when text`, where `when` is load, plan or microbatches, and the message
must contain `text`. Outputs are ONNX Runtime's unless the maker gives them.
"""
import os

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import graphs

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class Odd:
    """sets: [(inputs, outputs or None)]; expect: [(when, text)]; raw: the bytes of the file."""

    def __init__(self, model, sets=(), expect=(), raw=None):
        self.model, self.sets, self.expect, self.raw = model, sets, expect, raw


def node(op, inputs, outputs, **attributes):
    """inputs, outputs: names separated by blanks, `_` is an absent one. Named after an output."""
    split = [["" if name == "_" else name for name in names.split()] for names in (inputs, outputs)]
    name = attributes.pop("name", f"make_{split[1][0] or split[1][-1]}")
    return helper.make_node(op, *split, name=name, **attributes)


def value(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def const(name, data, dtype=None):
    return numpy_helper.from_array(np.array(data, dtype=dtype), name)


def weight(name, *shape):
    """Seeded by its name's bytes, so that a new model does not change an old one."""
    rng = np.random.default_rng(list(name.encode()))
    return const(name, rng.standard_normal(shape).astype(np.float32) * 0.5)


def data(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def build(nodes, inputs, outputs, weights=(), opset=17, ir=8, functions=(), imports=(), name="odd"):
    graph = helper.make_graph(nodes, name, inputs, outputs, list(weights))
    opsets = [helper.make_opsetid("", opset)] if opset else []
    opsets += [helper.make_opsetid(domain, version) for domain, version in imports]
    model = helper.make_model(
        graph, opset_imports=opsets, functions=list(functions), producer_name=graphs.PRODUCER
    )
    model.ir_version = ir
    return model


X, Y = value("x", ["batch", 4]), value("y", ["batch", 4])
SETS = [({"x": data(0, 2, 4)}, None), ({"x": data(1, 3, 4)}, None)]


def function(name, inputs, outputs, nodes, attributes=(), defaults=(), imports=(("", 17),)):
    """A local function of the domain test.local."""
    return helper.make_function(
        "test.local",
        name,
        inputs,
        outputs,
        nodes,
        [helper.make_opsetid(*pair) for pair in imports],
        attributes=list(attributes),
        attribute_protos=list(defaults),
    )


def write(folder, odd):
    graphs.fresh(folder)
    raw = odd.raw or odd.model.SerializeToString(deterministic=True)
    graphs.write_bytes(os.path.join(folder, "model.onnx"), raw)
    if odd.expect:
        text = "".join(f"{when} {what}\n" for when, what in odd.expect)
        graphs.write_bytes(os.path.join(folder, "expect.txt"), text.encode())
    for number, (inputs, outputs) in enumerate(odd.sets):
        if outputs is None:
            runner = graphs.session(os.path.join(folder, "model.onnx"))
            names = [output.name for output in runner.get_outputs()]
            outputs = dict(zip(names, runner.run(None, inputs)))
        graphs.write_set(folder, number, inputs, outputs)


def make_all(folder, models):
    graphs.fresh(folder)
    for name, make in models.items():
        try:
            write(os.path.join(folder, name), make())
        except Exception as reason:
            raise ValueError(f"{name}: {reason}") from reason
    print(f"{os.path.basename(folder)}: {len(models)} models, {graphs.folder_bytes(folder)} bytes")

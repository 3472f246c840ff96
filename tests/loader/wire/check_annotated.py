#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks an annotated copy of a model with the onnx package.

usage: check_annotated.py ORIGINAL COPY NAME DEVICES
Exit status 0: the checker accepts the copy as it does the original, the configuration is there, and
without it the copy is the original. 1: not so, with the reason. 77: no onnx package here.
"""
import sys

try:
    import onnx
except ImportError:
    sys.exit(77)


def accepted(path):
    try:
        onnx.checker.check_model(path)
        return None
    except onnx.checker.ValidationError as error:
        return str(error).splitlines()[0]


def strip(model, name):
    """Takes the annotations under `name` out; returns how many nodes had one."""
    n_nodes = 0
    for node in model.graph.node:
        kept = [c for c in node.device_configurations if c.configuration_id != name]
        n_nodes += len(kept) != len(node.device_configurations)
        del node.device_configurations[:]
        node.device_configurations.extend(kept)
    kept = [c for c in model.configuration if c.name != name]
    del model.configuration[:]
    model.configuration.extend(kept)
    return n_nodes


def main():
    original_path, copy_path, name, devices = sys.argv[1:5]
    original = onnx.load(original_path, load_external_data=False)
    copy = onnx.load(copy_path, load_external_data=False)
    with_external = any(t.data_location == 1 for t in original.graph.initializer)
    if not with_external:
        before, after = accepted(original_path), accepted(copy_path)
        if after is not None and before is None:
            return f"the checker refuses the copy: {after}"
    found = [c for c in copy.configuration if c.name == name]
    if len(found) != 1 or found[0].num_devices != int(devices):
        return f"configuration {name}: {found}"
    if strip(copy, name) == 0:
        return "no node is annotated"
    copy.ir_version = original.ir_version
    strip(original, name)
    if copy.SerializeToString(deterministic=True) != original.SerializeToString(deterministic=True):
        return "something else differs"
    return None


if __name__ == "__main__":
    reason = main()
    if reason:
        print(reason, file=sys.stderr)
    sys.exit(1 if reason else 0)

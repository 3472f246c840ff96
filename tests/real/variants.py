#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Variants that users make of their exports: of each file of DIR that export.py wrote, copies
beside it with the same inputs and with ONNX Runtime's outputs:

  -extended  by ONNX Runtime's graph optimiser
  -int8      products of 8-bit integers. Weights have 7 bits: with 8, ONNX Runtime's sums of pairs
             overflow on processors without VNNI
  -fp16      in half precision, inputs and outputs too, by ONNX Runtime's converter
  -nbits     weights of products in 4 bits, blocks of 32 (MatMulNBits)

Existing files are kept. A copy that cannot be made says NOT MADE, with the reason.

usage: variants.py DIR --only NAME-EXPORTER,... [--kinds extended,int8,fp16,nbits]
"""
import argparse
import json
import os
import shutil
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "data", "export"))
import graphs  # noqa: E402


def extended(source, target):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = target
    options.log_severity_level = 3
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def int8(source, target):
    quantize_dynamic(source, target, weight_type=QuantType.QInt8, reduce_range=True)


def fp16(source, target):
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source)), target)


def nbits(source, target):
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=False)
    quantizer.process()
    onnx.save(quantizer.model.model, target)


KINDS = {"extended": extended, "int8": int8, "fp16": fp16, "nbits": nbits}


def inputs_of(folder, names, number, kind):
    found = {}
    for i, name in enumerate(names):
        path = os.path.join(folder, f"test_data_set_{number}", f"input_{i}.pb")
        with open(path, "rb") as file:
            array = numpy_helper.to_array(onnx.TensorProto.FromString(file.read()))
        half = kind == "fp16" and array.dtype == np.float32
        found[name] = array.astype(np.float16) if half else array
    return found


def vary(folder, kind, make):
    target = f"{folder}-{kind}"
    if os.path.exists(os.path.join(target, "meta.json")):
        return
    with open(os.path.join(folder, "meta.json"), encoding="utf-8") as file:
        meta = json.load(file)
    graphs.fresh(target)
    make(os.path.join(folder, "model.onnx"), os.path.join(target, "model.onnx"))
    sets = [inputs_of(folder, meta["inputs"], number, kind) for number in (0, 1)]
    graphs.run_sets(target, sets)
    for number in (0, 1):
        labels = os.path.join(f"test_data_set_{number}", "labels.pb")
        shutil.copy(os.path.join(folder, labels), os.path.join(target, labels))
    meta.update(variant=kind, parameters={}, buffers={})
    meta["mixes"] |= kind == "int8"  # one scale for all rows of an activation
    with open(os.path.join(target, "meta.json"), "w", encoding="utf-8") as out:
        json.dump(meta, out, indent=1, sort_keys=True)
        out.write("\n")
    print(f"{os.path.basename(target)}: {os.path.getsize(target + '/model.onnx')} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder")
    parser.add_argument("--only", required=True)
    parser.add_argument("--kinds", default=",".join(KINDS))
    args = parser.parse_args()
    for name in args.only.split(","):
        for kind in args.kinds.split(","):
            try:
                vary(os.path.join(args.folder, name), kind, KINDS[kind])
            except Exception as reason:  # a converter may fail in any way
                text = " ".join(str(reason).split())[:300]
                print(f"{name}-{kind}: NOT MADE: {type(reason).__name__}: {text}", flush=True)
                shutil.rmtree(os.path.join(args.folder, f"{name}-{kind}"), ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""A model in stages, and a stream of requests: run.py MODEL.onnx [STAGES]"""
import sys

import numpy as np
import onnxpipe


def main(path: str, stages: str = "2") -> None:
    plan = onnxpipe.Plan(onnxpipe.Model(path), stages=int(stages), dims={"batch": 1, "seq": 8})
    with onnxpipe.Session(plan) as session:
        rows = (np.full((1, 8), i, np.int64) for i in range(16))
        for i, outputs in enumerate(session.stream(rows)):
            print(f"request {i}: the likeliest token is {outputs['logits'][0, -1].argmax()}")
        session.trace().save("trace.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""Requests of many coroutines, each with a deadline: serve.py MODEL.onnx"""
import asyncio
import sys

import numpy as np
import onnxpipe


async def client(session: onnxpipe.Session, i: int) -> int:
    outputs = await session.arun({"input_ids": np.full((1, 8), i, np.int64)}, deadline=10.0)
    return int(outputs["logits"][0, -1].argmax())


async def main(path: str) -> None:
    with onnxpipe.Session(onnxpipe.Plan(onnxpipe.Model(path), stages=2)) as session:
        print("tokens", *await asyncio.gather(*(client(session, i) for i in range(32))))


asyncio.run(main(sys.argv[1]))

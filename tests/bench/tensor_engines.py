# SPDX-License-Identifier: Apache-2.0
"""The ways of the tensor bench that are processes of their own: requests through our package, and torch's parallelize_module.

usage: tensor_engines.py JOB, a JSON object. Prints {"seconds": [...]}: a number for each request or step, the first left out.
  pipe   requests, one at a time: path, rows, seq, stages, tensor, threads, count
  torch  GPT-2 in nn.Linear, eager, on two processes over gloo: products of a block divided by columns, then by rows; what: request or step
"""
import json
import os
import socket
import sys
import time

import numpy as np

SIZES = {"gpt2_small": (12, 768, 12, 50257, 1024), "small": (4, 256, 4, 8192, 512)}
RANKS = 2


def tokens(job):
    return np.random.default_rng(1).integers(0, SIZES[job["model"]][3], (job["rows"], job["seq"] + 1))


def timed(run, count):
    seconds = []
    for _ in range(count + 1):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def pipe(job):
    import onnxpipe

    model = onnxpipe.Model(job["path"])
    plan = onnxpipe.Plan(model, dims={"batch": job["rows"], "seq": job["seq"]}, stages=job["stages"], tensor=job["tensor"],
                         devices=[onnxpipe.Device("cpu", threads=job["threads"])])
    bound = onnxpipe.Session(plan).bind({"input_ids": np.ascontiguousarray(tokens(job)[:, :-1])})
    return timed(bound.run, job["count"])


def gpt(job):
    """Two layer norms and six products a block, as users write it who divide it: q, k and v are products of their own."""
    import torch
    from torch import nn
    from torch.nn import functional

    n_blocks, width, heads, vocabulary, positions = SIZES[job["model"]]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            h = self.norm_1(x)
            q, k, v = (f(h).unflatten(-1, (-1, width // heads)).transpose(1, 2) for f in (self.q, self.k, self.v))
            h = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + self.o(h)
            return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
            self.blocks = nn.ModuleList(Block() for _ in range(n_blocks))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids):
            x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    torch.manual_seed(1)
    return Gpt()


def torch_rank(rank, port, job, out):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn import functional

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    mesh, model = init_device_mesh("cpu", (RANKS,)), gpt(job)
    for block in model.blocks:
        columns = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
        parallelize_module(block, mesh, {**columns, "o": RowwiseParallel(), "down": RowwiseParallel()})
    parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})
    ids = torch.from_numpy(tokens(job))
    given, wanted = ids[:, :-1], ids[:, 1:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def request():
        with torch.inference_mode():
            model(given)

    def step():
        optimizer.zero_grad()
        for part, labels in zip(given.split(job["micro"]), wanted.split(job["micro"])):
            loss = functional.cross_entropy(model(part).flatten(0, 1), labels.flatten())
            (loss * part.shape[0] / given.shape[0]).backward()
        optimizer.step()

    seconds = timed(step if job["what"] == "step" else request, job["count"])
    if rank == 0:
        out.put(seconds)
    torch.distributed.destroy_process_group()


def torch_ranks(job):
    import torch.multiprocessing

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    torch.multiprocessing.spawn(torch_rank, (port, job, out), nprocs=RANKS)
    return out.get()


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps({"seconds": pipe(asked) if asked["engine"] == "pipe" else torch_ranks(asked)}))

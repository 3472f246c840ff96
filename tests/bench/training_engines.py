# SPDX-License-Identifier: Apache-2.0
"""The engines of the training bench; engines.py runs them, each in a process of its own.

One turn of `run` is one whole step: zero the gradients, forward and backward over the mini-batch,
AdamW. All start from the same seeded weights (models.numbers) and see the same seeded tokens.
  torch        eager, one process; job: micro (micro-batches), bf16 (autocast), compile
  torch-pipe   torch.distributed.pipelining: one process per rank, gloo on loopback, one thread each
  pipe-train   onnx-pipe through its C interface
  torch-run    a request, not a step, in bf16: job: way (weights in bf16, or autocast), compile; outputs in fp32
"""
import json
import os
import socket
import subprocess
import sys
import time

import numpy as np

import models

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = {"gpt2_small": (12, 768, 12, 50257, 1024), "small": (4, 256, 4, 8192, 512)}
LEARNING_RATE = 1e-4


def batch(job, step):
    """Tokens and the tokens after them, [rows, seq] int64."""
    rng = np.random.default_rng(100 + step)
    ids = rng.integers(0, SIZES[job["model"]][3], (job["rows"], job["seq"] + 1))
    return np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])


def torch_model(job):
    """The module that the bench graph was exported from, with the bench's weights."""
    import torch

    sys.path.insert(0, os.path.join(HERE, "..", "data", "export"))
    import modules

    model = modules.Gpt(*SIZES[job["model"]])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(models.numbers(name, tuple(parameter.shape))))
    return model


def cross_entropy(logits, labels):
    from torch.nn import functional

    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Torch:
    def __init__(self, job):
        import torch

        self.torch, self.job, self.step, self.losses = torch, job, 0, []
        torch.set_num_threads(job["threads"])
        self.model = torch_model(job)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.call = torch.compile(self.model) if job.get("compile") else self.model

    def run(self):
        torch, job = self.torch, self.job
        ids, labels = (torch.from_numpy(a) for a in batch(job, self.step))
        self.optimizer.zero_grad()
        total, parts = 0.0, job.get("micro", 1)
        for x, y in zip(ids.chunk(parts), labels.chunk(parts)):
            with torch.autocast("cpu", torch.bfloat16, enabled=job.get("bf16", False)):
                loss = cross_entropy(self.call(x), y) / parts
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        self.step += 1
        self.losses.append(total)

    def result(self):
        return np.array(self.losses)

    def close(self):
        pass


class TorchRun:
    """Requests; what the graph of the bench gives, in fp32."""

    def __init__(self, job):
        import torch

        from engines import feeds

        self.torch, self.out = torch, None
        self.autocast = job["way"] == "autocast"
        torch.set_num_threads(job["threads"])
        model = torch_model(job).eval()
        model = model if self.autocast else model.bfloat16()
        self.call = torch.compile(model) if job.get("compile") else model
        self.inputs = [torch.from_numpy(array) for array in feeds(job["model"], job["dims"]).values()]

    def run(self):
        with self.torch.inference_mode(), self.torch.autocast("cpu", self.torch.bfloat16, enabled=self.autocast):
            self.out = self.call(*self.inputs).float()

    def result(self):
        return self.out.numpy()

    def close(self):
        pass


class TorchPipe:
    """Drives one process per rank: a line in, a line out."""

    def __init__(self, job):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        base = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
        base.update(WORLD_SIZE=str(job["stages"]), GLOO_SOCKET_IFNAME="lo", MKL_NUM_THREADS="1")
        command = [sys.executable, os.path.abspath(__file__), json.dumps(job)]
        self.losses, self.ranks, self.children_seconds = [], [], 0.0
        for rank in range(job["stages"]):
            environment = dict(base, RANK=str(rank))
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.ranks.append(subprocess.Popen(command, env=environment, **pipes))

    def run(self):
        for rank in self.ranks:
            rank.stdin.write("step\n")
            rank.stdin.flush()
        answers = [json.loads(rank.stdout.readline()) for rank in self.ranks]
        self.losses.append(answers[-1]["loss"])
        self.peak_mib = sum(answer["peak_mib"] for answer in answers)
        self.children_seconds = sum(answer["seconds"] for answer in answers)

    def result(self):
        return np.array(self.losses)

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
            rank.wait()


def stage_of(model, blocks, rank, ranks):
    """Blocks [first, last) of a rank as a module; the head's product weighs as much as several
    blocks, so the last rank gets fewer."""
    from torch import nn

    width, vocab = model.wte.weight.shape[1], model.wte.weight.shape[0]
    head = vocab / (12.0 * width)
    share = (blocks + head) / ranks
    bounds = [min(blocks, round(share * r)) for r in range(ranks)] + [blocks]

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = nn.ModuleList(model.h[bounds[rank] : bounds[rank + 1]])
            if rank == 0:
                self.wte, self.wpe = model.wte, model.wpe
            if rank == ranks - 1:
                self.ln_f, self.head = model.ln_f, nn.Parameter(model.wte.weight.detach().clone())

        def forward(self, x):
            import torch

            if rank == 0:
                x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
            for block in self.h:
                x = block(x)[0]
            return self.ln_f(x) @ self.head.t() if rank == ranks - 1 else x

    return Stage()


def serve_rank(job):
    """One rank of torch.distributed.pipelining; the tied head is two weights there, as its stages
    cannot share one."""
    import torch
    from torch import distributed
    from torch.distributed.pipelining import PipelineStage, schedules

    from engines import peak_mib

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    module = stage_of(torch_model(job), SIZES[job["model"]][0], rank, ranks)
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE)
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    kind = getattr(schedules, f"Schedule{job['schedule']}")
    schedule = kind(stage, job["micro"], loss_fn=cross_entropy)
    for step, _ in enumerate(sys.stdin):
        ids, labels = (torch.from_numpy(a) for a in batch(job, step))
        losses = []
        optimizer.zero_grad()
        last = {"target": labels, "losses": losses} if rank == ranks - 1 else {}
        schedule.step(*([ids] if rank == 0 else []), **last)
        optimizer.step()
        distributed.barrier()
        loss = sum(l.item() for l in losses) / max(1, len(losses))
        said = {"loss": loss, "peak_mib": peak_mib(), "seconds": time.process_time()}
        print(json.dumps(said), file=answers, flush=True)
    distributed.destroy_process_group()


class PipeTrain:
    """onnx-pipe; the loss is the mean over all tokens, as the peers' is."""

    def __init__(self, job):
        sys.path.insert(0, os.path.join(HERE, "..", "examples"))
        import train_numpy

        self.job, self.step, self.losses = job, 0, []
        self.trainer = train_numpy.Trainer(
            train_numpy.Library(job["library"]),
            job["path"],
            (job["rows"], job["seq"]),
            ranks=job["stages"],
            threads=job["threads"],
            schedule=job["schedule"],
            microbatches=job["micro"],
            lr=LEARNING_RATE,
            decay=0.01,
            compute=job.get("compute", "fp32"),
        )

    def run(self):
        self.losses.append(self.trainer.step(*batch(self.job, self.step))[0])
        self.step += 1

    def result(self):
        return np.array(self.losses)

    def close(self):
        self.trainer.close()


ENGINES = {"torch": Torch, "torch-pipe": TorchPipe, "pipe-train": PipeTrain, "torch-run": TorchRun}

if __name__ == "__main__":
    serve_rank(json.loads(sys.argv[1]))

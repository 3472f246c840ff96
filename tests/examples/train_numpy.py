#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training loop in Python: numpy owns the data and sees the parameters, the library trains.

Trains a causal language model (inputs: token ids alone) to repeat a pattern, as a pipeline, and
prints the loss of every step. PyTorch tensors work as well: their memory is taken as it is
(tensor.numpy()). The classes mirror opipe/host.h, as far as they are used; host_numpy.py has the
rest.

usage: train_numpy.py LIBRARY MODEL.onnx [RANKS [SCHEDULE [STEPS]]]   exit status: 0 the loss fell
"""
import ctypes as c
import sys

import numpy as np

import host_numpy as host
from host_numpy import FOREVER, I64, OUT, PTR, STATUS, TEXT, U32, U64, sized, struct

REAL = c.c_double
BIND_TRAIN, CROSS_ENTROPY, ADAMW, WEIGHT = 8, 1, 2, 0
COMPUTE = {"fp32": 1, "fp16": 10, "bf16": 16}

# fmt: off
Options = struct("Options", struct_size=U32, loss=U32, output=TEXT, labels=TEXT, ignore=I64,
                 smoothing=REAL, shift=U32, n_globs=U32, globs=PTR, globs_stride=U32, recompute=U32,
                 compute=U32, optimizer=U32, seed=U64, lr=REAL, momentum=REAL, beta1=REAL,
                 beta2=REAL, epsilon=REAL, decay=REAL, clip_norm=REAL, flags=U32, lr_schedule=U32,
                 warmup_steps=U64, total_steps=U64, no_decay=PTR, n_no_decay=U32, loss_scaling=U32)
Plan = struct("Plan", struct_size=U32, n_stages=U32, devices=c.POINTER(host.Device), n_devices=U32,
              devices_stride=U32, n_microbatches=U32, replicas=U32, schedule=TEXT, cut=TEXT,
              batch_dim=TEXT, memory_bytes=U64, depth=U32, cost=U32, flags=U32, n_ranks=U32,
              transport=TEXT, train=c.POINTER(Options))
Report = struct("Report", struct_size=U32, skipped=U32, step=U64, step_ns=U64, loss=REAL,
                count=REAL, gradient_norm=REAL, lr=REAL, loss_scale=REAL)
Parameter = struct("Parameter", struct_size=U32, dtype=U32, name=TEXT, shape=c.POINTER(I64),
                   rank=U32, trained=U32, n_bytes=U64, n_copies=U32, reserved=U32,
                   gradient_norm=REAL)
# The table goes on after session_drive.
FUNCTIONS = host.FUNCTIONS + [
    ("session_fd", STATUS, [PTR, U32, PTR]), ("session_memory", STATUS, [PTR, U32, PTR]),
    ("session_info", STATUS, [PTR, PTR]),
    ("session_train_step", STATUS, [PTR, c.POINTER(host.Submit), OUT]),
    ("session_flush", STATUS, [PTR]),
    ("session_evaluate", STATUS, [PTR, c.POINTER(host.Submit), OUT]),
    ("request_report", STATUS, [PTR, c.POINTER(Report)]),
    ("session_parameter", STATUS, [PTR, U32, c.POINTER(Parameter)]),
    ("session_get", STATUS, [PTR, TEXT, U32, U32, PTR, U64]),
    ("session_set", STATUS, [PTR, TEXT, U32, U32, PTR, U64]),
    ("session_save", STATUS, [PTR, TEXT, PTR]), ("session_load", STATUS, [PTR, TEXT, PTR]),
]
# fmt: on


class Library(host.Library):
    """The whole table."""

    functions = FUNCTIONS

    def make(self, function, *arguments):
        """Structs may be newer, and longer, than those that host_numpy.py declares."""
        return super().make(function, *(c.cast(a, t) for a, t in self.typed(function, arguments)))

    def typed(self, function, arguments):
        types = next(types for name, _, types in self.functions if name == function)
        return zip(arguments, types)


class Trainer:
    """One model as a training pipeline. ranks: devices with `threads` threads each; shape: (batch,
    tokens) of the mini-batch; the model's only input is int64 token ids, the labels are int64 of
    the same shape."""

    def __init__(self, library, path, shape, **settings):
        self.library, self.handles = library, []
        try:
            self.open(path, shape, **settings)
        except host.Failed:
            self.close()
            raise

    def keep(self, destroy, function, *arguments):
        handle = self.library.make(function, *arguments)
        self.handles.append((destroy, handle))
        return handle

    def open(self, path, shape, ranks=1, threads=1, schedule="gpipe", microbatches=1, lr=1e-3,
             decay=0.01, compute="fp32", logits="logits"):
        settings = sized(host.Context, log_level=host.LOG_WARN)
        context = self.keep("context_destroy", "context_create", c.byref(settings))
        load = sized(host.Load, path=path.encode())
        model = self.keep("model_destroy", "model_load", context, c.byref(load))
        dims = (host.Dim * 2)(host.Dim(b"batch", shape[0]), host.Dim(b"seq", shape[1]))
        bind = sized(host.Bind, flags=BIND_TRAIN, dims=dims, n_dims=2)
        bound = self.keep("model_destroy", "model_bind", model, c.byref(bind))
        options = sized(
            Options, loss=CROSS_ENTROPY, output=logits.encode(), labels=b"labels", ignore=-100,
            optimizer=ADAMW, lr=lr, beta1=0.9, beta2=0.999, epsilon=1e-8, decay=decay,
            compute=COMPUTE[compute], loss_scaling=int(compute == "fp16"),
        )
        device = host.Device(kind=b"cpu", threads=threads)
        plan = sized(
            Plan, devices=c.pointer(device), n_devices=1, n_ranks=ranks, schedule=schedule.encode(),
            n_microbatches=microbatches, train=c.pointer(options),
        )
        made = self.keep("plan_destroy", "plan_make", bound, c.byref(plan))
        session = sized(host.SessionParams, spin_us=2**32 - 1)
        self.session = self.keep("session_close", "session_open", context, made, c.byref(session))
        info = sized(host.Info)
        self.library.model_input(bound, 0, c.byref(info))
        self.input = info.name.decode()

    def begin(self, ids, labels):
        """Starts a step; the arrays must live until it has finished."""
        given = host.bindings({self.input: ids, "labels": labels})
        params = sized(host.Submit, n_inputs=2, inputs=given)
        ticket = PTR()
        if self.library.session_train_step(self.session, c.byref(params), c.byref(ticket)) != 0:
            raise host.Failed("too many steps are under way")
        return ticket, given

    def finish(self, begun):
        """Loss, gradient norm and learning rate of a step that was begun."""
        report = sized(Report)
        try:
            self.library.request_wait(begun[0], FOREVER)
            self.library.request_report(begun[0], c.byref(report))
        finally:
            self.library.request_release(begun[0])
        return report.loss, report.gradient_norm, report.lr

    def step(self, ids, labels):
        return self.finish(self.begin(ids, labels))

    def parameters(self):
        """{name: shape} of what is trained."""
        found, info = {}, sized(Parameter)
        while True:
            try:
                self.library.session_parameter(self.session, len(found), c.byref(info))
            except host.Failed:
                return {name: shape for name, (shape, trained) in found.items() if trained}
            shape = tuple(info.shape[: info.rank])
            found[info.name.decode()] = shape, bool(info.trained)

    def get(self, name, shape):
        """The parameter's values (fp32 initializers)."""
        self.library.session_flush(self.session)
        array = np.empty(shape, np.float32)
        data = c.c_void_p(array.ctypes.data)
        self.library.session_get(self.session, name.encode(), WEIGHT, 0, data, array.nbytes)
        return array

    def close(self):
        while self.handles:
            destroy, handle = self.handles.pop()
            getattr(self.library, destroy)(handle)


def main(library_path, model, ranks="2", schedule="1f1b", steps="20"):
    batch, tokens, period = 8, 16, 5
    start = np.arange(batch)[:, None]
    ids = (start + np.arange(tokens)) % period
    labels = (start + np.arange(1, tokens + 1)) % period
    trainer = Trainer(Library(library_path), model, (batch, tokens), ranks=int(ranks),
                      schedule=schedule, microbatches=4, lr=3e-3)
    try:
        losses = []
        for step in range(int(steps)):
            loss, norm, rate = trainer.step(ids, labels)
            losses.append(loss)
            print(f"step {step + 1}: loss {loss:.4f}, gradient norm {norm:.3f}, lr {rate:g}")
        shapes = trainer.parameters()
        name = next(iter(shapes))
        print(f"{len(shapes)} parameters; '{name}' has mean {trainer.get(name, shapes[name]).mean():.2e}")
    finally:
        trainer.close()
    return 0 if losses[-1] < losses[0] else 1


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except (host.Failed, OSError, TypeError) as error:
        print(f"train_numpy.py: {error}", file=sys.stderr)
        sys.exit(3)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""The package onnxpipe and what it must refuse: an exception that names the thing, no crash, no hang."""
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import time

import kit

kit.begin()

import numpy as np
import onnxpipe as op

IDS = np.zeros((2, 8), np.int64)
TRAINING = op.Training(loss="cross-entropy", output="logits", labels="labels", shift=True)


def session(**how):
    return op.Session(op.Plan(op.Model(kit.DEMO), stages=2), **how)


def test_types_and_shapes():
    with session() as own:
        kit.raises(op.InvalidError, ["input_ids", "float32", "int64"], own.run, IDS.astype(np.float32))
        kit.raises(op.InvalidError, ["input_ids", "float32", "int64"], own.submit, IDS.astype(np.float32))
        kit.raises(op.InvalidError, ["input_ids", "3", "2"], own.run, np.zeros((1, 2, 8), np.int64))
        kit.raises(op.Error, ["input_ids"], own.run, {})
        kit.raises(op.Error, ["other"], own.run, {"input_ids": IDS, "other": IDS})
        kit.raises(TypeError, ["input_ids", "byte order"], own.run, IDS.astype(">i8"))
        kit.raises(TypeError, ["input_ids", "datetime64"], own.run, IDS.astype("datetime64[s]"))
        kit.raises(TypeError, ["input_ids", "float64", "int64"], own.run, [[0.5] * 8])
        kit.raises(TypeError, ["input_ids", "int64"], own.run, [["a"] * 8])
        kit.raises(TypeError, ["name", "7"], own.run, {7: IDS})
        kit.raises(op.InvalidError, ["there is no input"], own.run, {"input_ids\0": IDS})
        kit.raises(ValueError, ["deadline", "-1"], own.run, IDS, deadline=-1)
        kit.raises(op.Error, ["logits"], own.run, IDS, outputs={"logits": np.empty((2, 8, 255), np.float32)})
        kit.raises(op.Error, ["logits"], own.run, IDS, outputs={"logits": np.empty((2, 8, 256), np.float64)})
        read_only = np.empty((2, 8, 256), np.float32)
        read_only.flags.writeable = False
        kit.raises(ValueError, ["logits", "read-only"], own.run, IDS, outputs={"logits": read_only})
        kit.raises(TypeError, ["logits", "list"], own.run, IDS, outputs={"logits": []})
        out = np.full((2, 8, 256), 7, np.float32)
        kit.raises(op.Error, ["256"], own.run, IDS + 256, outputs={"logits": out})  # no such token
        assert own.run(IDS)["logits"].shape == (2, 8, 256), "the session goes on"


def test_devices():
    class Elsewhere:
        """A tensor on a GPU, for all that its producer says."""

        def __init__(self, kind):
            self.kind = kind

        def __dlpack_device__(self):
            return self.kind, 0

        def __dlpack__(self, **how):
            tensor = op.as_tensor(IDS)
            shared = op._library.ffi().new("opipe_tensor *")
            tensor._fill(shared)
            shared.device_type = self.kind
            return op._dlpack.lend(shared, tensor)

    class Broken(Elsewhere):
        def __dlpack__(self, **how):
            raise BufferError("it requires grad")

    with session() as own:
        for kind in (2, 10):
            kit.raises(op.Error, ["input_ids"], own.run, Elsewhere(kind))
        kit.raises(TypeError, ["input_ids", "Broken", "requires grad"], own.run, Broken(1))
        assert own.run(IDS)
    gc.collect()
    assert not op._dlpack._lent


def test_closed():
    model = op.Model(kit.DEMO)
    plan = op.Plan(model, stages=2)
    own = op.Session(plan)
    bound = own.bind({"input_ids": IDS})
    model.close()
    plan.close()
    assert own.run(IDS), "a session keeps its plan"
    kit.raises(op.StateError, "this model is closed", op.Plan, model)
    kit.raises(op.StateError, "this plan is closed", op.Session, plan)
    kit.raises(op.StateError, "this plan is closed", plan.describe)
    own.close()
    own.close()
    for function in (own.run, own.submit, lambda ids: next(own.stream([ids])), own.bind, lambda ids: bound.run(), lambda ids: own.trace()):
        kit.raises(op.StateError, "this session is closed", function, IDS)
    for each in (own, plan, model):
        assert "closed" in repr(each)
    trainer = op.Trainer(op.Model(kit.DEMO), training=TRAINING)
    trainer.close()
    kit.raises(op.StateError, "this trainer is closed", trainer.flush)


def test_arguments():
    model = op.Model(kit.DEMO)
    kit.raises(TypeError, ["path", "int"], op.Model, 7)
    kit.raises(op.Error, ["0 bytes"], op.Model, b"")
    kit.raises(op.Error, [], op.Model, b"no model")
    kit.raises(op.NotFoundError, ["/no/such/model.onnx"], op.Model, "/no/such/model.onnx")
    kit.raises(OverflowError, ["n_stages", "-1"], op.Plan, model, stages=-1)
    kit.raises(TypeError, ["n_stages", "'two'"], op.Plan, model, stages="two")
    kit.raises(ValueError, ["memory", "many"], op.Plan, model, memory="many")
    kit.raises(op.LimitError, ["rank"], op.Plan, model, stages=2, memory="1KiB")
    kit.raises(op.Error, ["nosuch"], op.Plan, model, schedule="nosuch")
    kit.raises(op.Error, ["nosuch"], op.Plan, model, devices="nosuch")
    kit.raises(op.Error, ["batches"], model.bind, {"batches": 1})
    kit.raises(TypeError, ["batch", "'one'"], model.bind, {"batch": "one"})
    kit.raises(ValueError, ["loss", "hinge", "mse"], op.Trainer, model, training=op.Training(loss="hinge"))
    kit.raises(op.InvalidError, ["inference"], op.Trainer, op.Plan(model))
    kit.raises(op.InvalidError, ["training"], op.Session, op.Plan(model, training=TRAINING))
    kit.raises(op.NotFoundError, ["nosuch.so"], op.Library, "/tmp/nosuch.so")
    kit.raises(op.Error, [], op.Plan.read, model, b"{}")
    trainer = op.Trainer(model, training=TRAINING, keep_gradients=True)
    parameters = trainer.parameters
    name = next(iter(parameters))
    kit.raises(op.NotFoundError, ["nosuch"], lambda: parameters["nosuch"])
    kit.raises(op.InvalidError, [name, "[1]"], parameters.__setitem__, name, np.zeros(1, np.float32))
    kit.raises(op.InvalidError, [name, "float64"], parameters.__setitem__, name, parameters[name].astype(np.float64))
    kit.raises(ValueError, ["velocity", "gradient"], trainer.get, name, "velocity")
    kit.raises(op.Error, ["labels"], trainer.step, {"input_ids": IDS})
    kit.raises(ValueError, ["5"], trainer.save, "/tmp/unused", range(5))
    trainer.close()


def test_callbacks_that_raise():
    own = session()

    def source():
        yield IDS
        yield IDS
        raise KeyError("no third row")

    found = own.stream(source())
    assert next(found) and next(found)
    kit.raises(KeyError, "no third row", next, found)
    broken = own.submit(IDS)
    broken.add_done_callback(lambda request: 1 / 0)  # logged by concurrent.futures
    assert broken.result(20) and own.submit(IDS).result(20), "the session's thread lives on"
    empty = op._tensors.empty
    op._tensors.empty = None  # no memory for results
    try:
        kit.raises(TypeError, "NoneType", own.run, IDS)
        kit.raises(TypeError, "NoneType", own.submit, IDS)
    finally:
        op._tensors.empty = empty
    assert own.run(IDS)
    own.close()
    shown = []
    sys.unraisablehook = lambda args: shown.append(args.exc_value)

    def log(level, message):
        raise LookupError(message)

    context = op.Context(log=log, log_level=3, budgets={("cpu", 0): "1GiB"})
    trainer = op.Trainer(op.Model(kit.DEMO, context=context), training=op.Training(**{**vars(TRAINING), "lr": 0.0, "optimizer": "sgd"}))
    ids = np.zeros((1, 8), np.int64)
    trainer.step({"input_ids": ids, "labels": ids})  # of a rate of 0 it warns
    trainer.close()
    sys.unraisablehook = sys.__unraisablehook__
    assert shown and all(isinstance(error, LookupError) for error in shown), shown


FORK = """
import os, signal, sys, threading, time
import numpy as np, onnxpipe as op
ids = np.zeros((2, 8), np.int64)
own = op.Session(op.Plan(op.Model(sys.argv[1]), stages=2))
state = own.submit(ids)
big = own.submit(np.zeros((64, 32), np.int64))
sys.stdout.flush()
child = os.fork()
if child == 0:
    signal.alarm(20)
    said = 0
    for use in (lambda: own.run(ids), lambda: own.submit(ids), lambda: big.result(), lambda: op.Plan(own.plan.model), own.trace,
                lambda: big.cancel()):
        try:
            use()
        except op.StateError as error:
            said += "in another process" in str(error)
    own.close()
    fresh = op.Session(op.Plan(op.Model(sys.argv[1]), stages=2))  # of its own
    said += "logits" in fresh.submit(ids).result(10)
    print("child", said)
    sys.exit(0)
status = os.waitpid(child, 0)[1]
print("parent", status, len(own.run(ids)), len(big.result()))
"""


def test_fork():
    done = kit.child(FORK, kit.DEMO)
    assert "child 7" in done.stdout and "parent 0 1 1" in done.stdout and done.returncode == 0, done


ENDS = {
    "nothing is closed": "",
    "a thread waits": "threading.Thread(target=lambda: own.run(ids), daemon=True).start()",
    "a thread streams": "threading.Thread(target=lambda: [0 for _ in own.stream(iter(lambda: ids, 0))], daemon=True).start(); time.sleep(0.1)",
    "requests under way": "kept = [own.submit(np.zeros((64, 32), np.int64)) for _ in range(4)]",
    "a cycle": "own.itself = own; del own",
    "callbacks that submit": "own.submit(ids).add_done_callback(again)",
    "a loop": "import asyncio; asyncio.run(asyncio.wait_for(own.arun(ids), 20))",
}
END = """
import sys, threading, time
import numpy as np, onnxpipe as op
ids = np.zeros((2, 8), np.int64)
own = op.Session(op.Plan(op.Model(sys.argv[1]), stages=2))
trainer = op.Trainer(op.Model(sys.argv[1]), training=op.Training(loss="cross-entropy", output="logits", labels="labels"))
def again(request):
    own.submit(ids).add_done_callback(again)
print("begun", flush=True)
"""


def test_interpreter_ends():
    """With sessions open, in every way."""

    def one(i):
        what, line = list(ENDS.items())[i]
        done = kit.child(END + line, kit.DEMO, timeout=40)
        assert done.returncode == 0 and done.stdout == "begun\n" and "Fatal" not in done.stderr, (what, done)

    for first in range(0, len(ENDS), 2):
        kit.threads(min(2, len(ENDS) - first), lambda i, first=first: one(first + i))


def test_two_libraries():
    """Two libraries in one process: each with objects of its own, and nothing passes from one to the other."""
    own = op.Library()
    assert op.Library() is own and op.Library(own.path) is own
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "libonnxpipe.so")
        shutil.copyfile(os.path.realpath(own.path), copy)
        os.symlink(os.path.join(os.path.dirname(os.path.realpath(own.path)), "onnx-pipe"), os.path.join(folder, "onnx-pipe"))
        other = op.Library(copy)
        assert other is not own
        context = op.Context(library=other)
        model = op.Model(kit.DEMO, context=context)
        plan = op.Plan(model, stages=2)
        with op.Session(plan) as there, session() as here:
            assert np.array_equal(there.run(IDS)["logits"], here.run(IDS)["logits"])
            kit.raises(op.Error, [own.path, other.path], here._same_library, there)
        younger = op._library.ffi()
        view = younger.new("opipe_view *")  # a host of a later minor
        view.struct_size, view.abi_major, view.abi_minor = younger.sizeof("opipe_view"), own.abi[0], own.abi[1] + 5
        found, error = younger.new("const opipe_api **"), own.error()
        status = own.dl.opipe_get_api(view, found, error)
        kit.raises(op.AbiError, [f"{own.abi[0]}.{own.abi[1]}", f"{own.abi[0]}.{own.abi[1] + 5}"], own.check, status, error)
    kit.raises(op.NotFoundError, "opipe_get_api", op.Library, _other_library())


def _other_library():
    with open("/proc/self/maps", encoding="utf-8") as file:
        return next(line.split()[-1] for line in file if "/libc.so" in line)


def test_interrupt():
    """Ctrl-C while a thread waits in the library: KeyboardInterrupt soon, and the session goes on."""
    slow = np.zeros((64, 32), np.int64)
    with session(in_flight=2) as own:
        main = threading.main_thread().ident
        for use in (lambda: [own.run(slow) for _ in range(10000)], lambda: list(own.stream(slow for _ in range(100000)))):
            threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
            started = time.monotonic()
            kit.raises(KeyboardInterrupt, "", use)
            assert time.monotonic() - started < 10
        assert own.run(IDS)


def test_structs_keep_what_they_point_to():
    library = op.Library()
    params = library.struct("opipe_plan_params", train=library.struct("opipe_train_options", loss=1, seed=7))
    others = [library.struct("opipe_train_options", loss=3, seed=i) for i in range(1000)]  # would take freed memory
    assert (params.train.loss, params.train.seed) == (1, 7) and len(others) == 1000


def test_collected():
    """Sessions that nobody closes are closed when they are collected, and threads end with them."""
    before = threading.active_count()
    kept = [session().submit(IDS) for _ in range(5)]
    assert all(request.result(20) for request in kept)
    gc.collect()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before, "requests that have ended keep no session"


if __name__ == "__main__":
    sys.exit(kit.main(globals()))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""The package onnxpipe with numpy and cffi alone: models, plans, requests, streams, states, training, checkpoints."""
import asyncio
import concurrent.futures
import dataclasses
import gc
import os
import sys
import tempfile
import time

import kit

kit.begin()

import numpy as np
import onnxpipe as op

IDS = (np.arange(16).reshape(2, 8) * 37 % 256).astype(np.int64)
TRAINING = op.Training(loss="cross-entropy", output="logits", labels="labels", shift=True, lr=3e-3)


def session(stages=2, in_flight=0, **how):
    return op.Session(op.Plan(op.Model(kit.DEMO), stages=stages, **how), in_flight=in_flight)


def whole():
    """Logits of the uncut model."""
    with session(1) as own:
        return own.run(IDS)["logits"]


def test_models():
    with open(kit.DEMO, "rb") as file:
        data = file.read()
    of_path, of_bytes = op.Model(kit.DEMO), op.Model(data)
    assert [i.name for i in of_path.inputs] == ["input_ids"] and of_path.inputs[0].dims == ("batch", "seq")
    assert of_path.inputs == of_bytes.inputs and of_path.outputs[0].dtype == "float32"
    try:
        import onnx
    except ImportError:
        pass
    else:
        assert op.Model(onnx.load(kit.DEMO)).parameter_count == of_path.parameter_count
    plan = op.Plan(of_bytes, stages=2, dims={"batch": 2})
    del data, of_bytes  # what the plan reads is kept by it
    gc.collect()
    with op.Session(plan) as own:
        assert np.array_equal(own.run(IDS)["logits"], whole())
    bound = of_path.bind({"batch": 2, "seq": 8})
    assert bound.bound and bound.dims == {"batch": 2, "seq": 8} and bound.flops > 0
    assert "input_ids" in bound.describe() and bound.to_dict()
    with tempfile.TemporaryDirectory() as folder:
        of_path.save(os.path.join(folder, "again.onnx"))
        assert op.Model(os.path.join(folder, "again.onnx")).outputs == of_path.outputs


def test_plans():
    model = op.Model(kit.DEMO)
    plan = op.Plan(model, stages=2, devices=op.Device(threads=1, memory="64MiB"), microbatches=2, dims={"batch": 2})
    assert (plan.n_stages, plan.n_ranks, plan.n_microbatches, plan.trains) == (2, 2, 2, False)
    assert plan.memory(0).total > 0 and plan.memory(1).cap == 64 << 20 and plan.request_seconds > 0
    assert all(edge[1:] == (0, 1) for edge in plan.cut_tensors) and plan.cut_tensors
    again = op.Plan.read(model, plan.to_json())
    assert again.to_json() == plan.to_json() and plan.to_dict() and "rank" in plan.describe()
    assert plan._repr_svg_().startswith("<svg") and "<iframe" in plan._repr_html_() and "</html>" in plan.play("html")
    trained = op.Plan(model, ranks=2, training=TRAINING, dims={"batch": 4})
    assert trained.trains and op.Plan.read(model, trained.to_json()).trains


def test_run():
    wanted = whole()
    with session() as own:
        found = own.run({"input_ids": IDS})
        assert list(found) == ["logits"] and np.array_equal(found["logits"], wanted)
        assert np.array_equal(own(IDS.tolist())["logits"], wanted)  # plain numbers become what the model wants
        wide = np.zeros((2, 16), np.int64)
        wide[:, ::2] = IDS
        assert np.array_equal(own.run(wide[:, ::2])["logits"], wanted), "strides are not looked at"
        assert np.array_equal(own.run(IDS[::-1])["logits"], wanted[::-1])
        out = np.empty_like(wanted)
        assert own.run(IDS, outputs={"logits": out})["logits"] is out and np.array_equal(out, wanted)
        bound = own.bind({"input_ids": IDS.copy()})
        assert np.array_equal(bound.run()["logits"], wanted)
        bound.inputs["input_ids"][...] = 0
        assert not np.array_equal(bound.run()["logits"], wanted)
        kept = own.run(IDS)["logits"]
        assert own.info["requests_done"] >= 6 and own.memory(0).total > 0
        trace = own.trace()
        assert trace._repr_svg_().startswith("<svg") and "iframe" in trace._repr_html_() and "traceEvents" in trace.chrome
    gc.collect()
    assert np.array_equal(kept, wanted), "results are the caller's, whatever becomes of the session"


def test_futures():
    wanted = whole()
    with session() as own:
        request = own.submit(IDS)
        assert isinstance(request, concurrent.futures.Future) and np.array_equal(request.result(20)["logits"], wanted)
        done = []
        requests = [own.submit(IDS) for _ in range(10)]
        for request in requests:
            request.add_done_callback(done.append)
        for request in concurrent.futures.as_completed(requests, 20):
            assert np.array_equal(request.result()["logits"], wanted)
        own.submit(IDS).add_done_callback(lambda r: done.append(own.submit(IDS)))  # of a callback, too
        deadline = time.monotonic() + 20
        while len(done) < 11 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert np.array_equal(done[-1].result(20)["logits"], wanted)

        async def awaited():
            one = await own.submit(IDS)
            many = await asyncio.gather(*(own.arun(IDS) for _ in range(20)))
            streamed = [found["logits"] async for found in own.astream([IDS] * 5)]
            return [one["logits"], *(found["logits"] for found in many), *streamed]

        found = asyncio.run(awaited())
        assert len(found) == 26 and all(np.array_equal(logits, wanted) for logits in found)


def test_stream_of_many():
    """1,000 requests from 8 threads, each with rows of its own, in order."""
    rows = [np.full((1, 8), i, np.int64) for i in range(40)]
    with session(in_flight=8) as own:
        wanted = [own.run(row)["logits"] for row in rows]

        def one(thread):
            found = own.stream(rows[(thread + i) % 40] for i in range(125))
            for i, outputs in enumerate(found):
                assert np.array_equal(outputs["logits"], wanted[(thread + i) % 40]), (thread, i)
            assert i == 124

        kit.threads(8, one)
        assert own.info["requests_done"] == 1040 and own.info["requests_failed"] == 0


def test_cancel_and_deadline():
    large = np.zeros((64, 32), np.int64)
    with session(in_flight=4) as own:
        own.run(large)
        requests = [own.submit(large) for _ in range(4)]
        assert requests[3].cancel() and requests[3].cancel()
        kit.raises(concurrent.futures.CancelledError, "", requests[3].result, 20)
        assert requests[3].cancelled() and requests[0].result(20)
        kit.raises(op.DeadlineError, "", own.run, large, deadline=1e-6)
        late = kit.raises(op.DeadlineError, "", own.submit(large, deadline=1e-6).result, 20)
        assert late.status == -9 and isinstance(late, TimeoutError)
        under_way = [own.submit(large) for _ in range(4)]
        kit.raises(op.DeadlineError, "", own.submit, large, timeout=0)
        assert all(request.result(20) for request in under_way)

        async def cancelled():
            task = asyncio.ensure_future(own.arun(large))
            await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return True
            return False

        assert asyncio.run(cancelled())
        assert own.run(IDS)


def test_closing_ends_futures():
    own = session(in_flight=16)
    large = np.zeros((64, 32), np.int64)
    requests = [own.submit(large) for _ in range(12)]
    own.close()
    ended = ["cancelled" if request.cancelled() else "done" for request in requests if request.done()]
    assert len(ended) == 12 and "cancelled" in ended, ended


def test_states():
    model = op.Model(os.path.join(kit.DATA, "gpt_past", "model.onnx"))
    outputs = [info.name for info in model.outputs if info.name.startswith("present")]
    assert outputs, [info.name for info in model.outputs]
    inputs = [info for info in model.inputs if "past" in info.name]
    pairs = [op.Pair(o, i.name, 4096) for o, i in zip(outputs, inputs)]
    plan = op.Plan(model, stages=2, states=pairs, streams=2)
    with op.Session(plan) as own:
        feeds = {info.name: _zeros(info) for info in plan.model.inputs}
        for info in inputs:
            shape = [d if d >= 0 else 1 for d in info.shape]
            shape[info.shape.index(-1, 1)] = 0
            feeds[info.name] = np.zeros(shape, np.float32)
        state, other = own.state(), own.state()
        first = own.run(feeds, state=state)
        assert not any(name in first for name in outputs), list(first)
        assert state.info(0).shape == state.read(0).shape and state.info(0).output == outputs[0]
        other.copy_from(state)
        assert np.array_equal(other.read(0), state.read(0))
        kit.raises(op.InvalidError, inputs[0].name, own.run, feeds, state=state)  # the state has them
        state.reset()
        assert state.info(0).empty
        state.close()
        kit.raises(op.StateError, "this state is closed", state.read, 0)


def test_generation():
    """Tokens are those of the plan's stages run one by one, however they are read; forks, answers, further turns, ends."""
    model = op.Model(kit.DEMO)
    plan = op.Plan(model, stages=2, generation=op.Generation(context=64, active=8))
    with op.Session(plan, reference=True) as own:
        greedy, drawn = own.generate([84, 104], temperature=0, max_tokens=6).result(20), own.generate([84], seed=3, max_tokens=8).result(20)
    with op.Session(plan) as own:
        one = own.generate(np.array([84, 104]), temperature=0, max_tokens=np.int64(6), logprobs=2)
        assert [token.id for token in one] == greedy == one.result(20) and one.end == "tokens" and one.ids == [84, 104] + greedy
        token = one.tokens[-1]
        assert token.position == 7 and token.logprob < 0 and [i for i, _ in token.likely][0] == token.id and len(token.likely) == 2

        async def awaited():
            streamed = [token.id async for token in own.generate([84, 104], temperature=0, max_tokens=6)]
            return [streamed, *await asyncio.gather(*(own.generate([84, 104], temperature=0, max_tokens=6) for _ in range(8)))]

        assert asyncio.run(awaited()) == [greedy] * 9
        answers = own.generate([84], seed=3, max_tokens=8, n=3).answers()
        found = [answer.result(20) for answer in answers]
        assert found[0] == drawn and [answer.info.branch for answer in answers] == [0, 1, 2] and found[1] != found[2]
        fork = one.fork()
        assert fork.tokens == one.tokens and fork.end == "tokens" and fork.append([7], temperature=0, max_tokens=2).result(20) == one.append([7]).result(20)[:2]
        assert one.info.n_prompt == 9 and one.info.n_ids == 15
        one.truncate(2)
        assert one.ids == [84, 104] and one.append([9], temperature=0, max_tokens=1).result(20)
        chosen = own.generate([1], max_tokens=3, on_logits=lambda position, row: int(position) + 40 if row.shape == (256,) else None)
        assert chosen.result(20) == [41, 42, 43]
        calls = iter([None, None])
        kit.raises(StopIteration, "", own.generate([1], on_logits=lambda position, row: next(calls)).result, 20)
        late = own.generate([1], deadline=1e-6)
        assert "deadline" in str(kit.raises(op.DeadlineError, "", late.result, 20)) and late.info.end == "failed"
        long = own.generate([1], on_logits=lambda position, row: time.sleep(0.01))
        long.cancel()
        kit.raises(op.CancelledError, "", list, long)
        del answers, fork, one, chosen, late, long
        gc.collect()
        assert own.generation.open == 0 and own.generation.tokens > 40 and not op._generate._turns
        kit.raises(op.InvalidError, ["top_p", "2"], own.generate, [1], top_p=2)
        kit.raises(op.InvalidError, ["id 256", "256"], own.generate, [256])
        kit.raises(op.LimitError, ["64"], own.generate, [1] * 64)
        kit.raises(op.Error, ["beams"], own.generate, [1], beams=3)
        kit.raises(op.StateError, "generates", own.run, IDS)
        kept = own.generate([5], temperature=1)
    assert kept.end in ("cancelled", "context"), kept
    kit.raises(op.StateError, "closed", kept.append, [1])
    kit.raises(op.StateError, "no generation", session().generate, [1])


def _zeros(info):
    return np.zeros(info.shape, info.dtype)


def batches(n):
    ids = (np.arange(8)[:, None] + np.arange(16)) % 5
    return [{"input_ids": ids, "labels": ids}] * n


def trainer(**how):
    return op.Trainer(op.Model(kit.DEMO), training=TRAINING, dims={"batch": 8, "seq": 16}, microbatches=4, **how)


def test_training():
    with trainer(ranks=2, schedule="1f1b", keep_gradients=True) as own:
        steps = list(own.steps(batches(10)))
        assert [step.step for step in steps] == list(range(1, 11)) and steps[-1].loss < 0.7 * steps[0].loss
        assert own.step(batches(1)[0], lr=0).lr == 0
        evaluated = own.evaluate(batches(1)[0])
        assert evaluated.loss < steps[-1].loss * 1.5 and evaluated.outputs["logits"].shape == (8, 16, 256)
        parameters = own.parameters
        name = next(iter(parameters))
        info, weight = parameters.info(name), parameters[name]
        assert weight.shape == info.shape and info.trained and len(parameters) > 10
        assert own.get(name, "gradient").shape == info.shape and np.any(own.get(name, "first moment"))
        parameters[name] = weight * 2
        assert np.array_equal(own.get(name), weight * 2)
        assert own.clock.steps == 11

        async def awaited():
            return await own.submit(batches(1)[0])

        assert asyncio.run(awaited()).step == 12


def test_tensor_groups():
    """Two sessions at a time, whose sums and messages come late by chance: the bits of one with neither."""
    how = {"tensor": 2, "microbatches": 2, "dims": {"batch": 2, "seq": 8}}
    with session(2, **how) as own:
        want = own.run(IDS)["logits"]
    assert np.allclose(want, whole(), atol=1e-4)
    late = "emulated:rule={},jitter_us=300,seed={}"
    for scattered, rules in ((False, ("edge", "grouped")), (True, ("pair", "blocking"))):
        first = session(2, scattered=scattered, transport=late.format(rules[0], 1), **how)
        second = session(2, scattered=scattered, transport=late.format(rules[1], 2), **how)
        with first, second:
            kit.threads(2, lambda i: [_same(own.submit(IDS).result(20)["logits"], want) for own in (first, second) for _ in range(3)])
    steps = {}
    for shard in (False, True):
        training = dataclasses.replace(TRAINING, shard=shard)
        with op.Trainer(op.Model(kit.DEMO), training=training, dims={"batch": 4, "seq": 8}, microbatches=2, stages=2, tensor=2,
                        replicas=2, sequence=True) as own:  # fmt: skip
            batch = {name: rows[:4, :8] for name, rows in batches(1)[0].items()}
            steps[shard] = [step.loss for step in own.steps([batch] * 3)]
    assert steps[True] == steps[False] and steps[True][2] < steps[True][0]


def _same(got, want):
    assert np.array_equal(got, want)


def test_double_buffered():
    """Weights of two versions: a step ends with the next one, or when somebody waits for it."""
    with trainer(ranks=2, schedule="2bw", in_flight=4) as own:
        assert own.submit(batches(1)[0]).result(20).step == 1
        requests = [own.submit(each) for each in batches(3)]
        kit.threads(3, lambda i: requests[i].result(20))
        assert [step.step for step in own.steps(batches(5), ahead=3)] == [5, 6, 7, 8, 9]
        kept = [own.submit(each) for each in batches(2)]
    assert all(request.done() for request in kept), "closing waits for steps"


def test_checkpoints():
    with tempfile.TemporaryDirectory() as folder:
        path, file = os.path.join(folder, "saved"), os.path.join(folder, "trained", "model.onnx")
        os.mkdir(os.path.dirname(file))
        with trainer(ranks=2) as own:
            list(own.steps(batches(4)))
            own.save(path, [7, 9])
            own.save_model(file)
            wanted = own.step(batches(1)[0])
        with trainer(ranks=1, schedule="gpipe") as other:  # a checkpoint knows parameters, not the plan
            assert other.resume(path) == (7, 9, 0, 0) and other.clock.steps == 4
            found = other.step(batches(1)[0])
        assert found.step == wanted.step == 5 and abs(found.loss - wanted.loss) <= 1e-5 * wanted.loss
        ids = batches(1)[0]["input_ids"]
        with op.Session(op.Plan(op.Model(file), stages=2)) as own:
            assert own.run(ids)["logits"].shape == (8, 16, 256)
        kit.raises(OSError, "nowhere", lambda: trainer().resume(os.path.join(folder, "nowhere")))


def test_dlpack():
    wanted = whole()

    class Lent:
        """A tensor of another framework."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **how):
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    with session() as own:
        array = IDS.copy()
        users = sys.getrefcount(array)
        found = own.run({"input_ids": Lent(array)})["logits"]
        assert np.array_equal(found, wanted)
        out = np.empty_like(wanted)
        own.run(IDS, outputs={"logits": Lent(out)})
        assert np.array_equal(out, wanted), "written in place"
        del found
        gc.collect()
        assert sys.getrefcount(array) == users, "what is lent is given back"
    tensor = op.as_tensor(out)
    back = np.from_dlpack(tensor)
    assert back.ctypes.data == out.ctypes.data and np.array_equal(back, out)
    users = sys.getrefcount(tensor)
    del back
    tensor.__dlpack__()  # nobody takes it
    gc.collect()
    assert sys.getrefcount(tensor) < users


def test_command():
    done = kit.child("import runpy, sys; sys.argv = ['onnxpipe', *sys.argv[1:]]; runpy.run_module('onnxpipe', run_name='__main__')",
                     "run", kit.DEMO, "--stages", "2")  # fmt: skip
    assert done.returncode == 0 and "2 stages on 2 ranks" in done.stdout, done


def test_reference():
    """The page of the guide is of this package."""
    script, page = (os.path.join(kit.SOURCE, "abi", *path) for path in (("python", "reference.py"), ("guide", "python-reference.md")))
    made = kit.child("import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')", script, kit.PACKAGE)
    with open(page, encoding="utf-8") as file:
        assert made.returncode == 0 and made.stdout == file.read(), f"abi/guide/python-reference.md is not what {script} writes: {made.stderr}"


def test_examples():
    """The scripts of tests/examples/python, of twenty lines at most."""
    folder = os.path.join(kit.SOURCE, "tests", "examples", "python")
    wanted = [("run.py", [kit.DEMO], "request 15: the likeliest"), ("serve.py", [kit.DEMO], "tokens "),
              ("train.py", [kit.DEMO, "."], "step 20: loss 0.0")]  # fmt: skip
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            assert len(file.readlines()) <= 20, name
    with tempfile.TemporaryDirectory() as out:

        def one(i):
            name, arguments, words = wanted[i]
            script = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
            done = kit.child(script, os.path.join(folder, name), *arguments, cwd=out)
            assert done.returncode == 0 and words in done.stdout, (name, done)

        kit.threads(len(wanted), one)
        assert {"trace.svg", "checkpoint", "trained.onnx"} <= set(os.listdir(out))


if __name__ == "__main__":
    sys.exit(kit.main(globals()))

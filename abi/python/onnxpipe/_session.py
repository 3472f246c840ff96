# SPDX-License-Identifier: Apache-2.0
"""Sessions: requests one by one, as futures, in streams, with states."""
from __future__ import annotations

import asyncio
import collections
import functools
import threading
import time
from dataclasses import dataclass
from typing import Any, AsyncIterator, Callable, Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

from . import _dtypes, _generate, _tensors
from ._dispatch import Dispatcher, Request, wait
from ._errors import InvalidError, StateError
from ._generate import GenerationInfo, OnLogits, Sequence
from ._handles import Handle, destroy
from ._library import SLICE, Library, callback, ffi, forks, nanoseconds
from ._plan import Plan, RankMemory, framed
from ._tensors import Array, ArrayLike

Inputs = Union[Mapping[str, ArrayLike], ArrayLike]
Outputs = Dict[str, Array]
REQUEST, STEP, EVALUATION = 0, 1, 2
_FLAGS = dict(check_finite=1, reference=2, no_backend_fuse=8, keep_gradients=16, hold=32, tuned=64, trace=128)


class _Results:
    """Room for the outputs of one request, asked for by the library once it knows their shapes."""

    def __init__(self) -> None:
        self.by_index: Dict[int, Array] = {}
        self.failure: Optional[BaseException] = None


def _room(context: Any, index: int, tensor: Any, n_bytes: int, out: Any) -> int:
    results: _Results = ffi().from_handle(context)
    try:
        dtype = _dtypes.of_dl(tensor.dtype.code, tensor.dtype.bits)
        own, address = _tensors.empty(dtype, [tensor.shape[d] for d in range(tensor.rank)])
        results.by_index[index] = own
        out[0] = ffi().cast("void *", address)
        return 0
    except BaseException as error:  # raised again by whoever submits
        results.failure = error
        return -2


@dataclass(frozen=True)
class Trace:
    """A time line with one lane per rank, measured and planned. A notebook shows it."""

    chrome: str
    svg: str
    html: str

    def save(self, path: str) -> None:
        """Writes PATH.svg, PATH.html, or else JSON for Perfetto and chrome://tracing."""
        text = self.svg if path.endswith(".svg") else self.html if path.endswith(".html") else self.chrome
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return framed(self.html)


class Runner(Handle):
    """The base of sessions for inference and for training."""

    _what = "session"

    def _open(self, plan: Plan, in_flight: int, max_shapes: int, watchdog: Optional[float], flags: Dict[str, bool]) -> None:
        library = plan._library
        bits = sum(_FLAGS[name] for name, is_set in flags.items() if is_set)
        params = library.struct(
            "opipe_session_params", flags=bits, max_in_flight=in_flight, max_shapes=max_shapes,
            watchdog_ns=nanoseconds(watchdog, "watchdog"), spin_us=2**32 - 1,
        )  # fmt: skip
        pointer = library.make("opipe_session", "session_open", plan.context._handle(), plan._handle(), params)
        self.plan = plan
        self._dispatcher = Dispatcher(library, pointer)
        self._hold(library, pointer, functools.partial(_close, self._dispatcher, library, pointer, forks(), plan))
        self._names = _tensors.Names()
        self._on_output = callback("opipe_status(void *, uint32_t, const opipe_tensor *, uint64_t, void **)", _room, -13)
        self._wanted = {info.name: info.type for info in plan.model.inputs}
        self._added: List[str] = []  # inputs that the graph has not: labels
        self._output_names = [info.name for info in plan.model.outputs]

    def _params(self, what: int, inputs: Inputs, outputs: Optional[Mapping[str, Any]], deadline: Optional[float], keep: List[Any]) -> Any:
        """opipe_submit_params, and the results it asks room for."""
        library = self._library
        if not isinstance(inputs, Mapping):
            if len(self._wanted) != 1:
                raise InvalidError(f"this model has {len(self._wanted)} inputs, {', '.join(self._wanted)}: give them by name")
            inputs = {next(iter(self._wanted)): inputs}
        for name in inputs:
            if isinstance(name, str) and name not in self._wanted and name not in self._added:
                raise InvalidError(f"there is no input {name!r}, but {', '.join([*self._wanted, *self._added]) or 'none'}")
        given = _tensors.bindings(inputs, self._names, "input", self._wanted, keep, False)
        params = library.struct("opipe_submit_params", inputs=given, n_inputs=len(inputs), deadline_ns=nanoseconds(deadline, "deadline"))
        results = _Results()
        if outputs:
            rows = _tensors.bindings(outputs, self._names, "output", {}, keep, True)
            params.outputs, params.n_outputs = rows, len(outputs)
        if what == REQUEST:  # steps and evaluations keep theirs until they are released
            params.on_output = self._on_output
            params.on_output_ctx = handle = library.ffi.new_handle(results)
            keep += [handle, results]
        return params, results

    def _begin(self, what: int, params: Any, results: _Results, timeout: Optional[float], out: Any) -> Any:
        """Starts it, once there is room: its handle stands in out[0]. Waits in slices, in which Python looks at its signals."""
        library, pointer = self._library, self._handle()
        start, error = library.functions["session_submit_wait"], library.error()
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = SLICE if until is None else max(0, min(SLICE, int((until - time.monotonic()) * 1e9)))
            status = start(pointer, what, params, left, out, error)
            if status == -9 and (until is None or time.monotonic() < until):
                self._handle()
                continue
            if status < 0 and results.failure is not None:
                raise results.failure
            library.check(status, error)
            return out[0]

    def _give_up(self, out: Any) -> None:
        """After an interruption: a request that was started must not read memory that is let go of."""
        if out[0] != self._library.ffi.NULL:
            self._library.functions["request_cancel"](out[0], self._library.ffi.NULL)
            destroy(self._library, "request_release", out[0], self._made_at)

    def _prepare(self, what: int, inputs: Inputs, outputs: Optional[Mapping[str, Any]], deadline: Optional[float], fields: Mapping[str, Any]) -> Any:
        keep: List[Any] = [fields, outputs]
        self._handle()
        params, results = self._params(what, inputs, outputs, deadline, keep)
        for name, value in fields.items():
            setattr(params, name, value)
        return params, results, keep

    def _submit(
        self,
        what: int,
        inputs: Inputs,
        outputs: Optional[Mapping[str, Any]],
        deadline: Optional[float],
        timeout: Optional[float],
        settle: Callable[[Any, _Results], Any],
        fields: Mapping[str, Any],
    ) -> Request[Any]:
        params, results, keep = self._prepare(what, inputs, outputs, deadline, fields)
        self._dispatcher.prepare()
        until = time.monotonic() + deadline if deadline else float("inf")
        out = self._library.ffi.new("opipe_request **")
        try:
            pointer = self._begin(what, params, results, timeout, out)
            request: Request[Any] = Request(self._library, self, pointer, keep, lambda handle: settle(handle, results), until)
            if what == STEP:
                request._flushing = threading.Lock()
            self._dispatcher.add(request)
        except BaseException:
            self._give_up(out)
            raise
        return request

    def _run(
        self,
        what: int,
        inputs: Inputs,
        outputs: Optional[Mapping[str, Any]],
        deadline: Optional[float],
        settle: Callable[[Any, _Results], Any],
        fields: Mapping[str, Any],
    ) -> Any:
        """Submits and waits on this thread. Whatever interrupts that also ends the request, which borrows memory."""
        library = self._library
        params, results, keep = self._prepare(what, inputs, outputs, deadline, fields)
        out = library.ffi.new("opipe_request **")
        try:
            pointer = self._begin(what, params, results, None, out)
            status, error = wait(library, pointer, SLICE)
            if status < 0:
                raise library.failure(status, error)
            found = settle(pointer, results)
        except BaseException:
            self._give_up(out)
            raise
        destroy(library, "request_release", pointer, self._made_at)
        keep.clear()
        return found

    def _collect(self, pointer: Any, results: _Results, outputs: Optional[Mapping[str, Any]], names: List[str]) -> Outputs:
        """Outputs by name: the caller's, those that room was made for, and what the library kept."""
        found: Outputs = {}
        for index, name in enumerate(names):
            if outputs and name in outputs:
                found[name] = outputs[name]
            elif index in results.by_index:
                found[name] = results.by_index[index]
            else:
                tensor = self._library.ffi.new("opipe_tensor *")
                error = self._library.error()
                status = self._library.functions["request_output"](pointer, index, tensor, error)
                if status == -6:  # kept by a state, or another session's
                    continue
                self._library.check(status, error)
                found[name] = _tensors.copied(tensor)
        return found

    def memory(self, rank: int) -> RankMemory:
        """Measured memory of a rank."""
        info = self._library.struct("opipe_memory_info")
        self._library.call("session_memory", self._handle(), rank, info)
        return RankMemory.of(info)

    @property
    def info(self) -> Dict[str, int]:
        """requests_done, requests_failed, shapes_compiled, busy_ns (of all ranks in programs), n_ranks."""
        own = self._library.struct("opipe_session_info")
        self._library.call("session_info", self._handle(), own)
        return {name: int(getattr(own, name)) for name in "n_ranks requests_done requests_failed shapes_compiled busy_ns".split()}

    def trace(self) -> Trace:
        """Traces the last request, or training step. None may be under way."""
        read = [self._library.text("session_trace", self._handle(), form).decode() for form in (0, 1, 2)]
        return Trace(*read)

    def close(self) -> None:
        """Cancels what is under way, and waits until the ranks have stopped. Futures that were not done are then cancelled."""
        super().close()

    def __repr__(self) -> str:
        return f"<onnxpipe.{type(self).__name__}, closed>" if self.closed else f"<onnxpipe.{type(self).__name__} of {self.plan!r}>"


def _close(dispatcher: Dispatcher, library: Library, pointer: Any, made_at: int, _plan: Plan) -> None:
    dispatcher.stop(lambda: destroy(library, "session_close", pointer, made_at))


class Session(Runner):
    """Runs a plan on requests. Any thread may submit.

    in_flight:    requests under way before submit waits for room; 0: twice the stages
    max_shapes:   shapes that stay compiled; 0: 8
    watchdog:     seconds without progress after which the session ends; None: 60
    check_finite: a NaN or infinity fails the request; the error names the node
    reference: runs the plan's stages one after the other on the submitting thread
    trace:     trace() takes times from the devices' own clocks
    """

    def __init__(
        self,
        plan: Plan,
        *,
        in_flight: int = 0,
        max_shapes: int = 0,
        watchdog: Optional[float] = None,
        check_finite: bool = False,
        reference: bool = False,
        tuned: bool = False,
        trace: bool = False,
    ) -> None:
        if plan.trains:
            raise InvalidError("this plan is for training: a Trainer takes it")
        self._open(plan, in_flight, max_shapes, watchdog, dict(check_finite=check_finite, reference=reference, tuned=tuned, trace=trace))

    def _fields(self, stream: int, state: Optional["State"]) -> Dict[str, Any]:
        if state is None:
            return {"stream": stream} if stream else {}
        if state.session is not self:
            raise StateError("this state is of another session")
        return {"state": state._handle()}

    def run(
        self,
        inputs: Inputs,
        *,
        outputs: Optional[Mapping[str, Any]] = None,
        deadline: Optional[float] = None,
        stream: int = 0,
        state: Optional["State"] = None,
    ) -> Outputs:
        """Runs one request on this thread.

        inputs:   arrays by name, of the model's types and of any shape that its free dimensions allow; the
                  array alone if the model has one input
        outputs:  dense arrays by name that results are written to; other results are new arrays
        deadline: seconds after which it fails with DeadlineError
        state:    State of the stream that the request belongs to
        """
        return self._run(  # type: ignore[no-any-return]
            REQUEST, inputs, outputs, deadline, lambda p, r: self._collect(p, r, outputs, self._output_names), self._fields(stream, state)
        )

    __call__ = run

    def submit(
        self,
        inputs: Inputs,
        *,
        outputs: Optional[Mapping[str, Any]] = None,
        deadline: Optional[float] = None,
        stream: int = 0,
        state: Optional["State"] = None,
        timeout: Optional[float] = None,
    ) -> Request[Outputs]:
        """Starts a request: its result, a dict of arrays, is awaited or waited for. Arrays that are given must not be written to
        before that. Waits while `in_flight` requests are under way, at most `timeout` seconds (then DeadlineError, and nothing
        was started). Requests of equal `stream` finish in the order of submission."""
        names = self._output_names
        return self._submit(
            REQUEST, inputs, outputs, deadline, timeout, lambda p, r: self._collect(p, r, outputs, names), self._fields(stream, state)
        )

    async def arun(self, inputs: Inputs, **how: Any) -> Outputs:
        """run() for a coroutine: waiting for room or for the result does not block the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                request = self.submit(inputs, timeout=0, **how)
            except TimeoutError:
                await loop.run_in_executor(None, self._wait_room)
            else:
                return await request

    def _wait_room(self) -> None:
        self._library.functions["session_wait_room"](self._handle(), SLICE, self._library.ffi.NULL)

    def stream(self, requests: Iterable[Inputs], *, deadline: Optional[float] = None, ahead: int = 0) -> Iterator[Outputs]:
        """Results of many requests, in their order, with as many under way as there is room for (`ahead` of them, if given). Ends
        at the first that fails. An exception of the iterable is raised once the results before it have been taken."""
        under_way: Deque[Request[Outputs]] = collections.deque()
        most = ahead or 2**30
        failure: Optional[BaseException] = None
        try:
            source = iter(requests)
            while failure is None:
                try:
                    inputs = next(source)
                except StopIteration:
                    break
                except Exception as error:
                    failure = error
                    break
                while len(under_way) >= most or (under_way and under_way[0].done()):
                    yield under_way.popleft().result()
                while True:
                    try:
                        under_way.append(self.submit(inputs, deadline=deadline, stream=1, timeout=0 if under_way else None))
                        break
                    except TimeoutError:
                        yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
            if failure is not None:
                raise failure
        finally:
            for request in under_way:
                request.cancel()

    async def astream(self, requests: Any, *, deadline: Optional[float] = None, ahead: int = 16) -> AsyncIterator[Outputs]:
        """stream() of an iterable, or asynchronous iterable, for coroutines."""
        under_way: Deque["asyncio.Task[Outputs]"] = collections.deque()
        try:
            async for inputs in _each(requests):
                if len(under_way) >= ahead:
                    yield await under_way.popleft()
                under_way.append(asyncio.ensure_future(self.arun(inputs, deadline=deadline)))
            while under_way:
                yield await under_way.popleft()
        finally:
            for task in under_way:
                task.cancel()

    def state(self, capacities: Iterable[int] = ()) -> "State":
        """A new stream's State, for a plan with `states`. capacities: elements of each pair; none: the plan's."""
        return State(self, capacities)

    def generate(
        self,
        ids: Iterable[int],
        *,
        salt: int = 0,
        deadline: Optional[float] = None,
        on_logits: Optional[OnLogits] = None,
        **sampling: Any,
    ) -> Sequence:
        """Starts a sequence with a prompt, for a plan with `generation`; its tokens are iterated or waited for.

        ids:       the prompt
        sampling:  keys of opipe/generate.h: temperature (1; 0: the highest score), top_k, top_p, min_p, repetition_penalty,
                   presence_penalty, frequency_penalty, seed, n, min_tokens, max_tokens, logprobs, stop, logit_bias
        salt:      beginnings are computed once for sequences of equal salt
        deadline:  seconds after which the turn fails with DeadlineError
        on_logits: called with (position, row) before each token is sampled, on the library's thread: may change the row, a numpy array
                   [vocabulary] in place, and return the id to take. Forks and further answers call it too; it must not use the session
        """
        return _generate.generate(self, ids, salt, deadline, on_logits, sampling)

    @property
    def generation(self) -> GenerationInfo:
        """Pages, passes and counts of a session that generates."""
        return _generate.describe(self)

    def bind(self, inputs: Mapping[str, Array], outputs: Optional[Mapping[str, Array]] = None) -> "Bound":
        """A request whose arrays are named once, for many runs: the cheapest way to run requests."""
        return Bound(self, inputs, outputs)


async def _each(requests: Any) -> AsyncIterator[Any]:
    if hasattr(requests, "__aiter__"):
        async for own in requests:
            yield own
    else:
        for own in requests:
            yield own


class Bound:
    """A request whose inputs and outputs stay at fixed addresses. `run()` reads the inputs as they are then and writes the outputs.
    Use it from one thread at a time.

    inputs, outputs: the arrays, by name
    """

    def __init__(self, session: Session, inputs: Mapping[str, Array], outputs: Optional[Mapping[str, Array]] = None) -> None:
        self.session = session
        session._handle()
        self.inputs: Dict[str, Array] = dict(inputs)
        self.outputs: Outputs = session.run(inputs, outputs=outputs)  # compiles for these shapes, and says what outputs have
        self._keep: List[Any] = []
        params, _ = session._params(REQUEST, self.inputs, self.outputs, None, self._keep)
        params.on_output = session._library.ffi.NULL
        self._given = params
        library = session._library
        self._submit, self._wait = library.functions["session_submit_wait"], library.functions["request_wait"]
        self._release = library.functions["request_release"]
        self._out, self._error = library.ffi.new("opipe_request **"), library.error()
        self._pointer = session._handle()

    def run(self) -> Outputs:
        """One request; returns `outputs`."""
        session = self.session
        if session._pointer is None or session._made_at != forks():
            session._handle()
        error, out = self._error, self._out
        while True:
            status = self._submit(self._pointer, REQUEST, self._given, SLICE, out, error)
            if status != -9:
                break
        if status < 0:
            raise session._library.failure(status, error)
        request = out[0]
        try:
            status = self._wait(request, SLICE, error)
            if status != 0:
                status, error = wait(session._library, request, SLICE)
                if status < 0:
                    raise session._library.failure(status, error)
        finally:
            self._release(request)
        return self.outputs

    __call__ = run


@dataclass(frozen=True)
class StateInfo:
    """A pair of a state. capacity, elements: of each of its two buffers; stage: the stage that keeps it."""

    output: str
    input: str
    elements: int
    capacity: int
    n_bytes: int
    shape: Tuple[int, ...]
    dtype: str
    stage: int
    empty: bool
    broken: bool


def _close_state(session: Session, pointer: Any, made_at: int) -> None:
    if not session.closed:  # it ends with its session
        destroy(session._library, "state_close", pointer, made_at)


class State(Handle):
    """The values that one stream keeps on the devices between its requests. The first request, and the first after reset(), gives
    the input of every pair; later ones do not."""

    _what = "state"

    def __init__(self, session: Session, capacities: Iterable[int] = ()) -> None:
        library = session._library
        own = library.ffi.new("uint64_t[]", list(capacities))
        params = library.struct("opipe_state_params", n_capacities=len(own), capacities=own)
        self.session = session
        pointer = library.make("opipe_state", "session_state_open", session._handle(), params)
        self._hold(library, pointer, functools.partial(_close_state, session, pointer, forks()))

    def _handle(self) -> Any:
        self.session._handle()
        return super()._handle()

    def reset(self) -> None:
        """Empties the state, as when it was opened."""
        self._library.call("state_reset", self._handle())

    def copy_from(self, other: "State") -> None:
        """Copies another state of the session: one prompt, several answers."""
        self._same_library(other)
        self._library.call("state_copy", self._handle(), other._handle())

    def _info(self, index: int) -> Any:
        info = self._library.struct("opipe_state_info")
        self._library.call("state_get", self._handle(), index, info, self._library.ffi.NULL, 0)
        return info

    def info(self, index: int) -> StateInfo:
        """Describes pair `index` of the plan."""
        own = self._info(index)
        return StateInfo(
            self._library.plain(own.output) or "", self._library.plain(own.input) or "", int(own.n_elems), int(own.capacity),
            int(own.n_bytes), tuple(own.shape[d] for d in range(own.rank)), _dtypes.of_number(own.dtype).name, int(own.stage),
            bool(own.flags & 1), bool(own.flags & 2),
        )  # fmt: skip

    def read(self, index: int) -> Array:
        """The content of pair `index`, a new array."""
        own = self._info(index)
        array, address = _tensors.empty(_dtypes.of_number(own.dtype), [own.shape[d] for d in range(own.rank)])
        self._library.call("state_get", self._handle(), index, self._library.ffi.NULL, self._library.ffi.cast("void *", address), own.n_bytes)
        return array

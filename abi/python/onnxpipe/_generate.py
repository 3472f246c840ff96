# SPDX-License-Identifier: Apache-2.0
"""Sequences of a session whose plan generates: tokens of a decoder, as they come."""
from __future__ import annotations

import asyncio
import collections
import functools
import itertools
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Deque, Dict, Generator, Iterable, Iterator, List, Optional, Tuple

import numpy as np

from . import _dtypes
from ._errors import BY_STATUS, CancelledError, DeadlineError, Error
from ._handles import Handle, destroy
from ._library import SLICE, Library, callback, ffi, forks, nanoseconds
from ._model import Path, default_context

if TYPE_CHECKING:
    from ._session import Session

ALL = 2**32 - 1
_ENDS = (None, "stop", "tokens", "context", "failed", "cancelled")
_STATES = ("idle", "waiting", "active")
OnLogits = Callable[[int, "np.ndarray[Any, Any]"], Optional[int]]


@dataclass(frozen=True)
class Token:
    """A token of an answer.

    position: in its sequence, from 0 at the first id of the first prompt
    logprob:  natural logarithm of its probability by the raw logits; None unless `logprobs` was asked for
    likely:   (id, logprob) of the likeliest, the highest first: as many as `logprobs` says
    """

    id: int
    position: int
    logprob: Optional[float] = None
    likely: Tuple[Tuple[int, float], ...] = ()


@dataclass(frozen=True)
class SequenceInfo:
    """A sequence now.

    state:    "idle", "waiting" (for pages, or for others to go first) or "active"
    end:      why the latest turn has ended: "stop", "tokens", "context", "failed", "cancelled"; None: it goes on
    n_ids:    prompts and answers; n_prompt: ids before the latest answer
    n_tokens: of the latest answer
    branch:   of the random numbers
    n_evicted: times that its pages went to others; n_reused: ids whose keys and values were there already
    n_drafted: ids in drafts; n_accepted: of these, ids that were those sampled
    """

    state: str
    end: Optional[str]
    n_ids: int
    n_prompt: int
    n_tokens: int
    branch: int
    n_evicted: int
    n_reused: int
    n_drafted: int
    n_accepted: int


@dataclass(frozen=True)
class GenerationInfo:
    """A session's generation since it was opened, as opipe_generation_info has it.

    rows:   most of a pass; groups: most passes in flight; page: ids per page
    open, waiting, active: sequences now; free_pages, kept_pages: pages now
    bubble: idle share of the ranks while a pass is in flight, 0 to 1
    """

    rows: int
    groups: int
    page: int
    n_pages: int
    context: int
    n_sequences: int
    n_active: int
    n_vocab: int
    open: int
    waiting: int
    active: int
    in_flight: int
    free_pages: int
    kept_pages: int
    passes: int
    computed: int
    tokens: int
    asked: int
    reused: int
    evicted: int
    forgotten: int
    copied: int
    drafted: int
    accepted: int
    working_ns: int
    bubble: float


class _Turn:
    """The library's thread reports a turn's progress here. It takes no lock here: who waits may hold one while it calls the library."""

    def __init__(self, on_logits: Optional[OnLogits]) -> None:
        self.on_logits = on_logits
        self.tokens: List[Token] = []
        self.end: Optional[str] = None
        self.failure: Optional[BaseException] = None
        self.raised: Optional[BaseException] = None  # by on_logits
        self.answers: List[Tuple[Any, "_Turn"]] = []  # begun, and not taken yet
        self.waiting: Deque[Tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]] = collections.deque()
        self.key = next(_keys)
        _turns[self.key] = self

    def wake(self) -> None:
        while self.waiting:
            loop, future = self.waiting.popleft()
            try:
                loop.call_soon_threadsafe(_done, future)
            except RuntimeError:
                pass  # the loop is closed: nobody waits

    def error(self) -> Optional[BaseException]:
        """Why it did not end well; None: it did, or goes on."""
        if self.end == "cancelled":
            return CancelledError("the turn was cancelled")
        return self.failure


# By the number that callbacks get as their context: a turn that is not there any more has no callbacks.
_turns: Dict[int, _Turn] = {}
_keys = itertools.count(1)


def _done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _of(context: Any) -> Optional[_Turn]:
    return _turns.get(int(ffi().cast("uintptr_t", context)))


def _on_token(context: Any, _sequence: Any, token: Any, _error: Any) -> int:
    turn = _of(context)
    if turn is None:
        return CancelledError.status
    likely = tuple((int(token.likely[i].id), float(token.likely[i].logprob)) for i in range(token.n_likely))
    logprob = float(token.logprob)
    turn.tokens.append(Token(int(token.id), int(token.position), None if logprob != logprob else logprob, likely))
    turn.wake()
    return 0


def _on_logits(context: Any, _sequence: Any, position: int, row: Any, n_vocab: int, dtype: int, io_id: Any, _error: Any) -> int:
    turn = _of(context)
    if turn is None or turn.on_logits is None:
        return 0
    try:
        kind = _dtypes.of_number(dtype)
        if kind.array is None:
            raise TypeError(f"logits are {kind.name}, which numpy does not have: install ml_dtypes")
        array = np.frombuffer(ffi().buffer(row, kind.n_bytes(n_vocab)), kind.array)
        chosen = turn.on_logits(position, array)
        if chosen is not None:
            io_id[0] = int(chosen)
        return 0
    except BaseException as error:  # raised again by whoever reads the tokens
        turn.raised = error
        return -1


def _on_answer(context: Any, _sequence: Any, answer: Any, io_context: Any) -> None:
    first = _of(context)
    if first is None:
        return  # its sequence is being closed: the answer's first token is refused
    turn = _Turn(first.on_logits)
    io_context[0] = ffi().cast("void *", turn.key)
    first.answers.append((answer, turn))


def _on_end(context: Any, _sequence: Any, reason: int, why: Any) -> None:
    turn = _of(context)
    if turn is None:
        return
    if why != ffi().NULL:
        text = ffi().string(why.message).decode("utf-8", "replace")
        turn.failure = turn.raised or BY_STATUS.get(why.status, Error)(text, why.status, why.domain, why.native)
    _turns.pop(turn.key, None)  # nothing comes behind it
    turn.end = _ENDS[reason]
    turn.wake()


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"sampling cannot have a {type(value).__name__}")


def _params(library: Library, ids: Iterable[int], sampling: Dict[str, Any], salt: int, deadline: Optional[float], turn: _Turn) -> Any:
    given = library.ffi.new("uint32_t[]", [int(i) for i in ids])
    text = library.string(json.dumps(sampling, default=_plain), "sampling") if sampling else library.ffi.NULL
    on_logits: Any = library.ffi.NULL
    if turn.on_logits is not None:
        on_logits = callback("opipe_status(void *, opipe_sequence *, uint32_t, void *, uint32_t, uint32_t, int64_t *, opipe_error *)", _on_logits)
    return library.struct(
        "opipe_generate_params", n_ids=len(given), ids=given, sampling=text, salt=salt, deadline_ns=nanoseconds(deadline, "deadline"),
        ctx=library.ffi.cast("void *", turn.key), on_logits=on_logits,
        on_token=callback("opipe_status(void *, opipe_sequence *, const opipe_token *, opipe_error *)", _on_token),
        on_answer=callback("void(void *, opipe_sequence *, opipe_sequence *, void **)", _on_answer, None),
        on_end=callback("void(void *, opipe_sequence *, uint32_t, const opipe_error *)", _on_end, None),
    )  # fmt: skip


class _Held:
    """Closing a sequence needs these. It does not need the turn: a failure that was raised knows the sequence, which would never be
    collected."""

    def __init__(self, turn: _Turn) -> None:
        self.key, self.answers = turn.key, turn.answers


def _close(session: "Session", library: Library, pointer: Any, made_at: int, held: _Held) -> None:
    """Releases a sequence, and answers of it that nobody took."""
    for each in [pointer] + [answer for answer, _ in held.answers]:
        if not session.closed:  # they end with their session
            destroy(library, "sequence_release", each, made_at)
    for key in [held.key] + [turn.key for _, turn in held.answers]:
        _turns.pop(key, None)


class Sequence(Handle):
    """Ids of a session that generates: a prompt and its answer, further prompts and answers. Iterating it gives the tokens of the
    latest answer as they come, also in coroutines (`async for`); what ends a turn badly is raised behind the tokens so far. It is
    awaitable, as result(). Any thread may use it.
    """

    _what = "sequence"

    def __init__(self, session: "Session", pointer: Any, turn: _Turn) -> None:
        self.session = session
        self._latest, self._held = turn, _Held(turn)
        library = session._library
        self._hold(library, pointer, functools.partial(_close, session, library, pointer, forks(), self._held))

    def _handle(self) -> Any:
        self.session._handle()
        return super()._handle()

    @property
    def tokens(self) -> List[Token]:
        """The tokens of the latest answer so far."""
        return list(self._latest.tokens)

    @property
    def end(self) -> Optional[str]:
        """Why the latest turn has ended: "stop", "tokens", "context", "failed", "cancelled"; None: it goes on."""
        return self._latest.end

    def _wait(self, turn: _Turn, n: int, timeout: Optional[float]) -> None:
        """Until there are n tokens, or the turn has ended. In slices, in which Python looks at its signals."""
        wait, error = self._library.functions["sequence_wait"], self._library.error()
        until = None if timeout is None else time.monotonic() + timeout
        while len(turn.tokens) < n and turn.end is None:
            left = SLICE if until is None else max(0, min(SLICE, int((until - time.monotonic()) * 1e9)))
            status = wait(self._handle(), n, left, error)
            if turn.end is not None or turn is not self._latest:
                return
            if status == DeadlineError.status:
                if until is not None and time.monotonic() >= until:
                    raise self._library.failure(status, error)
            elif status < 0:
                raise self._library.failure(status, error)

    def __iter__(self) -> Iterator[Token]:
        turn = self._latest
        for number in itertools.count():
            self._wait(turn, number + 1, None)
            if number == len(turn.tokens):
                break
            yield turn.tokens[number]
        failure = turn.error()
        if failure is not None:
            raise failure

    async def __aiter__(self) -> AsyncIterator[Token]:
        turn = self._latest
        for number in itertools.count():
            await self._await(turn, number + 1)
            if number == len(turn.tokens):
                break
            yield turn.tokens[number]
        failure = turn.error()
        if failure is not None:
            raise failure

    async def _await(self, turn: _Turn, n: int) -> None:
        while len(turn.tokens) < n and turn.end is None:
            self._handle()
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            turn.waiting.append((loop, future))
            if len(turn.tokens) < n and turn.end is None:
                await future

    def result(self, timeout: Optional[float] = None) -> List[int]:
        """The ids of the latest answer, once its turn has ended. Raises DeadlineError after `timeout` seconds (the turn goes on), or
        why the turn ended badly."""
        turn = self._latest
        self._wait(turn, ALL, timeout)
        failure = turn.error()
        if failure is not None:
            raise failure
        return [token.id for token in turn.tokens]

    def __await__(self) -> Generator[Any, None, List[int]]:
        yield from self._await(self._latest, ALL).__await__()
        return self.result()

    def answers(self) -> List["Sequence"]:
        """This sequence and the others of `n`, once they have begun: with the first token. Call it once."""
        turn = self._latest
        self._wait(turn, 1, None)
        found = [self]
        while turn.answers:
            found.append(Sequence(self.session, *turn.answers.pop(0)))
        return found

    def append(self, ids: Iterable[int], *, deadline: Optional[float] = None, on_logits: Optional[OnLogits] = None, **sampling: Any) -> "Sequence":
        """A further turn: `ids` go behind the ids of the sequence, whose latest turn must have ended. Without any key, sampling is as
        before. Returns the sequence."""
        turn = _Turn(on_logits)
        try:
            self._library.call("sequence_append", self._handle(), _params(self._library, ids, sampling, 0, deadline, turn))
        except BaseException:
            _turns.pop(turn.key, None)
            raise
        turn.answers = self._held.answers  # as far as nobody took them
        self._latest, self._held.key = turn, turn.key
        return self

    def fork(self, seed: Optional[int] = None) -> "Sequence":
        """Another sequence with the same ids and turn, which goes on by itself: with the next branch of the random numbers, or with a
        seed of its own."""
        library, latest = self._library, self._latest
        turn = _Turn(latest.on_logits)
        own = library.ffi.NULL if seed is None else library.ffi.new("uint64_t *", seed)
        try:
            pointer = library.make("opipe_sequence", "sequence_fork", self._handle(), own, library.ffi.cast("void *", turn.key))
        except BaseException:
            _turns.pop(turn.key, None)
            raise
        other = Sequence(self.session, pointer, turn)
        info = other.info
        own = turn.tokens[:1]  # tokens of the fork's own may have come meanwhile
        if not own:
            self._wait(latest, info.n_tokens, None)  # the last of them may be on its way
        turn.tokens[:0] = [t for t in latest.tokens if t.position < own[0].position] if own else latest.tokens[: info.n_tokens]
        if turn.end is None and info.end is not None:
            turn.failure, turn.end = latest.failure, info.end
            _turns.pop(turn.key, None)
        return other

    def truncate(self, n_ids: int) -> None:
        """Leaves the first n_ids ids, at least 1, of a sequence whose turn has ended."""
        self._library.call("sequence_truncate", self._handle(), n_ids)

    def draft(self, ids: Iterable[int]) -> None:
        """Ids that may come next: one pass computes them all, and keeps those that are sampled anyway. The plan says how many."""
        given = self._library.ffi.new("uint32_t[]", [int(i) for i in ids])
        self._library.call("sequence_draft", self._handle(), given, len(given))

    def cancel(self) -> None:
        """Ends the turn, if there is one; the ids so far stay."""
        self._library.call("sequence_cancel", self._handle())

    @property
    def info(self) -> SequenceInfo:
        """State and counts."""
        own = self._library.struct("opipe_sequence_info")
        self._library.call("sequence_info", self._handle(), own)
        counts = {name: int(getattr(own, name)) for name in SequenceInfo.__dataclass_fields__ if name not in ("state", "end")}
        return SequenceInfo(state=_STATES[own.state], end=_ENDS[own.end], **counts)

    @property
    def ids(self) -> List[int]:
        """All ids: prompts and answers, with the ids of stops."""
        n = self.info.n_ids
        own = self._library.ffi.new("uint32_t[]", n)
        self._library.call("sequence_ids", self._handle(), 0, n, own)
        return list(own)

    def close(self) -> None:
        """Ends the turn and gives the sequence's place back."""
        super().close()

    def __repr__(self) -> str:
        return f"<onnxpipe.Sequence, {'closed' if self.closed else self.end or 'under way'}, {len(self._latest.tokens)} tokens>"


def generate(
    session: "Session", ids: Iterable[int], salt: int, deadline: Optional[float], on_logits: Optional[OnLogits], sampling: Dict[str, Any]
) -> Sequence:
    library = session._library
    turn = _Turn(on_logits)
    try:
        params = _params(library, ids, sampling, salt, deadline, turn)
        return Sequence(session, library.make("opipe_sequence", "session_generate", session._handle(), params), turn)
    except BaseException:
        _turns.pop(turn.key, None)
        raise


def describe(session: "Session") -> GenerationInfo:
    own = session._library.struct("opipe_generation_info")
    session._library.call("session_generation", session._handle(), own)
    counts = {name: int(getattr(own, name)) for name in GenerationInfo.__dataclass_fields__ if name != "bubble"}
    return GenerationInfo(bubble=float(own.bubble), **counts)


def read_genai(folder: Path, library: Optional[Library] = None) -> Dict[str, Any]:
    """The settings of a folder of ONNX Runtime GenAI, from its genai_config.json: "files", "context", "vocab", names by layer,
    and "sampling", whose keys Session.generate takes."""
    owner = default_context(library)
    path = os.path.join(os.fspath(folder), "genai_config.json")
    with open(path, "rb") as file:
        data = file.read()
    text = owner._library.ffi.from_buffer("char[]", data)
    name = owner._library.string(path, "a path")
    found: Dict[str, Any] = json.loads(owner._library.text("genai_describe", owner._handle(), text, len(data), name))
    return found

# SPDX-License-Identifier: Apache-2.0
"""Requests under way, and the thread of a session that tells their futures how they ended.

The library's threads never enter Python: a request that has finished makes a file descriptor readable, on which one thread of
Python's sleeps.
"""
from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from concurrent.futures import Future
from typing import Any, Callable, Dict, Generator, Generic, List, Optional, TypeVar

from ._errors import CancelledError, StateError
from ._handles import destroy
from ._library import FOREVER, SLICE, Library, forks, guard_fork

T = TypeVar("T")
# Longest time between two polls, in seconds: deadlines and the watchdog are noticed only when somebody asks.
_ASK = 1.0
_ANY = 2**32 - 1  # OPIPE_NONE: the descriptor of all requests


class Request(Future[T], Generic[T]):
    """A submitted request or training step: a concurrent.futures.Future, and awaitable.

    `result()` of a request is a dict of outputs, that of a step its Step. Arrays that it reads are kept until it has finished.
    """


    def __init__(self, library: Library, session: Any, pointer: Any, keep: List[Any], settle: Callable[[Any], T], until: float) -> None:
        super().__init__()
        self._library, self._pointer, self._keep = library, pointer, keep
        self._settle: Callable[[Any], T] = settle
        self._session = session  # is open as long as a request is under way
        self._until = until  # by time.monotonic(): its deadline
        self._made_at = forks()
        self._dispatcher: Optional["Dispatcher"] = None
        self._stop = False
        self._flushing: Optional[threading.Lock] = None  # of training steps: who waits has the library flush

    def cancel(self) -> bool:
        """Asks for cancellation; True if it is accepted. Work that no rank has begun ends at once, other requests when the ranks have
        passed them; a training step can be cancelled only before it begins. It then counts as cancelled, unless it was done before."""
        guard_fork(self._made_at, "this request")
        if self.done():
            return self.cancelled()
        if self._stop:
            return True
        error = self._library.error()
        status = self._library.functions["request_cancel"](self._pointer, error)
        if status >= 0:
            self._stop = True
            if self._dispatcher is not None:
                self._dispatcher.wake()
        return bool(status >= 0)

    def result(self, timeout: Optional[float] = None) -> T:
        """Waits at most `timeout` seconds. Raises the failure of the request, or concurrent.futures.TimeoutError if it still runs."""
        self._may_wait()
        self._flush(timeout)
        found: T = super().result(timeout)
        return found

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """Waits as result() does; None if the request succeeded."""
        self._may_wait()
        self._flush(timeout)
        return super().exception(timeout)

    def _flush(self, timeout: Optional[float]) -> None:
        """With double-buffered weights the newest step finishes only when somebody waits for it in the library."""
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while self._flushing is not None and not self.done() and time.monotonic() < until:
            if self._flushing.acquire(blocking=False):
                try:
                    left = until - time.monotonic()
                    status = wait_once(self._library, self._pointer, SLICE if left > 1 else max(0, min(SLICE, int(left * 1e9))))
                finally:
                    self._flushing.release()
                if status != -9:
                    return  # it has ended: the session's thread says so
            else:
                time.sleep(0.01)

    def _may_wait(self) -> None:
        guard_fork(self._made_at, "this request")
        if self._dispatcher is not None and self._dispatcher.is_own_thread() and not self.done():
            raise StateError("a done callback waits for another request of its session, which only its own thread could finish")

    def __await__(self) -> Generator[Any, None, T]:
        guard_fork(self._made_at, "this request")
        found: T = yield from asyncio.wrap_future(self).__await__()
        return found

    def _end(self, status: int, error: Any) -> None:
        """Called once, when the library has finished it: tells whoever waits."""
        failure: Optional[BaseException] = None
        found: Any = None
        if status < 0:
            failure = self._library.failure(status, error)
        else:
            try:
                found = self._settle(self._pointer)
            except BaseException as caught:
                failure = caught
        destroy(self._library, "request_release", self._pointer, self._made_at)
        self._keep, self._session, self._settle = [], None, _settled  # a request that is kept does not keep its session
        if self._stop and isinstance(failure, CancelledError):
            super().cancel()
            self.set_running_or_notify_cancel()
        elif self.set_running_or_notify_cancel():
            if failure is not None:
                self.set_exception(failure)
            else:
                self.set_result(found)


def _settled(_pointer: Any) -> Any:
    raise StateError("this request has ended before")


class Dispatcher:
    """The thread of one session: started with its first future, ended with the session."""

    def __init__(self, library: Library, session: Any) -> None:
        self._library, self._session = library, session
        self._made_at = forks()
        self._lock = threading.Lock()
        self._pending: Dict[int, Request[Any]] = {}
        self._thread: Optional[threading.Thread] = None
        self._closing = False
        self._afterwards: Optional[Callable[[], None]] = None
        self._wake_read, self._wake_write = -1, -1

    def _start(self) -> None:
        out = self._library.ffi.new("int32_t *")
        self._library.call("session_fd", self._session, _ANY, out)
        self._finished = int(out[0])
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="onnxpipe", daemon=True)
        self._thread.start()

    def is_own_thread(self) -> bool:
        return self._thread is threading.current_thread()

    def wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except (BlockingIOError, OSError):
            pass  # it is awake, or gone

    def prepare(self) -> None:
        """The thread is there. Raises before anything is submitted where it cannot be."""
        with self._lock:
            if self._closing:
                raise StateError("this session is closed")
            if self._thread is None:
                self._start()

    def add(self, request: Request[Any]) -> None:
        request._dispatcher = self
        with self._lock:
            self._pending[id(request)] = request
        self.wake()

    def _run(self) -> None:
        watched = select.poll()
        watched.register(self._wake_read, select.POLLIN)
        both = select.poll()
        both.register(self._wake_read, select.POLLIN)
        both.register(self._finished, select.POLLIN)
        while True:
            with self._lock:
                pending, closing = list(self._pending.values()), self._closing
            if closing:
                break
            self._look(pending)
            with self._lock:
                pending = list(self._pending.values())
            if pending:
                wait = min(_ASK, max(0.0, min(request._until for request in pending) - time.monotonic()))
                ready = both.poll(int(wait * 1000) + 1)
            else:
                ready = watched.poll()
            del pending
            for fd, _ in ready:
                try:
                    os.read(fd, 8 if fd == self._finished else 4096)
                except BlockingIOError:
                    pass
        self._finish()
        os.close(self._wake_read)
        os.close(self._wake_write)
        if self._afterwards is not None:
            self._afterwards()

    def _look(self, pending: List[Request[Any]]) -> None:
        poll = self._library.functions["request_poll"]
        for request in pending:
            error = self._library.error()
            status = poll(request._pointer, error)
            if status != 1:
                self._ended(request, status, error)

    def _ended(self, request: Request[Any], status: int, error: Any) -> None:
        with self._lock:
            self._pending.pop(id(request), None)
        request._end(status, error)

    def _finish(self) -> None:
        """The session is being closed: what is under way is cancelled, or, where it cannot be, waited for."""
        with self._lock:
            pending = list(self._pending.values())
        for request in reversed(pending):
            request.cancel()
        for request in pending:
            error = self._library.error()
            self._ended(request, self._library.functions["request_wait"](request._pointer, FOREVER, error), error)

    def stop(self, afterwards: Callable[[], None]) -> None:
        """Ends the thread, which then ends the session by `afterwards`; waits for it, unless this is that thread. (Who is interrupted
        while waiting has closed the session all the same.)"""
        if self._made_at != forks():
            return
        with self._lock:
            self._closing, self._afterwards = True, afterwards
            thread = self._thread
        if thread is None:
            afterwards()
            return
        self.wake()
        if thread is not threading.current_thread():
            thread.join()


def wait_once(library: Library, pointer: Any, slice_ns: int) -> int:
    return int(library.functions["request_wait"](pointer, slice_ns, library.ffi.NULL))


def wait(library: Library, pointer: Any, slice_ns: int) -> Any:
    """Waits for a request on this thread, in slices in which Python looks at its signals; returns (status, error)."""
    request_wait, request_poll = library.functions["request_wait"], library.functions["request_poll"]
    error = library.error()
    while True:
        status = request_wait(pointer, slice_ns, error)
        if status != -9:
            return status, error
        status = request_poll(pointer, error)  # late itself, or this slice is over
        if status != 1:
            return status, error


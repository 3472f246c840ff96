# SPDX-License-Identifier: Apache-2.0
"""The base of all objects of the package: a handle of the library, closed once, by hand or when it is no longer used."""
from __future__ import annotations

import collections
import functools
import weakref
from types import TracebackType
from typing import Any, Callable, Deque, Optional, Tuple, Type, TypeVar, Union

from ._errors import StateError
from ._library import Library, forks, guard_fork, inside_callback

Own = TypeVar("Own", bound="Handle")

# Handles that a garbage collection inside a callback found: the library lets them be destroyed only outside callbacks.
_later: Deque[Tuple[Library, str, Any, int]] = collections.deque()


def destroy(library: Library, function: str, pointer: Any, made_at: int) -> None:
    if made_at != forks():
        return  # the handles of a parent are the parent's
    if inside_callback():
        _later.append((library, function, pointer, made_at))
        return
    library.functions[function](pointer)
    while _later:
        other, name, late, then = _later.popleft()
        if then == forks():
            other.functions[name](late)


class Handle:
    """A context manager; `close()` may be called many times, and in any order with those of other objects: the library keeps what
    others need. An object that is not closed is closed when it is collected, at the latest when the interpreter ends."""

    _what = "object"
    _library: Library

    def _hold(self, library: Library, pointer: Any, end: Union[str, Callable[[], None]]) -> None:
        """end: the function of the table that destroys it, or whatever has to be done, which must not refer to this object."""
        self._library = library
        self._pointer: Optional[Any] = pointer
        self._made_at = forks()
        own = functools.partial(destroy, library, end, pointer, self._made_at) if isinstance(end, str) else end
        self._finalizer = weakref.finalize(self, own)

    def _handle(self) -> Any:
        """The library's handle. Raises StateError for a closed object and in a forked child."""
        pointer = self._pointer
        if pointer is None:
            raise StateError(f"this {self._what} is closed")
        if self._made_at != forks():
            guard_fork(self._made_at, f"this {self._what}")
        return pointer

    def _same_library(self, other: "Handle") -> None:
        if other._library is not self._library:
            raise StateError(
                f"this {self._what} is of the library {self._library.path}, the {other._what} of {other._library.path}: "
                "each library has objects of its own"
            )

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._pointer is None

    def close(self) -> None:
        """Releases the object. Objects made from it stay usable."""
        self._pointer = None
        self._finalizer()

    def __enter__(self: Own) -> Own:
        self._handle()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(f"a {self._what} cannot be pickled: it is of this process")

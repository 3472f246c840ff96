# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one for each status of opipe/abi.h, with the library's message."""
from __future__ import annotations

from concurrent.futures import CancelledError as _FutureCancelled
from typing import Dict, Type


class Error(Exception):
    """The library refused or failed. `str()` of it names the thing and both numbers.

    status:  the number of opipe/abi.h, -1 (INVALID) to -13 (INTERNAL)
    message: the library's text
    domain:  origin of `native`: 0 none, 1 errno, 2 CUDA, ... (OPIPE_DOMAIN_*)
    native:  the code itself
    """

    status = 0

    def __init__(self, message: str, status: int = 0, domain: int = 0, native: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.status = status or type(self).status
        self.domain = domain
        self.native = native


class InvalidError(Error, ValueError):
    """An argument, a file or a plan breaks a rule."""

    status = -1


class NoMemoryError(Error, MemoryError):
    """Memory of the host or of a device is exhausted."""

    status = -2


class UnsupportedError(Error, NotImplementedError):
    """Well-formed, but outside what this library or plugin can do."""

    status = -3


class AbiError(Error, ImportError):
    """Versions or layouts do not fit."""

    status = -4


class DeviceError(Error, RuntimeError):
    """A device or its driver failed."""

    status = -5


class NotFoundError(Error, LookupError):
    """No such file, plugin, tensor or option."""

    status = -6


class InputOutputError(Error, OSError):
    """The system refused to read or write; `native` is its errno."""

    status = -7

    def __init__(self, message: str, status: int = 0, domain: int = 0, native: int = 0) -> None:
        super().__init__(message, status, domain, native)
        self.errno = native if domain == 1 else None


class LimitError(Error, MemoryError):
    """A declared limit (a memory cap, a depth, a count) would be exceeded."""

    status = -8


class DeadlineError(Error, TimeoutError):
    """A deadline passed."""

    status = -9


class CancelledError(Error, _FutureCancelled):
    """The caller cancelled, or the object is being closed."""

    status = -10


class StateError(Error, RuntimeError):
    """A right call at the wrong moment: a closed object, a forked child, requests that are under way."""

    status = -11


class PeerError(Error, RuntimeError):
    """Another rank failed first; the message names it."""

    status = -12


class InternalError(Error, RuntimeError):
    """An invariant of the library does not hold: a bug to report."""

    status = -13


BY_STATUS: Dict[int, Type[Error]] = {
    kind.status: kind
    for kind in (
        InvalidError,
        NoMemoryError,
        UnsupportedError,
        AbiError,
        DeviceError,
        NotFoundError,
        InputOutputError,
        LimitError,
        DeadlineError,
        CancelledError,
        StateError,
        PeerError,
        InternalError,
    )
}

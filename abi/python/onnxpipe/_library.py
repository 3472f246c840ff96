# SPDX-License-Identifier: Apache-2.0
"""The table of libonnxpipe.so by cffi in ABI mode: opipe/cdef.h, which the build makes from the headers, declares everything.

cffi releases the GIL for the time of every call.
"""
from __future__ import annotations

import ctypes.util
import importlib
import os
import sys
import threading
import types
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import cffi

from ._errors import BY_STATUS, Error, NotFoundError, StateError

FOLDER = os.path.dirname(os.path.abspath(__file__))
FOREVER = 2**64 - 1
# Longest wait inside C, in nanoseconds: Python looks at its signals in between, so Ctrl-C works.
SLICE = 100_000_000

_lock = threading.Lock()
_ffi: Optional[Any] = None
_callbacks: Dict[str, Any] = {}
_libraries: Dict[str, "Library"] = {}
_in_callback = threading.local()
_kept: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()  # by struct: a pointer in a field keeps nothing
_forks = 0


def _forked() -> None:
    global _forks, _lock
    _forks += 1
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def forks() -> int:
    """How many forks lie between the first process and this one: handles belong to the number they were made at."""
    return _forks


def inside_callback() -> bool:
    """Whether the library has called this thread back: of its functions most answer STATE then."""
    return getattr(_in_callback, "depth", 0) > 0


def called_back(function: Callable[..., Any]) -> Callable[..., Any]:
    """A callback, within which inside_callback() holds."""

    def inside(*arguments: Any) -> Any:
        _in_callback.depth = getattr(_in_callback, "depth", 0) + 1
        try:
            return function(*arguments)
        finally:
            _in_callback.depth -= 1

    return inside


def ffi() -> Any:
    """The declarations, read once."""
    global _ffi
    with _lock:
        if _ffi is None:
            _ffi = _declared() or _parsed()
        return _ffi


def _declared() -> Optional[Any]:
    """As the build has read them (declare.py), where it had cffi."""
    try:
        return importlib.import_module("._declared", __package__).ffi
    except ImportError:
        return None


def _parsed() -> Any:
    made = cffi.FFI()
    with open(os.path.join(FOLDER, "cdef.h"), encoding="utf-8") as file:
        made.cdef(file.read())
    return made


def callback(kind: str, function: Callable[..., Any], failed: Optional[int] = -1) -> Any:
    """The callback `function` of a C type, made once. It must not raise: what does is printed and answered by `failed`."""
    declarations = ffi()
    with _lock:
        if kind not in _callbacks:
            _callbacks[kind] = declarations.callback(kind, called_back(function), error=failed)
        return _callbacks[kind]


def _places() -> List[str]:
    """Where the library may lie, best first: a variable, beside this package (a wheel), the build tree around it, the system's."""
    said = os.environ.get("ONNXPIPE_LIBRARY")
    if said:
        return [said]
    return [
        os.path.join(FOLDER, "libonnxpipe.so"),
        os.path.join(FOLDER, "..", "..", "lib", "libonnxpipe.so"),
        os.path.join(FOLDER, "..", "..", "libonnxpipe.so"),
    ]


def find() -> str:
    """The path of the library that Library() opens. Raises NotFoundError with all places that were looked at."""
    places = [os.path.abspath(place) for place in _places()]
    for place in places:
        if os.path.exists(place):
            return place
    found = None if os.environ.get("ONNXPIPE_LIBRARY") else ctypes.util.find_library("onnxpipe")
    if found is None:
        raise NotFoundError("libonnxpipe.so is at none of: %s; set ONNXPIPE_LIBRARY to its path" % ", ".join(places))
    return found


class Library:
    """A libonnxpipe.so in this process: `Library()` is the package's own, `Library(path)` another one, of the same or a later
    version. Several may be used at the same time, each with contexts of its own. Opening a path again gives the same object.

    path:    as it was opened
    version: "MAJOR.MINOR.PATCH" of the product
    abi:     (major, minor) of its table
    """

    path: str
    version: str
    abi: Tuple[int, int]
    ffi: Any
    dl: Any
    sink: Any
    functions: Dict[str, Any]
    _error_size: int

    def __new__(cls, path: Optional["str | os.PathLike[str]"] = None) -> "Library":
        where = find() if path is None else os.path.abspath(os.fspath(path))
        with _lock:
            known = _libraries.get(where)
        return known if known is not None else _open(super().__new__(cls), where)

    def __repr__(self) -> str:
        return f"<onnxpipe.Library {self.version} at {self.path}>"

    def error(self) -> Any:
        own = self.ffi.new("opipe_error *")
        own.struct_size = self._error_size
        return own

    def check(self, status: int, error: Any) -> int:
        """Returns the status, or raises its exception if it is a failure."""
        if status >= 0:
            return status
        raise self.failure(status, error)

    def failure(self, status: int, error: Any) -> Error:
        text = self.ffi.string(error.message).decode("utf-8", "replace") or f"status {status}"
        return BY_STATUS.get(status, Error)(text, status, error.domain, error.native)

    def call(self, function: str, *arguments: Any) -> int:
        """Calls a function of the table whose last argument is the error."""
        error = self.error()
        return self.check(self.functions[function](*arguments, error), error)

    def make(self, kind: str, function: str, *arguments: Any) -> Any:
        """Calls a function of the table that makes a handle, which is the argument before the error."""
        out = self.ffi.new(kind + " **")
        self.call(function, *arguments, out)
        return out[0]

    def struct(self, kind: str, **fields: Any) -> Any:
        """A params or info struct with size and strides set and other fields as given, or 0. It keeps alive the objects that its fields
        point to. Errors name the field."""
        made = self.ffi.new(kind + " *")
        known = dict(self.ffi.typeof(kind).fields)
        if "struct_size" in known:
            made.struct_size = self.ffi.sizeof(kind)
        for name, value in fields.items():
            try:
                setattr(made, name, value)
            except (OverflowError, TypeError) as error:
                raise type(error)(f"{kind}.{name} cannot be {value!r}: {error}") from None
        for name in known:
            if name.endswith("_stride"):
                array = "inputs" if name == "io_stride" else name[:-7]
                setattr(made, name, self.ffi.sizeof(known[array].type.item))
        _kept[made] = tuple(fields.values())
        return made

    def text(self, function: str, *arguments: Any) -> bytes:
        """The text that a function writes to a sink: its last arguments are sink, context and error."""
        parts: List[bytes] = []
        handle = self.ffi.new_handle(parts)
        self.call(function, *arguments, self.sink, handle)
        return b"".join(parts)

    def string(self, value: "str | bytes | os.PathLike[str] | None", what: str) -> Any:
        """A C string, valid while the result is kept; NULL for None."""
        if value is None:
            return self.ffi.NULL
        if not isinstance(value, (str, bytes, os.PathLike)):
            raise TypeError(f"{what} must be a string, not {type(value).__name__}")
        data = os.fsencode(value) if isinstance(value, os.PathLike) else value.encode() if isinstance(value, str) else value
        if b"\0" in data:
            raise ValueError(f"{what} has a NUL in it: {value!r}")
        return self.ffi.new("char[]", data)

    def plain(self, value: Any) -> Optional[str]:
        """The Python string of a C string; None for NULL."""
        return None if value == self.ffi.NULL else self.ffi.string(value).decode("utf-8", "replace")


def _write(context: Any, data: Any, n_bytes: int) -> int:
    declarations = ffi()
    declarations.from_handle(context).append(bytes(declarations.buffer(data, n_bytes)))
    return 0


def _open(own: Library, where: str) -> Library:
    declarations = ffi()
    try:
        own.dl = declarations.dlopen(where, declarations.RTLD_NOW | declarations.RTLD_LOCAL)
    except OSError as why:
        raise NotFoundError(f"the library {where} cannot be opened: {why}") from None
    own.ffi, own.path = declarations, where
    own._error_size = declarations.sizeof("opipe_error")
    view = declarations.new("opipe_view *")
    view.struct_size = declarations.sizeof("opipe_view")
    # Fingerprints of structs are not checked: nothing was compiled, and cdef.h is of one version of the headers.
    view.abi_major, view.abi_minor = own.dl.OPIPE_ABI_MAJOR, own.dl.OPIPE_ABI_MINOR
    found, error = declarations.new("const opipe_api **"), own.error()
    try:
        status = own.dl.opipe_get_api(view, found, error)
    except (AttributeError, declarations.error):
        raise NotFoundError(f"{where} is no onnx-pipe library: it has no opipe_get_api") from None
    if status < 0:
        failure = own.failure(status, error)
        raise type(failure)(f"{where}: {failure.message}", status)
    table = found[0]
    own.version = declarations.string(table.version).decode()
    own.abi = table.abi_major, table.abi_minor
    own.functions = {
        name: getattr(table, name)
        for name, field in declarations.typeof("opipe_api").fields
        if field.type.kind == "pointer" and field.type.item.kind == "function" or field.type.kind == "function"
    }
    own.sink = callback("opipe_write_fn", _write)
    with _lock:
        return _libraries.setdefault(where, own)


def nanoseconds(seconds: Optional[float], what: str) -> int:
    if seconds is None:
        return 0
    if not seconds > 0 or seconds > 1e9:
        raise ValueError(f"{what} is {seconds!r}: give seconds above 0, or None for none")
    return max(1, int(seconds * 1e9))


def guard_fork(made_at: int, what: str) -> None:
    if made_at != _forks:
        raise StateError(f"{what} was opened in another process: fork before it is made, or start the child anew (spawn)")


def trouble(where: str) -> None:
    """Shows the exception that is being handled, where it can be raised to nobody."""
    kind, value, trace = sys.exc_info()
    said = dict(exc_type=kind, exc_value=value, exc_traceback=trace, err_msg=f"in {where}", object=None)
    hook: Any = sys.unraisablehook
    hook(types.SimpleNamespace(**said))

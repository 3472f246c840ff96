# SPDX-License-Identifier: Apache-2.0
"""Contexts and models."""
from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _dtypes, _tensors
from ._tensors import ArrayLike
from ._errors import NotFoundError
from ._handles import Handle
from ._library import Library, called_back, forks, trouble

Path = Union[str, "os.PathLike[str]"]
_lock = threading.Lock()
_contexts: Dict[str, "Context"] = {}
_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def bytes_of(size: Union[int, str, None], what: str) -> int:
    """A number of bytes, or a text as "300MiB"; None: 0."""
    if size is None:
        return 0
    if isinstance(size, str):
        number = size.rstrip("BKMGTiBk ")
        unit = size[len(number) :].strip()
        try:
            return int(float(number) * _UNITS[unit])
        except (ValueError, KeyError):
            raise ValueError(f"{what} is {size!r}: give bytes, or a number with one of {', '.join(k for k in _UNITS if k)}") from None
    return int(size)


class Context(Handle):
    """Plugins, budgets of devices and cores of the models and sessions made in it. Objects that name none share a default context.

    plugin_paths: files or folders that are searched first
    budgets:      {("cpu", 0): bytes or "300MiB"}: the most that all sessions together may take of a device
    cores:        most cores to use; 0: all that this process is allowed
    log:          called with (level, message), level 0 error to 3 debug, on any thread; None: warnings go to standard error.
                  An exception that it raises is only shown (sys.unraisablehook)
    log_level:    messages above it are dropped
    library:      the Library to make it in; None: the package's own
    """

    _what = "context"

    def __init__(
        self,
        *,
        plugin_paths: Sequence[Path] = (),
        budgets: Optional[Mapping[Tuple[str, int], Union[int, str]]] = None,
        cores: int = 0,
        log: Optional[Callable[[int, str], Any]] = None,
        log_level: int = 1,
        library: Optional[Library] = None,
    ) -> None:
        own = library if library is not None else Library()
        ffi = own.ffi
        paths = [own.string(path, "a plugin path") for path in plugin_paths]
        kinds = [(own.string(kind, "a budget's device"), index, size) for (kind, index), size in (budgets or {}).items()]
        rows = ffi.new("opipe_device_budget[]", len(kinds))
        for row, (kind, index, size) in zip(rows, kinds):
            row.kind, row.index, row.memory_bytes = kind, index, bytes_of(size, "a budget")
        params = own.struct(
            "opipe_context_params", log_level=log_level, cores=cores, n_plugin_paths=len(paths), budgets=rows, n_budgets=len(kinds)
        )
        listed = ffi.new("const char *[]", paths)
        params.plugin_paths = listed
        self._log = None if log is None else _log(own, log)
        if self._log is not None:
            params.log = self._log
        self._hold(own, own.make("opipe_context", "context_create", params), "context_destroy")
        if self._log is not None:
            _logs[id(self._log)] = self._log  # objects made from this context may outlive it, and log

    def plugins(self) -> str:
        """Every plugin that was found, and every file that was refused, with the reason."""
        return self._library.text("context_plugins", self._handle(), 0).decode()

    def schedules(self) -> str:
        """Every schedule, with its options."""
        return self._library.text("schedule_list", self._handle(), 0).decode()


_logs: Dict[int, Any] = {}


def _log(library: Library, function: Callable[[int, str], Any]) -> Any:
    def say(_ctx: Any, level: int, _file: Any, _line: int, message: Any) -> None:
        try:
            function(level, library.plain(message) or "")
        except BaseException:
            trouble(f"the log of a context, {function!r}")

    return library.ffi.callback("void(void *, uint32_t, const char *, uint32_t, const char *)", called_back(say))


def default_context(library: Optional[Library] = None) -> Context:
    """The context of objects that name none."""
    own = library if library is not None else Library()
    with _lock:
        context = _contexts.get(own.path)
        if context is None or context.closed or context._made_at != forks():
            context = _contexts[own.path] = Context(library=own)
        return context


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True)
class TensorInfo:
    """An input or output.

    shape: numbers; -1 for a free dimension
    dims:  names of dimensions; None for one without a name
    index_limit: smallest extent that values of an integer input index; 0: not known
    """

    name: str
    dtype: str
    shape: Tuple[int, ...]
    dims: Tuple[Optional[str], ...]
    index_limit: int
    number: int = 0

    @property
    def type(self) -> _dtypes.DType:
        return _dtypes.of_number(self.number)


def is_model_proto(source: Any) -> bool:
    return hasattr(source, "SerializeToString") and hasattr(source, "graph")


class Model(Handle):
    """A model, from a path, the bytes of a file, or an onnx.ModelProto. Weights of a file stay in it, and bytes are not copied.

    base_dir:   folder of the external data of bytes or a ModelProto; None: it has none
    memory:   how much host memory the graph may take (bytes, or "1GiB"); None: 64 MiB, and 16 bytes for each byte beside tensors
    """

    _what = "model"

    def __init__(
        self,
        source: Any,
        *,
        base_dir: Optional[Path] = None,
        memory: Union[int, str, None] = None,
        allow_symlinks: bool = False,
        context: Optional[Context] = None,
    ) -> None:
        owner = context if context is not None else default_context()
        library = owner._library
        params = library.struct("opipe_load_params", flags=2 if allow_symlinks else 0, memory_budget_bytes=bytes_of(memory, "memory"))
        keep: List[Any] = []
        if isinstance(source, (str, os.PathLike)):
            keep.append(library.string(source, "a model's path"))
            params.path = keep[-1]
        else:
            data = _bytes_of_model(source)
            keep.append(library.ffi.from_buffer("char[]", data))
            params.data, params.n_bytes = keep[-1], len(data)
        directory = library.string(base_dir, "base_dir")
        params.base_dir = directory
        self._start(owner, library.make("opipe_model", "model_load", owner._handle(), params), keep)

    def _start(self, context: Context, pointer: Any, keep: List[Any]) -> None:
        self.context = context
        self._keep = keep  # borrowed as long as anything made from the model lives
        self._hold(context._library, pointer, "model_destroy")
        info = self._library.struct("opipe_model_info")
        self._library.call("model_info", pointer, info)
        self._info = info

    @property
    def bound(self) -> bool:
        """Whether every dimension has a number."""
        return bool(self._info.bound)

    @property
    def parameter_count(self) -> int:
        """Elements of all parameters."""
        return int(self._info.parameter_elems)

    @property
    def parameter_bytes(self) -> int:
        return int(self._info.parameter_bytes)

    @property
    def flops(self) -> float:
        """Floating-point operations of one request; the model must be bound."""
        return float(self._info.flops)

    @property
    def inputs(self) -> List[TensorInfo]:
        """In the order of the file."""
        return self._tensors("model_input", self._info.n_inputs)

    @property
    def outputs(self) -> List[TensorInfo]:
        """In the order of the file."""
        return self._tensors("model_output", self._info.n_outputs)

    def _tensors(self, function: str, n: int) -> List[TensorInfo]:
        library, found = self._library, []
        for index in range(n):
            own = library.struct("opipe_tensor_info")
            library.call(function, self._handle(), index, own)
            null = library.ffi.NULL
            names = [None if own.dim_names == null else library.plain(own.dim_names[d]) for d in range(own.rank)]
            shape = tuple(own.shape[d] for d in range(own.rank))
            dtype = _dtypes.of_number(own.dtype).name
            found.append(TensorInfo(library.plain(own.name) or "", dtype, shape, tuple(names), own.index_limit, own.dtype))
        return found

    @property
    def dims(self) -> Dict[str, int]:
        """The dimensions that were free, and their numbers; the model must be bound."""
        found: Dict[str, int] = {}
        own = self._library.struct("opipe_dim_info")
        for index in range(self._info.n_dims):
            self._library.call("model_dim", self._handle(), index, own)
            found[self._library.plain(own.name) or ""] = own.value
        return found

    def bind(
        self,
        dims: Optional[Mapping[str, int]] = None,
        *,
        pins: Optional[Mapping[str, ArrayLike]] = None,
        defaults: bool = True,
        default_batch: int = 0,
        train: bool = False,
        keep: Sequence[str] = (),
        fuse: bool = True,
        dropout: Union[float, bool] = False,
    ) -> "Model":
        """A copy of the model with a number for every dimension.

        dims:     {"batch": 8, "seq": 128}, or {"input_ids.1": 128} for an unnamed one
        pins:     values of inputs that never change; copied
        defaults: dimensions that are not given get the library's numbers; False: they are refused by name
        train:    for a plan with `training`
        keep:     names of tensors that fusions must leave
        dropout:  True: each Dropout's own ratio; a number: that ratio for all; False: no dropout
        """
        library, ffi = self._library, self._library.ffi
        names, held = _tensors.Names(), []  # type: ignore[var-annotated]
        rows = ffi.new("opipe_dim[]", len(dims or {}))
        for row, (name, value) in zip(rows, (dims or {}).items()):
            row.name = names[name]
            try:
                row.value = value
            except (TypeError, OverflowError) as error:
                raise type(error)(f"the dimension {name!r} cannot be {value!r}") from None
        pinned = ffi.new("opipe_pin[]", len(pins or {}))
        wanted = {info.name: info.type for info in self.inputs}
        for pin, (name, array) in zip(pinned, (pins or {}).items()):
            pin.input = names[name]
            _tensors.fill(pin.value, array, f"pin {name!r}", held, wanted.get(name))
        kept = ffi.new("const char *[]", [names[name] for name in keep])
        flags = (0 if fuse else 1) | (2 if defaults else 0) | (8 if train else 0)
        flags |= 4 if dropout is True else 16 if dropout else 0
        options = library.struct(
            "opipe_bind_options", flags=flags, dims=rows, n_dims=len(rows), pins=pinned, n_pins=len(pinned), keep=kept, n_keep=len(kept),
            default_batch=default_batch, dropout_ratio=0.0 if dropout is True else float(dropout),
        )
        own = Model.__new__(Model)
        own._start(self.context, library.make("opipe_model", "model_bind", self._handle(), options), self._keep)
        return own

    def describe(self) -> str:
        """Inputs, outputs, dimensions, operators and parameters, as text."""
        return self._library.text("model_describe", self._handle(), 0).decode()

    def to_dict(self) -> Dict[str, Any]:
        """The content of describe(), as a dict."""
        found: Dict[str, Any] = json.loads(self._library.text("model_describe", self._handle(), 1))
        return found

    def save(self, path: Path) -> None:
        """Writes the loaded model as an ONNX file."""
        self._library.call("model_write", self._handle(), self._library.string(path, "a path"))

    def __repr__(self) -> str:
        if self.closed:
            return "<onnxpipe.Model, closed>"
        shapes = ", ".join(f"{i.name} {i.dtype} {[d if d >= 0 else n for d, n in zip(i.shape, i.dims)]}" for i in self.inputs)
        return f"<onnxpipe.Model of {self.parameter_count} parameters: {shapes}>"


def _bytes_of_model(source: Any) -> Any:
    if is_model_proto(source):
        return source.SerializeToString()
    try:
        view = memoryview(source)
    except TypeError:
        raise TypeError(f"a model comes from a path, bytes or an onnx.ModelProto, not from {type(source).__name__}") from None
    if not view.contiguous or view.nbytes == 0:
        raise NotFoundError("a model of 0 bytes" if view.nbytes == 0 else "the bytes of a model must lie one after the other")
    return view.cast("B") if view.ndim != 1 or view.format != "B" else view

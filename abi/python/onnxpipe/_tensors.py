# SPDX-License-Identifier: Apache-2.0
"""Tensors at the border: numpy arrays and DLPack objects in place, results in memory of numpy's."""
from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import _dlpack, _dtypes
from ._dtypes import DType
from ._errors import InvalidError, UnsupportedError
from ._library import ffi

Array = Any  # numpy.ndarray of any element type
ArrayLike = Any  # an array, an object with __dlpack__ (torch, ...), a Tensor, or nested lists of numbers


class Tensor:
    """Dense memory of an element type that numpy may not have. It supports DLPack, so torch.from_dlpack(tensor) reads it without
    a copy; `numpy()` is the array, if numpy has the type.

    dtype: its name, as "bfloat16"; shape: in elements; bits: numpy.uint8, all bytes of it
    """

    def __init__(self, bits: Array, dtype: DType, shape: Sequence[int]) -> None:
        self.bits = bits
        self.shape = tuple(shape)
        self._dtype = dtype
        self._shape = ffi().new("int64_t[]", [*self.shape, 0])

    @property
    def dtype(self) -> str:
        return self._dtype.name

    def __repr__(self) -> str:
        return f"<onnxpipe.Tensor {self.dtype} {list(self.shape)}>"

    def numpy(self) -> Array:
        """The same memory as an array. Raises UnsupportedError if numpy has no such type."""
        if self._dtype.array is None:
            raise UnsupportedError(
                f"numpy has no {self.dtype}" + (": install ml_dtypes" if self._dtype.bits >= 8 else ", whose elements are packed")
            )
        return self.bits.view(self._dtype.array).reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Array:
        own = self.numpy()
        return own.copy() if copy else own if dtype is None else own.astype(dtype)

    def _fill(self, tensor: Any) -> None:
        tensor.data = ffi().cast("void *", self.bits.ctypes.data)
        tensor.device_type, tensor.rank, tensor.shape = _dlpack.CPU, len(self.shape), self._shape
        tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = self._dtype.code, self._dtype.bits, 1

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _dlpack.CPU, 0

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        if stream is not None or copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("this tensor lies in host memory, and is lent as it is")
        tensor = ffi().new("opipe_tensor *")
        self._fill(tensor)
        return _dlpack.lend(tensor, self)


def as_tensor(array: Array) -> Tensor:
    """An array for DLPack, of types too that numpy itself does not hand on (bfloat16). A dense array is not copied."""
    own = np.asarray(array)
    dtype = _dtypes.of_array(own.dtype)
    if dtype is None:
        raise TypeError(f"numpy's {own.dtype} is no element type here")
    dense = np.ascontiguousarray(own).reshape(own.shape)
    return Tensor(dense.reshape(-1).view(np.uint8), dtype, own.shape)


def empty(dtype: DType, shape: Sequence[int]) -> Tuple[Union[Array, Tensor], int]:
    """Room for a result, and its address."""
    if dtype.array is not None:
        own = np.empty(shape, dtype.array)
        return own, int(own.__array_interface__["data"][0] if own.dtype.kind != "V" else own.ctypes.data)
    bits = np.empty(dtype.n_bytes(math.prod(shape)), np.uint8)
    return Tensor(bits, dtype, shape), bits.ctypes.data


def _fill_array(tensor: Any, array: Array, what: str, keep: List[Any], writable: bool) -> None:
    kind = array.dtype
    dtype = _dtypes.of_array(kind)
    if dtype is None:
        if not kind.isnative:
            raise TypeError(f"{what} is of numpy's {kind}, in the other byte order: give array.astype(array.dtype.newbyteorder('='))")
        raise TypeError(f"{what} is of numpy's {kind}, which is no element type of a tensor")
    strides = None
    if not array.flags.c_contiguous:
        size = array.itemsize
        if any(stride % size for stride in array.strides):
            if writable:
                raise ValueError(f"{what} has strides of {array.strides} bytes, which are no whole elements of {size}")
            array = np.ascontiguousarray(array)
        else:
            strides = ffi().new("int64_t[]", [stride // size for stride in array.strides])
    if writable and not array.flags.writeable:
        raise ValueError(f"{what} is read-only")
    shape = ffi().new("int64_t[]", [*array.shape, 0])
    tensor.data = ffi().cast("void *", array.ctypes.data)
    tensor.device_type, tensor.device_id, tensor.rank = _dlpack.CPU, 0, array.ndim
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = dtype.code, dtype.bits, 1
    tensor.shape, tensor.strides, tensor.byte_offset = shape, ffi().NULL if strides is None else strides, 0
    keep += [array, shape, strides]


def fill(tensor: Any, value: ArrayLike, what: str, keep: List[Any], wanted: Optional[DType] = None, writable: bool = False) -> int:
    """Makes the opipe_tensor `tensor` a view of `value`; `keep` gets what must live as long. wanted: the type that plain numbers
    become. Returns the device's type, as DLPack numbers it: 1 is host memory."""
    if isinstance(value, Tensor):
        value._fill(tensor)
        keep.append(value)
        return _dlpack.CPU
    if isinstance(value, np.ndarray):
        _fill_array(tensor, value, what, keep, writable)
        return _dlpack.CPU
    if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        try:
            view, owner = _dlpack.read(value)
        except Exception as error:
            raise TypeError(f"{what}: {type(value).__name__} does not lend its memory by DLPack: {error}") from error
        ffi().memmove(ffi().addressof(tensor), view, ffi().sizeof("opipe_tensor"))
        keep.append(owner)
        return int(view.device_type)
    if writable:
        raise TypeError(f"{what} must be an array to write to, not {type(value).__name__}")
    try:
        array = np.asarray(value)
        if wanted is not None and wanted.array is not None and not isinstance(value, np.generic):
            array = _as_wanted(array, wanted, what)
    except (ValueError, OverflowError) as error:
        raise type(error)(f"{what}: {error}") from None
    _fill_array(tensor, array, what, keep, False)
    return _dlpack.CPU


def _as_wanted(array: Array, wanted: DType, what: str) -> Array:
    """Plain numbers in the model's type, where it can hold them."""
    if array.dtype.kind in "OUSV" or (array.dtype.kind in "fc" and wanted.name.lstrip("u").startswith("int")):
        raise TypeError(f"{what} is a {array.dtype} of Python's, the model wants {wanted.name}")
    return array.astype(wanted.array)


def copied(tensor: Any) -> Union[Array, Tensor]:
    """A dense tensor of host memory in memory of numpy's."""
    shape = [tensor.shape[d] for d in range(tensor.rank)]
    dtype = _dtypes.of_dl(tensor.dtype.code, tensor.dtype.bits)
    if tensor.device_type != _dlpack.CPU:
        raise UnsupportedError(f"this result lies on a device of DLPack type {tensor.device_type}")
    own, address = empty(dtype, shape)
    n_bytes = dtype.n_bytes(math.prod(shape))
    if n_bytes:
        declarations = ffi()
        source = declarations.cast("char *", tensor.data) + tensor.byte_offset
        declarations.memmove(declarations.cast("char *", address), source, n_bytes)
    return own


class Names:
    """C strings of a model's names, made once."""

    def __init__(self) -> None:
        self._made: Dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        made = self._made.get(name)
        if made is None:
            if not isinstance(name, str):
                raise TypeError(f"the name of a tensor must be a string, not {name!r}")
            if "\0" in name:
                raise ValueError(f"the name of a tensor has a NUL in it: {name!r}")
            made = self._made[name] = ffi().new("char[]", name.encode())
        return made


def bindings(given: Mapping[str, ArrayLike], names: Names, kind: str, wanted: Mapping[str, DType], keep: List[Any], writable: bool) -> Any:
    """opipe_binding_io [len(given)] for inputs or outputs."""
    if not isinstance(given, Mapping):
        raise InvalidError(f"{kind}s are given by name, as a mapping, not as {type(given).__name__}")
    made = ffi().new("opipe_binding_io[]", len(given))
    keep.append(made)
    for own, (name, value) in zip(made, given.items()):
        own.name = names[name]
        device = fill(own.tensor, value, f"{kind} {name!r}", keep, wanted.get(name), writable)
        if device == _dlpack.CUDA:  # what its producer queued comes first, what it queues next waits
            own.ready.kind = own.done.kind = 2
    return made

# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules: read in place, and made for memory of ours."""
from __future__ import annotations

import ctypes
from typing import Any, Dict, Tuple

from ._library import callback, ffi

_NAME, _USED = b"dltensor", b"used_dltensor"
CPU, CUDA = 1, 2

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]
_raw_pointer = ctypes.PyDLL(None).PyCapsule_GetPointer
_raw_pointer.restype, _raw_pointer.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, _Destructor]


def read(value: Any) -> Tuple[Any, Any]:
    """(an opipe_tensor *, what keeps its memory) of an object with `__dlpack__`. Nothing is copied: a DLTensor has that layout.
    The capsule is not consumed: it lets go of the memory when it is collected itself."""
    device, _ = value.__dlpack_device__()
    # A CUDA producer queues the work that we must wait for in the default stream.
    capsule = value.__dlpack__(stream=1) if device == CUDA else value.__dlpack__()
    address = _pointer(capsule, _NAME)
    return ffi().cast("opipe_tensor *", address), (capsule, value)


# Tensors that consumers have not given back, by address.
_lent: Dict[int, Any] = {}


def _give_back(address: Any) -> None:
    _lent.pop(int(ffi().cast("uintptr_t", address)), None)


def _collected(capsule: int) -> None:
    """A capsule that nobody consumed ends."""
    if _is_valid(capsule, _NAME):
        _lent.pop(_raw_pointer(capsule, _NAME), None)


_destructor = _Destructor(_collected)


def lend(tensor: Any, owner: Any) -> Any:
    """A capsule over an opipe_tensor * whose memory, shape and strides `owner` keeps."""
    declarations = ffi()
    made = declarations.new("opipe_tensor[2]")  # room for a DLManagedTensor: a DLTensor, manager_ctx, deleter
    made[0] = tensor[0]
    words = declarations.cast("void **", made)
    words[declarations.sizeof("opipe_tensor") // 8 + 1] = callback("void(void *)", _give_back, None)
    address = int(declarations.cast("uintptr_t", made))
    _lent[address] = made, tensor, owner
    return _new(address, _NAME, _destructor)

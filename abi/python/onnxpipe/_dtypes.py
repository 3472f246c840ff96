# SPDX-License-Identifier: Apache-2.0
"""Element types: those of opipe/dtypes.h as numpy has them, some of them with the package ml_dtypes alone."""
from __future__ import annotations

import functools
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from ._library import ffi

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None  # type: ignore[assignment, unused-ignore]

# Key in dtypes.h: numpy's name, DLPack's code there, bits. Below 8 bits elements are packed.
_ROWS: Dict[str, Tuple[str, str, int]] = {
    "FLOAT": ("float32", "FLOAT", 32),
    "UINT8": ("uint8", "UINT", 8),
    "INT8": ("int8", "INT", 8),
    "UINT16": ("uint16", "UINT", 16),
    "INT16": ("int16", "INT", 16),
    "INT32": ("int32", "INT", 32),
    "INT64": ("int64", "INT", 64),
    "BOOL": ("bool", "BOOL", 8),
    "FLOAT16": ("float16", "FLOAT", 16),
    "DOUBLE": ("float64", "FLOAT", 64),
    "UINT32": ("uint32", "UINT", 32),
    "UINT64": ("uint64", "UINT", 64),
    "COMPLEX64": ("complex64", "COMPLEX", 64),
    "COMPLEX128": ("complex128", "COMPLEX", 128),
    "BFLOAT16": ("bfloat16", "BFLOAT", 16),
    "FLOAT8E4M3FN": ("float8_e4m3fn", "FLOAT8_E4M3FN", 8),
    "FLOAT8E4M3FNUZ": ("float8_e4m3fnuz", "FLOAT8_E4M3FNUZ", 8),
    "FLOAT8E5M2": ("float8_e5m2", "FLOAT8_E5M2", 8),
    "FLOAT8E5M2FNUZ": ("float8_e5m2fnuz", "FLOAT8_E5M2FNUZ", 8),
    "FLOAT8E8M0": ("float8_e8m0fnu", "FLOAT8_E8M0FNU", 8),
    "UINT4": ("uint4", "UINT", 4),
    "INT4": ("int4", "INT", 4),
    "FLOAT4E2M1": ("float4_e2m1fn", "FLOAT4_E2M1FN", 4),
    "UINT2": ("uint2", "UINT", 2),
    "INT2": ("int2", "INT", 2),
}


class DType(NamedTuple):
    """name: as numpy, or ml_dtypes, calls it; number: ONNX's; code, bits: DLPack's; array: numpy's type, None where it has none
    (ml_dtypes is not installed, or elements are packed)."""

    name: str
    number: int
    code: int
    bits: int
    array: Optional["np.dtype[Any]"]

    def n_bytes(self, n_elements: int) -> int:
        """Bytes of that many dense elements, packed types included."""
        return (n_elements * self.bits + 7) // 8


def _array_type(name: str, bits: int) -> Optional["np.dtype[Any]"]:
    if bits < 8:
        return None
    if hasattr(np, name) or name == "bool":
        return np.dtype(name)
    kind = getattr(ml_dtypes, name, None)
    return None if kind is None else np.dtype(kind)


@functools.lru_cache(maxsize=None)
def _all() -> Tuple[DType, ...]:
    numbers = ffi().dlopen(None)  # of the declarations
    return tuple(
        DType(name, getattr(numbers, "OPIPE_" + key), getattr(numbers, "OPIPE_DL_" + code), bits, _array_type(name, bits))
        for key, (name, code, bits) in _ROWS.items()
    )


@functools.lru_cache(maxsize=None)
def _by_number() -> Dict[int, DType]:
    return {row.number: row for row in _all()}


@functools.lru_cache(maxsize=None)
def _by_dl() -> Dict[Tuple[int, int], DType]:
    return {(row.code, row.bits): row for row in _all()}


@functools.lru_cache(maxsize=None)
def _by_array() -> Dict[Any, DType]:
    return {row.array: row for row in _all() if row.array is not None}


def of_number(number: int) -> DType:
    """By ONNX's number; strings and what is not known have a type without numpy's."""
    found = _by_number().get(number)
    return found if found is not None else DType({8: "string"}.get(number, "undefined"), number, -1, 0, None)


def of_dl(code: int, bits: int) -> DType:
    found = _by_dl().get((code, bits))
    return found if found is not None else DType(f"DLPack code {code}, {bits} bits", 0, code, bits, None)


def of_array(kind: "np.dtype[Any]") -> Optional[DType]:
    return _by_array().get(kind)

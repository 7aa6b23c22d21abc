"""Element types of ONNX, and how a Tensor holds each: its storage.

| ONNX                                   | storage | holds                       |
|----------------------------------------|---------|-----------------------------|
| FLOAT, FLOAT16, DOUBLE, BOOL           | same    |                             |
| INT32, INT64, UINT32                   | same    |                             |
| (U)INT16, (U)INT8, (U)INT4, (U)INT2    | int32   | the number; weights: below  |
| UINT64                                 | int64   | the same bits               |
| BFLOAT16, FLOAT8*, FLOAT4*             | float32 | the number                  |
| STRING, COMPLEX*                       | none    | only the host can hold them |

Weights of narrow integers are held in 8 or 16 bits each, and widened to int32 in each run.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from ....common.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    NARROW,
    UINT32,
    NDArray,
    numpy_dtype,
)
from ....common.errors import ModelFormatError, UnsupportedOp

T = TensorProto
SAME: dict[int, str] = {
    T.FLOAT: FLOAT32,
    T.FLOAT16: FLOAT16,
    T.DOUBLE: FLOAT64,
    T.BOOL: BOOL,
    T.INT32: INT32,
    T.INT64: INT64,
    T.UINT32: UINT32,
}
"""Element types that a Tensor holds as they are: their arithmetic is that of vksched's ops."""

NARROW_INTS: tuple[int, ...] = tuple(
    getattr(T, name)
    for name in ("INT16", "UINT16", "INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2")
    if hasattr(T, name)
)
"""Integers that are held as int32: arithmetic that passes their range must be wrapped."""
NARROW_FLOATS: tuple[int, ...] = tuple(
    number
    for name, number in T.DataType.items()
    if name == "BFLOAT16" or name.startswith(("FLOAT8", "FLOAT4"))
)
"""Floats that are held as float32: results must be rounded to them."""

STORAGE: dict[int, str] = {
    **SAME,
    **dict.fromkeys(NARROW_INTS, INT32),
    **dict.fromkeys(NARROW_FLOATS, FLOAT32),
    T.UINT64: INT64,
}
"""The element type of the Tensor that holds each ONNX element type."""

ANY = frozenset(STORAGE)
"""All element types that a Tensor can hold: for rules that only move elements."""
PLAIN = frozenset(SAME)
"""Those whose arithmetic is that of vksched's ops: what a rule takes unless it says otherwise."""
EVERY = frozenset(T.DataType.values()) - {T.UNDEFINED}
"""All element types, those of the host too: for rules that hand values on as they are."""
INTS = frozenset((T.INT32, T.INT64, T.UINT32, T.UINT64, *NARROW_INTS))


def element_name(elem_type: int) -> str:
    """Return the name of an element type as ONNX writes it, in lower case."""
    try:
        return str(T.DataType.Name(elem_type)).lower()
    except ValueError:
        return f"element type {elem_type}"


def storage(elem_type: int) -> str:
    """Return the element type of the Tensor that holds an ONNX element type.

    Raises:
        UnsupportedOp: only the host can hold it.
    """
    if elem_type not in STORAGE:
        raise UnsupportedOp(f"{element_name(elem_type)} is held by the host only")
    return STORAGE[elem_type]


@cache
def numpy_of(elem_type: int) -> np.dtype[np.generic]:
    """Return the numpy dtype, which may be one of ml_dtypes, of an ONNX element type."""
    try:
        return np.dtype(tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, ValueError, TypeError):
        raise ModelFormatError(f"[onnx] unknown {element_name(elem_type)}") from None


_ELEMENTS: dict[np.dtype[np.generic], int] = {numpy_of(e): e for e in STORAGE}


def element_of(array: NDArray) -> int:
    """Return the ONNX element type of an array; what numpy holds as objects or text is STRING.

    Raises:
        ModelFormatError: ONNX has no such type.
    """
    return element_of_dtype(array.dtype)


@lru_cache(maxsize=256)  # texts of each length have a type of their own
def element_of_dtype(dtype: np.dtype[Any]) -> int:
    """The same, of arrays of a numpy dtype."""
    found = _ELEMENTS.get(dtype)
    if found is not None:
        return found
    if dtype.kind in "OUS":
        return int(T.STRING)
    if dtype == np.complex64:
        return int(T.COMPLEX64)
    if dtype == np.complex128:
        return int(T.COMPLEX128)
    raise ModelFormatError(f"[onnx] expected an array of an ONNX element type, got {dtype}")


def to_storage(array: NDArray) -> NDArray:
    """Return an array as the Tensor for its element type holds it; a copy only where it differs.

    Raises:
        UnsupportedOp: only the host can hold it.
    """
    wanted = _storage_dtype(array.dtype)
    if array.dtype == wanted:
        return array
    return array.view(wanted) if array.dtype == np.uint64 else array.astype(wanted)


@cache
def _storage_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return numpy_dtype(storage(element_of_dtype(dtype)))


def as_narrow(array: NDArray) -> NDArray | None:
    """Return narrow integers as a weight holds them, in 8 or 16 bits; None of other elements."""
    elem_type = element_of(array)
    if elem_type not in NARROW_INTS:
        return None
    if array.dtype.name in NARROW:
        return array
    return array.astype(np.uint8 if element_name(elem_type).startswith("u") else np.int8)


def from_storage(array: NDArray, elem_type: int) -> NDArray:
    """Returns what a Tensor holds as an array of its ONNX element type."""
    wanted = numpy_of(elem_type)
    if array.dtype == wanted:
        return array
    if elem_type == T.UINT64:
        return array.view(wanted)
    with np.errstate(all="ignore"):
        return array.astype(wanted)

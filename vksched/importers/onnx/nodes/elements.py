"""Storage: the element type of the Tensor that holds values of each ONNX element type.

| ONNX                                   | storage | stored as                        |
|----------------------------------------|---------|----------------------------------|
| FLOAT, FLOAT16, DOUBLE, BOOL           | same    |                                  |
| INT32, INT64, UINT32                   | same    |                                  |
| (U)INT16, (U)INT8, (U)INT4, (U)INT2    | int32   | the number; weights: see below   |
| UINT64                                 | int64   | the bits of the number           |
| BFLOAT16, FLOAT8*, FLOAT4*             | float32 | the number                       |
| STRING, COMPLEX*                       | none    | only the CPU can hold the values |

Weights of narrow integers are stored in 8 or 16 bits and widened to int32 in each run.
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
"""Element types with a native Tensor type: their arithmetic is that of vksched's ops."""

NARROW_INTS: tuple[int, ...] = tuple(
    getattr(T, name)
    for name in ("INT16", "UINT16", "INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2")
    if hasattr(T, name)
)
"""Integers stored as int32: results beyond their range must be wrapped."""
NARROW_FLOATS: tuple[int, ...] = tuple(
    number
    for name, number in T.DataType.items()
    if name == "BFLOAT16" or name.startswith(("FLOAT8", "FLOAT4"))
)
"""Floats stored as float32: results must be rounded."""

STORAGE: dict[int, str] = {
    **SAME,
    **dict.fromkeys(NARROW_INTS, INT32),
    **dict.fromkeys(NARROW_FLOATS, FLOAT32),
    T.UINT64: INT64,
}
"""The storage type of each ONNX element type."""

ANY = frozenset(STORAGE)
"""All element types that a Tensor can hold: for rules that only move elements."""
PLAIN = frozenset(SAME)
"""Element types whose arithmetic is that of vksched's ops: the default of a rule."""
EVERY = frozenset(T.DataType.values()) - {T.UNDEFINED}
"""All element types, including those only the CPU can hold: for rules that pass values through."""
INTS = frozenset((T.INT32, T.INT64, T.UINT32, T.UINT64, *NARROW_INTS))


def element_name(elem_type: int) -> str:
    """Return the ONNX name of an element type in lower case."""
    try:
        return str(T.DataType.Name(elem_type)).lower()
    except ValueError:
        return f"element type {elem_type}"


def storage(elem_type: int) -> str:
    """Return the storage type of an ONNX element type.

    Raises
    ------
    UnsupportedOp
        Only the CPU can hold the element type.
    """
    if elem_type not in STORAGE:
        raise UnsupportedOp(f"{element_name(elem_type)} can only be held by the CPU")
    return STORAGE[elem_type]


@cache
def numpy_of(elem_type: int) -> np.dtype[np.generic]:
    """Return the numpy dtype of an ONNX element type, which may be one of ml_dtypes."""
    try:
        return np.dtype(tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, ValueError, TypeError):
        raise ModelFormatError(f"[onnx] unknown {element_name(elem_type)}") from None


_ELEMENTS: dict[np.dtype[np.generic], int] = {numpy_of(e): e for e in STORAGE}


def element_of(array: NDArray) -> int:
    """Return the ONNX element type of an array; object and text arrays are STRING.

    Raises
    ------
    ModelFormatError
        ONNX has no corresponding type.
    """
    return element_of_dtype(array.dtype)


@lru_cache(maxsize=256)  # strings of each length have a dtype of their own
def element_of_dtype(dtype: np.dtype[Any]) -> int:
    """Return the ONNX element type of a numpy dtype; see `element_of`."""
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
    """Return an array in the storage type of its element type, without a copy if it is the same
    type.

    Raises
    ------
    UnsupportedOp
        Only the CPU can hold the element type.
    """
    wanted = _storage_dtype(array.dtype)
    if array.dtype == wanted:
        return array
    return array.view(wanted) if array.dtype == np.uint64 else array.astype(wanted)


@cache
def _storage_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return numpy_dtype(storage(element_of_dtype(dtype)))


def as_narrow(array: NDArray) -> NDArray | None:
    """Return narrow integers as a weight of 8 or 16 bits, or None for other element types."""
    elem_type = element_of(array)
    if elem_type not in NARROW_INTS:
        return None
    if array.dtype.name in NARROW:
        return array
    return array.astype(np.uint8 if element_name(elem_type).startswith("u") else np.int8)


def from_storage(array: NDArray, elem_type: int) -> NDArray:
    """Convert an array from its storage type to its ONNX element type."""
    wanted = numpy_of(elem_type)
    if array.dtype == wanted:
        return array
    if elem_type == T.UINT64:
        return array.view(wanted)
    with np.errstate(all="ignore"):
        return array.astype(wanted)

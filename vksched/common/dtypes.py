"""Element types, tensor types and numpy broadcasting."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .errors import DTypeError, ShapeError, VkschedError

MAX_RANK = 8
MAX_ELEMENTS = 1 << 40
"""Maximum number of elements of a tensor; keeps offsets and byte sizes far below 2^63."""
MAX_CONSTANT_ELEMENTS = 1 << 28
"""Maximum number of elements of a constant that a builder creates."""
WORD_BYTES = 4

Shape = tuple[int, ...]
NDArray = np.ndarray[Any, Any]

FLOAT32 = "float32"
FLOAT16 = "float16"
FLOAT64 = "float64"
INT32 = "int32"
UINT32 = "uint32"
INT64 = "int64"
BOOL = "bool"
DTYPES: tuple[str, ...] = (FLOAT32, FLOAT16, INT32, UINT32, BOOL, INT64, FLOAT64)
NARROW: tuple[str, ...] = ("int8", "uint8", "int16", "uint16")
"""Weight-only element types; `dequantize_linear` converts them to 32 bits."""
FLOATS: tuple[str, ...] = (FLOAT16, FLOAT32, FLOAT64)
_NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in (*DTYPES, *NARROW)}
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}


def canonical_dtype(dtype: object, more: tuple[str, ...] = ()) -> str:
    """Return the canonical name of a dtype.

    Parameters
    ----------
    dtype
        A name, a numpy dtype or a numpy scalar type.
    more
        Names that are accepted in addition to DTYPES.
    """
    name = _NAMES.get(dtype) if isinstance(dtype, np.dtype) else None
    try:
        if name is None:
            name = "None" if dtype is None else np.dtype(dtype).name  # type: ignore[call-overload]
    except (TypeError, ValueError):
        name = str(dtype)
    if name not in (*DTYPES, *more):
        raise DTypeError(f"[dtype] expected one of {', '.join(DTYPES)}, got {name!r}")
    return str(name)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype that holds this element type on the CPU."""
    return _NUMPY[name]


def is_uniform(array: NDArray) -> bool:
    """Return True if all elements of an array share memory, as in `np.broadcast_to`."""
    return array.size > 1 and not any(array.strides)


def elements_of_word(dtype: str) -> int:
    """Return the number of elements that share a 32-bit word on a device."""
    if dtype in NARROW or dtype == FLOAT16:
        return WORD_BYTES // _NUMPY[dtype].itemsize
    return 1


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a tensor.

    Layout on a device, in 32-bit words:

        float32, int32, uint32   one word
        bool                     one word, 0 or 1
        int64                    one word, as int32; only if all values are known to fit
        float16                  two per word, the first in the lower half
        int8, uint8              four per word; weights only
        int16, uint16            two per word; weights only
        float64                  CPU only
    """

    shape: Shape
    dtype: str = FLOAT32

    def __post_init__(self) -> None:
        if self.dtype not in _NUMPY:
            raise DTypeError(f"[type] expected one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if len(self.shape) > MAX_RANK:
            raise ShapeError(
                f"[type] expected a rank of at most {MAX_RANK}, got shape {self.shape}; "
                "try merging axes with reshape"
            )
        if self.shape and min(self.shape) < 0:
            raise ShapeError(f"[type] expected dimensions of 0 or more, got {self.shape}")
        # numpy limits empty arrays in this way
        if math.prod(filter(None, self.shape)) > MAX_ELEMENTS:
            raise ShapeError(
                f"[type] expected at most 2^40 elements, got shape {self.shape}; try less at once"
            )

    @cached_property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def words(self) -> int:
        """Number of 32-bit words on a device."""
        return -(-self.size // elements_of_word(self.dtype))

    @cached_property
    def device_bytes(self) -> int:
        """Bytes on a device."""
        return self.words * WORD_BYTES

    @property
    def host_bytes(self) -> int:
        """Bytes as a numpy array."""
        return self.size * _NUMPY[self.dtype].itemsize

    def as_dtype(self, dtype: str) -> TensorType:
        """Return this type with another element type."""
        return self if dtype == self.dtype else TensorType(self.shape, dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def as_shape(shape: int | Sequence[int]) -> Shape:
    """Return a shape as a tuple of Python ints; an int is a shape of rank 1."""
    if isinstance(shape, (int, np.integer)):
        return (int(shape),)
    try:
        return tuple(int(d.__index__()) for d in shape)
    except (TypeError, AttributeError, VkschedError):
        raise ShapeError(f"[shape] expected integers, got {shape!r}") from None


def as_int(op: str, what: str, value: object) -> int:
    """Convert a Python or numpy integer to int.

    Raises
    ------
    ShapeError
        The value is not an integer.
    """
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ShapeError(f"[{op}] expected an integer as {what}, got {value!r}") from None


def as_ints(op: str, what: str, value: object) -> tuple[int, ...]:
    """Convert an integer or a sequence of integers to a tuple of int.

    Raises
    ------
    ShapeError
        A value is not an integer.
    """
    try:
        return (operator.index(value),)  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        return tuple(operator.index(v) for v in value)  # type: ignore[attr-defined]
    except (TypeError, VkschedError):
        raise ShapeError(
            f"[{op}] expected an integer or integers as {what}, got {value!r}"
        ) from None


def as_float(op: str, what: str, value: object) -> float:
    """Convert a Python or numpy number to float.

    Raises
    ------
    DTypeError
        The value is not a finite number.
    """
    number = math.nan
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise DTypeError(f"[{op}] expected a finite number as {what}, got {value!r}")
    return number


def as_floats(op: str, what: str, value: object) -> tuple[float, ...]:
    """Convert a sequence of numbers to a tuple of float.

    Raises
    ------
    DTypeError
        The value is not a sequence of finite numbers.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DTypeError(f"[{op}] expected numbers as {what}, got {value!r}")
    return tuple(as_float(op, what, v) for v in value)


def check_constant_size(op: str, count: int) -> None:
    """Raise ShapeError if a constant is too large to be created by a builder."""
    if count > MAX_CONSTANT_ELEMENTS:
        raise ShapeError(
            f"[{op}] expected to make constants of at most 2^28 elements, got {count}; try less "
            "at once"
        )


def broadcast_shapes(op: str, *shapes: Shape) -> Shape:
    """Return the shape that results from numpy broadcasting.

    Raises
    ------
    ShapeError
        Two shapes differ at an axis, counted from the right, and neither size is 1.
    """
    rank = max((len(s) for s in shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, start=rank - len(shape)):
            if size == 1:
                continue
            if out[axis] not in (1, size):
                raise ShapeError(
                    f"[{op}] expected shapes that broadcast, got {' and '.join(map(str, shapes))}: "
                    f"sizes {out[axis]} and {size} meet; try reshape or expand"
                )
            out[axis] = size
    return tuple(out)


def normalize_axis(op: str, axis: int, rank: int) -> int:
    """Return an axis in 0..rank-1; a negative axis counts from the end."""
    try:
        axis = operator.index(axis)
    except TypeError:
        raise ShapeError(f"[{op}] expected an integer as axis, got {axis!r}") from None
    if not -rank <= axis < rank:
        raise ShapeError(f"[{op}] expected an axis in {-rank}..{rank - 1}, got {axis}")
    return axis % rank if rank else 0


def normalize_axes(op: str, axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return sorted, distinct axes in 0..rank-1; None selects all axes."""
    if axes is None:
        return tuple(range(rank))
    try:
        items = (axes,) if isinstance(axes, (int, np.integer)) else tuple(axes)
    except (TypeError, VkschedError):
        raise ShapeError(f"[{op}] expected an integer or integers as axes, got {axes!r}") from None
    out = tuple(sorted(normalize_axis(op, a, rank) for a in items))
    if len(set(out)) != len(out):
        raise ShapeError(f"[{op}] expected distinct axes, got {tuple(items)}")
    return out


def contiguous_strides(shape: Shape) -> tuple[int, ...]:
    """Return the row-major strides of a shape, in elements."""
    strides, step = [0] * len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


Progress = Callable[[str, int, int], None]
"""Callback of a long operation, called with (description, bytes done, bytes in total)."""

"""Element types, tensor types and numpy broadcasting: the vocabulary of every later layer."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import DTypeError, ShapeError, VkschedError

MAX_RANK = 8
MAX_ELEMENTS = 1 << 40
"""Of a tensor: more than any computer holds; offsets and sizes in bytes stay far below 2^63."""
MAX_MADE = 1 << 28
"""Elements of a constant that a builder makes."""
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
"""Element types of weights only: `dequantize_linear` reads them, and makes 32 bits of each."""
FLOATS: tuple[str, ...] = (FLOAT16, FLOAT32, FLOAT64)
_NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in (*DTYPES, *NARROW)}
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}


def canonical_dtype(dtype: object, more: tuple[str, ...] = ()) -> str:
    """Return the name of a dtype given as a name, a numpy dtype or a numpy scalar type.

    more: names that are taken beside DTYPES.
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
    """Return the numpy dtype in which the host holds a tensor of this element type."""
    return _NUMPY[name]


def is_uniform(array: NDArray) -> bool:
    """Whether an array has one value in memory for all its elements, as `np.broadcast_to` makes
    them.
    """
    return array.size > 1 and not any(array.strides)


def elements_of_word(dtype: str) -> int:
    """Return how many elements share a 32-bit word on a device."""
    if dtype in NARROW or dtype == FLOAT16:
        return WORD_BYTES // _NUMPY[dtype].itemsize
    return 1


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a tensor.

    On a device an element takes one 32-bit word: float32, int32 and uint32 as they are, bool as 0
    or 1, int64 as int32, as it is only there when its values are known to fit. Two float16 share a
    word, the first in the lower half; four int8 do, or two int16, likewise, and these are the types
    of weights only. float64 stays on the CPU.
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
        if math.prod(filter(None, self.shape)) > MAX_ELEMENTS:  # numpy counts empty ones like that
            raise ShapeError(
                f"[type] expected at most 2^40 elements, got shape {self.shape}; try less at once"
            )

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def words(self) -> int:
        """Number of 32-bit words on a device."""
        return -(-self.size // elements_of_word(self.dtype))

    @property
    def device_bytes(self) -> int:
        """Bytes on a device."""
        return self.words * WORD_BYTES

    @property
    def host_bytes(self) -> int:
        """Bytes as a numpy array."""
        return self.size * _NUMPY[self.dtype].itemsize

    def as_dtype(self, dtype: str) -> TensorType:
        """Return the same shape with another element type."""
        return self if dtype == self.dtype else TensorType(self.shape, dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def as_shape(shape: int | Sequence[int]) -> Shape:
    """Return a shape as a tuple of Python ints; an int stands for rank 1."""
    if isinstance(shape, (int, np.integer)):
        return (int(shape),)
    try:
        return tuple(int(d.__index__()) for d in shape)
    except (TypeError, AttributeError, VkschedError):
        raise ShapeError(f"[shape] expected integers, got {shape!r}") from None


def as_int(op: str, what: str, value: object) -> int:
    """Return an integer of Python's or numpy's as Python's.

    Raises:
        ShapeError: it is something else.
    """
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ShapeError(f"[{op}] expected an integer as {what}, got {value!r}") from None


def as_ints(op: str, what: str, value: object) -> tuple[int, ...]:
    """Return one integer, or those of a sequence, as a tuple.

    Raises:
        ShapeError: it is something else.
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
    """Return a number of Python's or numpy's as a float.

    Raises:
        DTypeError: it is something else, or not finite.
    """
    number = math.nan
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise DTypeError(f"[{op}] expected a finite number as {what}, got {value!r}")
    return number


def as_floats(op: str, what: str, value: object) -> tuple[float, ...]:
    """Return the numbers of a sequence as floats.

    Raises:
        DTypeError: it is something else, or one is not finite.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DTypeError(f"[{op}] expected numbers as {what}, got {value!r}")
    return tuple(as_float(op, what, v) for v in value)


def check_made(op: str, count: int) -> None:
    """Raise ShapeError for a constant that is too large to be made while a graph is written."""
    if count > MAX_MADE:
        raise ShapeError(
            f"[{op}] expected to make constants of at most 2^28 elements, got {count}; try less "
            "at once"
        )


def broadcast_shapes(op: str, *shapes: Shape) -> Shape:
    """Return the numpy broadcast of shapes.

    Raises:
        ShapeError: two of them have different sizes, neither 1, at the same axis from the right.
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
    """Return an axis in 0..rank-1 from one that may count from the end."""
    try:
        axis = operator.index(axis)
    except TypeError:
        raise ShapeError(f"[{op}] expected an integer as axis, got {axis!r}") from None
    if not -rank <= axis < rank:
        raise ShapeError(f"[{op}] expected an axis in {-rank}..{rank - 1}, got {axis}")
    return axis % rank if rank else 0


def normalize_axes(op: str, axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return sorted, distinct axes in 0..rank-1; None stands for all."""
    if axes is None:
        return tuple(range(rank))
    try:
        given = (axes,) if isinstance(axes, (int, np.integer)) else tuple(axes)
    except (TypeError, VkschedError):
        raise ShapeError(f"[{op}] expected an integer or integers as axes, got {axes!r}") from None
    out = tuple(sorted(normalize_axis(op, a, rank) for a in given))
    if len(set(out)) != len(out):
        raise ShapeError(f"[{op}] expected distinct axes, got {tuple(given)}")
    return out


def contiguous_strides(shape: Shape) -> tuple[int, ...]:
    """Return the row-major strides of a shape, in elements."""
    strides, step = [0] * len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


Progress = Callable[[str, int, int], None]
"""Called with (what, done, total), in bytes, while something long goes on."""

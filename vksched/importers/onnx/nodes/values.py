"""Values: representations of ONNX values during lowering, and on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ....common.dtypes import NDArray, Shape
from ....common.errors import UnsupportedOp
from ....ir.tensor import Tensor
from .elements import element_of, element_of_dtype

CpuValue = Any
"""A value on the CPU: an array, a list of arrays (a sequence), None (an empty optional), a map from
numbers or strings to values, or a list of maps.
"""

BUCKETS = (1 << 20, 1 << 31)
"""An int64 placeholder is lowered for values within one of these bounds, or for any value."""
SEQUENCE = -1
"""Element type of a sequence, regardless of its items."""


@dataclass(frozen=True, slots=True)
class CpuValueType:
    """The type of an array that lowering may use without a guard on its elements.

    Attributes
    ----------
    bound
        int64 values are in -bound .. bound - 1; 0 if unknown.
    """

    elem_type: int
    shape: Shape
    bound: int = 0


@dataclass(frozen=True, slots=True)
class Inferred:
    """The inferred type of a result; `shape` is None if it depends on data."""

    elem_type: int
    shape: Shape | None


MAPS = "maps"
"""The type of a map or of a sequence of maps: only the CPU can hold it."""
TypeKey = CpuValueType | tuple[Any, ...] | str | None
"""The type of a CPU value; for sequences, a tuple of the types of their items."""


class Map(dict[Any, Any]):
    """A map passed by the caller; `dtype` is the numpy dtype of its values."""

    def __init__(self, items: Iterable[tuple[Any, Any]], dtype: np.dtype[Any]) -> None:
        super().__init__(items)
        self.dtype = dtype


def has_maps(value: CpuValue) -> bool:
    """Return True if a value is a map or a sequence of maps."""
    if isinstance(value, (list, tuple)):
        return bool(value) and isinstance(value[0], dict)
    return isinstance(value, dict)


def type_of(value: CpuValue | CpuValueType) -> TypeKey:
    """Return the type of a CPU value, which lowering may use without a guard."""
    if value is None or isinstance(value, CpuValueType):
        return value
    if has_maps(value):
        return MAPS
    if isinstance(value, (list, tuple)):
        return tuple(type_of(item) for item in value)
    array: NDArray = value
    bound = 0
    if array.dtype == np.int64:
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        bound = next((b for b in BUCKETS if -b <= low and high < b), 0)
    return _type_of_array(array.dtype, array.shape, bound)


@lru_cache(maxsize=1024)
def _type_of_array(dtype: np.dtype[np.generic], shape: Shape, bound: int) -> CpuValueType:
    return CpuValueType(element_of_dtype(dtype), shape, bound)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One ONNX value during lowering. At most one of the first four is set.

    Attributes
    ----------
    tensor
        The value is computed by the graph.
    array
        The value is equal in every run.
    slot
        The caller or an earlier segment supplies the value.
    items
        The value is a sequence. If none of the four is set, it is an empty optional.
    type
        The type of a slot; None if it is unknown, and for maps.
    """

    elem_type: int
    tensor: Tensor | None = None
    array: NDArray | None = None
    slot: str | None = None
    type: CpuValueType | None = None
    items: tuple[Value, ...] | None = None

    @property
    def shape(self) -> Shape:
        """The shape of a tensor."""
        if self.tensor is not None:
            return self.tensor.shape
        if self.array is not None:
            shape: Shape = self.array.shape
            return shape
        if self.type is None:
            raise UnsupportedOp("a sequence, a map or an empty optional, which has no shape")
        return self.type.shape

    @property
    def is_tensor(self) -> bool:
        """True if it is neither a sequence nor an empty optional."""
        return self.tensor is not None or self.array is not None or self.type is not None

    @property
    def is_known(self) -> bool:
        """True if it, and all items of a sequence, are equal in every run."""
        if self.items is not None:
            return all(item.is_known for item in self.items)
        return self.array is not None or (self.tensor is None and self.slot is None)


EMPTY = Value(0)
"""An empty optional."""


def known(array: NDArray) -> Value:
    """Return a value for a read-only array that is equal in every run."""
    array = np.asarray(array)
    array.flags.writeable = False
    return Value(element_of(array), array=array)


def arrays_of(values: Iterable[Value | None]) -> Iterator[NDArray]:
    """Yield the arrays of known values, including those in sequences."""
    for value in values:
        if value is not None and value.items is not None:
            yield from arrays_of(value.items)
        elif value is not None and value.array is not None:
            yield value.array


def known_host(value: Value) -> CpuValue:
    """Return a known value as a CPU value."""
    if value.items is not None:
        return [known_host(item) for item in value.items]
    return value.array


def known_value(value: CpuValue) -> Value:
    """Return a CPU value as a known value."""
    if value is None:
        return EMPTY
    if isinstance(value, list):
        return Value(0, items=tuple(known_value(item) for item in value))
    return known(value)

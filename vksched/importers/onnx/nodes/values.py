"""Values: what stands for an ONNX value while a model is lowered, and what the host holds of it."""

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
"""What the host holds: an array, a list of these (a sequence), None (an empty optional), a map from
numbers or texts to values, or a list of maps.
"""

BUCKETS = (1 << 20, 1 << 31)
"""An int64 placeholder is lowered for values within one of these, or for any."""
SEQUENCE = -1
"""Element type of a sequence, whatever its items are."""


@dataclass(frozen=True, slots=True)
class CpuValueType:
    """What lowering may know of an array without looking at its elements.

    bound: int64 values lie in -bound .. bound - 1; 0 where that is not known.
    """

    elem_type: int
    shape: Shape
    bound: int = 0


@dataclass(frozen=True, slots=True)
class Inferred:
    """What shape inference says of a result. shape: None where it depends on data."""

    elem_type: int
    shape: Shape | None


MAPS = "maps"
"""What lowering may know of a map, or of a sequence of maps: that only the host can hold it."""
TypeKey = CpuValueType | tuple[Any, ...] | str | None
"""What lowering may know of a host value: sequences are tuples of those of their items."""


class Map(dict[Any, Any]):
    """A map that the caller gives. dtype: numpy's type of its values."""

    def __init__(self, items: Iterable[tuple[Any, Any]], dtype: np.dtype[Any]) -> None:
        super().__init__(items)
        self.dtype = dtype


def has_maps(value: CpuValue) -> bool:
    """Return whether a value is a map, or a sequence of maps."""
    if isinstance(value, (list, tuple)):
        return bool(value) and isinstance(value[0], dict)
    return isinstance(value, dict)


def type_of(value: CpuValue | CpuValueType) -> TypeKey:
    """Returns what lowering may know of a host value without a guard."""
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
    """One ONNX value while a model is lowered; just one of these is given:

    tensor: it is computed by the graph. array: it is the same in every run. slot: the caller or an
    earlier stage gives it to the run. items: a sequence. None of them: an empty optional.

    type: of a slot, what is known of it; None as long as nothing is, and of maps.
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
        """It is neither a sequence nor an empty optional."""
        return self.tensor is not None or self.array is not None or self.type is not None

    @property
    def is_known(self) -> bool:
        """It is the same in every run, all items of a sequence too."""
        if self.items is not None:
            return all(item.is_known for item in self.items)
        return self.array is not None or (self.tensor is None and self.slot is None)


EMPTY = Value(0)
"""An empty optional."""


def known(array: NDArray) -> Value:
    """Return the value of an array that is the same in every run, which nobody may write to."""
    array = np.asarray(array)
    array.flags.writeable = False
    return Value(element_of(array), array=array)


def arrays_of(values: Iterable[Value | None]) -> Iterator[NDArray]:
    """Yield the arrays of known values, also those in sequences."""
    for value in values:
        if value is not None and value.items is not None:
            yield from arrays_of(value.items)
        elif value is not None and value.array is not None:
            yield value.array


def known_host(value: Value) -> CpuValue:
    """Return a known value as the host holds it."""
    if value.items is not None:
        return [known_host(item) for item in value.items]
    return value.array


def known_value(value: CpuValue) -> Value:
    """Returns what the host holds as a known value."""
    if value is None:
        return EMPTY
    if isinstance(value, list):
        return Value(0, items=tuple(known_value(item) for item in value))
    return known(value)

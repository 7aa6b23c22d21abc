"""Domains: the valid values of op attributes.

    Op("cumsum", ..., attrs={"axis": Axis(), "exclusive": Flag(), "reverse": Flag()})

`infer` checks the attributes of each new call (check_call.py), whether it comes from a builder, a
pass, a file or another host. A domain covers one attribute and may depend on the operands.
Relations between attributes are checked by the op's type rule. Kernels, native programs and
references assume valid attributes. Domains describe the canonical form that builders create:
sorted, non-negative axes, and one number per spatial axis. Examples: tests/ir/test_attr_domains.py.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.dtypes import (
    BOOL,
    DTYPES,
    FLOATS,
    MAX_ELEMENTS,
    MAX_RANK,
    NARROW,
    TensorType,
    numpy_dtype,
)
from ..common.errors import DTypeError, ShapeError, VkschedError
from .attrs import Attrs, AttrValue

WORD = 2**31 - 1
"""Maximum integer in a push constant."""
LONG = 2**63 - 1
LARGEST = float(np.finfo(np.float32).max)
MANY = 1 << 20
"""Maximum number of operands of a variadic op."""
MAX_SHOWN = 80
"""Maximum length of a value in an error message."""


@dataclass(frozen=True, slots=True)
class AttrCall:
    """The call whose attributes are checked."""

    op: str
    inputs: tuple[TensorType, ...]
    attrs: Attrs

    def rank(self, operand: int) -> int:
        """Return the rank of an operand, or 0 if it is absent."""
        return self.inputs[operand].rank if operand < len(self.inputs) else 0


class Domain(ABC):
    """Base class of the domains of attributes."""

    is_optional = False
    """True if calls may omit the attribute."""

    @property
    def error(self) -> type[VkschedError]:
        """Return the error class for a value outside of the domain."""
        return ShapeError

    @abstractmethod
    def expected(self, value: AttrValue, call: AttrCall) -> str:
        """Return "" if a value is valid, else a description of the valid values."""

    def check(self, name: str, value: AttrValue, call: AttrCall) -> None:
        """Raise ShapeError or DTypeError if a value is invalid."""
        expected = self.expected(value, call)
        if expected:
            raise self.error(f"[{call.op}] expected {expected} as {name}, got {shown(value)}")


def shown(value: object) -> str:
    """Format a value for error messages."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


Domains = dict[str, Domain]
Count = Callable[[AttrCall], int]


# -- one value -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flag(Domain):
    """True or False."""

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        return "" if type(value) is bool else "True or False"


@dataclass(frozen=True)
class Int(Domain):
    """Integer from low to high; a bool is not accepted."""

    low: int = -WORD - 1
    high: int = WORD

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        if type(value) is int and self.low <= value <= self.high:
            return ""
        if type(value) is int and value < self.low and self.high >= WORD:
            return f"an integer of {self.low} or more"
        return f"an integer in {self.low}..{self.high}"


@dataclass(frozen=True)
class Float(Domain):
    """Finite float32 number from low to high."""

    low: float = -LARGEST
    high: float = LARGEST

    @property
    def error(self) -> type[VkschedError]:
        return DTypeError

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        fits = type(value) in (int, float) and self.low <= value <= self.high  # type: ignore[operator]
        return "" if fits else f"a finite number in {self.low:g}..{self.high:g}"


@dataclass(frozen=True)
class Value(Domain):
    """Element of operand 0, or of the dtype in attribute `dtype`."""

    has_nan: bool = True

    @property
    def error(self) -> type[VkschedError]:
        return DTypeError

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        dtype = call.inputs[0].dtype if call.inputs else call.attrs.get("dtype")
        if dtype not in (*DTYPES, *NARROW):
            return ""  # the domain of `dtype` reports it
        if dtype == BOOL:
            return "" if type(value) is bool else "True or False"
        held = numpy_dtype(str(dtype))
        if dtype in FLOATS:
            fits = type(value) in (int, float) and not self._is_beyond(value, np.finfo(held))  # type: ignore[arg-type]
            return "" if fits else f"a number that {dtype} holds"
        limits = np.iinfo(held)
        fits = type(value) is int and limits.min <= value <= limits.max
        return "" if fits else f"an integer that {dtype} holds"

    def _is_beyond(self, value: float, held: np.finfo[Any]) -> bool:
        if isinstance(value, int) or math.isfinite(value):
            return abs(value) > float(held.max)
        return math.isnan(value) and not self.has_nan


@dataclass(frozen=True)
class OneOf(Domain):
    """One of several values."""

    choices: tuple[AttrValue, ...]
    is_dtype: bool = False

    @property
    def error(self) -> type[VkschedError]:
        return DTypeError if self.is_dtype else ShapeError

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        fits = any(type(value) is type(each) and value == each for each in self.choices)
        return "" if fits else f"one of {', '.join(map(repr, self.choices))}"


def one_of(*choices: AttrValue) -> OneOf:
    """Return the domain of several values."""
    return OneOf(choices)


def dtype_of(*dtypes: str) -> OneOf:
    """Return the domain of dtype names, by default all except the weight-only dtypes."""
    return OneOf(dtypes or DTYPES, True)


@dataclass(frozen=True)
class Axis(Domain):
    """Axis of an operand, non-negative.

    Parameters
    ----------
    more
        Number of axes that the op adds.
    of_scalar
        Accept 0 for an operand without axes.
    """

    of: int = 0
    more: int = 0
    of_scalar: bool = False

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        count = max(call.rank(self.of) + self.more, int(self.of_scalar))
        if type(value) is int and 0 <= value < count:
            return ""
        return f"an axis in 0..{count - 1}" if count else f"operand {self.of} with axes, and one"


# -- several values --------------------------------------------------------------------------------


def rank_of(operand: int = 0) -> Count:
    """Return a count equal to the rank of an operand."""
    return lambda call: call.rank(operand)


def spatial(call: AttrCall) -> int:
    """Return the number of spatial axes of operand 0, which exclude batch and channels."""
    return max(call.rank(0) - 2, 0)


def as_many_as(name: str) -> Count:
    """Return a count equal to the length of another attribute."""

    def count(call: AttrCall) -> int:
        other = call.attrs.get(name)
        return len(other) if isinstance(other, tuple) else 0

    return count


@dataclass(frozen=True)
class TupleOf(Domain):
    """Tuple of values of one domain.

    Parameters
    ----------
    count
        Number of values; None accepts from `least` to `most`.
    """

    of: Domain
    count: Count | int | None = None
    least: int = 0
    most: int = MAX_RANK

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        minimum, maximum = self.least, self.most
        if self.count is not None:
            minimum = maximum = self.count if isinstance(self.count, int) else self.count(call)
        if not isinstance(value, tuple) or not minimum <= len(value) <= maximum:
            number = str(minimum) if minimum == maximum else f"{minimum} to {maximum}"
            return f"a tuple of {number} values"
        wrong = next(filter(None, (self.of.expected(each, call) for each in value)), "")
        return wrong and f"{wrong} each"


def wholes(low: int, high: int = WORD, count: Count | int | None = None) -> TupleOf:
    """Return the domain of tuples of integers from low to high."""
    return TupleOf(Int(low, high), count)


@dataclass(frozen=True)
class Dims(Domain):
    """Shape with sizes of at least `low`; -1 allows one inferred size."""

    rank: int | None = None
    low: int = 0

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        wrong = TupleOf(Int(self.low, MAX_ELEMENTS), self.rank).expected(value, call)
        rank = f"at most {MAX_RANK}" if self.rank is None else str(self.rank)
        return wrong and f"a shape of rank {rank} and sizes of {self.low} or more"


@dataclass(frozen=True)
class Axes(Domain):
    """Distinct axes of operand 0.

    Parameters
    ----------
    in_order
        Axes must be sorted.
    every
        All axes must be present.
    """

    in_order: bool = True
    every: bool = False

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        rank = call.rank(0)
        known = isinstance(value, tuple) and all(type(a) is int and 0 <= a < rank for a in value)
        if known:
            axes: list[int] = list(value)  # type: ignore[arg-type]
            once = sorted(set(axes))
            fits = len(once) == len(axes) and (axes == once or not self.in_order)
            if fits and (len(axes) == rank or not self.every):
                return ""
        which = "all axes" if self.every else "axes"
        return f"{which} in 0..{rank - 1}, each once" + (", sorted" if self.in_order else "")


# -- with or without -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nullable(Domain):
    """None, or a value of another domain."""

    of: Domain

    @property
    def error(self) -> type[VkschedError]:
        return self.of.error

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        wrong = "" if value is None else self.of.expected(value, call)
        return wrong and f"None or {wrong}"


@dataclass(frozen=True)
class Optional(Domain):
    """Value of another domain, of an attribute that calls may omit."""

    of: Domain
    is_optional = True

    @property
    def error(self) -> type[VkschedError]:
        return self.of.error

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        return self.of.expected(value, call)


def leaf_attrs(dtypes: tuple[str, ...] = DTYPES) -> Domains:
    """Return the attributes of leaves: the type, and optional bounds of integers."""
    end = Optional(Int(-LONG - 1, LONG))
    return {"shape": Dims(), "dtype": dtype_of(*dtypes), "low": end, "high": end}

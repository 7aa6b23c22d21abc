"""Sharding rules: the ways in which a call can be computed in parts, op by op.

    y = matmul(x, w)         x: (m, k)  w: (k, n)  y: (m, n)

    factor   x      w      y
    m        axis 0 whole  axis 0         rows of x give rows of y
    k        axis 1 axis 0 terms          the parts of y add up to y
    n        whole  axis 1 axis 1         columns of w give columns of y

A factor is one way. It says for each operand which of its axes is cut, and how the results of the
parts make up the result. Parts are consecutive, of any sizes. What a rule does not offer is
computed whole. `vksched.parallel` chooses among the factors, and brings operands into the form that
one needs. Each factor of each case is proven by `tests/ir/test_sharding_rules.py`: the
reference on the parts gives the parts of the reference.

The idea of factors is that of Shardy's sharding rules (openxla.org/shardy).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from ..common.dtypes import Shape, TensorType
from ..common.errors import VkschedError
from .attrs import Attrs, AttrValue
from .op import EPILOGUE


class ShardingForm(Enum):
    """What a part holds of an operand or result that is not cut along an axis."""

    REPLICATE = "replicate"
    """All of it."""
    PARTIAL_SUM = "partial_sum"
    """A value of the same type; the sum over the parts is the operand or result."""
    PARTIAL_MEAN = "partial_mean"
    """Of a result: a value of the same type; the mean over the parts, each weighted by its size,
    is the result.
    """
    ANY = "any"
    """Of an operand: its values do not matter, so each part reads what it has."""


REPLICATE, PARTIAL_SUM, PARTIAL_MEAN, ANY = ShardingForm


@dataclass(frozen=True, slots=True)
class Sharded:
    """The call that a rule is asked about."""

    inputs: tuple[TensorType, ...]
    output: TensorType
    attrs: Attrs


def unchanged_attrs(start: int, size: int) -> Mapping[str, AttrValue]:
    """The attributes of each part are those of the call."""
    return {}


@dataclass(frozen=True, slots=True)
class Factor:
    """One way to compute a call in parts.

    operands: for each operand the axis that is cut, from 0, or its form. result: likewise.
    units: into how many equal pieces at most these axes can be cut: a part is a run of units. An
        axis may be a multiple of it, as where one unit is a head of several columns. 0 where no
        axis is cut: then there may be any number of parts.
    attrs: (first unit, units) of a part -> the attributes in which it differs from the call.
    """

    operands: tuple[int | ShardingForm, ...]
    result: int | ShardingForm
    units: int = 0
    attrs: Callable[[int, int], Mapping[str, AttrValue]] = unchanged_attrs


Rule = Callable[[Sharded], Iterable[Factor]]

_RULES: dict[str, Rule] = {}
_REASONS: dict[str, str] = {}


def sharding(*ops: str) -> Callable[[Rule], Rule]:
    """Declare the decorated function as the sharding rule of ops."""

    def declare(rule: Rule) -> Rule:
        for op in ops:
            _declare(op)
            _RULES[op] = rule
        return rule

    return declare


def no_sharding(reason: str, *ops: str) -> None:
    """Declare that ops are computed whole, and why: a clause that follows the op's name."""
    for op in ops:
        _declare(op)
        _REASONS[op] = reason


def _declare(op: str) -> None:
    if op in _RULES or op in _REASONS:
        raise VkschedError(f"[sharding] {op!r} has two rules")


def factors_of(op: str, call: Sharded) -> tuple[Factor, ...]:
    """Return the ways to compute a call in parts, those that cut into two parts and more."""
    rule = _RULES.get(op)
    if rule is None or EPILOGUE in call.attrs:  # what follows in its kernel came after all cutting
        return ()
    return tuple(f for f in rule(call) if f.units > 1 or not _is_sharded(f))


def _is_sharded(factor: Factor) -> bool:
    return any(isinstance(form, int) for form in (*factor.operands, factor.result))


def has_sharding(op: str) -> bool:
    """Return whether an op has a rule."""
    return op in _RULES


def why_no_sharding(op: str) -> str:
    """Return why an op is computed whole; "" where it has a rule or nothing is declared."""
    return _REASONS.get(op, "")


# -- what rules are made of ----------------------------------------------------------------------


def broadcast_factors(call: Sharded) -> Iterable[Factor]:
    """Yield a factor for each axis of the result of an elementwise op; what an operand repeats
    along it is whole.
    """
    for axis, size in enumerate(call.output.shape):
        yield Factor(tuple(aligned(t, call.output, axis) for t in call.inputs), axis, size)


def aligned(operand: TensorType, result: TensorType, axis: int) -> int | ShardingForm:
    """Return the axis of an operand that is broadcast into an axis of the result."""
    own = axis - (result.rank - operand.rank)
    cut = own >= 0 and operand.shape[own] == result.shape[axis] != 1
    return own if cut else REPLICATE


def linear_factors(call: Sharded, *operands: int) -> Iterable[Factor]:
    """Yield for each named operand the factor in which it may be terms, all others whole: the op
    is linear in it.
    """
    for each in operands:
        forms = tuple(PARTIAL_SUM if i == each else REPLICATE for i in range(len(call.inputs)))
        yield Factor(forms, PARTIAL_SUM)


def all_partial_sums(call: Sharded) -> Factor:
    """Return the factor in which all operands are terms: the op is linear in all together."""
    return Factor((PARTIAL_SUM,) * len(call.inputs), PARTIAL_SUM)


def row_factors(call: Sharded, axes: Iterable[int]) -> Iterable[Factor]:
    """Yield a factor for each of some axes that the first operand and the result share; the other
    operands are whole.
    """
    rest = (REPLICATE,) * (len(call.inputs) - 1)
    for axis in axes:
        yield Factor((axis, *rest), axis, call.output.shape[axis])


def with_size(
    shape: Shape, axis: int, scale: int = 1
) -> Callable[[int, int], Mapping[str, AttrValue]]:
    """Return the attributes of parts of a result whose shape is an attribute."""

    def attrs(start: int, units: int) -> Mapping[str, AttrValue]:
        return {"shape": (*shape[:axis], units * scale, *shape[axis + 1 :])}

    return attrs

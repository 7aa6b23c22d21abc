"""Sharding rules: how the call of an op can be split into shards.

    y = matmul(x, w)         x: (m, k)  w: (k, n)  y: (m, n)

    factor   x          w          y
    m        axis 0     replicate  axis 0       rows of x give rows of y
    k        axis 1     axis 0     partial sum  the sum of the shards is y
    n        replicate  axis 1     axis 1       columns of w give columns of y

A factor is one way to shard a call. It specifies the sharded axis of each operand, and how shards
combine to the result. Shards are contiguous and may have different sizes. A call without a factor
is replicated. `vksched.parallel` chooses among the factors and reshards operands.
`tests/ir/test_sharding_rules.py` checks each factor of each case: the reference on the shards gives
the shards of the reference.

Factors follow Shardy's sharding rules (openxla.org/shardy).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from ..common.dtypes import Shape, TensorType
from .attrs import Attrs, AttrValue
from .op import EPILOGUE
from .rule_registry import RuleRegistry


class ShardingForm(Enum):
    """Content of a shard of an operand or result that is not split along an axis."""

    REPLICATE = "replicate"
    """The whole value."""
    PARTIAL_SUM = "partial_sum"
    """A term; the sum over shards is the operand or result."""
    PARTIAL_MEAN = "partial_mean"
    """A mean of a result; the mean over shards, weighted by their sizes, is the result."""
    ANY = "any"
    """Irrelevant content of an operand, so each shard reads its local value."""


REPLICATE, PARTIAL_SUM, PARTIAL_MEAN, ANY = ShardingForm


@dataclass(frozen=True, slots=True)
class Sharded:
    """The call that is sharded."""

    inputs: tuple[TensorType, ...]
    output: TensorType
    attrs: Attrs


def unchanged_attrs(start: int, size: int) -> Mapping[str, AttrValue]:
    """Return no changed attributes: all shards have the attributes of the call."""
    return {}


@dataclass(frozen=True, slots=True)
class Factor:
    """One way to shard a call.

    Parameters
    ----------
    operands
        For each operand the sharded axis, from 0, or its form.
    result
        The sharded axis or form of the result.
    units
        Maximum number of equal shards; a shard is a range of units. An axis may be a multiple of
        it, e.g. if one unit is a head of several columns. 0 without a sharded axis: any number of
        shards.
    attrs
        (first unit, units) of a shard -> the attributes in which it differs from the call.
    """

    operands: tuple[int | ShardingForm, ...]
    result: int | ShardingForm
    units: int = 0
    attrs: Callable[[int, int], Mapping[str, AttrValue]] = unchanged_attrs


Rule = Callable[[Sharded], Iterable[Factor]]

RULES = RuleRegistry[Rule]("sharding")
sharding, no_sharding = RULES.declare, RULES.exclude


def factors_of(op: str, call: Sharded) -> tuple[Factor, ...]:
    """Return the factors of a call that allow at least two shards."""
    rule = RULES.get(op)
    if rule is None or EPILOGUE in call.attrs:  # epilogues are fused after sharding
        return ()
    return tuple(f for f in rule(call) if f.units > 1 or not _is_sharded(f))


def _is_sharded(factor: Factor) -> bool:
    return any(isinstance(form, int) for form in (*factor.operands, factor.result))


# -- building blocks of rules ----------------------------------------------------------------------


def broadcast_factors(call: Sharded) -> Iterable[Factor]:
    """Yield a factor for each axis of an elementwise result; broadcast operands are replicated."""
    for axis, size in enumerate(call.output.shape):
        yield Factor(tuple(aligned(t, call.output, axis) for t in call.inputs), axis, size)


def aligned(operand: TensorType, result: TensorType, axis: int) -> int | ShardingForm:
    """Return the operand's axis that corresponds to a result axis, REPLICATE if it broadcasts."""
    own = axis - (result.rank - operand.rank)
    cut = own >= 0 and operand.shape[own] == result.shape[axis] != 1
    return own if cut else REPLICATE


def linear_factors(call: Sharded, *operands: int) -> Iterable[Factor]:
    """Yield a factor for each named operand in which the op is linear: that operand is a partial
    sum and the others are replicated.
    """
    for each in operands:
        forms = tuple(PARTIAL_SUM if i == each else REPLICATE for i in range(len(call.inputs)))
        yield Factor(forms, PARTIAL_SUM)


def all_partial_sums(call: Sharded) -> Factor:
    """Return the factor in which all operands are partial sums: the op is jointly linear."""
    return Factor((PARTIAL_SUM,) * len(call.inputs), PARTIAL_SUM)


def row_factors(call: Sharded, axes: Iterable[int]) -> Iterable[Factor]:
    """Yield a factor for each axis that the first operand and the result share.

    The other operands are replicated.
    """
    rest = (REPLICATE,) * (len(call.inputs) - 1)
    for axis in axes:
        yield Factor((axis, *rest), axis, call.output.shape[axis])


def with_size(
    shape: Shape, axis: int, scale: int = 1
) -> Callable[[int, int], Mapping[str, AttrValue]]:
    """Return a function that sets the shape attribute of shards."""

    def attrs(start: int, units: int) -> Mapping[str, AttrValue]:
        return {"shape": (*shape[:axis], units * scale, *shape[axis + 1 :])}

    return attrs

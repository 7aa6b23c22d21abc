"""Layouts: how a value lies on several devices.

    whole    each device that needs it has all of it
    cut      each device has a range of one axis
    terms    each device has a value of the same type; their sum is the value

Sizes are in elements along the axis. Examples: tests/parallel/test_shard.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ...ir.sharding_rule import ANY, PARTIAL_MEAN, PARTIAL_SUM, Factor, Sharded

Devices = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShardedAxis:
    """A value cut along an axis into one range for each device. sizes: of the ranges."""

    axis: int
    sizes: tuple[int, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each range begins."""
        return (0, *accumulate(self.sizes[:-1]))

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each range."""
        for start, size in zip(self.starts, self.sizes, strict=True):
            yield start, start + size


@dataclass(frozen=True, slots=True)
class ShardingStrategy:
    """One way to compute a call in parts. units: how many each device takes; () for sums."""

    factor: Factor
    devices: Devices
    units: tuple[int, ...] = ()

    def layout(self, length: int, axis: int) -> ShardedAxis:
        """Return how an axis of an operand or of the result is cut."""
        scale = length // self.factor.units
        return ShardedAxis(axis, tuple(n * scale for n in self.units))

    def operand(self, call: Sharded, position: int) -> ShardedAxis | None:
        """Return the cut that an operand needs; None where it is not cut."""
        axis = self.factor.operands[position]
        if not isinstance(axis, int):
            return None
        return self.layout(call.inputs[position].shape[axis], axis)

    @property
    def is_mean(self) -> bool:
        """Whether the result is the mean of its parts, weighted by their sizes."""
        return self.factor.result is PARTIAL_MEAN

    def accepts_partial_sum(self, position: int) -> bool:
        """Whether an operand may be terms that nobody has added up."""
        return self.factor.operands[position] in (PARTIAL_SUM, ANY)

    def result(self, call: Sharded) -> ShardedAxis | None:
        """Return the cut of the result; None for terms."""
        axis = self.factor.result
        return self.layout(call.output.shape[axis], axis) if isinstance(axis, int) else None


def units_of(shard: ShardedAxis, factor: Factor, length: int) -> tuple[int, ...] | None:
    """Return how many units of a factor each range of an axis is; None where one is no whole
    number of them.
    """
    if not factor.units or length % factor.units:
        return None
    scale = length // factor.units
    if any(size % scale for size in shard.sizes):
        return None
    return tuple(size // scale for size in shard.sizes)


def is_sum(factor: Factor) -> bool:
    """Whether the parts of a result add up to it."""
    return factor.result in (PARTIAL_SUM, PARTIAL_MEAN)


def shares(length: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Return a length in whole parts that are in proportion as nearly as can be, each 1 or more:
    rounded down, then one more for those that lack most. There are as many elements as parts.
    """
    total = sum(weights)
    wanted = [length * w / total for w in weights]
    parts = [max(1, int(w)) for w in wanted]
    while sum(parts) < length:
        lacks = [w - p for w, p in zip(wanted, parts, strict=True)]
        parts[lacks.index(max(lacks))] += 1
    while sum(parts) > length:
        over = [p - w if p > 1 else float("-inf") for w, p in zip(wanted, parts, strict=True)]
        parts[over.index(max(over))] -= 1
    return tuple(parts)


def divides(length: int, weights: Sequence[float]) -> bool:
    """Whether a length can be cut exactly in proportion to whole weights."""
    return length % int(sum(weights)) == 0

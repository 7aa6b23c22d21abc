"""Sharding strategies: layouts of a value on several devices.

    whole         each device that needs it has all of it (replicated)
    shards        each device has a range of one axis
    partial sums  each device has a value of the full type; their sum is the value

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
    """A value sharded along an axis; `sizes` are those of the shard of each device."""

    axis: int
    sizes: tuple[int, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """The start of each shard."""
        return (0, *accumulate(self.sizes[:-1]))

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each shard."""
        for start, size in zip(self.starts, self.sizes, strict=True):
            yield start, start + size


@dataclass(frozen=True, slots=True)
class ShardingStrategy:
    """A way to compute a call in shards; `units` are those of each device, () for partial sums."""

    factor: Factor
    devices: Devices
    units: tuple[int, ...] = ()

    def layout(self, length: int, axis: int) -> ShardedAxis:
        """Return the sharding of an axis of an operand or of the result."""
        scale = length // self.factor.units
        return ShardedAxis(axis, tuple(n * scale for n in self.units))

    def operand(self, call: Sharded, position: int) -> ShardedAxis | None:
        """Return the sharding that an operand needs; None if it is not sharded."""
        axis = self.factor.operands[position]
        if not isinstance(axis, int):
            return None
        return self.layout(call.inputs[position].shape[axis], axis)

    @property
    def is_mean(self) -> bool:
        """True if the result is the mean of its parts, weighted by their sizes."""
        return self.factor.result is PARTIAL_MEAN

    def accepts_partial_sum(self, position: int) -> bool:
        """Return True if an operand may be partial sums."""
        return self.factor.operands[position] in (PARTIAL_SUM, ANY)

    def result(self, call: Sharded) -> ShardedAxis | None:
        """Return the sharding of the result; None for partial sums."""
        axis = self.factor.result
        return self.layout(call.output.shape[axis], axis) if isinstance(axis, int) else None


def units_of(shard: ShardedAxis, factor: Factor, length: int) -> tuple[int, ...] | None:
    """Return the units of a factor in each shard of an axis; None if not whole."""
    if not factor.units or length % factor.units:
        return None
    scale = length // factor.units
    if any(size % scale for size in shard.sizes):
        return None
    return tuple(size // scale for size in shard.sizes)


def is_sum(factor: Factor) -> bool:
    """Return True if the parts of a result are partial sums or means."""
    return factor.result in (PARTIAL_SUM, PARTIAL_MEAN)


def shares(length: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Return whole parts of a length in proportion to weights, each 1 or more, by largest
    remainder. The length must be at least the number of parts.
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
    """Return True if a length is divisible exactly in proportion to whole weights."""
    return length % int(sum(weights)) == 0

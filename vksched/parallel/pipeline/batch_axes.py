"""Batch axes: find where examples are after a reshape that merges or splits axes around theirs.

    (time 2, batch 4)  --reshape-->  (8,)         0 1 2 3 | 4 5 6 7
     microbatch 0 of 2:                           x x     | x x          two runs, not one

A microbatch may then be several runs of an axis, one in each of `outer` blocks. Ops that compute
each element of that axis separately, or sum them, are not affected: the order of the elements
within a part is equal in all operands. Complexity: O(axes). Examples:
tests/parallel/test_microbatch.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...ir.sharding_rule import Factor, with_size
from ...ops.layout.sharding import groups


@dataclass(frozen=True, slots=True)
class ReshapedAxis:
    """The sharding factor of a reshape, and the number of blocks of the axis of its result."""

    factor: Factor
    outer: int


def regroup(
    before: tuple[int, ...], after: tuple[int, ...], axis: int, outer: int, count: int
) -> ReshapedAxis | None:
    """Return how a reshape of `count` equal parts of an axis gives parts of the result; None if
    these are not equal runs of one of its axes.

    axis, outer: the axis of the operand, and the number of its blocks, each split into parts.
    """
    for (first, last), (begin, end) in groups(before, after):
        if not first <= axis < last:
            continue
        blocks = math.prod(before[first:axis]) * outer
        run = math.prod(before[axis:last]) // outer // count  # elements of a part in each block
        for new in reversed(range(begin, end)):
            around, inside = math.prod(after[begin:new]), math.prod(after[new + 1 : end])
            if blocks % around or run % inside or after[new] % (blocks // around * count):
                continue
            attrs = with_size(after, new, after[new] // count)
            return ReshapedAxis(Factor((axis,), new, count, attrs), blocks // around)
    return None

"""Slots: examples that read and write any index of axis 0 of a shared tensor, as of a KV cache.

    counts (b,), slots (b,)  -->  (b, 2): the number and the slot of each example
    and positions (b,)       -->  (b, 3), or (b, 2) without slots

Ops take both in one operand, so that a kernel binds one buffer for them.
"""

from __future__ import annotations

import numpy as np

from ...common.dtypes import INT32, INT64
from ...common.errors import DTypeError, ShapeError
from ...ir.tensor import Tensor, TensorLike, as_tensor, constant
from ..elementwise.select import where
from .index import check_index_type
from .rearrange import broadcast_to
from .reshape import concat, reshape


def with_slots(op: str, counts: TensorLike, slots: TensorLike) -> Tensor:
    """Return a number and a slot of each example, (b, 2), from two tensors (b,)."""
    number, slot = as_tensor(counts), as_tensor(slots)
    for each in (number, slot):
        check_index_type(op, each.type)
    if number.rank != 1 or number.shape != slot.shape:
        raise ShapeError(
            f"[{op}] expected a slot for each example, (b,) as {number.shape}, got {slot.shape}"
        )
    if number.dtype != slot.dtype:
        raise DTypeError(
            f"[{op}] expected slots of {number.dtype}, got {slot.dtype}; try {INT32} for both, or "
            f"{INT64}"
        )
    return concat([reshape(each, (-1, 1)) for each in (number, slot)], axis=1)


def with_positions(op: str, counts: Tensor, positions: Tensor, examples: int) -> Tensor:
    """Return numbers, or numbers and slots, with a position of each example in a last column.

    counts: (), (b,) or (b, 2). positions: (), or (b,) -> (b, 2) or (b, 3).
    """
    check_index_type(op, positions.type)
    if counts.shape not in ((), (examples,), (examples, 2)):
        raise ShapeError(
            f"[{op}] expected the number of keys in use as one integer or ({examples},), got "
            f"{counts.type}"
        )
    if positions.dtype != counts.dtype or positions.shape not in ((), (examples,)):
        raise (ShapeError if positions.dtype == counts.dtype else DTypeError)(
            f"[{op}] expected positions of {counts.dtype}, one or ({examples},), got "
            f"{positions.type}"
        )
    own = reshape(positions, (-1, 1))
    if counts.rank == 2:
        shape = (examples, 1)
        return concat([counts, own if own.shape == shape else broadcast_to(own, shape)], axis=1)
    is_number = np.repeat([[True, False]], examples, axis=0)
    return where(constant(is_number), reshape(counts, (-1, 1)), own)

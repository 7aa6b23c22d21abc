"""Slots: examples that read and write any index of axis 0 of a shared tensor, as of a KV cache.

    counts (b,), slots (b,)  -->  (b, 2): the number and the slot of each example

Ops take both in one operand, so that a kernel binds one buffer for them.
"""

from __future__ import annotations

from ...common.dtypes import INT32, INT64
from ...common.errors import DTypeError, ShapeError
from ...ir.tensor import Tensor, TensorLike, as_tensor
from .index import check_index_type
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

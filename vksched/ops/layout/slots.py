"""Slots: examples that read and write any index of axis 0 of a shared tensor, as of a KV cache.

    counts (b,), slots (b,)  -->  (b, 2): the number and the slot of each example
    and positions (b,)       -->  (b, 3)

Ops take both in one operand, so that a kernel binds one buffer for them.
"""

from __future__ import annotations

from ...common.dtypes import INT32, INT64
from ...common.errors import DTypeError, ShapeError
from ...ir.tensor import Tensor, TensorLike, as_tensor, constant
from ..elementwise.select import where
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


def with_positions(op: str, counts: TensorLike, slots: TensorLike, positions: Tensor) -> Tensor:
    """Return a number, a slot and a position of each example, (b, 3). Numbers and positions are
    (b,), or () for all examples.
    """
    number, slot = as_tensor(counts), as_tensor(slots)
    for each in (number, slot, positions):
        check_index_type(op, each.type)
        if each.dtype != number.dtype or each.shape not in ((), slot.shape):
            raise (ShapeError if each.dtype == number.dtype else DTypeError)(
                f"[{op}] expected slots and positions of {number.dtype}, for examples (b,), got "
                f"{slot.type} and {positions.type}"
            )
    columns = [reshape(each, (-1, 1)) for each in (number, slot, positions)]
    is_number, is_slot = constant([[True, False, False]]), constant([[False, True, False]])
    return where(is_number, columns[0], where(is_slot, *columns[1:]))

"""State: a value that outlives a run, and its next value.

`state` stands for what is there when a run begins; `assign` puts the next value in its place once
all else of the run is done. Both work on memory that the plan does not reuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...common.dtypes import NDArray, TensorType
from ...common.errors import DTypeError, IndexOutOfRange, ShapeError
from ...ir.attr_domains import Flag, leaf_attrs
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import Kernel, Op, register
from ...ir.tensor import Tensor, bounds_attrs, from_array, leaf_infer, no_reference
from ...ir.vjp import no_gradient
from ..layout.strided_copy import WHOLE_COPIES, copy_words

BACKUP_BYTES = 1 << 20
"""States up to this size are copied to the host after each run that changes them."""


def _infer_assign(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    held, value = inputs
    if held.shape != value.shape:
        raise ShapeError(f"[assign] expected a next value of shape {held.shape}, got {value.shape}")
    if held.dtype != value.dtype:
        raise DTypeError(f"[assign] expected a next value of {held.dtype}, got {value.dtype}")
    return held


def _assign_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return np.array(inputs[1], copy=True)


register(
    Op(
        "state",
        leaf_infer,
        no_reference,
        Kernel((), lambda call: (), as_u32=lambda call: call),
        attrs={**leaf_attrs(), "backup": Flag()},
        operands=(0, 0),
        any_dtype=True,
        stateful=True,
    )
)
register(
    Op(
        "assign",
        _infer_assign,
        _assign_reference,
        Kernel(WHOLE_COPIES, partial(copy_words, 1), as_u32=lambda call: call),
        attrs={},
        operands=(2, 2),
        any_dtype=True,
        stateful=True,
    )
)
no_gradient("comes behind all else of a run", "assign")


@dataclass(frozen=True, slots=True)
class StatePiece:
    """A range of a state along an axis, which lives on a device of its own."""

    state: Tensor
    axis: int
    start: int
    size: int


def state(
    array: Any,
    name: str | None = None,
    *,
    bounds: tuple[int, int] | None = None,
    backup: bool | None = None,
) -> Tensor:
    """A value that lives on a device from run to run: a cache, a counter, what an optimiser keeps.

    A run reads what was there when it began. `sched.compile(..., updates={state: next_value})` has
    each run put the next value in its place; `sched.read` and `sched.write` do so from outside.
    All graphs of a scheduler that use this Tensor share it.

    array: what it starts with, copied unless it is read-only and has memory of its own, which no
    view may change then. What `np.broadcast_to` makes of one value takes no memory. bounds: the
    least and largest value of an integer state; int64 needs them to live on a device, which holds
    32 bits. backup: whether the host gets a copy of each next value, so that nothing is lost with a
    device that fails; None: up to 1 MiB.
    """
    if backup not in (None, True, False):
        raise DTypeError(f"[state] expected a backup of True, False or None, got {backup!r}")

    def attrs(type_: TensorType) -> dict[str, AttrValue]:
        keep = type_.host_bytes <= BACKUP_BYTES if backup is None else backup
        return {**bounds_attrs("state", bounds, type_), "backup": keep}

    tensor = from_array("state", array, name, attrs)
    check_values(tensor, tensor.data)
    return tensor


def check_values(tensor: Tensor, array: NDArray | None) -> None:
    """Raise IndexOutOfRange where values lie outside the bounds of a state."""
    low, high = tensor.attrs.get("low"), tensor.attrs.get("high")
    if array is None or low is None or high is None or not array.size:
        return
    if array.min() < low or array.max() > high:
        raise IndexOutOfRange(
            f"[state] expected values in {low}..{high} for {tensor.name!r}, as its bounds say, got "
            f"{array.min()}..{array.max()}"
        )

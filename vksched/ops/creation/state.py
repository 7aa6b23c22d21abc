"""States: values that outlive a run, and their updates.

`state` is the value at the start of a run; `assign` stores the next value at the end of the run.
Both use memory that the plan does not reuse.
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
"""Maximum size of states that are by default copied to the CPU after each run that changes them."""


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
    """A range of a state along an axis, with its own device."""

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
    """Create a value that persists on a device across runs, e.g. a cache or optimizer state.

    A run reads the value at its start. `sched.compile(..., updates={state: next_value})` updates it
    at the end of each run; `sched.read` and `sched.write` access it between runs. All graphs of a
    scheduler that use this Tensor share it.

    Parameters
    ----------
    array
        Initial value. Copied, unless it is read-only and owns its memory; no view may change it
        then. A uniform array from `np.broadcast_to` needs no memory.
    bounds
        Minimum and maximum of an integer state. Required for int64 on devices, which have 32 bits.
    backup
        Copy each next value to the CPU, so that it survives a device failure; None: up to 1 MiB.
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
    """Raise IndexOutOfRange if values are outside the bounds of a state."""
    low, high = tensor.attrs.get("low"), tensor.attrs.get("high")
    if array is None or low is None or high is None or not array.size:
        return
    if array.min() < low or array.max() > high:
        raise IndexOutOfRange(
            f"[state] expected values in {low}..{high} for {tensor.name!r}, as its bounds say, got "
            f"{array.min()}..{array.max()}"
        )

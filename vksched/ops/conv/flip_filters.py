"""Flip the filters of a convolution for its input gradient.

    w (groups * R, C, kernel) -> (groups * C, R, kernel), from the last tap of the kernel to the
    first

Rows and channels are exchanged, and kernel axes are reversed. Flipping twice restores the weights.
Examples: tests/ops/test_ops.py.
"""

from __future__ import annotations

import math

import numpy as np

from ...common.dtypes import NDArray, TensorType
from ...common.errors import ShapeError
from ...ir.attr_domains import Int
from ...ir.attrs import Attrs
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, register
from ...ir.tensor import Tensor, apply
from ...ir.vjp import VjpContext, VjpResult, gradient
from ..lowering.chunking import check_dispatches, check_serial
from ..lowering.strides import LOOP_STEPS, MAX_ROUNDS, SERIAL_STEPS

OP = "flip_filters"
_SIDE = 8
"""Rows and channels of a workgroup's tile: the shader's default."""
_SOFTWARE_TILES = 16
"""Tiles of a workgroup on a CPU driver, whose workgroups are expensive."""


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    (w,), groups = inputs, attrs.as_int("groups")
    if w.rank < 3 or w.shape[0] % groups:
        raise ShapeError(
            f"[{OP}] expected weights (groups * R, C, kernel) with a first axis that "
            f"{groups} groups divide, got {w.shape}; try another groups"
        )
    rows, channels, *kernel = w.shape
    return TensorType((groups * channels, rows // groups, *kernel), w.dtype)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    (w,), groups = inputs, attrs.as_int("groups")
    rows, channels, *kernel = w.shape
    split = w.reshape(groups, rows // groups, channels, *kernel).swapaxes(1, 2)
    flipped = np.flip(split, tuple(range(3, split.ndim)))
    return np.ascontiguousarray(flipped).reshape(groups * channels, rows // groups, *kernel)


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    groups, limits = call.attrs.as_int("groups"), call.limits
    lines, channels, *kernel = call.inputs[0].shape
    rows, taps = lines // groups, math.prod(kernel)
    tiles = groups * -(-rows // _SIDE) * -(-channels // _SIDE)
    check_serial(OP, taps + 1, limits)
    most = (LOOP_STEPS if limits.software else SERIAL_STEPS) // (taps + 1)
    reach = limits.max_groups[0] * most
    if not limits.software:
        reach = min(reach, max(1, MAX_ROUNDS // (_SIDE * _SIDE * (taps + 1))))
    check_dispatches(OP, -(-tiles // reach))
    push = (("rows", rows), ("channels", channels))
    each = min(_SOFTWARE_TILES, most) if limits.software else 1
    return tuple(
        Dispatch(
            OP,
            (0, OUTPUT),
            (min(-(-(tiles - first) // each), limits.max_groups[0]), 1, 1),
            (*push, ("first_tile", first), ("last_tile", min(first + reach, tiles))),
            (("TAPS", taps),),
            barrier=first > 0,
        )
        for first in range(0, tiles, reach)
    )


register(
    Op(
        OP,
        _infer,
        _reference,
        Kernel((OP,), _lower),
        attrs={"groups": Int(1)},
        operands=(1, 1),
    )
)


@gradient(OP)
def _pull(call: VjpContext) -> VjpResult:
    return (flip_filters(call.grad, call.attrs.as_int("groups")),)


def flip_filters(w: Tensor, groups: int) -> Tensor:
    """Return weights (groups * R, C, kernel) as flipped filters (groups * C, R, kernel)."""
    return apply(OP, (w,), {"groups": groups})

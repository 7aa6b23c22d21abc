"""Tiled transposes of the last axis.

CPU drivers: 4 x 4 values per invocation (transpose_tiled.comp)
GPUs:        32 x 32 values per workgroup, by way of shared memory (transpose_shared.comp)
"""

from __future__ import annotations

import math

from ...common.dtypes import contiguous_strides
from ...ir.op import OUTPUT, Call, Dispatch
from ..lowering.strides import LOOP_STEPS, collapse, pad
from ..lowering.vec4 import both_readings, reading

SHADERS = (*both_readings(("transpose_tiled",)), "transpose_shared")
TILED, SHARED, LINES = "tiled", "shared", "lines"
"""Variants of a transpose: in tiles on a CPU driver, in tiles on a GPU, or along lines of the
result.
"""
SIDE = 32
"""Rows and columns of a tile on a GPU."""
MIN_SIDE = SIDE // 2
"""Minimum sizes of both axes for such tiles: below, most lanes would have no value."""
LOCAL, LOCAL_APART = (8, 1), (4, 2)
"""Tiles per group, along x's last axis and the result's. The second is used with vectors of eight
if lines of the result are whole pages apart, because a cache holds few of them.
"""
PAGE_WORDS = 1024
RUN = 64
"""Consecutive tiles per group along the result's last axis."""


Axes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Sizes, strides of x, strides of the result: the result's last axis, x's last axis, the others."""


def _axes(call: Call) -> Axes | None:
    """Return the axes of a transpose, or None if it keeps the last axis or the result is empty."""
    strides, shape = contiguous_strides(call.inputs[0].shape), call.output.shape
    moved = tuple(strides[axis] for axis in call.attrs.as_ints("axes"))
    sizes, both = collapse(shape, [moved, contiguous_strides(shape)])
    if 1 not in both[0][1:] or call.output.size == 0:
        return None
    along = both[0].index(1)
    order = (0, along, *(axis for axis in range(1, len(sizes)) if axis != along))
    x_strides, result_strides = (tuple(result[axis] for axis in order) for result in both)
    return tuple(sizes[axis] for axis in order), x_strides, result_strides


def variants(call: Call) -> tuple[str, ...]:
    """Return the variants of a transpose, the best guess first."""
    axes = _axes(call)
    if not call.limits.software:
        return (SHARED, LINES) if axes and min(axes[0][:2]) >= MIN_SIDE else ()
    if axes is None:
        return (LINES,)
    sizes, x_strides, result_strides = axes
    if any(n % 4 for n in (*sizes[:2], x_strides[0], *x_strides[2:], *result_strides[1:])):
        return (LINES,)
    groups, rounds = _groups(call, sizes, _local(call, result_strides[1]))
    fits = groups[1] <= call.limits.max_groups[1] and rounds <= LOOP_STEPS
    return (TILED, LINES) if fits else (LINES,)


def _local(call: Call, result_stride: int) -> tuple[int, int]:
    apart = result_stride % PAGE_WORDS == 0 and call.limits.subgroup_size >= math.prod(LOCAL)
    return LOCAL_APART if apart else LOCAL


def _groups(
    call: Call, sizes: tuple[int, ...], local: tuple[int, int]
) -> tuple[tuple[int, int, int], int]:
    """Return the groups, and the loop iterations of an invocation."""
    max_groups, (columns, width, *lines) = call.limits.max_groups, sizes
    needed = -(-width // (4 * local[0])), -(-columns // (4 * RUN)), math.prod(lines)
    groups = min(needed[0], max_groups[0]), needed[1], min(needed[2], max_groups[2])
    return groups, -(-needed[0] // groups[0]) * -(-needed[2] // groups[2]) * RUN


def lower(call: Call) -> tuple[Dispatch, ...]:
    """Return the dispatches of a transpose by TILED or SHARED."""
    axes = _axes(call)
    assert axes is not None
    sizes, x_strides, result_strides = axes
    columns, width, *lines = sizes
    push = (
        *(("columns", columns), ("width", width), ("lines", math.prod(lines))),
        ("sizes", pad(lines, 6, 1)),
        ("x_strides", pad([x_strides[0], *x_strides[2:]], 8)),
        ("result_strides", pad(result_strides[1:], 8)),
    )
    if call.variant == SHARED:
        needed = (-(-width // SIDE), -(-columns // SIDE), math.prod(lines))
        x, y, z = map(min, needed, call.limits.max_groups)
        rank = (("RANK", len(sizes) - 1),)
        return (Dispatch("transpose_shared", (0, OUTPUT), (x, y, z), push, rank),)
    local = _local(call, result_strides[1])
    groups, _ = _groups(call, sizes, local)
    constants = (("LOCAL_X", local[0]), ("LOCAL_Y", local[1]), ("RANK", len(sizes) - 1))
    shader = reading("transpose_tiled", call.limits)
    return (Dispatch(shader, (0, OUTPUT), groups, (*push, ("run", RUN)), constants),)

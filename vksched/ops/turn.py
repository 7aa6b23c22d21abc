"""Transposes that move the last axis, in tiles of four by four values (transpose_tiles.comp): which
ones can be made so, and how.
"""

from __future__ import annotations

import math

from ..types import contiguous_strides
from .op import OUTPUT, Call, Dispatch
from .strides import LOOP_STEPS, collapse, pad

TILES, LINES = "tiles", "lines"
"""Variants of a transpose on a CPU driver: by tiles, or along lines of the result."""
LOCAL, LOCAL_APART = (8, 1), (4, 2)
"""Tiles of a group, along x's last axis and the result's; the second where lines of the result are
whole pages apart and a cache has room for few of them, and with vectors of eight.
"""
PAGE_WORDS = 1024
RUN = 64
"""Tiles along the result's last axis that a group makes behind each other."""


def _axes(call: Call) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Returns sizes and strides of x and of the result, innermost axis of the result first."""
    strides, shape = contiguous_strides(call.inputs[0].shape), call.output.shape
    moved = tuple(strides[axis] for axis in call.attrs.as_ints("axes"))
    sizes, (x_strides, result_strides) = collapse(shape, [moved, contiguous_strides(shape)])
    return sizes, x_strides, result_strides


def variants(call: Call) -> tuple[str, ...]:
    """Returns the variants of a transpose, the best guess first."""
    if not call.limits.software:
        return ()
    sizes, x_strides, result_strides = _axes(call)
    if 1 not in x_strides[1:] or call.output.size == 0:
        return (LINES,)
    along = x_strides.index(1)
    shifts = (sizes[0], sizes[along], x_strides[0], result_strides[along])
    lines_of = [a for a in range(1, len(sizes)) if a != along]
    others = (stride for a in lines_of for stride in (x_strides[a], result_strides[a]))
    if any(s % 4 for s in (*shifts, *others)):
        return (LINES,)
    local = _local(call, result_strides[along])
    lines = math.prod(sizes[a] for a in lines_of)
    groups, rounds = _groups(call, local, sizes[0], sizes[along], lines)
    fits = groups[1] <= call.limits.max_groups[1] and rounds <= LOOP_STEPS
    return (TILES, LINES) if fits else (LINES,)


def _local(call: Call, result_stride: int) -> tuple[int, int]:
    apart = result_stride % PAGE_WORDS == 0 and call.limits.subgroup_size >= math.prod(LOCAL)
    return LOCAL_APART if apart else LOCAL


def _groups(
    call: Call, local: tuple[int, int], columns: int, width: int, lines: int
) -> tuple[tuple[int, int, int], int]:
    """Returns the groups, and the rounds of an invocation's loops."""
    most = call.limits.max_groups
    wanted = -(-width // (4 * local[0])), -(-columns // (4 * RUN)), lines
    groups = min(wanted[0], most[0]), wanted[1], min(lines, most[2])
    return groups, -(-wanted[0] // groups[0]) * -(-lines // groups[2]) * RUN


def lower(call: Call) -> tuple[Dispatch, ...]:
    """Returns how tiles are made; the call is one that `variants` has TILES for."""
    sizes, x_strides, result_strides = _axes(call)
    along = x_strides.index(1)
    lines = [axis for axis in range(1, len(sizes)) if axis != along]
    columns, width, count = sizes[0], sizes[along], math.prod(sizes[a] for a in lines)
    push = (
        ("columns", columns),
        ("width", width),
        ("lines", count),
        ("run", RUN),
        ("sizes", pad([sizes[a] for a in lines], 6, 1)),
        ("x_strides", pad([x_strides[0], *(x_strides[a] for a in lines)], 8)),
        ("result_strides", pad([result_strides[along], *(result_strides[a] for a in lines)], 8)),
    )
    local = _local(call, result_strides[along])
    groups, _ = _groups(call, local, columns, width, count)
    constants = (("LOCAL_X", local[0]), ("LOCAL_Y", local[1]), ("RANK", len(lines) + 1))
    return (Dispatch("transpose_tiles", (0, OUTPUT), groups, push, constants),)

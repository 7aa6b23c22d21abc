"""Device launches of reductions (shaders/reduction/reduce.comp), and the number of parts.

    few long rows      x ---- stage 1 ----> states (words, parts, rows) ---- stage 2 ----> result
    many or short rows x ------------------------ one stage -----------------------------> result

A row is split into parts if the device would otherwise have too few active groups, and on a CPU
driver if an invocation would exceed its loop limit. If one axis is reduced, invocations on a CPU
driver read vec4s: along a row (reduce_vec4.comp), across four adjacent rows (reduce_across.comp),
or across more of them (reduce_workgroup.comp). Those of a GPU read vec4s across four of many
adjacent rows. Examples: tests/ops/test_reduction.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from ...common.dtypes import contiguous_strides
from ...ir.op import OUTPUT, SCRATCH, Call, Dispatch, Kernel
from ...topology.limits import Limits
from ..lowering.strides import LOCAL_SIZE, LOOP_STEPS, collapse, pad
from ..lowering.vec4 import both_readings, reading, reads_64

SOFTWARE_CHUNK = LOOP_STEPS // 4
"""Columns per invocation on a CPU driver."""
BUSY_INVOCATIONS = 1 << 17
"""Number of invocations that occupies a large GPU; rows are split until it is reached."""
MIN_CHUNK = 16
"""Minimum columns of an invocation for a separate part."""
MAX_PARTS = 2048
COALESCED = 16
"""Minimum number of adjacent rows in memory that are read by adjacent invocations."""

VEC4, WORKGROUP, SCALAR = "vec4", "workgroup", "scalar"
"""Variants by how a row is read."""
MIN_GPU_ROWS = 1024
"""Minimum adjacent rows from which on invocations of a GPU read four of them at once."""
LOADED_INVOCATIONS = BUSY_INVOCATIONS // 2
"""Number of invocations whose vec4s, two at a time, keep the memory of a large GPU busy."""
GROUPED_PARTS = 16
"""Minimum number of parts for which a workgroup, and not an invocation, combines those of a row."""
ROUNDED_CHUNK = 1024
"""Columns per invocation, on all devices, if each step rounds the sum."""
WORKGROUP_VEC4S, WORKGROUP_CHUNK = 4, 256
"""Adjacent vec4s per invocation, so that a group reads half a KiB of each page, and columns per
part. For vectors of eight; SwiftShader would spill the array to memory.
"""
VEC4_LOCAL_SIZE = 8
BUSY_LANES = 128
"""Number of invocations that occupies a CPU driver's threads: 16 groups."""
MIN_VEC4_CHUNK, MIN_ACROSS_CHUNK = 2048, 1024
"""Minimum columns along a row, and across four rows, for another invocation and a second stage."""
MAX_GROUPS = 1024
STEPS_OVERHEAD = 8
"""Overhead per item in loop iterations, for the loops over axes and words of a state."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Split of the rows into parts. whole_group: a group processes a part, not an invocation."""

    parts: int
    chunk: int
    whole_group: bool

    def at_most(self, chunk: int, columns: int) -> Launch:
        """Return a launch whose invocations process at most `chunk` of the columns."""
        maximum = chunk * (LOCAL_SIZE if self.whole_group else 1)
        return (
            Launch(-(-columns // maximum), maximum, self.whole_group)
            if self.chunk > maximum
            else self
        )


def choose_launch(rows: int, columns: int, side_by_side: int, limits: Limits) -> Launch:
    """Return parts and columns per part for `rows` results of `columns` values each.

    Parameters
    ----------
    side_by_side
        Number of adjacent rows in memory.
    """
    if limits.software:
        parts = max(1, -(-columns // SOFTWARE_CHUNK))
        return Launch(parts, -(-columns // parts), False)
    whole_group = columns >= 32 and side_by_side < COALESCED
    lanes = LOCAL_SIZE if whole_group else 1
    needed = BUSY_INVOCATIONS // (rows * lanes)
    parts = max(1, min(needed, columns // (lanes * MIN_CHUNK), MAX_PARTS))
    chunk = -(-columns // parts)
    return Launch(max(1, -(-columns // max(chunk, 1))), chunk, whole_group)


def choose_vec4_launch(rows: int, columns: int, across: bool, most: int = SOFTWARE_CHUNK) -> Launch:
    """Return parts and columns per part if a CPU driver reads vec4s.

    Parameters
    ----------
    across
        True if a vec4 spans four rows.
    most
        Maximum columns per part, with at most MAX_PARTS parts.
    """
    lines, minimum = (-(-rows // 4), MIN_ACROSS_CHUNK) if across else (rows, MIN_VEC4_CHUNK)
    busy = min(-(-BUSY_LANES // lines), columns // minimum)
    short = min(-(-columns // most), MAX_PARTS)
    parts = max(1, busy, short, -(-columns // SOFTWARE_CHUNK))
    chunk = -(-columns // parts)
    chunk = chunk if across else -(-chunk // 4) * 4
    return Launch(max(1, -(-columns // max(chunk, 1))), chunk, False)


def choose_gpu_vec4_launch(rows: int, columns: int) -> Launch:
    """Return parts and columns per part if a GPU reads vec4s across four rows."""
    parts = max(1, min(LOADED_INVOCATIONS * 4 // rows, columns // MIN_CHUNK, LOCAL_SIZE))
    chunk = -(-columns // parts)
    return Launch(max(1, -(-columns // max(chunk, 1))), chunk, False)


def choose_last_launch(rows: int, columns: int, limits: Limits, vec4: bool = False) -> Launch:
    """Return the launch of the second stage, which combines the parts of a row.

    Parameters
    ----------
    vec4
        The first stage read vec4s.
    """
    if vec4 and not limits.software:
        return Launch(1, columns, columns >= GROUPED_PARTS)
    long = columns > LOOP_STEPS // 2 if limits.software else columns >= 32
    return Launch(1, columns, long and (limits.software or rows < COALESCED))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a reduction, with merged outer and reduced axes, innermost first."""

    rows: int
    columns: int
    outer_sizes: tuple[int, ...]
    outer_strides: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def side_by_side(self) -> int:
        """Number of adjacent rows in memory."""
        return self.outer_sizes[0] if self.outer_strides[0] == 1 else 1

    @property
    def across(self) -> bool:
        """True if each vec4 of x holds values of four rows."""
        shifts = (*self.outer_sizes[:1], *self.outer_strides[1:], *self.strides)
        return self.side_by_side > 1 and not any(shift % 4 for shift in shifts)

    @property
    def is_vec4(self) -> bool:
        """True if vec4s can be read along or across the single reduced axis."""
        return len(self.sizes) == 1 and (self.strides[0] == 1 or self.across)


def _rows(call: Call) -> _Rows:
    x, axes = call.inputs[0], call.attrs.as_ints("axes")
    strides = contiguous_strides(x.shape)
    outer_axes = [a for a in range(x.rank) if a not in axes]
    outer_sizes, (outer_strides,) = collapse(
        tuple(x.shape[a] for a in outer_axes), [tuple(strides[a] for a in outer_axes)]
    )
    sizes, (reduced_strides,) = collapse(
        tuple(x.shape[a] for a in axes), [tuple(strides[a] for a in axes)]
    )
    rows, columns = call.output.size, math.prod(x.shape[a] for a in axes)
    return _Rows(rows, columns, outer_sizes, outer_strides, sizes, reduced_strides)


def _variants(call: Call) -> tuple[str, ...]:
    layout = _rows(call)
    if not call.limits.software:
        wide = layout.is_vec4 and layout.across and layout.side_by_side >= MIN_GPU_ROWS
        return (VEC4, SCALAR) if wide else ()
    if not layout.is_vec4:
        return (SCALAR,)
    wide = reads_64(call.limits) and layout.across
    wide = wide and layout.side_by_side >= 4 * VEC4_LOCAL_SIZE * WORKGROUP_VEC4S
    return (WORKGROUP, VEC4, SCALAR) if wide else (VEC4, SCALAR)


def _choose(layout: _Rows, call: Call, rounds: bool) -> Launch:
    rows, columns = max(layout.rows, 1), layout.columns
    if call.variant == VEC4 and not call.limits.software:
        launch = choose_gpu_vec4_launch(rows, columns)
    elif call.variant in (VEC4, WORKGROUP):
        maximum = WORKGROUP_CHUNK if call.variant == WORKGROUP else SOFTWARE_CHUNK
        launch = choose_vec4_launch(rows, columns, layout.across, maximum)
    else:
        launch = choose_launch(rows, columns, layout.side_by_side, call.limits)
    return launch.at_most(ROUNDED_CHUNK, columns) if rounds else launch


Push = tuple[tuple[str, int | float | tuple[int, ...]], ...]


def _vec4_dispatch(
    shader: str, layout: _Rows, launch: Launch, options: Push, call: Call
) -> Dispatch:
    target = SCRATCH if launch.parts > 1 else OUTPUT
    wide = WORKGROUP_VEC4S if call.variant == WORKGROUP else 1
    lines = -(-layout.rows // (4 * wide)) if layout.across else layout.rows
    local = VEC4_LOCAL_SIZE if call.limits.software else LOCAL_SIZE
    needed = maximum = -(-lines * launch.parts // local)
    if call.limits.software:
        steps = needed * (wide * launch.chunk + STEPS_OVERHEAD)
        maximum = max(MAX_GROUPS, -(-steps // LOOP_STEPS))
    groups = min(needed, maximum, call.limits.max_groups[0])
    push = (
        *(("rows", layout.rows), ("columns", layout.columns)),
        *(("parts", launch.parts), ("chunk", launch.chunk)),
        *(("writes_states", int(launch.parts > 1)), *options),
        ("outer_sizes", pad(layout.outer_sizes, 3, 1)),
        ("outer_strides", pad(layout.outer_strides, 4)),
        ("stride", layout.strides[0]),
    )
    constants: tuple[tuple[str, int], ...] = (("LOCAL_X", local),)
    constants += (("VEC4S_PER_INVOCATION", wide),) if call.variant == WORKGROUP else ()
    how = WORKGROUP if call.variant == WORKGROUP else "across" if layout.across else VEC4
    name = f"reduce_{how}_{shader.removeprefix('reduce_')}"
    name = reading(name, call.limits) if how == VEC4 else name
    return Dispatch(name, (0, target), (groups, 1, 1), push, constants)


def _dispatch(
    shader: str,
    operands: tuple[int, int],
    layout: _Rows,
    columns: int,
    launch: Launch,
    options: Push,
    limits: Limits,
) -> Dispatch:
    reads, writes = operands[0] == SCRATCH, operands[1] == SCRATCH
    items = layout.rows * launch.parts
    groups = items if launch.whole_group else -(-items // LOCAL_SIZE)
    push = (
        *(("rows", layout.rows), ("columns", columns)),
        *(("parts", launch.parts), ("chunk", launch.chunk)),
        *(("reads_states", int(reads)), ("writes_states", int(writes)), *options),
        ("outer_sizes", pad(layout.outer_sizes, 3, 1)),
        ("outer_strides", pad(layout.outer_strides, 4)),
        ("reduced_sizes", pad([max(1, s) for s in layout.sizes], 3, 1)),
        ("reduced_strides", pad(layout.strides, 4)),
    )
    constants = (("WHOLE_GROUP", int(launch.whole_group)),)
    size = (min(groups, limits.max_groups[0]), 1, 1)
    return Dispatch(shader, operands, size, push, constants, barrier=reads)


def reduction(
    shaders: dict[str, str],
    state_words: int,
    option: Callable[[Call], int] = lambda call: 0,
    divisor: Callable[[Call, int], float] = lambda call, columns: 1.0,
    rounds: bool = False,
) -> Kernel:
    """Return the kernel of a reduction.

    Parameters
    ----------
    shaders
        Shader variant of each element type.
    state_words
        Number of words of a state, for each variant.
    option, divisor
        Push constants of the shader; the divisor may depend on the number of columns.
    rounds
        True if a state is rounded at each column, so that long rows need parts to be accurate.
    """

    def lower(call: Call) -> tuple[Dispatch, ...]:
        if call.output.size == 0:
            return ()
        layout = _rows(call)
        shader, launch = shaders[call.inputs[0].dtype], _choose(layout, call, rounds)
        options = (("option", option(call)), ("divisor", divisor(call, layout.columns)))
        if call.variant in (VEC4, WORKGROUP):
            first = _vec4_dispatch(shader, layout, launch, options, call)
        else:
            operands = (0, SCRATCH if launch.parts > 1 else OUTPUT)
            first = _dispatch(
                shader, operands, layout, layout.columns, launch, options, call.limits
            )
        if launch.parts == 1:
            return (first,)
        vec4 = call.variant == VEC4
        last = choose_last_launch(layout.rows, launch.parts, call.limits, vec4)
        joined = (SCRATCH, OUTPUT)
        return (
            first,
            _dispatch(shader, joined, layout, launch.parts, last, options, call.limits),
        )

    def scratch(call: Call) -> tuple[int, ...]:
        if call.output.size == 0:
            return ()
        layout = _rows(call)
        parts = _choose(layout, call, rounds).parts
        return (layout.rows * parts * state_words,) if parts > 1 else ()

    names = sorted(set(shaders.values()))
    vec4, *apart = (
        [f"reduce_{how}_{name.removeprefix('reduce_')}" for name in names]
        for how in (VEC4, "across", WORKGROUP)
    )
    own = (*names, *both_readings(vec4), *chain.from_iterable(apart))
    return Kernel(own, lower, scratch, variants=_variants)

"""How reductions run on devices (shaders/reduce.comp), and in how many parts.

    few long rows      x ---- stage 1 ----> states (words, parts, rows) ---- stage 2 ----> result
    many or short rows x ------------------------ one stage -----------------------------> result

A row is cut into parts where the device would otherwise have too few groups at work, and on a CPU
driver where one invocation would go round its loops too often. Examples: tests/test_reduction.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..types import contiguous_strides
from .op import OUTPUT, SCRATCH, Call, Dispatch, Kernel, Limits
from .strides import LOCAL_SIZE, LOOP_STEPS, collapse, pad

SOFTWARE_CHUNK = LOOP_STEPS // 4
"""Columns of one invocation on a CPU driver."""
BUSY_INVOCATIONS = 1 << 17
"""So many keep a large GPU busy; parts are made until there are so many."""
LEAST_CHUNK = 16
"""Columns of one invocation that are worth a part of their own."""
MOST_PARTS = 2048
COALESCED = 16
"""Neighbouring rows that lie side by side in memory are read by neighbouring invocations, from so
many on.
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """How the rows are cut up. whole_group: a group takes a part, not an invocation."""

    parts: int
    chunk: int
    whole_group: bool


def choose_launch(rows: int, columns: int, side_by_side: int, limits: Limits) -> Launch:
    """Returns parts and their columns for `rows` results of `columns` values each.

    side_by_side: how many neighbouring rows lie side by side in memory.
    """
    if limits.software:
        parts = max(1, -(-columns // SOFTWARE_CHUNK))
        return Launch(parts, -(-columns // parts), False)
    whole_group = columns >= 32 and side_by_side < COALESCED
    lanes = LOCAL_SIZE if whole_group else 1
    wanted = BUSY_INVOCATIONS // (rows * lanes)
    parts = max(1, min(wanted, columns // (lanes * LEAST_CHUNK), MOST_PARTS))
    chunk = -(-columns // parts)
    return Launch(max(1, -(-columns // max(chunk, 1))), chunk, whole_group)


def choose_last_launch(rows: int, columns: int, limits: Limits) -> Launch:
    """Returns how the parts of a row are joined: in one stage."""
    long = columns > LOOP_STEPS // 2 if limits.software else columns >= 32
    return Launch(1, columns, long and (limits.software or rows < COALESCED))


@dataclass(frozen=True, slots=True)
class _Rows:
    rows: int
    columns: int
    launch: Launch
    push: tuple[tuple[str, int | float | tuple[int, ...]], ...]


def _rows(call: Call) -> _Rows:
    x, axes = call.inputs[0], call.attrs.as_ints("axes")
    strides = contiguous_strides(x.shape)
    kept = [a for a in range(x.rank) if a not in axes]
    kept_sizes, (kept_strides,) = collapse(
        tuple(x.shape[a] for a in kept), [tuple(strides[a] for a in kept)]
    )
    sizes, (reduced_strides,) = collapse(
        tuple(x.shape[a] for a in axes), [tuple(strides[a] for a in axes)]
    )
    rows, columns = call.output.size, math.prod(x.shape[a] for a in axes)
    side_by_side = kept_sizes[0] if kept_strides[0] == 1 else 1
    push = (
        ("kept_sizes", pad(kept_sizes, 3, 1)),
        ("kept_strides", pad(kept_strides, 4)),
        ("reduced_sizes", pad([max(1, s) for s in sizes], 3, 1)),
        ("reduced_strides", pad(reduced_strides, 4)),
    )
    launch = choose_launch(max(rows, 1), columns, side_by_side, call.limits)
    return _Rows(rows, columns, launch, push)


def _dispatch(
    shader: str,
    operands: tuple[int, int],
    rows: int,
    columns: int,
    launch: Launch,
    rest: tuple[tuple[str, int | float | tuple[int, ...]], ...],
    limits: Limits,
) -> Dispatch:
    reads, writes = operands[0] == SCRATCH, operands[1] == SCRATCH
    items = rows * launch.parts
    groups = items if launch.whole_group else -(-items // LOCAL_SIZE)
    push = (
        *(("rows", rows), ("columns", columns), ("parts", launch.parts), ("chunk", launch.chunk)),
        *(("reads_states", int(reads)), ("writes_states", int(writes))),
    )
    constants = (("WHOLE_GROUP", int(launch.whole_group)),)
    size = (min(groups, limits.max_groups[0]), 1, 1)
    return Dispatch(shader, operands, size, (*push, *rest), constants, barrier=reads)


def reduction(
    shaders: dict[str, str],
    state_words: int,
    option: Callable[[Call], int] = lambda call: 0,
    divisor: Callable[[Call, int], float] = lambda call, columns: 1.0,
) -> Kernel:
    """Returns the kernel of a reduction.

    shaders: the variant of each element type. state_words: of the variants. option, divisor: what
    the shader gets as such; the divisor may depend on the number of columns.
    """

    def lower(call: Call) -> tuple[Dispatch, ...]:
        if call.output.size == 0:
            return ()
        given = _rows(call)
        shader, launch = shaders[call.inputs[0].dtype], given.launch
        sizes = (given.rows, given.columns)
        rest = (
            *(("option", option(call)), ("divisor", divisor(call, given.columns))),
            *given.push,
        )
        if launch.parts == 1:
            return (_dispatch(shader, (0, OUTPUT), *sizes, launch, rest, call.limits),)
        last = choose_last_launch(given.rows, launch.parts, call.limits)
        sizes_of_states = (given.rows, launch.parts)
        return (
            _dispatch(shader, (0, SCRATCH), *sizes, launch, rest, call.limits),
            _dispatch(shader, (SCRATCH, OUTPUT), *sizes_of_states, last, rest, call.limits),
        )

    def scratch(call: Call) -> tuple[int, ...]:
        if call.output.size == 0:
            return ()
        given = _rows(call)
        parts = given.launch.parts
        return (given.rows * parts * state_words,) if parts > 1 else ()

    return Kernel(tuple(sorted(set(shaders.values()))), lower, scratch)

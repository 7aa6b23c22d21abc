"""Kernels that read and write four words at a time (shaders/include/vec4.glsl): when they can, and
who takes which part. Elementwise ones go from line to line of the innermost axis (line_start.glsl),
others over rows that they read more than once (vec4_rows.glsl).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from ...ir.op import VIEW_ALIGN_WORDS
from ...topology.limits import Limits
from .strides import LOCAL_SIZE, LOOP_STEPS

Constants = tuple[tuple[str, int], ...]

_SOFTWARE_LOCAL_SIZE = 8
"""Lanes of a group on a CPU driver: one vector. More of them take turns, each along the whole run
of the group, which caches and what reads ahead for them do not follow.
"""
_SOFTWARE_ROUNDS, _ROUNDS = 128, 4
"""Vec4s of one invocation: at least on a CPU driver, which pays for every group; at most on a GPU.
"""
_LINE_ROUNDS = 256
"""Vec4s of one invocation in a line, on a CPU driver of small vectors (SwiftShader), which pays
more for the start of a line than for lanes that lie apart; with llvmpipe it is the other way round.
"""
_SOFTWARE_GROUPS, _BUSY_GROUPS = 512, 4096
"""So many groups keep all cores of a CPU busy to the end, and a large GPU: with fewer, an
invocation takes one quad there.
"""


def can_use_vec4(
    columns: int, operands: Sequence[tuple[int, ...]], shifts: Sequence[int] = ()
) -> bool:
    """Whether four neighbouring elements of each operand are one load.

    columns: elements of the innermost axis. operands: the strides of each, innermost axis first.
    shifts: the word of its element 0, where that is not 0.
    """
    if len(operands[0]) > 1 and columns % VIEW_ALIGN_WORDS:
        return False
    whole = [
        (*strides[1:], shift)
        for strides, shift in zip(operands, shifts or (0,) * len(operands), strict=True)
        if strides[0] != 0
    ]
    return all(strides[0] in (0, 1) for strides in operands) and not any(
        word % VIEW_ALIGN_WORDS for words in whole for word in words
    )


def _rounds(groups: int, limits: Limits) -> int:
    """Return vec4s of one invocation where `groups` would have one each."""
    if limits.software:
        return min(max(_SOFTWARE_ROUNDS, -(-groups // _SOFTWARE_GROUPS)), LOOP_STEPS // 2)
    return max(1, min(_ROUNDS, groups // _BUSY_GROUPS))


def _local_size(limits: Limits) -> int:
    return _SOFTWARE_LOCAL_SIZE if limits.software else LOCAL_SIZE


def launch_lines(
    columns: int, lines: int, use_vec4: bool, limits: Limits
) -> tuple[tuple[int, int, int], Constants]:
    """Return groups and constants of a kernel that goes along lines, whatever number of them."""
    width = max(1, columns // 4 if use_vec4 else columns)
    local_size = _local_size(limits)
    # neighbouring invocations read neighbouring words; on a CPU driver none is without work, as far
    # as there are lines
    rounds = _LINE_ROUNDS if limits.subgroup_size < _SOFTWARE_LOCAL_SIZE else 1
    each = max(width // rounds, min(width, local_size // max(lines, 1)))
    bits = each.bit_length() - 1 if limits.software else (width - 1).bit_length()
    local_x = min(local_size, 1 << max(0, bits))
    local_y = local_size // local_x
    across, down = -(-width // local_x), -(-lines // local_y)
    rounds = _rounds(across * down, limits)
    groups_x = min(-(-across // rounds), limits.max_groups[0])
    lines_each = max(1, rounds // -(-across // groups_x))
    groups_y = min(-(-down // lines_each), limits.max_groups[1])
    constants = (("LOCAL_X", local_x), ("LOCAL_Y", local_y), ("USE_VEC4", int(use_vec4)))
    return (groups_x, groups_y, 1), constants


def launch_run(steps: int, limits: Limits) -> tuple[tuple[int, int, int], Constants]:
    """Return groups and constants of a kernel whose groups take runs of so many steps in all."""
    local_size = _local_size(limits)
    groups = max(1, -(-steps // local_size))
    groups = min(-(-groups // _rounds(groups, limits)), limits.max_groups[0])
    return (groups, 1, 1), (("LOCAL_X", local_size),)


ROWS, WORKGROUP, SUBGROUP = "rows", "workgroup", "subgroup"
"""Variants of kernels over rows: an invocation computes a row, or several invocations of a
workgroup do, or a subgroup does, which holds the row in registers
(shaders/reduction/subgroup_rows.glsl).
"""
WORDS_64 = "_64"
"""The end of the names of shaders that move words of 64 bits."""
_SUBGROUP_ROWS = 4
"""Rows of a group, at least: its scale and shift are read once."""
_SUBGROUP_ROUNDS = 8
"""Loops over the vec4s of a row, at most."""
_MAX_VEC4S_PER_LANE = 32
"""Vec4s of a row that a lane holds: so many rounds of a loop Mesa's compiler writes out."""
_MIN_VEC4S_PER_LANE = 4
"""Vec4s of a lane of a group, before more lanes share the row."""
_MAX_ACROSS_LANES = 8
_LARGEST_GROUP = 256


def row_variants(
    columns: int, items: int, across: bool, passes: int, limits: Limits
) -> tuple[str, ...]:
    """Return the variants for rows of so many columns, the best guess first.

    items: rows, or, across, vec4s of rows that lie side by side.
    """
    if limits.software:
        rounds = passes * (columns if across or columns % 4 else columns // 4)
        return (ROWS,) if rounds <= LOOP_STEPS // 2 else (WORKGROUP,)
    if columns < 32:
        return (ROWS,)
    if across:
        return (ROWS, WORKGROUP) if items >= _BUSY_GROUPS * LOCAL_SIZE // 4 else (WORKGROUP, ROWS)
    return (WORKGROUP,)


def launch_rows(
    columns: int, items: int, across: bool, variant: str, limits: Limits
) -> tuple[tuple[int, int, int], Constants]:
    """Return groups and constants of a kernel over rows; arguments as in `row_variants`."""
    local_size = _local_size(limits)
    lanes = 1
    if variant == WORKGROUP:
        steps = columns if across else -(-columns // 4)
        most = _MAX_ACROSS_LANES if across else min(_LARGEST_GROUP, limits.max_invocations)
        lanes = min(
            1 << max(0, steps // _MIN_VEC4S_PER_LANE - 1).bit_length(), 1 << most.bit_length() - 1
        )
        local_size = max(LOCAL_SIZE, lanes)
    groups = min(-(-items // (local_size // lanes)), limits.max_groups[0])
    constants = (("LOCAL_X", local_size), ("LANES_PER_ROW", lanes), ("ACROSS", int(across)))
    return (groups, 1, 1), constants


def reads_64(limits: Limits) -> bool:
    """Whether kernels move words of 64 bits: llvmpipe loads lane by lane and word by word."""
    vectors = limits.software and limits.subgroup_size >= _SOFTWARE_LOCAL_SIZE
    return vectors and limits.int64


def has_subgroup_kernels(limits: Limits, sizes: Container[int]) -> bool:
    """Whether a CPU driver runs kernels for its subgroups, of which there are these sizes; those of
    large ones read words of 64 bits.
    """
    lanes = limits.subgroup_size
    reads = lanes < _SOFTWARE_LOCAL_SIZE or reads_64(limits)
    return limits.software and limits.subgroup_shuffle and reads and lanes in sizes


def reading(shader: str, limits: Limits) -> str:
    """Return the variant of a shader for a device, by the words that it reads and writes."""
    return shader + WORDS_64 if reads_64(limits) else shader


def both_readings(shaders: Iterable[str]) -> tuple[str, ...]:
    """Return the variants of shaders for all devices."""
    names = tuple(shaders)
    return (*names, *(name + WORDS_64 for name in names))


def vec4s_per_lane(columns: int, limits: Limits) -> int:
    """Return how many vec4s of a row each lane of a subgroup holds, or 0 where none does.

    It is for vectors of eight (llvmpipe), whose loads, of words of 64 bits, cost more than all else
    of such kernels.
    SwiftShader has an array in memory, and reads that as slowly as any other.
    """
    lanes = _SOFTWARE_LOCAL_SIZE
    vectors = reads_64(limits) and limits.subgroup_shuffle
    whole = columns % 4 == 0 and columns >= 4 * lanes
    held = -(-columns // (4 * lanes))
    return held if vectors and whole and held <= _MAX_VEC4S_PER_LANE else 0


def launch_subgroup_rows(
    columns: int, rows: int, limits: Limits
) -> tuple[tuple[int, int, int], Constants]:
    """Return groups and constants of a kernel that holds rows in registers."""
    lanes, held = _SOFTWARE_LOCAL_SIZE, vec4s_per_lane(columns, limits)
    least = -(-rows * held * _SUBGROUP_ROUNDS // LOOP_STEPS)
    groups = max(min(-(-rows // _SUBGROUP_ROWS), _SOFTWARE_GROUPS), least)
    groups = min(groups, limits.max_groups[0])
    constants = (("LOCAL_X", lanes), ("LANES_PER_ROW", lanes), ("VEC4S_PER_LANE", held))
    return (groups, 1, 1), constants

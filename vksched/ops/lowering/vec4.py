"""Launches of kernels that read and write vec4s (shaders/include/vec4.glsl).

Elementwise kernels process lines of the innermost axis (line_start.glsl); others process rows that
they read several times (vec4_rows.glsl).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from ...ir.op import VIEW_ALIGN_WORDS
from ...topology.limits import Limits
from .strides import LOCAL_SIZE, LOOP_STEPS

Constants = tuple[tuple[str, int], ...]

_SOFTWARE_LOCAL_SIZE = 8
"""Invocations per group on a CPU driver: one vector. With more, several vectors alternate over the
range of the group, which defeats caches and prefetching.
"""
_SOFTWARE_ROUNDS, _ROUNDS = 128, 4
"""Vec4s per invocation: minimum on a CPU driver, which has overhead per group; maximum on a GPU."""
_LINE_ROUNDS = 256
"""Vec4s per invocation in a line on a CPU driver with small vectors (SwiftShader). The start of a
line costs it more than strided lanes; for llvmpipe it is the other way round.
"""
_SOFTWARE_GROUPS, _BUSY_GROUPS = 512, 4096
"""Number of groups that occupies all cores of a CPU until the end, or a large GPU. With fewer
groups an invocation processes one vec4 there.
"""


def can_use_vec4(
    columns: int, operands: Sequence[tuple[int, ...]], shifts: Sequence[int] = ()
) -> bool:
    """Return True if four adjacent elements of each operand are one aligned load.

    Parameters
    ----------
    columns
        Number of elements of the innermost axis.
    operands
        Strides of each operand, innermost axis first.
    shifts
        Word offset of element 0 of each operand, if it is not 0.
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
    """Return the vec4s per invocation if `groups` groups would have one vec4 per invocation."""
    if limits.software:
        return min(max(_SOFTWARE_ROUNDS, -(-groups // _SOFTWARE_GROUPS)), LOOP_STEPS // 2)
    return max(1, min(_ROUNDS, groups // _BUSY_GROUPS))


def _local_size(limits: Limits) -> int:
    return _SOFTWARE_LOCAL_SIZE if limits.software else LOCAL_SIZE


def launch_lines(
    columns: int, lines: int, use_vec4: bool, limits: Limits
) -> tuple[tuple[int, int, int], Constants]:
    """Return groups and constants of a kernel that processes any number of lines."""
    width = max(1, columns // 4 if use_vec4 else columns)
    local_size = _local_size(limits)
    # Adjacent invocations read adjacent words. On a CPU driver none is idle if there are enough
    # lines.
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
    """Return groups and constants of a kernel whose groups split `steps` iterations."""
    local_size = _local_size(limits)
    groups = max(1, -(-steps // local_size))
    groups = min(-(-groups // _rounds(groups, limits)), limits.max_groups[0])
    return (groups, 1, 1), (("LOCAL_X", local_size),)


ROWS, WORKGROUP, SUBGROUP = "rows", "workgroup", "subgroup"
"""Variants of kernels over rows: a row is computed by one invocation, by several invocations of a
workgroup, or by a subgroup that holds the row in registers (shaders/reduction/subgroup_rows.glsl).
"""
WORDS_64 = "_64"
"""Suffix of shaders that load 64-bit words."""
_SUBGROUP_ROWS = 4
"""Minimum rows per group, which loads scale and shift once."""
_SUBGROUP_ROUNDS = 8
"""Maximum number of loops over the vec4s of a row."""
_MAX_VEC4S_PER_LANE = 32
"""Maximum vec4s of a row per lane; Mesa's compiler unrolls loops of this length."""
_MIN_VEC4S_PER_LANE = 4
"""Minimum vec4s per lane before more lanes share a row."""
_MAX_ACROSS_LANES = 8
_LARGEST_GROUP = 256


def row_variants(
    columns: int, items: int, across: bool, passes: int, limits: Limits
) -> tuple[str, ...]:
    """Return the variants for rows of `columns` columns, the best guess first.

    Parameters
    ----------
    items
        Number of rows or, if `across`, of vec4s that span four adjacent rows.
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
    """Return groups and constants of a kernel over rows; parameters as in `row_variants`."""
    local_size = _local_size(limits)
    lanes = 1
    if variant == WORKGROUP:
        steps = columns if across else -(-columns // 4)
        maximum = _MAX_ACROSS_LANES if across else min(_LARGEST_GROUP, limits.max_invocations)
        lanes = min(
            1 << max(0, steps // _MIN_VEC4S_PER_LANE - 1).bit_length(),
            1 << maximum.bit_length() - 1,
        )
        local_size = max(LOCAL_SIZE, lanes)
    groups = min(-(-items // (local_size // lanes)), limits.max_groups[0])
    constants = (("LOCAL_X", local_size), ("LANES_PER_ROW", lanes), ("ACROSS", int(across)))
    return (groups, 1, 1), constants


def reads_64(limits: Limits) -> bool:
    """Return True if kernels load 64-bit words; llvmpipe scalarizes loads into lanes and words."""
    vectors = limits.software and limits.subgroup_size >= _SOFTWARE_LOCAL_SIZE
    return vectors and limits.int64


def has_subgroup_kernels(limits: Limits, sizes: Container[int]) -> bool:
    """Return True if a CPU driver runs subgroup kernels, which exist for these subgroup sizes.

    Kernels for large subgroups load 64-bit words.
    """
    lanes = limits.subgroup_size
    reads = lanes < _SOFTWARE_LOCAL_SIZE or reads_64(limits)
    return limits.software and limits.subgroup_shuffle and reads and lanes in sizes


def reading(shader: str, limits: Limits) -> str:
    """Return the shader variant for a device, with 32-bit or 64-bit loads."""
    return shader + WORDS_64 if reads_64(limits) else shader


def both_readings(shaders: Iterable[str]) -> tuple[str, ...]:
    """Return the variants of shaders for all devices."""
    names = tuple(shaders)
    return (*names, *(name + WORDS_64 for name in names))


def vec4s_per_lane(columns: int, limits: Limits) -> int:
    """Return the vec4s of a row per lane of a subgroup, or 0 if subgroups are not used.

    Only for vectors of eight lanes (llvmpipe), whose 64-bit loads dominate the cost of these
    kernels. SwiftShader spills register arrays to memory, which is as slow as any load.
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
    minimum = -(-rows * held * _SUBGROUP_ROUNDS // LOOP_STEPS)
    groups = max(min(-(-rows // _SUBGROUP_ROWS), _SOFTWARE_GROUPS), minimum)
    groups = min(groups, limits.max_groups[0])
    constants = (("LOCAL_X", lanes), ("LANES_PER_ROW", lanes), ("VEC4S_PER_LANE", held))
    return (groups, 1, 1), constants

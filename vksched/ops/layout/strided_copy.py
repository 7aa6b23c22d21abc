"""Kernels of layout ops: the strided copy (strided_copy.comp), a fill, and a contiguous copy."""

from __future__ import annotations

import math
from dataclasses import replace

from ...ir.op import OUTPUT, Call, Dispatch
from ...topology.limits import Limits
from ..lowering.strides import collapse, pad
from ..lowering.vec4 import (
    both_readings,
    can_use_vec4,
    launch_lines,
    launch_run,
    reading,
)

COPIES, FILLS = both_readings(("strided_copy",)), both_readings(("fill",))
WHOLE_COPIES = both_readings(("copy",))
"""Shaders of `copy_strided`, `fill_words` and `copy_words`."""


def copy_strided(
    call: Call,
    shape: tuple[int, ...],
    operand: int,
    x: tuple[int, tuple[int, ...]],
    result: tuple[int, tuple[int, ...]],
) -> tuple[Dispatch, ...]:
    """Copy elements of a shape.

    x, result: (first word, strides) in the operand and in the result.
    """
    count = math.prod(shape)
    if count == 0:
        return ()
    sizes, (x_strides, result_strides) = collapse(shape, (x[1], result[1]))
    if call.limits.software:
        order = _order_of_lines(sizes, x_strides)
        sizes = tuple(sizes[axis] for axis in order)
        x_strides = tuple(x_strides[axis] for axis in order)
        result_strides = tuple(result_strides[axis] for axis in order)
    columns, lines = sizes[0], count // sizes[0]
    push = (
        ("columns", columns),
        ("lines", lines),
        ("sizes", pad(sizes[1:], 6)),
        ("x_strides", pad(x_strides, 8)),
        ("result_strides", pad(result_strides, 8)),
    )
    vec4 = can_use_vec4(columns, (x_strides, result_strides), (x[0], result[0]))
    groups, constants = launch_lines(columns, lines, vec4, call.limits)
    constants += (("RANK", len(sizes)), ("X_ALONG", int(x_strides[0] != 0)))
    shader, shifts = reading("strided_copy", call.limits), (x[0], result[0])
    return (Dispatch(shader, (operand, OUTPUT), groups, push, constants, shifts),)


def _order_of_lines(sizes: tuple[int, ...], x_strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of a copy, innermost first.

    Lines follow the result's layout, or x's layout if the result has fewer contiguous elements.
    Accesses of the other side are far apart, and caches track few streams.
    """
    plain = tuple(range(len(sizes)))
    if len(sizes) < 3 or not all(x_strides):
        return plain
    along_x = (0, *sorted(plain[1:], key=lambda axis: abs(x_strides[axis])))
    return along_x if sizes[along_x[1]] < sizes[1] else plain


def fill_words(operand: int, count: int, word: int, limits: Limits) -> Dispatch:
    """Write one word to all words of an operand."""
    groups, constants = launch_run(-(-count // 4), limits)
    push = (("count", count), ("value", word))
    return Dispatch(reading("fill", limits), (operand,), groups, push, constants)


def copy_words(operand: int, call: Call, apart: bool = False) -> tuple[Dispatch, ...]:
    """Copy an operand of the result's type to the result, word by word. apart: see `Dispatch`."""
    words = call.output.words
    if not words:
        return ()
    return (replace(copy_run(operand, OUTPUT, words, call.limits), apart=apart),)


def copy_run(operand: int, target: int, words: int, limits: Limits, to: int = 0) -> Dispatch:
    """Copy words to those from `to` on of the target."""
    groups, constants = launch_run(-(-words // 4), limits)
    shader, push = reading("copy", limits), (("count", words),)
    return Dispatch(shader, (operand, target), groups, push, constants, (0, to))

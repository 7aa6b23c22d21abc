"""Native programs: calls as native loops (native/cpu_kernels/program/table.cpp). Many loops run in
one call from Python.

    registers   operands of the call | results of the loops, of which the last one is the call's

A loop reads and writes contiguous values, of float32 unless its op specifies another type. An op
defines a native program if its loops compute the result of its CPU kernel. Without the native
module there are no native programs. Examples: tests/ops/native/test_native_programs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..common.dtypes import FLOAT32, TensorType
from .cpu_kernel import BLOCK, SHARES

if TYPE_CHECKING:
    from .attrs import Attrs


ROWS_PIECE, ROWS_WORK = 1 << 14, 4
"""Minimum values per piece of rows, about 10 us, and the work of each value."""
GEMM = "gemm"
"""The loop that calls BLAS."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a native program.

    Parameters
    ----------
    operands
        Registers.
    elements
        Number of elements of the result.
    int_params, float_params
        Parameters of the loop, as defined in native/cpu_kernels/.
    pieces
        Number of pieces that threads may share.
    work
        Values read or multiplied, of all pieces together.
    """

    name: str
    operands: tuple[int, ...]
    elements: int
    int_params: tuple[int, ...]
    float_params: tuple[float, ...] = ()
    pieces: int = 1
    work: int = 0


@dataclass(frozen=True, slots=True)
class NativeProgram:
    """The loops of a call, in order."""

    loops: tuple[Loop, ...]

    @property
    def calls_blas(self) -> bool:
        """Return True if a loop calls BLAS."""
        return any(loop.name == GEMM for loop in self.loops)


NativeProgramRule = Callable[[tuple[TensorType, ...], TensorType, "Attrs"], NativeProgram | None]
"""(operand types, result type, attributes) -> the call's native program, or None."""


def one_loop(
    name: str,
    inputs: Sequence[TensorType],
    output: TensorType,
    int_params: tuple[int, ...],
    float_params: tuple[float, ...] = (),
    rows: int = 1,
) -> NativeProgram | None:
    """Return the native program of a float32 call that is one loop, or None if the call is large:
    numpy splits large calls into pieces for several threads.

    Parameters
    ----------
    rows
        Rows of the result, which the pieces of the loop share.
    """
    if any(t.dtype != FLOAT32 or t.size > BLOCK for t in (*inputs, output)):
        return None
    pieces, work = max(1, min(rows, output.size // ROWS_PIECE, SHARES)), output.size * ROWS_WORK
    operands = tuple(range(len(inputs)))
    return NativeProgram(
        (Loop(name, operands, output.size, int_params, float_params, pieces, work),)
    )


def with_native_epilogue(
    first: NativeProgram, epilogue: NativeProgram, own: int, count: int
) -> NativeProgram:
    """Concatenate two native programs.

    The epilogue reads the result of the first program, which has `own` operands, and the other
    ones.
    """
    result = count + len(first.loops) - 1
    of_first = [*range(own), *range(count, result)]
    of_epilogue = [result, *range(own, count), *range(result + 1, result + len(epilogue.loops))]
    loops = [replace(e, operands=tuple(of_first[r] for r in e.operands)) for e in first.loops]
    loops += [
        replace(e, operands=tuple(of_epilogue[r] for r in e.operands)) for e in epilogue.loops
    ]
    return NativeProgram(tuple(loops))

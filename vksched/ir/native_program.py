"""Native programs: calls as native loops (native/cpu_kernels/program/table.cpp); many run in one
call from Python.

    registers   operands of the call | results of the loops, of which the last one is the call's

A loop reads and writes values that lie without gaps, of float32 but where its op says otherwise.
An op gives a native program where its loops compute what its CPU kernel does; without the native
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
"""Values of rows that make a piece at least, some 10 us; and the work of each value."""
GEMM = "gemm"
"""The loop that calls the library of numpy's products."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop. operands: registers. elements: of its result. numbers, reals: what it is told, as
    native/cpu_kernels/ says. pieces: parts that several threads may take. work: of all pieces,
    in values that are read or multiplied.
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
        """Whether a loop calls the library of numpy's products."""
        return any(loop.name == GEMM for loop in self.loops)


NativeProgramRule = Callable[[tuple[TensorType, ...], TensorType, "Attrs"], NativeProgram | None]
"""(types of operands, result type, attributes) -> the call's native program, None where it has
none.
"""


def one_loop(
    name: str,
    inputs: Sequence[TensorType],
    output: TensorType,
    int_params: tuple[int, ...],
    float_params: tuple[float, ...] = (),
    rows: int = 1,
) -> NativeProgram | None:
    """Return the native program of a call on float32 that is one loop, None of one that is large:
    numpy takes such a call in pieces, on several threads. rows: of the result, which pieces of the
    loop share.
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
    """Return the native program of `own` operands and one of its result and the rest of `count` as
    one.
    """
    result = count + len(first.loops) - 1
    of_first = [*range(own), *range(count, result)]
    of_epilogue = [result, *range(own, count), *range(result + 1, result + len(epilogue.loops))]
    made = [replace(e, operands=tuple(of_first[r] for r in e.operands)) for e in first.loops]
    made += [replace(e, operands=tuple(of_epilogue[r] for r in e.operands)) for e in epilogue.loops]
    return NativeProgram(tuple(made))

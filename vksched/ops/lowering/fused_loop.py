"""Elementwise ops as one native loop: instructions on registers, in one pass over the operands and
in blocks of values (native/cpu_kernels/elementwise/fused.cpp). Examples:
tests/ops/native/test_native_programs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

from ...common.dtypes import FLOAT32, INT32, Shape, TensorType
from ...ir.cpu_kernel import SHARES
from ...ir.native_program import Loop, NativeProgram
from . import native_kernels
from .strides import broadcast_strides, collapse, pad

AXES = 4
"""Maximum number of axes of a loop, after axes are merged."""
PIECE = 1 << 15
"""Number of values in one piece, about 10 us."""
LONG_STEPS = frozenset(
    (
        "erf",
        "gelu",
        "gelu_tanh",
        "gelu_backward",
        "gelu_tanh_backward",
        "log",
        "sigmoid",
        "silu",
        "tanh",
    )
)
LONG = 4
"""Relative cost of a slow instruction, at least."""
MIN_LINE_SIZE, MANY_LINES = 16, 1 << 12
"""Numpy is equally fast for at least this many lines of fewer values."""

LoopInstr = tuple[str, tuple[int, ...], tuple[float, float]]
"""An instruction: name, registers (at most REGISTERS) and parameters."""
REGISTERS = 3


@lru_cache(maxsize=1)
def _numbers() -> dict[str, int]:
    """Return the codes of supported instructions; empty without native loops."""
    return {
        name: at for at, name in enumerate(getattr(native_kernels.native, "fused_op_names", ()))
    }


def instr_of(op: str, types: Sequence[TensorType], to: str) -> str:
    """Return the instruction for an op with these operand types and this result type."""
    if op == "cast":
        return f"{types[0].dtype}_to_{to}"
    dtype = types[-1].dtype
    return op if dtype == FLOAT32 else f"{op}_{dtype}"


def has_steps(names: Sequence[str]) -> bool:
    """Return True if loops support all of these instructions."""
    return _numbers().keys() >= set(names)


def encode_steps(
    operands: int, constants: Sequence[float], steps: Sequence[LoopInstr]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the integer and float parameters that encode instructions for a native loop."""
    own = _numbers()
    codes = chain.from_iterable((own[name], *pad(at, REGISTERS, at[-1])) for name, at, _ in steps)
    numbers = (operands, len(constants), len(steps), *codes)
    return numbers, (*constants, *chain.from_iterable(values for *_, values in steps))


def elementwise_program(
    inputs: Sequence[TensorType],
    shape: Shape,
    constants: Sequence[float],
    steps: Sequence[LoopInstr],
) -> NativeProgram | None:
    """Return the native program of instructions on operands that broadcast to a shape, or None.

    Operands are float32 or int32.
    """
    known = all(t.dtype in (FLOAT32, INT32) for t in inputs)
    if not known or not has_steps([name for name, *_ in steps]):
        return None
    result = broadcast_strides(shape, shape)
    operand_strides = [*(broadcast_strides(t.shape, shape) for t in inputs), result]
    sizes, strides = collapse(shape, operand_strides)
    size = TensorType(shape).size
    if len(sizes) > AXES or (sizes[0] < MIN_LINE_SIZE and size // sizes[0] > MANY_LINES):
        return None
    codes, float_params = encode_steps(len(inputs), constants, steps)
    lie = chain.from_iterable(pad(s, AXES) for s in strides[:-1])
    numbers = (len(inputs), *pad(sizes, AXES, 1), *lie, *codes)
    work = size * sum(LONG if name in LONG_STEPS else 1 for name, *_ in steps)
    pieces = max(1, min(work // PIECE, 2 * SHARES))
    return NativeProgram(
        (
            Loop(
                "fused_elementwise",
                tuple(range(len(inputs))),
                size,
                numbers,
                float_params,
                pieces,
                work,
            ),
        )
    )

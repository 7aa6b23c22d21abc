"""Device kernel of `ssm_scan`, and its loop of native programs.

    time steps 0 ... n - 1, state -> y, states -> time steps n ... -> ...        some in a dispatch

Between two dispatches the states are in the last rows of the result, so a submission may end there.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...common.dtypes import FLOAT32, TensorType
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import SHARES
from ...ir.native_program import Loop, NativeProgram
from ...ir.op import OUTPUT, Call, Dispatch, Kernel
from ..lowering import native_kernels
from ..lowering.chunking import check_dispatches, check_serial, element_parts
from ..lowering.strides import LOOP_STEPS, SERIAL_STEPS

SHADER = "ssm_scan"
BLOCK = 8
"""States in registers, as in shaders/rnn/ssm_scan.comp."""
MIN_PIECE = 1 << 17
"""Minimum multiplications of a piece of the native loop."""
NATIVE_BLOCK = 32
"""Channels of a block, as in native/cpu_kernels/rnn/ssm_scan.cpp."""


def _dispatches(call: Call) -> Iterator[Dispatch]:
    x, a, b = call.inputs[0], call.inputs[2], call.inputs[3]
    batch, time, heads, size = x.shape
    groups, states = b.shape[2:]
    blocks = -(-states // BLOCK)
    of_step, other = blocks * (BLOCK + 1), blocks * (2 * BLOCK + 1) + 1
    check_serial("ssm_scan", of_step + other, call.limits)
    most = LOOP_STEPS if call.limits.software else SERIAL_STEPS
    steps = max(1, (most - other) // of_step)
    constants = (("PER_HEAD", int(a.shape[1] == 1)),)
    for first in range(0, max(time, 1), steps):
        last = min(first + steps, time)
        rounds = (last - first) * of_step + other
        rows = time + states if first else states
        shift = time * heads * size if first else 0
        fixed = (
            *(("steps", time), ("first", first), ("last", last)),
            *(("heads", heads), ("size", size), ("groups", groups), ("states", states)),
            ("state_rows", rows),
        )
        operands = (0, 1, 2, 3, 4, OUTPUT if first else 5, OUTPUT)
        shifts = (0, 0, 0, 0, 0, shift, 0)
        channels = batch * heads * size
        for start, end, count in element_parts("ssm_scan", channels, rounds, call.limits):
            push = (("start", start), ("end", end), *fixed)
            yield Dispatch(SHADER, operands, count, push, constants, shifts, barrier=first > 0)


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if not call.output.size:
        return ()
    dispatches = tuple(_dispatches(call))
    check_dispatches("ssm_scan", len(dispatches))
    return dispatches


KERNEL = Kernel((SHADER,), _lower)


def ssm_scan_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    """Return the native loop of a call, or None if it is empty or not of float32."""
    x, a, b = inputs[0], inputs[2], inputs[3]
    if not native_kernels.has_programs() or any(t.dtype != FLOAT32 or not t.size for t in inputs):
        return None
    batch, _, heads, size = x.shape
    work = x.size * b.shape[3]
    blocks = batch * -(-heads * size // NATIVE_BLOCK)
    pieces = max(1, min(blocks, work // MIN_PIECE, SHARES))
    int_params = (*x.shape, *b.shape[2:], a.shape[1])
    loop = Loop("ssm_scan", tuple(range(6)), output.size, int_params, (), pieces, work)
    return NativeProgram((loop,))

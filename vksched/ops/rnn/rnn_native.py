"""Recurrent layers as loops of native programs (native/cpu_kernels/rnn/), split by direction.

Examples: tests/ops/native/test_recurrent_loops.py.
"""

from __future__ import annotations

from itertools import chain

from ...common.dtypes import FLOAT32, TensorType
from ...ir.attrs import Attrs
from ...ir.native_program import Loop, NativeProgram
from ..lowering import native_kernels
from .cell import cell_of, operands_of

SEQUENCES = 4
"""Sequences that are processed together. With more, the CPU kernel (rnn_cpu.py) also splits by
sequences.
"""


def rnn_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    """Return the loop of a layer with few sequences and no lengths, or None if unsupported."""
    cell, functions = cell_of(attrs), native_kernels.rnn_functions()
    args = operands_of(cell, inputs)
    directions, time, batch, _ = args.gates.shape
    if not functions or cell.masked or batch > SEQUENCES:
        return None
    if any(t.dtype != FLOAT32 for t in inputs):
        return None
    hidden = args.r.shape[1]
    each = chain.from_iterable(
        (back, *map(functions.index, names))
        for back, names in zip(cell.backwards, cell.activations, strict=True)
    )
    sizes = (cell.gates, time, batch, hidden)
    numbers = (*sizes, cell.coupled, cell.linear, cell.own, *each)
    work = time * batch * args.r.size
    operands = tuple(range(len(inputs)))
    int_params = tuple(map(int, numbers))
    loop = Loop("rnn_scan", operands, output.size, int_params, (cell.clip,), directions, work)
    return NativeProgram((loop,))

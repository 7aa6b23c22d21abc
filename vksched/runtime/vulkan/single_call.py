"""Single call: runs one call of an op with numpy arrays, for checks of kernels.

Operands and the result are in host memory. Scratch memory and counters are in device memory, as in
a plan, and keep their content from one run to the next.
"""

from __future__ import annotations

import numpy as np

from ...common.dtypes import NDArray, numpy_dtype
from ...ir.op import COUNTERS, OUTPUT, SCRATCH, STATUS, Call, Op
from ...ops.lowering.lower import lower
from ...plan.types.offsets import aligned
from .buffers import Buffer
from .context import Context
from .single_dispatch import Place, SingleDispatcher
from .staging import upload
from .word_view import read_words, write_words

WAIT_S = 10.0
"""A call without a result by then hangs; it takes some milliseconds at most."""
COMPILE_S = 300.0
"""The limit on drivers that run on the CPU: they compile a kernel at its first dispatch, which
takes up to 15 s with recent compilers, and longer if other processes use the cores.
"""
UNWRITTEN = 0xFFFFFFFF
"""The initial word of results: NaN, so that elements that no workgroup writes are wrong."""


def wait_limit_s(context: Context) -> float:
    """Return the seconds after which a single call hangs."""
    return COMPILE_S if context.is_host else WAIT_S


class SingleCall:
    """One call with its memory, which the context releases.

    Parameters
    ----------
    singles
        Records the call and holds its pipelines.
    """

    def __init__(self, context: Context, singles: SingleDispatcher, op: Op, call: Call) -> None:
        self._context, self._singles = context, singles
        self._call, self._lowering = call, lower(op, call)
        self._inputs = [context.host(max(t.words, 1), read=True) for t in call.inputs]
        self._result = context.host(max(call.output.words, 1), read=True)
        counters = context.storage(aligned(max(self._lowering.counters, 1)))
        upload(context, counters, [np.zeros(counters.words, np.uint32)])
        self._named: dict[int, Buffer] = {
            OUTPUT: self._result,
            SCRATCH: context.storage(max(self._lowering.scratch_words, 1)),
            STATUS: context.storage(4),
            COUNTERS: counters,
        }
        self._recording = context.recording()

    def run(self, operands: tuple[NDArray, ...]) -> NDArray:
        """Return the result.

        Raises
        ------
        DeviceError
            The device failed, or gave no result in time.
        """
        for buffer, array in zip(self._inputs, operands, strict=True):
            write_words(buffer.array, array)
        self._result.array[:] = UNWRITTEN
        recording = self._recording
        recording.begin()
        recording.barrier("device", "device")
        self._singles.record(recording, self._lowering, self._place)
        recording.barrier("shader", "host")
        recording.end()
        recording.submit()
        recording.wait(wait_limit_s(self._context))
        type_ = self._call.output
        words = self._result.array.copy()
        return np.array(read_words(words, numpy_dtype(type_.dtype), type_.shape))

    def close(self) -> None:
        self._recording.close()

    def _place(self, operand: int) -> Place:
        return Place(self._named[operand] if operand < 0 else self._inputs[operand], 0)

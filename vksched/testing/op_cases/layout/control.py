"""Samples of identity ops: stop_gradient and after."""

from __future__ import annotations

from .... import ops
from ..op_sample import ErrorSample, FunctionSample, OpSample, bools, floats, fp16_array, ints

X = (
    *(floats(*s) for s in ((1,), (), (7,), (3, 5, 11), (2100,), (0, 3))),
    fp16_array(13),
    ints(17),
    bools(5, 3),
)
CASES = [
    *(OpSample("optimization_barrier", (x, floats(3))) for x in X),
    OpSample("optimization_barrier", (floats(5), ints(2)), name="of integers"),
    *(OpSample("stop_gradient", (x,)) for x in X),
]
FUNCTIONS = [FunctionSample("stop_gradient", lambda x: ops.stop_gradient(x) + 1.0, (floats(9),))]
ERRORS: list[ErrorSample] = []

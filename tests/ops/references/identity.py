"""Oracle of ops that change no value: the bytes of their first operand."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import FunctionOracle, Oracle


def first(case: OpSample) -> NDArray:
    x = case.inputs[0]
    return np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape)


ORACLES: dict[str, Oracle] = {"optimization_barrier": first, "stop_gradient": first}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {"stop_gradient": lambda case: case.inputs[0] + 1}

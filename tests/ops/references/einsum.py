"""The oracle of einsum: numpy's own, in float64."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import FunctionSample

from .common import FunctionOracle


def einsum(case: FunctionSample) -> NDArray:
    equation = case.name.removesuffix(" int")
    wide = np.float64 if case.inputs[0].dtype == np.float32 else np.int64
    result = np.einsum(equation, *(x.astype(wide) for x in case.inputs))
    return np.asarray(result, case.inputs[0].dtype)


FUNCTION_ORACLES: dict[str, FunctionOracle] = {"einsum": einsum}

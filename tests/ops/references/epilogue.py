"""What follows a product or convolution in its kernel: its own oracle, then that of the steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.ir.op import EPILOGUE
from vksched.testing.op_cases.op_sample import OpSample

from .chain import fused_elementwise
from .common import Oracle


def with_epilogue(oracle: Oracle) -> Oracle:
    """The oracle of an op, for calls with steps behind it, too."""

    def compute(case: OpSample) -> NDArray:
        if EPILOGUE not in case.attrs:
            return oracle(case)
        operands, steps, constants = case.attrs[EPILOGUE]  # type: ignore[misc]
        count = len(case.inputs) - int(operands) + 1  # type: ignore[arg-type]
        attrs = {name: value for name, value in case.attrs.items() if name != EPILOGUE}
        built = oracle(replace(case, inputs=case.inputs[:count], attrs=attrs))
        inputs = (np.asarray(built), *case.inputs[count:])
        return fused_elementwise(
            OpSample("fused_elementwise", inputs, {"steps": steps, "constants": constants})
        )

    return compute

"""float16 results: an op of float32 stores its result as float16, if an attribute asks for it.

    rms_norm(x float32) {dtype: float16}  ->  float16, computed in float32 and rounded once

The pass vksched/passes/fp16_rows.py sets the attribute, users do not. A kernel writes float16 if
its `takes_fp16` names the result; that of others is converted (lower.py). A value beyond the range
of float16 becomes infinite. Examples: tests/passes/test_fp16_rows.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...common.dtypes import FLOAT16, NDArray, TensorType
from ...ir.attr_domains import Optional, dtype_of
from ...ir.attrs import Attrs
from ...ir.native_program import NativeProgram
from ...ir.op import Op

DTYPE = "dtype"
"""The attribute."""


def stores_fp16(attrs: Attrs) -> bool:
    """Return True if a call stores its result as float16."""
    return DTYPE in attrs


def with_fp16_result(op: Op) -> Op:
    """Return a variant of a float32 op that can store its result as float16."""
    native = op.native_program

    def infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
        result = op.infer(inputs, attrs)
        return result.as_dtype(FLOAT16) if stores_fp16(attrs) else result

    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        result = op.reference(inputs, attrs)
        if not stores_fp16(attrs):
            return result
        with np.errstate(over="ignore"):
            return result.astype(np.float16)

    def native_program(
        inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
    ) -> NativeProgram | None:
        assert native is not None
        return None if stores_fp16(attrs) else native(inputs, output, attrs)

    return replace(
        op,
        attrs={**(op.attrs or {}), DTYPE: Optional(dtype_of(FLOAT16))},
        infer=infer,
        reference=reference,
        native_program=native and native_program,
    )

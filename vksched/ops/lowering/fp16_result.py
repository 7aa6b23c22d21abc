"""float16 results: an op of float32 stores its result as float16, if an attribute asks for it.

    rms_norm(x float32) {dtype: float16}  ->  float16, computed in float32 and rounded once

The pass vksched/passes/fp16_rows.py sets the attribute, users do not. A kernel writes float16 if
its `takes_fp16` names the result; that of others is converted (lower.py). A value beyond the range
of float16 becomes infinite, or with the attribute `overflow_nan` NaN, as in `cast`. Examples:
tests/passes/test_fp16_rows.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...common.dtypes import FLOAT16, NDArray, TensorType
from ...common.errors import DTypeError
from ...ir.attr_domains import Flag, Optional, dtype_of
from ...ir.attrs import Attrs
from ...ir.native_program import NativeProgram
from ...ir.op import Op

DTYPE, OVERFLOW_NAN = "dtype", "overflow_nan"
"""The attributes."""


def stores_fp16(attrs: Attrs) -> bool:
    """Return True if a call stores its result as float16."""
    return DTYPE in attrs


def as_fp16(result: NDArray, attrs: Attrs) -> NDArray:
    """Return a float32 result as a call stores it."""
    if not stores_fp16(attrs):
        return result
    with np.errstate(over="ignore"):
        rounded = result.astype(np.float16)
    if attrs.get(OVERFLOW_NAN):
        rounded[np.isinf(rounded)] = np.nan
    return rounded


def with_fp16_result(op: Op, overflow_nan: bool = False) -> Op:
    """Return a variant of a float32 op that can store its result as float16. overflow_nan: whether
    values beyond the range become NaN.
    """
    native = op.native_program

    def infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
        result = op.infer(inputs, attrs)
        if overflow_nan and stores_fp16(attrs) != bool(attrs.get(OVERFLOW_NAN)):
            raise DTypeError(
                f"[{op.name}] expected {OVERFLOW_NAN} with a result of float16, got {attrs}"
            )
        return result.as_dtype(FLOAT16) if stores_fp16(attrs) else result

    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        return as_fp16(op.reference(inputs, attrs), attrs)

    def native_program(
        inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
    ) -> NativeProgram | None:
        assert native is not None
        return None if stores_fp16(attrs) else native(inputs, output, attrs)

    return replace(
        op,
        attrs={
            **(op.attrs or {}),
            DTYPE: Optional(dtype_of(FLOAT16)),
            **({OVERFLOW_NAN: Optional(Flag())} if overflow_nan else {}),
        },
        infer=infer,
        reference=reference,
        native_program=native and native_program,
    )

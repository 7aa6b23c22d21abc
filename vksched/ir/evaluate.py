"""Type inference and reference evaluation of op calls."""

from __future__ import annotations

import numpy as np

from ..common.dtypes import FLOAT16, FLOAT32, FLOAT64, INT32, INT64, NARROW, NDArray, TensorType
from ..common.errors import DTypeError
from .attrs import Attrs
from .check_call import check_call
from .op import Op
from .precision import round_operands, round_result

MAX_CALLS = 1 << 12
"""Maximum number of cached result types."""


_HALF = np.dtype(np.float16)


_inferred: dict[tuple[str, tuple[TensorType, ...], Attrs], tuple[Op, TensorType]] = {}


def infer(op: Op, inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    """Return the result type of a call, after a check of its operands and attributes.

    Repeated layers make equal calls, so recent results are cached. Type rules are written for
    float32 and int32. Other widths are derived: float16 and float64 if all float operands have that
    type, int64 if all integer operands except indices do. The rules of ops with `float32_result`
    see float16 as float32.

    Raises
    ------
    ShapeError, DTypeError
        The op does not support these operands.
    """
    key = op.name, inputs, attrs
    found = _inferred.get(key)
    if found is not None and found[0] is op:  # an op may be redeclared
        return found[1]
    result = _infer(op, inputs, attrs)
    if len(_inferred) >= MAX_CALLS:
        _inferred.clear()
    _inferred[key] = op, result
    return result


def _infer(op: Op, inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    check_call(op, inputs, attrs)
    narrow_ones = [t.dtype for t in inputs if t.dtype in NARROW]
    if narrow_ones and not op.accepts_int8_weights:
        raise DTypeError(
            f"[{op.name}] expected operands of 32 bits or more, got {narrow_ones[0]}; "
            "try vs.dequantize_linear"
        )
    if op.any_dtype:
        return op.infer(inputs, attrs)
    if op.float32_result:
        inputs = tuple(t.as_dtype(FLOAT32) if t.dtype == FLOAT16 else t for t in inputs)
    data = {t.dtype for i, t in enumerate(inputs) if i not in op.indices}
    wide: dict[str, str] = {}
    for known, widths in ((FLOAT32, {FLOAT16, FLOAT64}), (INT32, {INT64})):
        dtypes = data & {known, *widths}
        if len(dtypes) > 1:
            raise DTypeError(
                f"[{op.name}] expected operands of one type, got {' and '.join(sorted(dtypes))}; "
                "try vs.cast"
            )
        if dtypes & widths:
            wide[known] = dtypes.pop()
    narrow = {dtype: known for known, dtype in wide.items()}
    positions = {INT64: INT32}
    operand_types = tuple(
        t.as_dtype((positions if i in op.indices else narrow).get(t.dtype, t.dtype))
        for i, t in enumerate(inputs)
    )
    result = op.infer(operand_types, attrs)
    return result.as_dtype(wide.get(result.dtype, result.dtype))


def compute(op: Op, inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Return the result of the op's numpy reference, which may be a view of an input.

    float16 is computed in float32 and rounded once. Operands are rounded according to the
    precision.
    """
    if op.roundable_operands:
        inputs = round_operands(op, inputs, attrs)
    if op.any_dtype or _HALF not in [x.dtype for x in inputs]:
        return round_result(op, op.reference(inputs, attrs), attrs)
    result = op.reference(
        tuple(x.astype(np.float32) if x.dtype == _HALF else x for x in inputs), attrs
    )
    if op.float32_result:
        return round_result(op, result, attrs)
    return result.astype(_HALF) if result.dtype == np.float32 else result


def compute_into(op: Op, inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    """Write the result of a call with the op's CPU kernel.

    float16 is computed in float32 and rounded once.
    """
    assert op.cpu is not None
    if op.any_dtype or _HALF not in [x.dtype for x in (*inputs, out)]:
        op.cpu.compute(inputs, attrs, out)
        return
    wide = np.empty(out.shape, np.float32) if out.dtype == _HALF else out
    wide_inputs = tuple(x.astype(np.float32) if x.dtype == _HALF else x for x in inputs)
    op.cpu.compute(wide_inputs, attrs, wide)
    if wide is not out:
        out[...] = wide

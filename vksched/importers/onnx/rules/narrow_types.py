"""Narrow element types: arithmetic in a wider storage type.

(U)INT16/8/4/2 are stored as int32, BFLOAT16 and FLOAT8/FLOAT4 as float32 (elements.py). An op
computes in the storage type. Then integers are wrapped to their range, as in numpy, and floats are
rounded.
"""

from __future__ import annotations

from onnx import TensorProto

from .... import ops
from ....common.dtypes import BOOL, FLOAT32, FLOATS, INT32
from ....common.errors import UnsupportedOp
from ....ir.tensor import Tensor
from ..nodes.elements import ANY, INTS, NARROW_FLOATS, NARROW_INTS, element_name, storage

T = TensorProto
NUMBERS = ANY - {T.UINT64}
"""Element types for which `fit` corrects the results of arithmetic."""
WRAPPING = ANY
"""NUMBERS plus UINT64, for arithmetic that is equal on the bits of INT64 and UINT64."""
_BITS = {e: int("".join(c for c in element_name(e) if c.isdigit())) for e in INTS if e != T.UINT64}


def limits(elem_type: int) -> tuple[int, int]:
    """Return the minimum and maximum of an integer type other than UINT64."""
    bits = _BITS[elem_type]
    if element_name(elem_type).startswith("u"):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def fit(x: Tensor, elem_type: int) -> Tensor:
    """Convert results of arithmetic in the storage type to values of the element type."""
    if elem_type in NARROW_INTS:
        return wrap(x, elem_type)
    if elem_type in NARROW_FLOATS:
        return round_float(x, elem_type)
    return x


def wrap(x: Tensor, elem_type: int) -> Tensor:
    """Wrap int32 to the range of a narrower integer."""
    low, high = limits(elem_type)
    if low == 0:
        return ops.bitwise_and(x, high)
    spare = 32 - _BITS[elem_type]
    return ops.bitwise_right_shift(ops.bitwise_left_shift(x, spare), spare)


_FORMATS: dict[int, tuple[int, int, float, str, str]] = {
    T.BFLOAT16: (7, -126, 3.3895313892515355e38, "inf", "inf"),
    T.FLOAT8E4M3FN: (3, -6, 448.0, "nan", "saturate"),
    T.FLOAT8E4M3FNUZ: (3, -7, 240.0, "nan", "saturate"),
    T.FLOAT8E5M2: (2, -14, 57344.0, "inf", "saturate"),
    T.FLOAT8E5M2FNUZ: (2, -15, 57344.0, "nan", "saturate"),
}
"""Digits, minimum exponent, maximum value, and the result of overflow without and with
saturation.
"""
if hasattr(T, "FLOAT4E2M1"):
    _FORMATS[T.FLOAT4E2M1] = (1, 0, 6.0, "saturate", "saturate")
_WITHOUT_MINUS_ZERO = (T.FLOAT8E4M3FNUZ, T.FLOAT8E5M2FNUZ)


def round_float(x: Tensor, elem_type: int, saturate: bool = False) -> Tensor:
    """Round float32 to a narrower float; `saturate` as in ONNX Cast.

    Raises
    ------
    UnsupportedOp
        No vksched op rounds to the type.
    """
    if elem_type not in _FORMATS:
        raise UnsupportedOp(f"no vksched op rounds to {element_name(elem_type)}")
    digits, min_exponent, largest, wraps, saturated = _FORMATS[elem_type]
    rounded = ops.reduce_precision(
        x, digits, min_exponent, largest, saturated if saturate else wraps
    )
    return rounded + 0.0 if elem_type in _WITHOUT_MINUS_ZERO else rounded


def cast(x: Tensor, dtype: str) -> Tensor:
    """Cast like `vs.cast`, but return x itself if it has the dtype."""
    return x if x.dtype == dtype else ops.cast(x, dtype)


def convert(x: Tensor, source: int, target: int, saturate: bool = True) -> Tensor:
    """Convert values between element types, as ONNX Cast does.

    Parameters
    ----------
    saturate
        Values beyond the range of a FLOAT8 become its maximum.

    Raises
    ------
    UnsupportedOp
        No vksched op converts between the types.
    """
    if source == target:
        return x
    if target == T.BOOL:
        return cast(x, BOOL)
    if T.UINT64 in (source, target) and not {source, target} <= INTS | {T.BOOL}:
        raise UnsupportedOp(f"{element_name(source)} to {element_name(target)}")
    if target in NARROW_FLOATS:
        as_float = cast(x, FLOAT32)
        return as_float if source == T.BOOL else round_float(as_float, target, saturate)
    if target in NARROW_INTS:
        as_int = cast(x, INT32)
        return as_int if _within(source, target) else wrap(as_int, target)
    return cast(x, storage(target))


def _within(source: int, target: int) -> bool:
    """Return True if all values of one type are integers in the range of another."""
    if source not in _BITS:
        return source == T.BOOL
    (low, high), (low_limit, high_limit) = limits(source), limits(target)
    return low_limit <= low and high <= high_limit


def is_float(elem_type: int) -> bool:
    """Return True if the storage of an element type is a float."""
    return storage(elem_type) in FLOATS

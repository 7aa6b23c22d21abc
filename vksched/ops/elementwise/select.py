"""Casts, clip, where and addcmul."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...common.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    INT32,
    UINT32,
    NDArray,
    TensorType,
    as_int,
    broadcast_shapes,
    canonical_dtype,
    numpy_dtype,
)
from ...common.errors import DTypeError, ShapeError, UnsupportedOp
from ...ir.attr_domains import Flag, Float, Int, Nullable, Optional, Value, dtype_of, one_of
from ...ir.attrs import Attrs, AttrValue
from ...ir.cpu_kernel import CpuKernel, cut_elements, in_pieces
from ...ir.native_program import NativeProgram
from ...ir.op import OUTPUT, Call, Dispatch, InPlace, Kernel, Op, register
from ...ir.tensor import (
    Tensor,
    TensorLike,
    apply,
    as_tensor,
    binary,
    convert,
    register_method,
)
from ..lowering.fused_loop import elementwise_program, instr_of
from ..lowering.strides import MAX_DISPATCHES, broadcast_strides, collapse, pad, peel
from ..lowering.vec4 import both_readings, can_use_vec4, launch_lines, reading
from .pointwise import ALL, NUMBERS, declare_unary, lower_words, number, unary, word

# -- cast --------------------------------------------------------------------------------------

CASTS = tuple((a, b) for a in ALL for b in ALL if a != b)
_CONVERTED = tuple((a, b) for a, b in CASTS if FLOAT32 in (a, b) or (b == BOOL and a != UINT32))
"""Casts that convert; other casts return the word unchanged. uint32 to bool uses int32 to bool."""


def _cast_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    to = attrs.as_str("to")
    if attrs.get("overflow_nan") and (inputs[0].dtype, to) != (FLOAT32, FLOAT16):
        raise DTypeError(
            f"[cast] expected float32 to float16 with overflow_nan, got {inputs[0].dtype} to {to}"
        )
    return TensorType(inputs[0].shape, to)


def _cast_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, to = inputs[0], numpy_dtype(attrs.as_str("to"))
    if attrs.get("overflow_nan"):
        rounded = x.astype(to)
        rounded[np.isinf(rounded)] = np.nan
        return rounded
    if x.dtype.kind != "f" or to.kind not in "iu":
        return x.astype(to)
    wide = x.astype(np.float64) if x.dtype == np.float16 else x
    overflow = 2.0 ** (8 * to.itemsize - (to.kind == "i"))
    if to.kind == "u":
        top = np.where(wide >= overflow, np.iinfo(to).max, np.zeros((), to))
        fits = (wide >= 0) & (wide < overflow)
        return np.where(fits, np.where(fits, wide, 0).astype(to), top).astype(to)
    fits = (wide >= -overflow) & (wide < overflow)  # False for NaN
    return np.where(fits, np.where(fits, wide, 0).astype(to), np.iinfo(to).min).astype(to)


def _cast_view(inputs: tuple[TensorType, ...], attrs: Attrs) -> int | None:
    return 0 if inputs[0].dtype == attrs.as_str("to") else None


def _cast_lower(call: Call) -> tuple[Dispatch, ...]:
    pair = (call.inputs[0].dtype, call.output.dtype)
    if pair == (UINT32, BOOL):
        pair = (INT32, BOOL)
    return lower_words("_to_".join(pair) if pair in _CONVERTED else "same_word", call)


def _cast_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    if output.dtype not in (FLOAT32, INT32):
        return None
    return elementwise_program(
        inputs, output.shape, (), ((instr_of("cast", inputs, output.dtype), (0,), (0.0, 0.0)),)
    )


_CAST_KERNEL = Kernel(
    both_readings(("unary_same_word", *(f"unary_{a}_to_{b}" for a, b in _CONVERTED))), _cast_lower
)
register(
    Op(
        "cast",
        _cast_infer,
        _cast_reference,
        _CAST_KERNEL,
        attrs={"to": dtype_of(), "overflow_nan": Optional(Flag())},
        operands=(1, 1),
        view=_cast_view,
        any_dtype=True,
        cpu=in_pieces(_cast_reference),
        native_program=_cast_program,
    )
)


def cast(
    x: TensorLike, dtype: object, *, overflow_nan: bool = False, name: str | None = None
) -> Tensor:
    """Convert the element type, as ONNX Cast.

    Floats are truncated to integers. Out-of-range values are equal on all devices: int32 gives
    -2**31, also for NaN; uint32 gives the nearest value, and 0 for NaN. Integers wrap. To bool: x
    != 0. overflow_nan: from float32 to float16, values beyond the range become NaN, not infinity.
    """
    attrs: dict[str, AttrValue] = {"to": canonical_dtype(dtype)}
    if overflow_nan:
        attrs["overflow_nan"] = True
    return apply("cast", (as_tensor(x),), attrs, name)


# -- bits ------------------------------------------------------------------------------------

WORDS = (FLOAT32, INT32, UINT32)
"""Element types with one word per element on all devices, whose bits can be reinterpreted."""


def _bitcast_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    to = attrs.as_str("to")
    if inputs[0].dtype not in WORDS or to not in WORDS:
        raise DTypeError(
            f"[bitcast] expected {', '.join(WORDS)}, got {inputs[0].dtype} and {to}; try vs.cast"
        )
    return TensorType(inputs[0].shape, to)


def _bitcast_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    words = np.ascontiguousarray(inputs[0]).view(numpy_dtype(attrs.as_str("to")))
    return np.asarray(words.reshape(inputs[0].shape))


register(
    Op(
        "bitcast",
        _bitcast_infer,
        _bitcast_reference,
        None,
        attrs={"to": dtype_of()},
        operands=(1, 1),
        view=lambda inputs, attrs: 0,
        any_dtype=True,
    )
)


def bitcast(x: TensorLike, dtype: object, *, name: str | None = None) -> Tensor:
    """Reinterpret the bits as another 32-bit element type, as ONNX BitCast. Returns a view."""
    return apply("bitcast", (as_tensor(x),), {"to": canonical_dtype(dtype)}, name)


# -- reduced precision -----------------------------------------------------------------------

OVERFLOW = ("saturate", "inf", "nan")
"""Modes for values over `max_finite`, in the order of reduce_precision in unary.glsl."""


def _reduce_precision_reference(
    x: NDArray, mantissa_bits: int, min_exponent: int, max_finite: float, overflow: str
) -> NDArray:
    wide = x.astype(np.float64)
    exponent = np.frexp(np.where(np.isfinite(wide), wide, 1))[1] - 1
    step = np.ldexp(1.0, np.maximum(exponent, min_exponent) - mantissa_bits)
    rounded = np.rint(wide / step) * step
    instead = {"saturate": max_finite, "inf": np.inf, "nan": np.nan}[overflow]
    return np.asarray(np.where(abs(rounded) > max_finite, np.copysign(instead, wide), rounded))


def _reduce_precision_words(call: Call) -> tuple[int, ...]:
    attrs = call.attrs
    minimum = attrs.as_int("min_exponent") + _BIAS
    how = (
        attrs.as_int("mantissa_bits")
        | minimum << 8
        | OVERFLOW.index(attrs.as_str("overflow")) << 16
    )
    return how, word(attrs["max_finite"], FLOAT32)


_BIAS, _DIGITS = 127, 23
declare_unary(
    "reduce_precision",
    (FLOAT32,),
    _reduce_precision_reference,
    parameters={
        "mantissa_bits": Int(1, _DIGITS - 1),
        "min_exponent": Int(1 - _BIAS, _BIAS),
        "max_finite": Float(0.0),
        "overflow": one_of(*OVERFLOW),
    },
    words=_reduce_precision_words,
)


def reduce_precision(
    x: TensorLike,
    mantissa_bits: int,
    min_exponent: int,
    max_finite: float,
    overflow: str = "inf",
    *,
    name: str | None = None,
) -> Tensor:
    """Round to the nearest float with fewer mantissa bits, ties to even, as XLA ReducePrecision.

    The result is float32. bfloat16 is reduce_precision(x, 7, -126, 3.3895313892515355e38).

    Parameters
    ----------
    mantissa_bits
        Explicit bits of the mantissa.
    min_exponent
        Exponent of the smallest normal number; the spacing of smaller numbers is constant.
    max_finite
        Largest finite value.
    overflow
        Result for larger values: "saturate" (max_finite), "inf" or "nan".
    """
    op = "reduce_precision"
    bits, minimum = (
        as_int(op, "mantissa_bits", mantissa_bits),
        as_int(op, "min_exponent", min_exponent),
    )
    if not 1 <= bits < _DIGITS or not 1 - _BIAS <= minimum <= _BIAS:
        raise ShapeError(
            f"[{op}] expected 1 to {_DIGITS - 1} mantissa bits and an exponent in "
            f"{1 - _BIAS}..{_BIAS}, got {mantissa_bits} and {min_exponent}"
        )
    if 1 - _BIAS < minimum <= bits - _BIAS:
        raise ShapeError(
            f"[{op}] expected steps that float32 holds, got 2**{minimum - bits}; try a "
            f"min_exponent of {1 - _BIAS}"
        )
    if overflow not in OVERFLOW:
        raise DTypeError(f"[{op}] expected overflow to be one of {OVERFLOW}, got {overflow!r}")
    maximum = number(op, "max_finite", max_finite)
    attrs: dict[str, AttrValue] = {"mantissa_bits": bits, "min_exponent": minimum}
    return unary(op, x, name, **attrs, max_finite=maximum, overflow=overflow)


# -- clip --------------------------------------------------------------------------------------


def _clip_reference(x: NDArray, low: float | None, high: float | None) -> NDArray:
    out = x if low is None else np.maximum(x, x.dtype.type(low))
    return np.asarray(out if high is None else np.minimum(out, x.dtype.type(high)))


def _clip_words(call: Call) -> tuple[int, ...]:
    dtype = call.inputs[0].dtype
    if dtype == FLOAT32:
        minimum, maximum = -math.inf, math.inf
    else:  # bounds of an int64 operand whose values fit 32 bits may exceed 32 bits
        minimum, maximum = np.iinfo(dtype).min, np.iinfo(dtype).max
    low, high = call.attrs["low"], call.attrs["high"]
    ends: list[AttrValue] = [minimum if low is None else low, maximum if high is None else high]
    return tuple(word(min(max(v, minimum), maximum), dtype) for v in ends)  # type: ignore[type-var]


_END = Nullable(Value(has_nan=False))
declare_unary(
    "clip", NUMBERS, _clip_reference, parameters={"low": _END, "high": _END}, words=_clip_words
)


def clip(
    x: TensorLike,
    low: TensorLike | None = None,
    high: TensorLike | None = None,
    *,
    name: str | None = None,
) -> Tensor:
    """Return min(max(x, low), high), as numpy.clip; None disables a bound. NaN propagates.

    Parameters
    ----------
    low, high
        Numbers, or tensors that broadcast with x.
    """
    x = as_tensor(x)
    if any(isinstance(v, (Tensor, np.ndarray, Sequence)) for v in (low, high)):
        above = x if low is None else binary("maximum", x, low, None if high is not None else name)
        return above if high is None else binary("minimum", above, high, name)
    ends: list[AttrValue] = []
    for value in (low, high):
        end = None if value is None else convert("clip", value, x.dtype).item()
        if end != end:
            raise DTypeError("[clip] expected numbers or None as low and high, got NaN")
        ends.append(end)
    return unary("clip", x, name, low=ends[0], high=ends[1])


# -- where and addcmul -------------------------------------------------------------------------

_RANK = 6
"""Maximum axes in 128 bytes of push constants with three operands; outer axes are peeled."""


def _lower_ternary(shader: str, call: Call, scale: float = 0.0) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    shape = call.output.shape
    operand_strides = [broadcast_strides(t.shape, shape) for t in (*call.inputs, call.output)]
    sizes, strides = collapse(shape, operand_strides)
    inner = sizes[:_RANK]
    columns, lines = inner[0], math.prod(inner[1:])
    parts = math.prod(sizes[_RANK:])
    if parts > MAX_DISPATCHES:
        raise UnsupportedOp(
            f"[{shader}] broadcasting {shape} needs {parts} dispatches, over {MAX_DISPATCHES}"
        )
    push = (
        ("columns", columns),
        ("lines", lines),
        ("scale", scale),
        ("sizes", pad(inner[1:], _RANK - 2)),
        ("x_strides", pad(strides[0], _RANK)),
        ("a_strides", pad(strides[1], _RANK)),
        ("b_strides", pad(strides[2], _RANK)),
    )
    groups, constants = launch_lines(columns, lines, can_use_vec4(columns, strides), call.limits)
    constants += (("RANK", len(inner)),)
    constants += tuple(
        (f"{name}_ALONG", min(s[0], 1)) for name, s in zip("XAB", strides, strict=False)
    )
    named = reading(shader, call.limits)
    return tuple(
        Dispatch(named, (0, 1, 2, OUTPUT), groups, push, constants, shifts=shift)
        for shift in peel(sizes, strides, _RANK)
    )


def _where_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    condition, a, b = inputs
    if condition.dtype != BOOL or a.dtype != b.dtype:
        raise DTypeError(
            "[where] expected a bool and two operands of one type, "
            f"got {condition.dtype}, {a.dtype} and {b.dtype}; try vs.cast"
        )
    return TensorType(broadcast_shapes("where", *(t.shape for t in inputs)), a.dtype)


def _where_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return np.asarray(np.where(*inputs))


_WHERE_KERNEL = Kernel(both_readings(("where",)), lambda call: _lower_ternary("where", call))
register(
    Op(
        "where",
        _where_infer,
        _where_reference,
        _WHERE_KERNEL,
        attrs={},
        operands=(3, 3),
        cpu=in_pieces(_where_reference),
        in_place=InPlace(),
    )
)


def where(
    condition: TensorLike, a: TensorLike, b: TensorLike, *, name: str | None = None
) -> Tensor:
    """Return a where the bool condition is True, else b, as numpy.where."""
    if isinstance(condition, bool):
        raise DTypeError(
            f"[where] expected a bool tensor as condition, got {condition}: `==` and `!=` of "
            "tensors compare identity; try vs.equal or vs.not_equal"
        )
    like = next((t for t in (a, b) if isinstance(t, Tensor)), None)
    left, right = as_tensor(a, like=like), as_tensor(b, like=like)
    return apply("where", (as_tensor(condition), left, right), name=name)


def _addcmul_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    if any(t.dtype != FLOAT32 for t in inputs):
        got = ", ".join(t.dtype for t in inputs)
        raise DTypeError(f"[addcmul] expected three operands of float32, got {got}; try vs.cast")
    return TensorType(broadcast_shapes("addcmul", *(t.shape for t in inputs)), FLOAT32)


def _addcmul_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, a, b = inputs
    return np.asarray(x + attrs.as_float("value") * a * b, x.dtype)


def _addcmul_cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    """Compute on broadcast operands; scalar operands need no extra pass."""
    if out.size:
        x, a, b = (v if any(v.strides) else v[(0,) * v.ndim] for v in inputs)
        np.add(x, x.dtype.type(attrs.as_float("value")) * a * b, out=out)


def _addcmul_lower(call: Call) -> tuple[Dispatch, ...]:
    return _lower_ternary("addcmul_float32", call, call.attrs.as_float("value"))


_ADDCMUL_KERNEL = Kernel(both_readings(("addcmul_float32",)), _addcmul_lower)
register(
    Op(
        "addcmul",
        _addcmul_infer,
        _addcmul_reference,
        _ADDCMUL_KERNEL,
        attrs={"value": Float()},
        operands=(3, 3),
        cpu=CpuKernel(_addcmul_cpu, cut_elements),
        in_place=InPlace(),
    )
)


def addcmul(
    x: TensorLike, a: TensorLike, b: TensorLike, value: float = 1.0, *, name: str | None = None
) -> Tensor:
    """Return x + value * a * b in one pass, as torch.addcmul; the operands broadcast."""
    like = next((t for t in (x, a, b) if isinstance(t, Tensor)), None)
    operands = tuple(as_tensor(t, like=like) for t in (x, a, b))
    return apply("addcmul", operands, {"value": number("addcmul", "value", value)}, name)


register_method("cast", cast)

"""Creation ops: values computed on the device, without an upload."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...common.dtypes import (
    BOOL,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOATS,
    INT32,
    UINT32,
    NDArray,
    TensorType,
    as_float,
    as_int,
    as_shape,
    canonical_dtype,
    numpy_dtype,
)
from ...common.errors import DTypeError, ShapeError, UnsupportedOp
from ...ir.attr_domains import Dims, Domains, Int, Value, dtype_of
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, no_u32, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor, convert, one_value
from ...ir.vjp import no_gradient
from ..layout.strided_copy import FILLS, fill_words
from ..lowering.strides import spread
from ..lowering.vec4 import launch_run

Number = bool | int | float
MAX_DIAGONAL = 1 << 30
"""Limit of a diagonal's number, beyond all diagonals of matrices."""


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(float(output.size), float(output.device_bytes))


def _word(op: str, value: AttrValue, dtype: str) -> int:
    """Return the bits of a value as a device stores it; dtype is a 32-bit type or bool."""
    assert isinstance(value, (bool, int, float))
    if dtype == FLOAT32:
        return int(np.float32(value).view(np.uint32))
    low, high = (0, 2**32) if dtype == UINT32 else (-(2**31), 2**31)
    if not low <= value < high:
        raise UnsupportedOp(f"{op} makes values that do not fit {dtype}")
    return int(value) & 0xFFFFFFFF


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    return TensorType(attrs.as_ints("shape"), attrs.as_str("dtype"))


def _dtype(attrs: Attrs) -> np.dtype[np.generic]:
    return numpy_dtype(attrs.as_str("dtype"))


# -- fill and eye ------------------------------------------------------------------------------


def _full_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return np.full(attrs.as_ints("shape"), attrs["value"], _dtype(attrs))


def _eye_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    rows, columns = attrs.as_ints("shape")
    return np.asarray(np.eye(rows, columns, attrs.as_int("diagonal"), _dtype(attrs)))


def _full_lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    word = _word("full", call.attrs["value"], call.output.dtype)
    return (fill_words(OUTPUT, call.output.size, word, call.limits),)


def _eye_lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    push = (
        ("count", call.output.size),
        ("value", _word("eye", 1, call.output.dtype)),
        ("columns", call.output.shape[1]),
        ("diagonal", call.attrs.as_int("diagonal")),
    )
    return (Dispatch("eye", (OUTPUT,), spread(call.output.size, call.limits), push),)


def _full_words(call: Call) -> Call:
    """Return the call for a float16 result as packed words; an odd last value has its own word."""
    half = int(np.float16(call.attrs.as_float("value")).view(np.uint16))
    word = int(np.uint32(half << 16 | half).view(np.int32))
    type_ = TensorType((call.output.words,), INT32)
    attrs = Attrs({**call.attrs, "value": word})
    return replace(call, inputs=(), output=type_, attrs=attrs)


# -- arange and linspace -----------------------------------------------------------------------


def _ramp(attrs: Attrs) -> tuple[int, int]:
    """Return the number of values, and the first value that is computed from the end."""
    count = attrs.as_ints("shape")[0]
    return count, (count + 1) // 2 if "stop" in attrs else count


def _ramp_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Return start + i * step, from the middle on stop - i * step, in the result's arithmetic."""
    dtype = _dtype(attrs)
    wide = np.dtype(np.float32) if dtype == np.float16 else dtype
    count, middle = _ramp(attrs)
    names = ("start", "step", "stop") if "stop" in attrs else ("start", "step", "start")
    start, step, stop = (np.asarray(attrs[n]).astype(wide) for n in names)
    with np.errstate(all="ignore"):
        rising = start + np.arange(middle).astype(wide) * step
        falling = stop - np.arange(count - middle)[::-1].astype(wide) * step
    return np.concatenate([rising, falling]).astype(dtype)


def _ramp_lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    count, middle = _ramp(call.attrs)
    dtype = call.output.dtype
    if dtype == INT32:
        _word("arange", call.attrs.as_int("start") + (count - 1) * call.attrs.as_int("step"), dtype)
    words = [
        (n, _word("arange", call.attrs[n] if n in call.attrs else 0, dtype))
        for n in ("start", "step", "stop")
    ]
    push = (("count", count), ("middle", middle), *words)
    shader = "iota_float32" if dtype == FLOAT32 else "iota_int32"
    groups, constants = launch_run(count, call.limits)
    return (Dispatch(shader, (OUTPUT,), groups, push, constants),)


def _register(
    op: str,
    reference: Callable[[tuple[NDArray, ...], Attrs], NDArray],
    shaders: tuple[str, ...],
    lower: Callable[[Call], tuple[Dispatch, ...]],
    attrs: Domains,
    words: Callable[[Call], Call | None] = no_u32,
) -> None:
    kernel = Kernel(shaders, lower, as_u32=words)
    register(
        Op(
            op,
            _infer,
            reference,
            kernel,
            attrs=attrs,
            operands=(0, 0),
            work=_work,
            any_dtype=True,
        )
    )


_register(
    *("full", _full_reference, FILLS, _full_lower),
    {"shape": Dims(), "value": Value(), "dtype": dtype_of()},
    _full_words,
)
_register(
    *("eye", _eye_reference, ("eye",), _eye_lower),
    {"shape": Dims(2), "diagonal": Int(-MAX_DIAGONAL, MAX_DIAGONAL), "dtype": dtype_of()},
)
_RAMP: Domains = {"shape": Dims(1), "start": Value(), "step": Value()}
_register(
    *("arange", _ramp_reference, ("iota_float32", "iota_int32"), _ramp_lower),
    {**_RAMP, "dtype": dtype_of(*(each for each in DTYPES if each != BOOL))},
)
_register(
    *("linspace", _ramp_reference, ("iota_float32",), _ramp_lower),
    {**_RAMP, "stop": Value(), "dtype": dtype_of(*FLOATS)},
)
no_gradient("has no operands", "full", "eye", "arange", "linspace")


# -- builders ----------------------------------------------------------------------------------


def full(
    shape: int | Sequence[int], value: Number, dtype: object = None, *, name: str | None = None
) -> Tensor:
    """Return a tensor filled with a value, as numpy.full.

    The default dtype is bool, int32 or float32.
    """
    if dtype is None:
        dtype = BOOL if isinstance(value, (bool, np.bool_)) else _number_dtype(value)
    known = canonical_dtype(dtype)
    exact = one_value("full", value, known)
    attrs = {"shape": as_shape(shape), "value": exact.item(), "dtype": known}
    return apply("full", (), attrs, name)


def _number_dtype(*values: Number) -> str:
    return INT32 if all(isinstance(v, (int, np.integer)) for v in values) else FLOAT32


def zeros(
    shape: int | Sequence[int], dtype: object = FLOAT32, *, name: str | None = None
) -> Tensor:
    """Return a tensor of 0 or False, as numpy.zeros."""
    return _filled(shape, 0, dtype, name)


def ones(shape: int | Sequence[int], dtype: object = FLOAT32, *, name: str | None = None) -> Tensor:
    """Return a tensor of 1 or True, as numpy.ones."""
    return _filled(shape, 1, dtype, name)


def _filled(
    shape: int | Sequence[int], value: int, dtype: object, name: str | None = None
) -> Tensor:
    known = canonical_dtype(dtype)
    return full(shape, bool(value) if known == BOOL else value, known, name=name)


def zeros_like(x: TensorLike, dtype: object = None, *, name: str | None = None) -> Tensor:
    """Return zeros in the shape of x, by default in its dtype, as numpy.zeros_like."""
    x = as_tensor(x)
    return _filled(x.shape, 0, dtype or x.dtype, name)


def ones_like(x: TensorLike, dtype: object = None, *, name: str | None = None) -> Tensor:
    """Return ones in the shape of x, by default in its dtype, as numpy.ones_like."""
    x = as_tensor(x)
    return _filled(x.shape, 1, dtype or x.dtype, name)


def full_like(
    x: TensorLike, value: Number, dtype: object = None, *, name: str | None = None
) -> Tensor:
    """Return a value in the shape of x, by default in its dtype, as numpy.full_like."""
    x = as_tensor(x)
    return full(x.shape, value, dtype or x.dtype, name=name)


def eye(
    rows: int,
    columns: int | None = None,
    k: int = 0,
    dtype: object = FLOAT32,
    *,
    name: str | None = None,
) -> Tensor:
    """Return ones on diagonal number k, above the main diagonal if positive, as numpy.eye."""
    shape = as_shape((rows, rows if columns is None else columns))
    diagonal = as_int("eye", "k", k)
    attrs: dict[str, AttrValue] = {
        "shape": shape,
        "diagonal": max(-MAX_DIAGONAL, min(MAX_DIAGONAL, diagonal)),
        "dtype": canonical_dtype(dtype),
    }
    return apply("eye", (), attrs, name)


def arange(
    start: Number,
    stop: Number | None = None,
    step: Number = 1,
    dtype: object = None,
    *,
    name: str | None = None,
) -> Tensor:
    """Return start, start + step, ... below stop, as numpy.arange; a single number is the stop.

    The default dtype is int32 if all numbers are integers, else float32.
    """
    first, last = (0, start) if stop is None else (start, stop)
    for what, value in (("start", first), ("stop", last), ("step", step)):
        as_float("arange", what, value)
    known = _number_dtype(first, last, step) if dtype is None else canonical_dtype(dtype)
    if known == BOOL:
        raise DTypeError("[arange] expected a dtype of numbers, got bool")
    if step == 0:
        raise ShapeError(f"[arange] expected a step other than 0, got {step}")
    whole = all(isinstance(v, (int, np.integer)) for v in (first, last, step))
    count = -((first - last) // step) if whole else math.ceil((last - first) / step)
    attrs: dict[str, AttrValue] = {
        "shape": (max(0, int(count)),),
        "start": _exact("arange", first, known),
        "step": _exact("arange", step, known),
        "dtype": known,
    }
    return apply("arange", (), attrs, name)


def _exact(op: str, value: Number, dtype: str) -> AttrValue:
    """Return a number rounded to the dtype; steps of float16 are rounded to float32."""
    number: AttrValue = convert(op, value, FLOAT32 if dtype == FLOAT16 else dtype).item()
    return number


def linspace(
    start: float,
    stop: float,
    count: int = 50,
    endpoint: bool = True,
    dtype: object = FLOAT32,
    *,
    name: str | None = None,
) -> Tensor:
    """Return `count` evenly spaced values with exact ends, as numpy.linspace."""
    known = canonical_dtype(dtype)
    if known not in FLOATS:
        raise DTypeError(f"[linspace] expected a float dtype, got {known}; try vs.cast")
    number = as_int("linspace", "count", count)
    if number < 0:
        raise ShapeError(f"[linspace] expected 0 or more values, got {number}")
    first, end = as_float("linspace", "start", start), as_float("linspace", "stop", stop)
    gaps = number - 1 if endpoint else number
    step = (end - first) / gaps if gaps > 0 else 0.0
    last = end if endpoint and number > 1 else first + max(0, number - 1) * step
    attrs = {
        "shape": (number,),
        "start": _exact("linspace", first, known),
        "step": _exact("linspace", step, known),
        "stop": _exact("linspace", last, known),
        "dtype": known,
    }
    return apply("linspace", (), attrs, name)

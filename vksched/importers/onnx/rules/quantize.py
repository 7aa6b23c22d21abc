"""Rules for QuantizeLinear and DequantizeLinear. Integers are stored as int32; their arithmetic is
exact.

x = (q - zero point) * scale        q = saturate(round(x / scale) + zero point)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from onnx import TensorProto

from .... import ops
from ....common.dtypes import FLOAT32, INT32, NDArray, Shape
from ....ir.graph import INLINE_BYTES
from ....ir.tensor import Tensor, constant
from ..nodes.elements import NARROW_FLOATS, NARROW_INTS, element_name, storage, to_storage
from ..nodes.node import NodeContext
from ..nodes.schemas import MICROSOFT
from ..nodes.values import Value
from .narrow_types import NUMBERS, cast, convert, fit, limits
from .registry import rule

T = TensorProto
Rounded = TypeVar("Rounded", Tensor, NDArray)

# -- scales and zero points --------------------------------------------------------------------


def shaped(value: Rounded, shape: Shape) -> Rounded:
    """Reshape a scale or zero point for broadcasting; a single element becomes a scalar."""
    wanted = () if value.shape in ((), (1,)) else shape
    return value if value.shape == wanted else value.reshape(wanted)


def parameter(
    n: NodeContext, index: int, dtype: str, place: Callable[[Any], Any] | None = None
) -> Tensor:
    """Return a scale or zero point in an element type, reshaped by `place`; known values add no
    nodes.
    """
    put = place or (lambda value: shaped(value, value.shape))
    array = n.value(index).array
    if array is None or array.nbytes > INLINE_BYTES:
        result: Tensor = put(n.tensor(index))
        return cast(result, dtype)
    return constant(put(to_storage(array)).astype(dtype))


def is_zero(n: NodeContext, index: int) -> bool:
    """Return True if a zero point is omitted or known to be 0."""
    array = n.value(index).array if n.has(index) else np.zeros(())
    return array is not None and not array.astype(np.float32).any()


def centred(
    n: NodeContext, index: int, zero: int, place: Callable[[Any], Any] | None = None
) -> Tensor:
    """Return an integer operand minus its zero point."""
    x = n.tensor(index)
    if is_zero(n, zero):
        return x
    shift = parameter(n, zero, x.dtype, place)
    result = widened(x, shift, None)
    return x - shift if result is None else result


def widened(x: Tensor, zero: Tensor | None, scale: Tensor | None) -> Tensor | None:
    """Return (x - zero) * scale fused into the dequantization of a weight.

    Return None if x is not a dequantized weight, or has not one zero point and scale per position
    along an axis.
    """
    if x.op != "dequantize_linear" or len(x.inputs) > 1:
        return None
    operands = [part for part in (scale, zero) if part is not None]
    sizes = [
        {x.rank - part.rank + a: s for a, s in enumerate(part.shape) if s > 1} for part in operands
    ]
    axes = {axis for along in sizes for axis in along}
    if len(axes) > 1 or any(x.shape[a] != s for along in sizes for a, s in along.items()):
        return None
    axis = max(axes, default=0)
    lines = (None if part is None else flat(part) for part in (scale, zero))
    return ops.dequantize_linear(x.inputs[0], *lines, axis=axis)


def flat(part: Tensor) -> Tensor:
    """Return a scale or zero point as a scalar or a vector."""
    shape = () if part.size == 1 else (part.size,)
    if part.data is not None and part.op == "constant":
        return constant(part.data.reshape(shape))
    return part.reshape(shape)


def real(
    n: NodeContext, index: int, zero: int, scale: Tensor, place: Callable[[Any], Any] | None = None
) -> Tensor:
    """Return a dequantized operand. Narrow integers, which float32 represents exactly, are computed
    in float32 throughout.
    """
    if n.elem_type(index) not in NARROW_INTS or n.tensor(index).op == "dequantize_linear":
        return cast(centred(n, index, zero, place), FLOAT32) * scale
    whole, shift = cast(n.tensor(index), FLOAT32), zero_of(n, zero, place)
    return (whole if shift is None else whole - shift) * scale


def zero_of(n: NodeContext, index: int, place: Callable[[Any], Any] | None = None) -> Tensor | None:
    """Return the zero point of a result as float32, or None if it is 0."""
    return None if is_zero(n, index) else parameter(n, index, FLOAT32, place)


def factor(n: NodeContext, first: int, second: int, target: int | None, *shapes: Shape) -> Tensor:
    """Return the product of two scales, divided by that of the result, as float32.

    The product is computed in the type of the scales.

    Parameters
    ----------
    shapes
        Broadcast shapes of the first two scales.
    """
    indices = [first, second] if target is None else [first, second, target]
    wanted = [*shapes, ()]
    arrays = [n.value(i).array for i in indices]
    if all(a is not None for a in arrays):
        parts = [shaped(a, s) for a, s in zip(arrays, wanted, strict=False) if a is not None]
        result = parts[0] * parts[1]
        return constant(np.asarray(result if target is None else result / parts[2], np.float32))
    elem_type = n.elem_type(first)
    operands = [shaped(n.tensor(i), s) for i, s in zip(indices, wanted, strict=False)]
    found = fit(operands[0] * operands[1], elem_type)
    if target is not None:
        found = fit(found / operands[2], elem_type)
    return cast(found, FLOAT32)


def quantized(x: Tensor, scale: Tensor, zero: Tensor, elem_type: int, axis: int = 0) -> Value:
    """Return round(x / scale) + zero, saturated to an integer type.

    Parameters
    ----------
    axis
        Axis of scales and zero points if there are several.
    """
    low, high = limits(elem_type)
    result = ops.quantize_linear(x, flat(scale), flat(zero), low=low, high=high, axis=axis)
    return Value(elem_type, tensor=result)


def saturated(x: Tensor, zero: Tensor | None, elem_type: int) -> Value:
    """Return round(x) + zero, saturated to an integer type."""
    low, high = limits(elem_type)
    whole = ops.round(x) if zero is None else ops.round(x) + zero
    return Value(elem_type, tensor=cast(ops.clip(whole, low, high), INT32))


# -- quantize and dequantize -------------------------------------------------------------------


def _along(n: NodeContext) -> Callable[[Any], Any]:
    """Return a function that reshapes a scale or zero point to broadcast with operand 0.

    There is one value per position along an axis, or per block of positions.
    """
    shape, axis, block = n.shape(0), n.attr("axis", 1), n.attr("block_size", 0)

    def place(value: Any) -> Any:
        rank = len(value.shape)
        if block and rank == len(shape):
            at = axis % rank
            array = isinstance(value, np.ndarray)
            times = min(block, shape[at]) if array else block
            each = np.repeat(value, times, at) if array else ops.repeat(value, times, at)
            cut = (*[slice(None)] * at, slice(shape[at]))
            return each if each.shape == shape else each[cut]
        if math.prod(value.shape) == 1:
            return value.reshape(()) if rank else value
        n.require(rank == 1 and -len(shape) <= axis < len(shape), "scales of another shape")
        wanted = [1] * len(shape)
        wanted[axis] = value.shape[0]
        return value.reshape(tuple(wanted))

    return place


@rule("QuantizeLinear", types=NUMBERS)
@rule("QuantizeLinear", types=NUMBERS, domain=MICROSOFT)
def quantize_linear(n: NodeContext) -> Value:
    """The division uses the type of the scales, unless `precision` specifies another."""
    target = n.elem_type(2) if n.has(2) else n.attr("output_dtype") or T.UINT8
    precision, place = n.attr("precision") or n.elem_type(1), _along(n)
    x = convert(n.tensor(0), n.elem_type(0), precision)
    scale = parameter(n, 1, storage(n.elem_type(1)), place)
    plain = {n.elem_type(0), n.elem_type(1), precision} == {T.FLOAT} and not n.attr("block_size", 0)
    if plain and target in NARROW_INTS:
        own = constant(np.int32(0)) if is_zero(n, 2) else parameter(n, 2, INT32, place)
        axis = n.attr("axis", 1) % x.rank if max(scale.size, own.size) > 1 else 0
        return quantized(x, scale, own, target, axis)
    quotient = fit(x / convert(scale, n.elem_type(1), precision), precision)
    scaled, zero = cast(quotient, FLOAT32), zero_of(n, 2, place)
    if target in NARROW_FLOATS:
        result = scaled if zero is None else scaled + zero
        saturate = bool(n.attr("saturate", 1))
        return Value(target, tensor=convert(result, T.FLOAT, target, saturate))
    n.require(target in NARROW_INTS, f"{element_name(target)} as a result")
    return saturated(scaled, zero, target)


@rule("DequantizeLinear", types=NUMBERS)
@rule("DequantizeLinear", types=NUMBERS, domain=MICROSOFT)
def dequantize_linear(n: NodeContext) -> Value:
    target, place = n.attr("output_dtype") or n.elem_type(1), _along(n)
    scale = parameter(n, 1, FLOAT32, place)
    zero = None if is_zero(n, 2) else parameter(n, 2, INT32, place)
    scaled = widened(n.tensor(0), zero, scale)
    if scaled is None:
        scaled = real(n, 0, 2, scale, place)
    return Value(target, tensor=convert(scaled, T.FLOAT, target))


def quantize_dynamically(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize float32 to uint8 by its minimum and maximum; return values, scale and zero point."""
    lowest = ops.minimum(ops.reduce_min(x), 0.0)
    span = ops.maximum(ops.reduce_max(x), 0.0) - lowest
    scale = ops.where(span > 0, span / 255.0, 1.0)
    zero = ops.cast(ops.round(ops.clip(-lowest / scale, 0, 255)), INT32)
    return ops.quantize_linear(x, scale, zero), scale, zero


@rule("DynamicQuantizeLinear")
def dynamic_quantize_linear(n: NodeContext) -> list[Value]:
    types = (T.UINT8, T.FLOAT, T.UINT8)
    result = quantize_dynamically(n.tensor(0))
    return [Value(e, tensor=t) for e, t in zip(types, result, strict=True)]

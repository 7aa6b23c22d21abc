"""Quantization of values, or of int32 accumulators, with a scale and a zero point.

    quantize_linear   clip(round(x / scale) + zero)             x float32
    requantize        clip(round((x + bias) * scale) + zero)    x int32

Scale, zero point and bias are scalars, or have one value per position along an axis. Ties round to
even; NaN gives the minimum. Other ops express dequantization.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...common.dtypes import FLOAT32, INT32, NDArray, TensorType, normalize_axis
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Axis, Domains, Int
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece, rows_of_piece
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, register
from ...ir.sharding_rule import REPLICATE, Factor, Sharded, sharding
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...ir.vjp import no_gradient
from ..lowering import native_kernels
from ..lowering.strides import spread

LARGEST = 1 << 16
"""Maximum magnitude of quantized values, which float32 rounds exactly."""
SHADERS = {"quantize_linear": "quantize_linear", "requantize": "requantize"}
_TYPES = {"quantize_linear": (FLOAT32, FLOAT32, INT32), "requantize": (INT32, FLOAT32, INT32)}
"""Element types of the operands of each op."""


def _inner(shape: tuple[int, ...], attrs: Attrs) -> int:
    """Return the number of adjacent elements of one channel."""
    return math.prod(shape[attrs.as_int("axis") + 1 :])


def _check(op: str, inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    if tuple(t.dtype for t in inputs) != _TYPES[op]:
        raise DTypeError(
            f"[{op}] expected operands of {', '.join(_TYPES[op])}, got "
            f"{', '.join(t.dtype for t in inputs)}; try vs.cast"
        )
    x, axis = inputs[0], attrs.as_int("axis")
    for part in inputs[1:]:
        if part.size != 1 and (part.rank != 1 or not x.rank or part.size != x.shape[axis]):
            raise ShapeError(
                f"[{op}] expected one value for all, or one for each position along axis {axis} of "
                f"{x.shape}, got {part.shape}"
            )
    low, high = attrs.as_int("low"), attrs.as_int("high")
    if low > high:
        raise ShapeError(f"[{op}] expected a low and a high that is no less, got {low} .. {high}")
    return x.as_dtype(INT32)


def _placed(inputs: tuple[NDArray, ...], attrs: Attrs) -> tuple[NDArray, ...]:
    """Return the operands shaped for broadcasting."""
    x, *rest = inputs
    shape = [1] * x.ndim
    if x.ndim:
        shape[attrs.as_int("axis")] = -1
    return (x, *(part.reshape(shape) if part.size != 1 else part.reshape(()) for part in rest))


def _clipped(scaled: NDArray, zero: NDArray, attrs: Attrs) -> NDArray:
    low, high = attrs.as_int("low"), attrs.as_int("high")
    whole = np.clip(np.rint(scaled), np.float32(low) - zero, np.float32(high) - zero)
    return np.where(np.isnan(whole), low, whole + zero).astype(np.int32)


def _quantized(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, scale, zero = _placed(inputs, attrs)
    return _clipped(x / scale, zero.astype(np.float32), attrs)


def _requantized(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, scale, bias = _placed(inputs, attrs)
    zero = np.asarray(attrs.as_int("zero"), np.float32)
    return _clipped((x + bias).astype(np.float32) * scale, zero, attrs)


def _quantize_cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    x, scale, zero = inputs
    limits = attrs.as_int("low"), attrs.as_int("high")
    if not native_kernels.quantize(x, scale, zero, out, limits, _inner(x.shape, attrs)):
        out[...] = _quantized(inputs, attrs)


def _requantize_cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    x, scale, bias = inputs
    limits, zero = (attrs.as_int("low"), attrs.as_int("high")), attrs.as_int("zero")
    if not native_kernels.requantize(x, scale, bias, out, zero, limits, _inner(x.shape, attrs)):
        out[...] = _requantized(inputs, attrs)


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split along the first axis, or along the channels if that axis holds them."""
    x, *rest = inputs
    if not x.ndim:
        yield inputs, out
        return
    own = attrs.as_int("axis") == 0
    step = rows_of_piece(len(x), x.size)
    for start in range(0, len(x), step):
        at = slice(start, start + step)
        yield (x[at], *(p[at] if own and p.size > 1 else p for p in rest)), out[at]


def _lower(call: Call) -> tuple[Dispatch, ...]:
    x, scale, other = call.inputs
    if not x.size:
        return ()
    attrs, of_sums = call.attrs, x.dtype == INT32
    push = (
        *(("count", x.size), ("inner", _inner(x.shape, attrs))),
        ("channels", x.shape[attrs.as_int("axis")] if x.rank else 1),
        *(("scale_step", int(scale.size > 1)), ("other_step", int(other.size > 1))),
        *(("low", attrs.as_int("low")), ("high", attrs.as_int("high"))),
        ("zero", attrs.as_int("zero") if of_sums else 0),
    )
    shader = SHADERS["requantize" if of_sums else "quantize_linear"]
    return (Dispatch(shader, (0, 1, 2, OUTPUT), spread(x.size, call.limits), push),)


_CODE = Int(-LARGEST, LARGEST)
_WITH_ZERO: Domains = {"zero": Int()}
for name, reference, cpu, more in (
    ("quantize_linear", _quantized, _quantize_cpu, {}),
    ("requantize", _requantized, _requantize_cpu, _WITH_ZERO),
):
    register(
        Op(
            name,
            lambda inputs, attrs, op=name: _check(op, inputs, attrs),  # type: ignore[misc]
            reference,
            Kernel((SHADERS[name],), _lower),
            attrs={**more, "low": _CODE, "high": _CODE, "axis": Axis(of_scalar=True)},
            operands=(3, 3),
            any_dtype=True,
            cpu=CpuKernel(cpu, _cut),
        )
    )
no_gradient("rounds to integers", "quantize_linear", "requantize")


@sharding("quantize_linear", "requantize")
def _sharding(call: Sharded) -> Iterator[Factor]:
    x, *rest = call.inputs
    axis = call.attrs.as_int("axis")
    for along, size in enumerate(x.shape):
        if along > axis or all(p.size == 1 for p in rest):
            yield Factor((along, REPLICATE, REPLICATE), along, size)


def quantize_linear(
    x: Tensor,
    scale: TensorLike,
    zero: TensorLike = 0,
    *,
    low: int = 0,
    high: int = 255,
    axis: int = 0,
    name: str | None = None,
) -> Tensor:
    """Return clip(round(x / scale) + zero, low, high), as ONNX QuantizeLinear.

    Ties round to even, and NaN gives `low`.

    Shapes
    ------
    x
        Any shape; float32.
    scale, zero
        () or, per position along `axis`, (n,); float32 and int32.
    result
        The shape of x; int32.
    """
    whole = zero if isinstance(zero, Tensor) else as_tensor(np.asarray(zero, np.int32))
    operands = x, as_tensor(scale, like=x), whole
    attrs = {
        "low": low,
        "high": high,
        "axis": normalize_axis("quantize_linear", axis, max(x.rank, 1)),
    }
    return apply("quantize_linear", operands, attrs, name)


def requantize(
    x: Tensor,
    scale: Tensor,
    bias: TensorLike = 0,
    *,
    zero: int = 0,
    low: int = 0,
    high: int = 255,
    axis: int = 0,
    name: str | None = None,
) -> Tensor:
    """Return clip(round((x + bias) * scale) + zero, low, high), as ONNX QLinearConv.

    Shapes
    ------
    x
        Any shape; int32 accumulators.
    scale, bias
        () or, per position along `axis`, (n,); float32 and int32.
    result
        The shape of x; int32.
    """
    at = normalize_axis("requantize", axis, max(x.rank, 1))
    attrs = {"zero": zero, "low": low, "high": high, "axis": at}
    return apply("requantize", (x, scale, as_tensor(bias, like=x)), attrs, name)

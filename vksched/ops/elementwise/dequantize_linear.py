"""Dequantization of weights of 8 and 16 bits, which are stored unchanged (dtypes.NARROW).

    weight int8, 1 byte an element -> dequantize_linear -> 4 bytes an element, for one run -> any op

One pass converts quantized weights to integers or to the floats that they represent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...common.dtypes import (
    FLOAT32,
    INT32,
    NARROW,
    NDArray,
    TensorType,
    normalize_axis,
    numpy_dtype,
)
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Axis
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece, cut_leading
from ...ir.op import (
    OUTPUT,
    VIEW_ALIGN_WORDS,
    Call,
    Dispatch,
    Kernel,
    Op,
    register,
)
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...ir.vjp import VjpContext, VjpResult, gradient, sum_to
from ..lowering.vec4 import both_readings, launch_run, reading
from .select import cast

EXACT = 1 << 23
"""Maximum magnitude of zero points for which 16-bit differences are exact in float32."""


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, *rest = inputs
    if x.dtype not in NARROW:
        raise DTypeError(f"[dequantize_linear] expected one of {', '.join(NARROW)}, got {x.dtype}")
    dtypes = [t.dtype for t in rest]
    if dtypes not in ([], [INT32], [FLOAT32], [INT32, FLOAT32]):
        raise DTypeError(
            "[dequantize_linear] expected a zero point of int32, then a scale of float32, got "
            f"{' and '.join(dtypes)}; try vs.cast"
        )
    axis = attrs.as_int("axis")
    for part in rest:
        if part.size != 1 and (part.rank != 1 or not x.rank or part.size != x.shape[axis]):
            raise ShapeError(
                f"[dequantize_linear] expected one scale or zero point, or one for each position "
                f"along axis {axis} of {x.shape}, got {part.shape}"
            )
    return TensorType(x.shape, FLOAT32 if FLOAT32 in dtypes else INT32)


def _parts(
    inputs: tuple[NDArray, ...], attrs: Attrs
) -> tuple[NDArray, NDArray | None, NDArray | None]:
    """Return x, the zero point and the scale, shaped for broadcasting."""
    x, *rest = inputs
    zero = scale = None
    for part in rest:
        if part.size == 1:
            part = part.reshape((1,) * x.ndim)
        elif part.ndim == 1:  # else it is a piece, which was reshaped before
            shape = [1] * x.ndim
            shape[attrs.as_int("axis")] = part.size
            part = part.reshape(shape)
        if part.dtype == np.float32:
            scale = part
        else:
            zero = part
    return x, zero, scale


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, zero, scale = _parts(inputs, attrs)
    wide = x.astype(np.int32)
    if zero is not None:
        wide = wide - zero
    return wide if scale is None else wide.astype(np.float32) * scale


def _cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    """Skip the int32 intermediate if float32 is exact."""
    x, zero, scale = _parts(inputs, attrs)
    if zero is None:
        if scale is None:
            np.copyto(out, x)
        else:
            np.multiply(x, scale, out=out, dtype=np.float32)
    elif scale is None:
        np.subtract(x, zero, out=out, dtype=np.int32)
    elif np.abs(zero.astype(np.int64)).max(initial=0) <= EXACT:
        np.subtract(x, zero.astype(np.float32), out=out, dtype=np.float32)
        out *= scale
    else:
        out[...] = _reference(inputs, attrs)


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split along the axes before the channels, the channels, and the axes after them."""
    x, *rest = inputs
    axis = attrs.as_int("axis")
    shape = (math.prod(x.shape[:axis]), *x.shape[axis : axis + 1], math.prod(x.shape[axis + 1 :]))
    if len(shape) < 3:
        yield inputs, out
        return
    placed = (p.reshape(1, -1, 1) for p in rest)
    parts = tuple(np.broadcast_to(p, shape) for p in (x.reshape(shape), *placed))
    yield from cut_leading(parts, out.reshape(shape), 3)


def _lower(call: Call) -> tuple[Dispatch, ...]:
    x, *rest = call.inputs
    if not x.size:
        return ()
    operand = {t.dtype: number for number, t in enumerate(rest, start=1)}
    step = {t.dtype: int(t.size > 1) for t in rest}
    axis = call.attrs.as_int("axis")
    numbers, inner = numpy_dtype(x.dtype), math.prod(x.shape[axis + 1 :])
    per_vec4 = 2 if inner % VIEW_ALIGN_WORDS else 1
    push = (
        ("count", x.size),
        ("inner", inner),
        ("channels", x.shape[axis] if x.rank else 1),
        ("zero_step", step.get(INT32, 0)),
        ("scale_step", step.get(FLOAT32, 0)),
    )
    groups, local = launch_run(-(-x.size // 4), call.limits)
    constants = (
        *local,
        ("BITS", 8 * numbers.itemsize),
        ("SIGNED", int(numbers.kind == "i")),
        ("SHIFTED", int(INT32 in operand)),
        ("SCALED", int(FLOAT32 in operand)),
        ("CHANNELS", per_vec4 if any(step.values()) else 0),
    )
    # bind x in place of absent operands, which are not read
    operands = (0, operand.get(INT32, 0), operand.get(FLOAT32, 0), OUTPUT)
    return (Dispatch(reading("dequantize_linear", call.limits), operands, groups, push, constants),)


register(
    Op(
        "dequantize_linear",
        _infer,
        _reference,
        Kernel(both_readings(("dequantize_linear",)), _lower),
        attrs={"axis": Axis(of_scalar=True)},
        operands=(1, 3),
        any_dtype=True,
        accepts_int8_weights=True,
        is_dequantize=True,
        cpu=CpuKernel(_cpu, _cut),
    )
)


@gradient("dequantize_linear")
def _gradient(call: VjpContext) -> VjpResult:
    """Return the gradient of the scale only: weights and zero points are integers."""
    (x, *rest), axis = call.inputs, call.attrs.as_int("axis")
    scale = rest[-1]
    whole = cast(apply("dequantize_linear", call.inputs[:-1], {"axis": axis}), FLOAT32)
    along = tuple(n if a == axis and scale.size > 1 else 1 for a, n in enumerate(x.shape))
    of_scale = sum_to(call.grad * whole, along).reshape(scale.shape)
    return (*(None for _ in call.inputs[:-1]), of_scale)


def dequantize_linear(
    x: Tensor,
    scale: TensorLike | None = None,
    zero: TensorLike | None = None,
    *,
    axis: int = 0,
    name: str | None = None,
) -> Tensor:
    """Convert a weight of 8 or 16 bits to int32, or to the floats (x - zero) * scale, as ONNX
    DequantizeLinear. The weight itself is stored unchanged on every device.

    Shapes
    ------
    x
        Any shape; int8, uint8, int16 or uint16.
    scale, zero
        () or, per position along `axis`, (n,); float32 and int32.
    result
        The shape of x; float32 with a scale, else int32.
    """
    operands = []
    for what, part, dtype in (("zero", zero, INT32), ("scale", scale, FLOAT32)):
        if part is not None:
            operands.append(as_tensor(part))
            if operands[-1].dtype != dtype:
                raise DTypeError(
                    f"[dequantize_linear] expected a {what} of {dtype}, got {operands[-1].dtype}; "
                    "try vs.cast"
                )
    at = normalize_axis("dequantize_linear", axis, max(x.rank, 1))  # scalars have no axis
    return apply("dequantize_linear", (x, *operands), {"axis": at}, name)

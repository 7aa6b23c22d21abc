"""Rotary position embeddings (RoPE)."""

from __future__ import annotations

import math

import numpy as np

from ...common.dtypes import FLOAT32, NDArray, TensorType, as_float, as_int, check_constant_size
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Flag, Int
from ...ir.attrs import Attrs, AttrValue
from ...ir.cpu_kernel import CpuKernel
from ...ir.native_program import NativeProgram, one_loop
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor, constant
from ...ir.vjp import VjpContext, VjpResult, gradient
from ..elementwise.unary import neg
from ..layout.reshape import slice_
from ..lowering.strides import spread
from ..reduction.reduce import reduce_sum


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, rotary_dim = inputs[0], attrs.as_int("rotary_dim")
    half = rotary_dim // 2
    if any(t.dtype != FLOAT32 for t in inputs):
        got = " and ".join(t.dtype for t in inputs)
        raise DTypeError(f"[rotary_embedding] expected float32, got {got}; try vs.cast")
    if x.rank != 4:
        raise ShapeError(
            f"[rotary_embedding] expected x (batch, heads, length, depth), got {x.shape}"
        )
    if rotary_dim > x.shape[3] or rotary_dim % 2:
        raise ShapeError(
            f"[rotary_embedding] expected an even rotary_dim in 0..{x.shape[3]}, got {rotary_dim}"
        )
    wanted = ((x.shape[2], half), (x.shape[0], x.shape[2], half))
    for cache in inputs[1:]:
        if cache.shape not in wanted:
            raise ShapeError(
                f"[rotary_embedding] expected cos and sin of shape {wanted[0]} or {wanted[1]}, "
                f"got {cache.shape}"
            )
    return x


def _pairs(attrs: Attrs) -> tuple[slice, slice]:
    """Return the slices of the first and the second elements of all pairs."""
    rotated = attrs.as_int("rotary_dim")
    if attrs.as_bool("interleaved"):
        return slice(0, rotated, 2), slice(1, rotated, 2)
    return slice(rotated // 2), slice(rotated // 2, rotated)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, (first, second) = inputs[0], _pairs(attrs)
    cos, sin = (c if c.ndim == 2 else c[:, None] for c in inputs[1:])
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return np.asarray(out)


def _cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    """Compute the rotation in the memory of the result."""
    x, rotated, (first, second) = inputs[0], attrs.as_int("rotary_dim"), _pairs(attrs)
    cos, sin = [c if c.ndim == 2 else c[:, None] for c in inputs[1:]]
    a, b, to_a, to_b = x[..., first], x[..., second], out[..., first], out[..., second]
    np.multiply(a, cos, out=to_a)
    to_a -= b * sin
    np.multiply(a, sin, out=to_b)
    to_b += b * cos
    if rotated < x.shape[3]:
        out[..., rotated:] = x[..., rotated:]


def _native_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    half, interleaved = attrs.as_int("rotary_dim") // 2, int(attrs.as_bool("interleaved"))
    batches = (math.prod(t.shape[1:]) if t.rank == 3 else 0 for t in inputs[1:])
    numbers = (*output.shape, half, interleaved, *batches)
    return one_loop("rotary_embedding", inputs, output, numbers)


def _lower(call: Call) -> tuple[Dispatch, ...]:
    shape, half = call.output.shape, call.attrs.as_int("rotary_dim") // 2
    if call.output.size == 0:
        return ()
    rows = call.output.size // shape[3]
    cos, sin = (t.size // shape[0] if t.rank == 3 else 0 for t in call.inputs[1:])
    push = (
        *(("rows", rows), ("length", shape[2]), ("heads", shape[1]), ("depth", shape[3])),
        *(("rotary_pairs", half), ("cosine_batch", cos), ("sine_batch", sin)),
    )
    groups = spread(rows * (half + (shape[3] - 2 * half + 1) // 2), call.limits)
    constants = (("INTERLEAVED", int(call.attrs.as_bool("interleaved"))),)
    return (Dispatch("rotary_embedding", (0, 1, 2, OUTPUT), groups, push, constants),)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(3.0 * output.size, 2.0 * output.device_bytes)


register(
    Op(
        "rotary_embedding",
        _infer,
        _reference,
        Kernel(("rotary_embedding",), _lower),
        attrs={"interleaved": Flag(), "rotary_dim": Int(0)},
        operands=(3, 3),
        work=_work,
        cpu=CpuKernel(_cpu),
        native_program=_native_program,
    )
)


@gradient("rotary_embedding")
def _gradient(call: VjpContext) -> VjpResult:
    """Return the inverse rotation of the gradient for x, and sums over the heads for cos and sin.

    The latter are summed over the batch too if all examples share them.
    """
    (x, cos, sin), g, rotated = call.inputs, call.grad, call.attrs.as_int("rotary_dim")
    of_x = apply("rotary_embedding", (g, cos, neg(sin)), call.attrs)
    (x1, x2), (g1, g2) = (_pairs_of(t, rotated, call.attrs.as_bool("interleaved")) for t in (x, g))
    of_cos, of_sin = g1 * x1 + g2 * x2, g2 * x1 - g1 * x2
    return (
        of_x,
        *(
            reduce_sum(t, (0, 1) if cache.rank == 2 else 1)
            for t, cache in ((of_cos, cos), (of_sin, sin))
        ),
    )


def _pairs_of(x: Tensor, rotated: int, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Return the first and the second elements of all pairs."""
    if interleaved:
        return slice_(x, 0, rotated, 3, 2), slice_(x, min(1, rotated), rotated, 3, 2)
    return slice_(x, 0, rotated // 2, 3), slice_(x, rotated // 2, rotated, 3)


def rotary_embedding(
    x: TensorLike,
    cos: TensorLike,
    sin: TensorLike,
    *,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Rotate pairs of x by angles that depend on the position, as ONNX RotaryEmbedding.

    Parameters
    ----------
    x : Tensor
        (batch, heads, length, depth).
    cos, sin : Tensor
        (length, rotary_dim / 2), or (batch, length, rotary_dim / 2); see `rotary_cache`. For
        positions other than 0, 1, ... select its rows with `vs.gather`.
    interleaved : bool
        Whether pairs are (2 i, 2 i + 1) instead of (i, i + rotary_dim / 2).
    rotary_dim : int, optional
        Number of rotated elements, by default the whole depth; the others are unchanged.

    Returns
    -------
    Tensor
        The shape of x.
    """
    tensor = as_tensor(x)
    depth = tensor.shape[-1] if tensor.rank else 0
    rotated = depth
    if rotary_dim is not None:
        rotated = as_int("rotary_embedding", "rotary_dim", rotary_dim)
    if not 0 <= rotated <= depth or rotated % 2:
        raise ShapeError(
            f"[rotary_embedding] expected an even rotary_dim in 0..{depth}, got {rotated}"
        )
    attrs: dict[str, AttrValue] = {"interleaved": bool(interleaved), "rotary_dim": rotated}
    caches = [as_tensor(t, like=tensor) for t in (cos, sin)]
    return apply("rotary_embedding", (tensor, *caches), attrs, name)


def rotary_cache(
    length: int, dim: int, base: float = 10000.0, *, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of position * base ** (-2 i / dim): two constants (length, dim / 2)."""
    length, dim = as_int("rotary_cache", "length", length), as_int("rotary_cache", "dim", dim)
    base = as_float("rotary_cache", "base", base)
    if length < 0 or dim < 0 or dim % 2 or base <= 0:
        raise ShapeError(
            "[rotary_cache] expected a length, an even dim and a base over 0, "
            f"got {length}, {dim} and {base}"
        )
    check_constant_size("rotary_cache", max(length * dim, length, dim))
    rates = base ** (-np.arange(0, dim, 2, dtype=np.float64) / max(dim, 1))
    angles = np.arange(length, dtype=np.float64)[:, None] * rates
    return (
        constant(np.cos(angles).astype(np.float32), name and f"{name}.cos"),
        constant(np.sin(angles).astype(np.float32), name and f"{name}.sin"),
    )

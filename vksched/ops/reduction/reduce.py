"""Reductions over axes: sum, mean, product, maximum, minimum, any, all, norms, variance. Their
device launches are in reduce_launch.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...common.dtypes import (
    BOOL,
    FLOAT32,
    INT32,
    UINT32,
    NDArray,
    TensorType,
    normalize_axes,
)
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Axes, Domains, Flag, Float
from ...ir.attrs import Attrs, AttrValue
from ...ir.cpu_kernel import SHARES, CpuKernel, Piece, rows_of_piece
from ...ir.native_program import Loop, NativeProgram, NativeProgramRule
from ...ir.op import Call, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...ir.vjp import VjpContext, VjpResult, gradient
from ..elementwise import log, sqrt
from ..elementwise.fp16 import computed_wide
from ..layout.reshape import expand
from .reduce_launch import reduction


def reduced_shape(x: TensorType, attrs: Attrs) -> tuple[int, ...]:
    """Return the shape of a reduction's result."""
    axes = attrs.as_ints("axes")
    if attrs.as_bool("keepdims"):
        return tuple(1 if a in axes else s for a, s in enumerate(x.shape))
    return tuple(s for a, s in enumerate(x.shape) if a not in axes)


def check_reduced(op: str, x: TensorType, attrs: Attrs, dtypes: tuple[str, ...]) -> None:
    """Raise DTypeError unless the element type is in `dtypes`."""
    if x.dtype not in dtypes:
        raise DTypeError(f"[{op}] expected {' or '.join(dtypes)}, got {x.dtype}; try vs.cast")


def check_has_values(op: str, x: TensorType, attrs: Attrs) -> None:
    """Raise ShapeError if a reduced axis is empty."""
    axes = attrs.as_ints("axes")
    if 0 in (x.shape[a] for a in axes):
        raise ShapeError(f"[{op}] expected values along axes {axes}, got none in {x.shape}")


def reduce_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    """Return the work of one operation per element, with each element read once."""
    return Work(float(inputs[0].size), float(inputs[0].device_bytes + output.device_bytes))


# -- numpy -------------------------------------------------------------------------------------

Along = tuple[int, ...]
Compute = Callable[[NDArray, Along, Attrs], NDArray]
"""(x, axes, attrs) -> the reduced array, with reduced axes of size 1."""


def wide(x: NDArray) -> NDArray:
    """Convert float32 to float64 to round the result once; return other arrays unchanged."""
    return x.astype(np.float64) if x.dtype == np.float32 else x


def _count(x: NDArray, axes: Along) -> int:
    return math.prod(x.shape[a] for a in axes)


def _by(ufunc: np.ufunc) -> Compute:
    """Return the reduction by a ufunc; sums and products of floats are rounded once."""

    def compute(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
        w = wide(x) if ufunc in (np.add, np.multiply) else x
        return np.asarray(ufunc.reduce(w, axis=axes, keepdims=True, dtype=w.dtype))

    return compute


_sum = _by(np.add)


def _mean(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
    return np.asarray(_sum(x, axes, attrs) / np.float64(_count(x, axes)))


def _l1(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
    return _sum(np.abs(wide(x)), axes, attrs)


def _sum_square(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
    return _sum(np.square(wide(x)), axes, attrs)


def _logsumexp(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
    w = wide(x)
    largest = np.max(w, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0)
    return np.asarray(np.log(np.sum(np.exp(w - shift), axis=axes, keepdims=True)) + shift)


def _var(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
    w = wide(x)
    apart = w - _mean(w, axes, attrs)
    left = max(_count(x, axes) - attrs.as_float("correction"), 0.0)
    return np.asarray(np.sum(np.square(apart), axis=axes, keepdims=True) / np.float64(left))


@dataclass(frozen=True, slots=True)
class Reduction:
    """Declaration of one reduction op.

    Parameters
    ----------
    dtypes
        Element types; the result has the operand's type.
    compute
        The numpy reference.
    ufunc
        Reduces without a copy of the operand.
    words
        STATE_WORDS in shaders/reduction/reduce_state.glsl for float32; 1 for the other variants.
    loop
        Code of the native loop in native/cpu_kernels/program/copies.cpp.
    divides
        The result of `ufunc` is divided by the number of values.
    needs_values
        A reduced axis must not be empty.
    rounds
        The state has no error compensation: its sums are rounded at each step.
    attrs
        Attributes besides `axes` and `keepdims`.
    """

    dtypes: tuple[str, ...]
    compute: Compute
    ufunc: np.ufunc | None = None
    words: int = 1
    loop: int | None = None
    divides: bool = False
    needs_values: bool = False
    rounds: bool = False
    attrs: Domains = field(default_factory=dict)


_NUMBERS, _FLOATS, _BOOLS = (FLOAT32, INT32, UINT32), (FLOAT32,), (BOOL,)
REDUCTIONS = {
    "reduce_sum": Reduction(_NUMBERS, _sum, np.add, 2, loop=0),
    "reduce_mean": Reduction(_FLOATS, _mean, np.add, 2, loop=1, divides=True),
    "reduce_prod": Reduction(_NUMBERS, _by(np.multiply), np.multiply, 2),
    "reduce_max": Reduction(_NUMBERS, _by(np.maximum), np.maximum, loop=2, needs_values=True),
    "reduce_min": Reduction(_NUMBERS, _by(np.minimum), np.minimum, loop=3, needs_values=True),
    "reduce_any": Reduction(_BOOLS, _by(np.logical_or), np.logical_or),
    "reduce_all": Reduction(_BOOLS, _by(np.logical_and), np.logical_and),
    "reduce_l1": Reduction(_FLOATS, _l1, words=2),
    "reduce_sum_square": Reduction(_FLOATS, _sum_square, words=2),
    "reduce_logsumexp": Reduction(_FLOATS, _logsumexp, words=3, rounds=True),
    "reduce_var": Reduction(_FLOATS, _var, words=4, rounds=True, attrs={"correction": Float(0.0)}),
}


def _infer(op: str) -> Callable[[tuple[TensorType, ...], Attrs], TensorType]:
    def infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
        check_reduced(op, inputs[0], attrs, REDUCTIONS[op].dtypes)
        if REDUCTIONS[op].needs_values:
            check_has_values(op, inputs[0], attrs)
        return TensorType(reduced_shape(inputs[0], attrs), inputs[0].dtype)

    return infer


def _reference(compute: Compute) -> Callable[[tuple[NDArray, ...], Attrs], NDArray]:
    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        x, axes = inputs[0], attrs.as_ints("axes")
        with np.errstate(all="ignore"):
            result = compute(x, axes, attrs).astype(x.dtype)
        return result if attrs.as_bool("keepdims") else np.asarray(np.squeeze(result, axis=axes))

    return reference


def _cpu(row: Reduction) -> CpuKernel:
    """Return a CPU kernel that computes the reference on pieces, with sums in float64."""
    ufunc, reference = row.ufunc, _reference(row.compute)

    def compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
        x, axes, keepdims = inputs[0], attrs.as_ints("axes"), attrs.as_bool("keepdims")
        if ufunc is None:
            out[...] = reference(inputs, attrs)
            return
        adds = ufunc in (np.add, np.multiply)
        dtype = np.float64 if adds and x.dtype == np.float32 else x.dtype
        total = ufunc.reduce(x, axis=axes, keepdims=keepdims, dtype=dtype)
        out[...] = total / np.float64(_count(x, axes)) if row.divides else total

    def cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
        """Split along the first axis, if it is not reduced."""
        x, rows = inputs[0], out.shape[0] if out.ndim else 1
        if 0 in attrs.as_ints("axes") or rows < 2:
            yield inputs, out
            return
        step = rows_of_piece(rows, x.size)
        for start in range(0, rows, step):
            yield (x[start : start + step],), out[start : start + step]

    return CpuKernel(compute, cut)


_PIECE = 1 << 15
"""Number of values that one piece of a native loop reads, about 10 us."""


def _native_program(loop: int | None) -> NativeProgramRule | None:
    if loop is None:
        return None

    def native_program(
        inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
    ) -> NativeProgram | None:
        (x,), axes = inputs, attrs.as_ints("axes")
        varied = [a for a in axes if x.shape[a] != 1]
        first, end = (min(varied), max(varied) + 1) if varied else (0, 0)
        whole = all(a in varied or x.shape[a] == 1 for a in range(first, end))
        if x.dtype != FLOAT32 or not whole:
            return None
        sizes = (x.shape[:first], x.shape[first:end], x.shape[end:])
        outer, count, inner = map(math.prod, sizes)
        pieces = max(1, min(x.size // _PIECE, outer, 2 * SHARES))
        numbers = (loop, outer, count, inner)
        return NativeProgram((Loop("reduce", (0,), output.size, numbers, (), pieces, x.size),))

    return native_program


# -- devices -----------------------------------------------------------------------------------


def _divisor(call: Call, columns: int) -> float:
    return max(columns - float(call.attrs.get("correction", 0)), 0.0)  # type: ignore[arg-type]


def _register(op: str, row: Reduction) -> None:
    shaders = {dtype: f"{op}_{dtype}" for dtype in row.dtypes}
    if op in ("reduce_sum", "reduce_prod"):
        shaders[UINT32] = f"{op}_int32"  # equal on the bits
    # int32 states have one word; scratch memory for two is harmless
    kernel = reduction(shaders, row.words, divisor=_divisor, rounds=row.rounds)
    register(
        Op(
            op,
            _infer(op),
            _reference(row.compute),
            kernel,
            attrs={"axes": Axes(), "keepdims": Flag(), **row.attrs},
            operands=(1, 1),
            work=reduce_work,
            cpu=_cpu(row),
            native_program=_native_program(row.loop),
        )
    )


for _name, _row in REDUCTIONS.items():
    _register(_name, _row)


# -- gradients ---------------------------------------------------------------------------------


def spread_back(call: VjpContext, y: Tensor) -> Tensor:
    """Broadcast a value of the result's shape to the operand's shape."""
    x, axes = call.inputs[0], call.attrs.as_ints("axes")
    keepdims_shape = tuple(1 if a in axes else s for a, s in enumerate(x.shape))
    return expand(y.reshape(keepdims_shape), x.shape)


@gradient("reduce_sum")
def _sum_gradient(call: VjpContext) -> VjpResult:
    return (spread_back(call, call.grad),)


# -- builders ----------------------------------------------------------------------------------

AxisLike = int | Sequence[int] | None


def _reduce(
    op: str, x: TensorLike, axes: AxisLike, keepdims: bool, name: str | None, **rest: AttrValue
) -> Tensor:
    tensor = as_tensor(x)
    attrs: dict[str, AttrValue] = {
        "axes": normalize_axes(op, axes, tensor.rank),
        "keepdims": bool(keepdims),
        **rest,
    }
    return apply(op, (tensor,), attrs, name)


def _then(
    last: Callable[..., Tensor],
    op: str,
    x: TensorLike,
    axis: AxisLike,
    keepdims: bool,
    name: str | None,
    **rest: AttrValue,
) -> Tensor:
    """Apply a function to the result of a reduction."""

    def build(x: Tensor, name: str | None) -> Tensor:
        return last(_reduce(op, x, axis, keepdims, None, **rest), name=name)

    return computed_wide(build, (as_tensor(x),), name)


def reduce_sum(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Sum over one, several or all axes, as numpy.sum; integers wrap; an empty sum is 0."""
    return _reduce("reduce_sum", x, axis, keepdims, name)


def reduce_mean(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Return the mean over one, several or all axes, as numpy.mean; an empty mean is NaN."""
    return _reduce("reduce_mean", x, axis, keepdims, name)


def reduce_prod(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Multiply over axes, by default all, as numpy.prod; integers wrap; an empty product is 1."""
    return _reduce("reduce_prod", x, axis, keepdims, name)


def reduce_max(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Return the maximum over one, several or all axes, as numpy.max; ShapeError if empty."""
    return _reduce("reduce_max", x, axis, keepdims, name)


def reduce_min(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Return the minimum over one, several or all axes, as numpy.min; ShapeError if empty."""
    return _reduce("reduce_min", x, axis, keepdims, name)


def reduce_any(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Return True if any bool over axes, by default all, is True, as numpy.any; False if empty."""
    return _reduce("reduce_any", x, axis, keepdims, name)


def reduce_all(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Return True if all bools over axes, by default all, are True, as numpy.all; True if empty."""
    return _reduce("reduce_all", x, axis, keepdims, name)


def reduce_l1(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Sum absolute values of floats over one, several or all axes, as ONNX ReduceL1."""
    return _reduce("reduce_l1", x, axis, keepdims, name)


def reduce_l2(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Return sqrt(sum of squares) of floats over one, several or all axes, as ONNX ReduceL2."""
    return _then(sqrt, "reduce_sum_square", x, axis, keepdims, name)


def reduce_sum_square(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Sum squares of floats over one, several or all axes, as ONNX ReduceSumSquare."""
    return _reduce("reduce_sum_square", x, axis, keepdims, name)


def reduce_log_sum(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Return log(sum) of floats over one, several or all axes, as ONNX ReduceLogSum."""
    return _then(log, "reduce_sum", x, axis, keepdims, name)


def reduce_logsumexp(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Return log(sum(exp(x))) of floats over one, several or all axes, as scipy.special.logsumexp.

    It does not overflow; an empty result is -infinity.
    """
    return _reduce("reduce_logsumexp", x, axis, keepdims, name)


def _correction(op: str, correction: float) -> float:
    known = isinstance(correction, (int, float, np.number)) and not isinstance(correction, bool)
    if not known or not 0 <= correction < math.inf:
        raise DTypeError(f"[{op}] expected a correction of 0 or more, got {correction!r}")
    return float(correction)


def reduce_var(
    x: TensorLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    correction: float = 0,
    *,
    name: str | None = None,
) -> Tensor:
    """Return the variance of floats over axes or all, as numpy.var with ddof=correction.

    A mean far from 0 does not reduce the precision.
    """
    ddof = _correction("reduce_var", correction)
    return _reduce("reduce_var", x, axis, keepdims, name, correction=ddof)


def reduce_std(
    x: TensorLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    correction: float = 0,
    *,
    name: str | None = None,
) -> Tensor:
    """Return the standard deviation of floats, as numpy.std with ddof=correction."""
    ddof = _correction("reduce_std", correction)
    return _then(sqrt, "reduce_var", x, axis, keepdims, name, correction=ddof)

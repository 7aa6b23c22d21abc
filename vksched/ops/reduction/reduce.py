"""Reductions over any axes: sum, mean, product, largest, least, any, all, norms, variance.

How they run on devices: reduce_launch.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

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
from ...ir.attr_domains import Axes, Domains, Flag, Real
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

REDUCE_DTYPES: dict[str, tuple[str, ...]] = {
    "reduce_sum": (FLOAT32, INT32, UINT32),
    "reduce_mean": (FLOAT32,),
    "reduce_prod": (FLOAT32, INT32, UINT32),
    "reduce_max": (FLOAT32, INT32, UINT32),
    "reduce_min": (FLOAT32, INT32, UINT32),
    "reduce_any": (BOOL,),
    "reduce_all": (BOOL,),
    "reduce_l1": (FLOAT32,),
    "reduce_sum_square": (FLOAT32,),
    "reduce_logsumexp": (FLOAT32,),
    "reduce_var": (FLOAT32,),
}
"""The element types that each reduction takes; the result has that of its operand."""
STATE_WORDS = {
    "sum": 2,
    "mean": 2,
    "l1": 2,
    "sum_square": 2,
    "prod": 2,
    "logsumexp": 3,
    "var": 4,
}
"""STATE_WORDS in shaders/reduction/reduce_state.glsl for float32; 1 for the other variants."""
ROUNDED_KINDS = ("logsumexp", "var")
"""States whose sums are rounded each time, without their rounding errors."""
NEEDS_VALUES = ("reduce_max", "reduce_min")


def reduced_shape(x: TensorType, attrs: Attrs) -> tuple[int, ...]:
    """Return the shape of a result whose attributes are the reduced axes and keepdims."""
    axes = attrs.as_ints("axes")
    if attrs.as_bool("keepdims"):
        return tuple(1 if a in axes else s for a, s in enumerate(x.shape))
    return tuple(s for a, s in enumerate(x.shape) if a not in axes)


def check_reduced(op: str, x: TensorType, attrs: Attrs, dtypes: tuple[str, ...]) -> None:
    """Raise DTypeError for another element type than `dtypes`."""
    if x.dtype not in dtypes:
        raise DTypeError(f"[{op}] expected {' or '.join(dtypes)}, got {x.dtype}; try vs.cast")


def check_has_values(op: str, x: TensorType, attrs: Attrs) -> None:
    """Raise ShapeError where there is nothing along the reduced axes."""
    axes = attrs.as_ints("axes")
    if 0 in (x.shape[a] for a in axes):
        raise ShapeError(f"[{op}] expected values along axes {axes}, got none in {x.shape}")


def reduce_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    """One operation per operand, all of them read once."""
    return Work(float(inputs[0].size), float(inputs[0].device_bytes + output.device_bytes))


def _infer(op: str) -> Callable[[tuple[TensorType, ...], Attrs], TensorType]:
    def infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
        check_reduced(op, inputs[0], attrs, REDUCE_DTYPES[op])
        if op in NEEDS_VALUES:
            check_has_values(op, inputs[0], attrs)
        return TensorType(reduced_shape(inputs[0], attrs), inputs[0].dtype)

    return infer


# -- numpy -------------------------------------------------------------------------------------

Along = tuple[int, ...]


def wide(x: NDArray) -> NDArray:
    """Return float32 as float64, so that the result is rounded once; others as they are."""
    return x.astype(np.float64) if x.dtype == np.float32 else x


def _count(x: NDArray, axes: Along) -> int:
    return math.prod(x.shape[a] for a in axes)


def _sum(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
    w = wide(x)
    return np.asarray(np.sum(w, axis=axes, keepdims=True, dtype=w.dtype))


def _mean(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
    return np.asarray(_sum(x, axes, attrs) / np.float64(_count(x, axes)))


def _prod(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
    w = wide(x)
    return np.asarray(np.prod(w, axis=axes, keepdims=True, dtype=w.dtype))


def _max(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
    return np.asarray(np.max(x, axis=axes, keepdims=True))


def _min(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
    return np.asarray(np.min(x, axis=axes, keepdims=True))


def _any(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
    return np.asarray(np.any(x, axis=axes, keepdims=True))


def _all(x: NDArray, axes: Along, attrs: Attrs) -> NDArray:
    return np.asarray(np.all(x, axis=axes, keepdims=True))


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


_REFERENCES: dict[str, Callable[[NDArray, Along, Attrs], NDArray]] = {
    "reduce_sum": _sum,
    "reduce_mean": _mean,
    "reduce_prod": _prod,
    "reduce_max": _max,
    "reduce_min": _min,
    "reduce_any": _any,
    "reduce_all": _all,
    "reduce_l1": _l1,
    "reduce_sum_square": _sum_square,
    "reduce_logsumexp": _logsumexp,
    "reduce_var": _var,
}


def _reference(op: str) -> Callable[[tuple[NDArray, ...], Attrs], NDArray]:
    compute = _REFERENCES[op]

    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        x, axes = inputs[0], attrs.as_ints("axes")
        with np.errstate(all="ignore"):
            kept = compute(x, axes, attrs).astype(x.dtype)
        return kept if attrs.as_bool("keepdims") else np.asarray(np.squeeze(kept, axis=axes))

    return reference


_UFUNCS: dict[str, np.ufunc] = {
    "reduce_sum": np.add,
    "reduce_mean": np.add,
    "reduce_prod": np.multiply,
    "reduce_max": np.maximum,
    "reduce_min": np.minimum,
    "reduce_any": np.logical_or,
    "reduce_all": np.logical_and,
}
"""Reductions that numpy makes without a copy of their operand."""
DIVIDED = {"reduce_mean"}
"""Of these, those that are divided by the number of values at the end."""


def _cpu(op: str) -> CpuKernel:
    """The reference piece by piece, its sums in float64 as there."""
    ufunc, reference, divides = _UFUNCS.get(op), _reference(op), op in DIVIDED

    def compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
        x, axes, keepdims = inputs[0], attrs.as_ints("axes"), attrs.as_bool("keepdims")
        if ufunc is None:
            out[...] = reference(inputs, attrs)
            return
        adds = ufunc in (np.add, np.multiply)
        dtype = np.float64 if adds and x.dtype == np.float32 else x.dtype
        total = ufunc.reduce(x, axis=axes, keepdims=keepdims, dtype=dtype)
        out[...] = total / np.float64(_count(x, axes)) if divides else total

    def cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
        """Along the first axis, where that is not reduced."""
        x, rows = inputs[0], out.shape[0] if out.ndim else 1
        if 0 in attrs.as_ints("axes") or rows < 2:
            yield inputs, out
            return
        step = rows_of_piece(rows, x.size)
        for start in range(0, rows, step):
            yield (x[start : start + step],), out[start : start + step]

    return CpuKernel(compute, cut)


_LOOPS = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")
"""By number what native/cpu_kernels/program/copies.cpp takes."""
_PIECE = 1 << 15
"""Values that one piece of such a loop reads, some 10 us."""


def _native_program(op: str) -> NativeProgramRule | None:
    if op not in _LOOPS:
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
        numbers = (_LOOPS.index(op), outer, count, inner)
        return NativeProgram((Loop("reduce", (0,), output.size, numbers, (), pieces, x.size),))

    return native_program


# -- devices -----------------------------------------------------------------------------------


def _divisor(call: Call, columns: int) -> float:
    return max(columns - float(call.attrs.get("correction", 0)), 0.0)  # type: ignore[arg-type]


_MORE: dict[str, Domains] = {"reduce_var": {"correction": Real(0.0)}}


def _register(op: str) -> None:
    kind = op.removeprefix("reduce_")
    shaders = {dtype: f"{op}_{dtype}" for dtype in REDUCE_DTYPES[op]}
    if kind in ("sum", "prod"):
        shaders[UINT32] = f"{op}_int32"  # the same bits
    # an int32 has a state of one word, but scratch memory for two does no harm
    kernel = reduction(
        shaders, STATE_WORDS.get(kind, 1), divisor=_divisor, rounds=kind in ROUNDED_KINDS
    )
    register(
        Op(
            op,
            _infer(op),
            _reference(op),
            kernel,
            attrs={"axes": Axes(), "keepdims": Flag(), **_MORE.get(op, {})},
            operands=(1, 1),
            work=reduce_work,
            cpu=_cpu(op),
            native_program=_native_program(op),
        )
    )


for _name in REDUCE_DTYPES:
    _register(_name)


# -- gradients ---------------------------------------------------------------------------------


def spread_back(call: VjpContext, y: Tensor) -> Tensor:
    """Return a value of the result's shape in that of the operand, with what was reduced
    repeated.
    """
    x, axes = call.inputs[0], call.attrs.as_ints("axes")
    kept = tuple(1 if a in axes else s for a, s in enumerate(x.shape))
    return expand(y.reshape(kept), x.shape)


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
    """A function of a reduction's result."""

    def build(x: Tensor, name: str | None) -> Tensor:
        return last(_reduce(op, x, axis, keepdims, None, **rest), name=name)

    return computed_wide(build, (as_tensor(x),), name)


def reduce_sum(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Sum over one axis or several, or all, as numpy.sum; integers wrap; nothing sums to 0."""
    return _reduce("reduce_sum", x, axis, keepdims, name)


def reduce_mean(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Mean of float32 over one axis, several or all, as numpy.mean; of nothing it is NaN."""
    return _reduce("reduce_mean", x, axis, keepdims, name)


def reduce_prod(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Product over one axis, several or all, as numpy.prod; integers wrap; of nothing it is 1."""
    return _reduce("reduce_prod", x, axis, keepdims, name)


def reduce_max(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Largest value over one axis, several or all, as numpy.max; of nothing a ShapeError."""
    return _reduce("reduce_max", x, axis, keepdims, name)


def reduce_min(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Least value over one axis, several or all, as numpy.min; of nothing a ShapeError."""
    return _reduce("reduce_min", x, axis, keepdims, name)


def reduce_any(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Whether any bool over one axis, several or all holds, as numpy.any; of nothing False."""
    return _reduce("reduce_any", x, axis, keepdims, name)


def reduce_all(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Whether all bools over one axis, several or all hold, as numpy.all; of nothing True."""
    return _reduce("reduce_all", x, axis, keepdims, name)


def reduce_l1(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Sum of absolute values of float32 over one axis, several or all, as ONNX ReduceL1."""
    return _reduce("reduce_l1", x, axis, keepdims, name)


def reduce_l2(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """sqrt(sum of squares) of float32 over one axis, several or all, as ONNX ReduceL2."""
    return _then(sqrt, "reduce_sum_square", x, axis, keepdims, name)


def reduce_sum_square(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """Sum of squares of float32 over one axis, several or all, as ONNX ReduceSumSquare."""
    return _reduce("reduce_sum_square", x, axis, keepdims, name)


def reduce_log_sum(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """log(sum) of float32 over one axis, several or all, as ONNX ReduceLogSum."""
    return _then(log, "reduce_sum", x, axis, keepdims, name)


def reduce_logsumexp(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *, name: str | None = None
) -> Tensor:
    """log(sum(exp(x))) of float32 over one axis, several or all, as scipy.special.logsumexp.

    It does not overflow; of nothing it is -infinity.
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
    """Variance of float32 over one axis, several or all, as numpy.var with ddof=correction.

    A mean far from 0 costs no digits.
    """
    given = _correction("reduce_var", correction)
    return _reduce("reduce_var", x, axis, keepdims, name, correction=given)


def reduce_std(
    x: TensorLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    correction: float = 0,
    *,
    name: str | None = None,
) -> Tensor:
    """Standard deviation of float32 over one axis, several or all, as numpy.std with
    ddof=correction.
    """
    given = _correction("reduce_std", correction)
    return _then(sqrt, "reduce_var", x, axis, keepdims, name, correction=given)

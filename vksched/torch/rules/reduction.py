"""Rules for reductions, softmax, scans, sorting and top-k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...ir.tensor import Tensor
from ...ops import argmax as vs_argmax
from ...ops import argmin as vs_argmin
from ...ops import argsort as vs_argsort
from ...ops import cumprod as vs_cumprod
from ...ops import cumsum as vs_cumsum
from ...ops import (
    expand_dims,
    gather_elements,
    log_softmax,
    reduce_all,
    reduce_any,
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    reduce_var,
    reshape,
    softmax,
    topk,
)
from .registry import Call, axes_of, axis_of, operand, rule

Axes = int | Sequence[int] | None


def _reduced(
    reduce: Callable[..., Tensor], x: Tensor, axes: Axes, keepdim: bool, **more: Any
) -> Tensor:
    if x.rank == 0:
        return reshape(reduce(reshape(x, (1,)), 0, False, **more), ())
    return reduce(x, axes_of(axes, x.rank), keepdim, **more)


@rule("sum.default", "sum.dim_IntList")
def sum_rule(
    call: Call, x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: str | None = None
) -> Tensor:
    return _reduced(reduce_sum, operand(x, call.dtype), dim, keepdim)


@rule("mean.default", "mean.dim")
def mean(
    call: Call, x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: str | None = None
) -> Tensor:
    return _reduced(reduce_mean, operand(x, call.dtype), dim, keepdim)


@rule("prod.default", "prod.dim_int")
def prod(
    call: Call, x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: str | None = None
) -> Tensor:
    return _reduced(reduce_prod, operand(x, call.dtype), dim, keepdim)


@rule("amax.default")
def amax(call: Call, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return _extreme(reduce_max, reduce_any, x, dim, keepdim)


@rule("amin.default")
def amin(call: Call, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return _extreme(reduce_min, reduce_all, x, dim, keepdim)


def _extreme(
    reduce: Callable[..., Tensor],
    of_bools: Callable[..., Tensor],
    x: Tensor,
    dim: Axes,
    keepdim: bool,
) -> Tensor:
    return _reduced(of_bools if x.dtype == "bool" else reduce, x, dim, keepdim)


@rule("max.default")
def max_of_all(call: Call, x: Tensor) -> Tensor:
    return amax(call, x)


@rule("min.default")
def min_of_all(call: Call, x: Tensor) -> Tensor:
    return amin(call, x)


@rule("any.default", "any.dim", "any.dims")
def any_rule(call: Call, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    if isinstance(dim, Sequence) and not dim:
        return operand(x, "bool")
    return _reduced(reduce_any, operand(x, "bool"), dim, keepdim)


@rule("all.default", "all.dim", "all.dims")
def all_rule(call: Call, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    if isinstance(dim, Sequence) and not dim:
        return operand(x, "bool")
    return _reduced(reduce_all, operand(x, "bool"), dim, keepdim)


@rule("var.correction")
def var(
    call: Call,
    x: Tensor,
    dim: Axes = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    return _reduced(reduce_var, x, dim, keepdim, correction=1 if correction is None else correction)


@rule("var.dim")
def var_dim(
    call: Call, x: Tensor, dim: Axes = None, unbiased: bool = True, keepdim: bool = False
) -> Tensor:
    return var(call, x, dim, int(unbiased), keepdim)


@rule("var_mean.correction")
def var_mean(
    call: Call,
    x: Tensor,
    dim: Axes = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    return var(call, x, dim, correction, keepdim), _reduced(reduce_mean, x, dim, keepdim)


@rule("logsumexp.default")
def logsumexp(call: Call, x: Tensor, dim: Axes, keepdim: bool = False) -> Tensor:
    return _reduced(reduce_logsumexp, operand(x, call.dtype), dim, keepdim)


def _index(
    call: Call, find: Callable[..., Tensor], x: Tensor, dim: int | None, keepdim: bool
) -> Tensor:
    call.require(x.size > 0, "of an empty tensor")
    if dim is None or x.rank == 0:
        out = find(reshape(x, (x.size,)), 0, False)
        return operand(reshape(out, (1,) * x.rank if keepdim else ()), call.dtype)
    return operand(find(x, axis_of(dim, x.rank), keepdim), call.dtype)


@rule("argmax.default")
def argmax(call: Call, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _index(call, vs_argmax, x, dim, keepdim)


@rule("argmin.default")
def argmin(call: Call, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _index(call, vs_argmin, x, dim, keepdim)


def _with_index(
    call: Call, find: Callable[..., Tensor], x: Tensor, dim: int, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """Return the values of one axis at an index, and the index."""
    call.require(x.size > 0 and x.dtype != "bool", "of an empty tensor or of bools")
    values = x if x.rank else reshape(x, (1,))
    axis = axis_of(dim, values.rank)
    at = find(values, axis, True)
    found = gather_elements(values, at, axis)
    shape = found.shape if keepdim else (*found.shape[:axis], *found.shape[axis + 1 :])
    shape = shape if x.rank else ()
    return reshape(found, shape), operand(reshape(at, shape), "int64")


@rule("max.dim")
def max_dim(call: Call, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _with_index(call, vs_argmax, x, dim, keepdim)


@rule("min.dim")
def min_dim(call: Call, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _with_index(call, vs_argmin, x, dim, keepdim)


@rule("_softmax.default")
def softmax_rule(call: Call, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return _along(softmax, operand(x, call.dtype), dim)


@rule("_log_softmax.default")
def log_softmax_rule(call: Call, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return _along(log_softmax, operand(x, call.dtype), dim)


def _along(of_axis: Callable[..., Tensor], x: Tensor, dim: int, **more: Any) -> Tensor:
    if x.rank == 0:
        return reshape(of_axis(reshape(x, (1,)), 0, **more), ())
    return of_axis(x, axis_of(dim, x.rank), **more)


@rule("cumsum.default")
def cumsum(call: Call, x: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    return _along(vs_cumsum, operand(x, call.dtype), dim)


@rule("cumprod.default")
def cumprod(call: Call, x: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    return _along(vs_cumprod, operand(x, call.dtype), dim)


@rule("topk.default")
def topk_rule(
    call: Call, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    call.require(x.rank > 0, "of a scalar")
    values, indices = topk(x, k, axis_of(dim, x.rank), largest)
    return values, operand(indices, "int64")


@rule("sort.default")
def sort_rule(
    call: Call, x: Tensor, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return _sorted(call, x, dim, descending)


@rule("sort.stable")
def sort_stable(
    call: Call, x: Tensor, stable: bool = False, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return _sorted(call, x, dim, descending)


def _sorted(call: Call, x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    call.require(x.rank > 0 and x.dtype != "bool", "of a scalar or of bools")
    axis = axis_of(dim, x.rank)
    at = vs_argsort(x, axis, descending)
    return gather_elements(x, at, axis), operand(at, "int64")


@rule("_softmax_backward_data.default")
def softmax_backward(
    call: Call, grad: Tensor, y: Tensor, dim: int, input_dtype: str | None = None
) -> Tensor:
    weighted = grad * y
    total = _reduced(reduce_sum, weighted, dim, True)
    return operand(weighted - y * _expand(total, y), call.dtype)


@rule("_log_softmax_backward_data.default")
def log_softmax_backward(
    call: Call, grad: Tensor, y: Tensor, dim: int, input_dtype: str | None = None
) -> Tensor:
    from ...ops import exp

    total = _reduced(reduce_sum, grad, dim, True)
    return operand(grad - exp(y) * _expand(total, y), call.dtype)


def _expand(total: Tensor, like: Tensor) -> Tensor:
    return total if total.rank == like.rank else expand_dims(total, 0)

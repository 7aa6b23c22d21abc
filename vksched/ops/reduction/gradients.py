"""Gradient rules of the ops along axes: reductions, scans, softmax, norms, sorting.

g is the gradient of the result y. Rules with several steps compute float16 operands in float32.
Sums of squares have the operands' type: if they overflow or underflow, gradients lose all digits,
as in PyTorch; only norms with no eps or a tiny one are safe. Examples:
tests/autograd/test_rules_rows.py.
"""

from __future__ import annotations

import math

from ...common.dtypes import BOOL
from ...ir.attrs import Attrs
from ...ir.tensor import Tensor, apply, as_tensor
from ...ir.vjp import VjpContext, VjpResult, gradient, is_smooth, no_gradient, sum_to
from ..elementwise.binary import equal, maximum
from ..elementwise.fp16 import all_computed_wide
from ..elementwise.select import cast, where
from ..elementwise.unary import abs, exp, neg, rsqrt, sign, square
from ..layout.control import stop_gradient
from ..layout.pad import pad
from ..layout.reshape import reshape, transpose
from ..layout.scatter import scatter_elements
from . import softmax as softmax
from . import sort as sort
from .layer_norm import layer_norm, rms_norm
from .layer_norm_backward import layer_norm_backward
from .reduce import (
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_sum,
    reduce_sum_square,
    reduce_var,
    spread_back,
)
from .scan import cumprod, cumsum

no_gradient("gives positions", "argmax", "argmin", "argsort", "nonzero")
no_gradient("gives bools", "reduce_any", "reduce_all")

TINY_EPS = 1e-30
"""Above this eps, squares that some drivers flush to 0 are negligible."""

# -- reductions ----------------------------------------------------------------------------------


def _with_reduced_axes(call: VjpContext, y: Tensor) -> Tensor:
    """Return a value of the result's shape with the reduced axes restored as size 1."""
    x, axes = call.inputs[0], call.attrs.as_ints("axes")
    return reshape(y, tuple(1 if a in axes else s for a, s in enumerate(x.shape)))


def _count(call: VjpContext) -> int:
    return math.prod(call.inputs[0].shape[a] for a in call.attrs.as_ints("axes"))


@gradient("reduce_mean")
def _mean(call: VjpContext) -> VjpResult:
    return (spread_back(call, call.grad * (1 / max(_count(call), 1))),)


@gradient("reduce_sum_square")
def _sum_square(call: VjpContext) -> VjpResult:
    (x,) = call.inputs
    return (x * _with_reduced_axes(call, call.grad * 2.0),)


@gradient("reduce_l1")
def _l1(call: VjpContext) -> VjpResult:
    (x,) = call.inputs
    return (sign(x) * _with_reduced_axes(call, call.grad),)  # 0 at 0


@gradient("reduce_var")
def _var(call: VjpContext) -> VjpResult:
    (x,), axes = call.inputs, call.attrs.as_ints("axes")
    left = _count(call) - call.attrs.as_float("correction")
    factor = 2 / left if left > 0 else math.nan  # as the result itself
    return ((x - reduce_mean(x, axes, True)) * _with_reduced_axes(call, call.grad * factor),)


@gradient("reduce_max", "reduce_min")
def _extremum(call: VjpContext) -> VjpResult:
    """Share the gradient evenly among equal values, as torch.amax."""
    (x,), axes = call.inputs, call.attrs.as_ints("axes")
    is_extremum = equal(x, _with_reduced_axes(call, call.output))
    ties = reduce_sum(cast(is_extremum, x.dtype), axes, True)
    return (where(is_extremum, _with_reduced_axes(call, call.grad) / ties, as_tensor(0.0, like=x)),)


@gradient("reduce_logsumexp")
def _logsumexp(call: VjpContext) -> VjpResult:
    """Return g * exp(x - y), and 0 if all of a row is -infinity."""

    def build(g: Tensor, x: Tensor, name: str | None) -> tuple[Tensor, ...]:
        axes, same = call.attrs.as_ints("axes"), x is call.inputs[0]
        y = _with_reduced_axes(call, call.output) if same else reduce_logsumexp(x, axes, True)
        known = where(equal(y, -math.inf), as_tensor(0.0, like=y), y)
        return (exp(x - known) * _with_reduced_axes(call, g),)

    return all_computed_wide(build, (call.grad, call.inputs[0]), None)


@gradient("reduce_prod")
def _prod(call: VjpContext) -> VjpResult:
    """Return products of the elements before and after each element, which is valid for 0 too."""

    def build(g: Tensor, x: Tensor, name: str | None) -> tuple[Tensor, ...]:
        axes = call.attrs.as_ints("axes")
        order = (*(a for a in range(x.rank) if a not in axes), *axes)
        moved = transpose(x, order)
        rest = moved.shape[: x.rank - len(axes)]
        lines = reshape(moved, (*rest, _count(call)))
        others = cumprod(lines, -1, exclusive=True) * cumprod(lines, -1, True, reverse=True)
        product = reshape(others * reshape(g, (*rest, 1)), moved.shape)
        return (transpose(product, sorted(range(x.rank), key=order.__getitem__)),)

    return all_computed_wide(build, (call.grad, call.inputs[0]), None)


# -- scans ---------------------------------------------------------------------------------------


@gradient("cumsum")
def _cumsum(call: VjpContext) -> VjpResult:
    attrs = call.attrs
    exclusive, reverse = attrs.as_bool("exclusive"), attrs.as_bool("reverse")
    return (cumsum(call.grad, attrs.as_int("axis"), exclusive, not reverse),)


@gradient("cumprod")
def _cumprod(call: VjpContext) -> VjpResult:
    """Return before * behind for each element.

    before is the product of the earlier elements; behind[i] = g[i] + x[i + 1] * behind[i + 1] is
    computed by doubling. There is no division, so 0 is valid, also in second derivatives. O(log n)
    passes for n elements of a line.
    """
    axis, reverse = call.attrs.as_int("axis"), call.attrs.as_bool("reverse")
    exclusive = call.attrs.as_bool("exclusive")

    def later(x: Tensor, by: int) -> Tensor:
        """Return x[i + by] at i, 0 beyond the end; reversed for products from the end."""
        return pad(x, [(by, -by) if reverse else (-by, by)], axes=[axis])

    def build(g: Tensor, x: Tensor, name: str | None) -> tuple[Tensor, ...]:
        behind, factor, by = later(g, 1) if exclusive else g, later(x, 1), 1
        while by < x.shape[axis]:
            behind = behind + factor * later(behind, by)
            factor, by = factor * later(factor, by), 2 * by
        return (cumprod(x, axis, True, reverse) * behind,)

    if call.inputs[0].size == 0:
        return (call.grad,)
    return all_computed_wide(build, (call.grad, call.inputs[0]), None)


# -- softmax -------------------------------------------------------------------------------------


def _with_mask(call: VjpContext, of_x: Tensor) -> VjpResult:
    """Return gradients of a softmax and of its additive mask, if it has one."""
    masks = call.inputs[1:]
    return of_x, *(sum_to(of_x, m.shape) if is_smooth(m) else None for m in masks)


@gradient("softmax")
def _softmax(call: VjpContext) -> VjpResult:
    y, weighed = call.output, call.grad * call.output
    total = reduce_sum(weighed, call.attrs.as_int("axis"), True)
    return _with_mask(call, weighed - y * total)


@gradient("log_softmax")
def _log_softmax(call: VjpContext) -> VjpResult:
    """Return gradients; x has none where a bool mask is False: the result is -infinity for any
    x.
    """
    g = call.grad
    if len(call.inputs) == 2 and call.inputs[1].dtype == BOOL:
        g = where(call.inputs[1], g, as_tensor(0.0, like=g))
    return _with_mask(call, g - exp(call.output) * reduce_sum(g, call.attrs.as_int("axis"), True))


# -- norms ---------------------------------------------------------------------------------------


@gradient("layer_norm", "rms_norm")
def _norm(call: VjpContext) -> VjpResult:
    """Return gradients: layer_norm_backward for the rows, g times the normalized row for the scale.

    The gradient of the shift is g.
    """
    attrs, operands = call.attrs, (call.grad, *call.inputs)
    scaled, shifted = attrs.as_bool("scaled"), attrs.as_bool("shifted")

    def build(g: Tensor, x: Tensor, *affine: Tensor, name: str | None) -> tuple[Tensor, ...]:
        row = x.shape[attrs.as_int("axis") :]
        of_x = layer_norm_backward(g, x, affine[0] if scaled else None, attrs)
        of_scale = (sum_to(g * _normed(x, attrs), row),) if scaled else ()
        return of_x, *of_scale, *((sum_to(g, row),) if shifted else ())

    return all_computed_wide(build, operands, None)


def _normed(x: Tensor, attrs: Attrs) -> Tensor:
    norm = layer_norm if attrs["kind"] == "layer_norm" else rms_norm
    return norm(x, axis=attrs.as_int("axis"), eps=attrs.as_float("eps"))


@gradient("layer_norm_backward")
def _layer_norm_backward(call: VjpContext) -> VjpResult:
    """Return second derivatives.

    With u, the gradient of the result y, and p(v) = layer_norm_backward(v, x), which is symmetric:
    p(u) for h; for x -p(rate (u mean(h n) + h mean(u n))) - rate n mean(u y), because n and the
    rate depend on x.
    """
    attrs, operands = call.attrs, (call.grad, call.output, *call.inputs)
    eps, scaled = attrs.as_float("eps"), attrs.as_bool("scaled")

    def build(
        u: Tensor, y: Tensor, g: Tensor, x: Tensor, *scale: Tensor, name: str | None
    ) -> tuple[Tensor, ...]:
        axes = tuple(range(attrs.as_int("axis"), x.rank))
        normed = _normed(x, attrs)
        rate = _rate(x, axes, attrs["kind"] == "layer_norm", eps)
        h = g * scale[0] if scaled else g
        share, along = (reduce_mean(each * normed, axes, True) for each in (h, u))
        of_x = layer_norm_backward((u * share + h * along) * rate, x, None, attrs)
        of_x = neg(of_x + normed * (rate * reduce_mean(u * y, axes, True)))
        of_h = layer_norm_backward(u, x, None, attrs)
        if not scaled:
            return of_h, of_x
        return of_h * scale[0], of_x, sum_to(of_h * g, scale[0].shape)

    return all_computed_wide(build, operands, None)


def _rate(x: Tensor, axes: tuple[int, ...], centered: bool, eps: float) -> Tensor:
    """Return 1 / sqrt(spread + eps).

    With a tiny eps rows are first scaled to magnitudes near 1, because squares of tiny values
    underflow, at the latest on a driver without denormals.
    """
    tiny = eps < TINY_EPS
    if tiny:
        top = stop_gradient(maximum(reduce_max(abs(x), axes, True), math.sqrt(eps)))
        x = x / top
    share = 1 / max(1, math.prod(x.shape[axes[0] :]))
    spread = reduce_var(x, axes, True) if centered else reduce_sum_square(x, axes, True) * share
    return rsqrt(spread + square(math.sqrt(eps) / top)) / top if tiny else rsqrt(spread + eps)


# -- sorting ----------------------------------------------------------------------


@gradient("sort")
def _sort(call: VjpContext) -> VjpResult:
    """Scatter values back to their sources; the order of equal values is stable."""
    (x,), axis = call.inputs, call.attrs.as_int("axis")
    order = apply("argsort", (x,), {**call.attrs, "kind": "argsort"})
    zeros = apply("full", (), {"shape": x.shape, "value": 0.0, "dtype": x.dtype})
    return (scatter_elements(zeros, order, call.grad, axis),)

"""Gradient rules of attention and of the attention gradient.

Second-order gradients are derived by hand. With u, the gradients with respect to dq, dk and dv, and
a = g v^T, they are propagated through dv = p^T g, ds = p (a - sum(p a)), dq = ds k scale and dk =
ds^T q scale. Examples: tests/autograd/test_rules_products.py,
tests/autograd/test_products_second_order.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

from ...common.dtypes import Shape
from ...ir.attrs import Attrs
from ...ir.tensor import Tensor, as_tensor
from ...ir.vjp import VjpContext, VjpResult, gradient, is_smooth, sum_to
from ..creation.create import arange
from ..elementwise.binary import (
    div,
    greater_equal,
    less_equal,
    logical_and,
    logical_or,
    mul,
    not_equal,
    sub,
)
from ..elementwise.fp16 import all_computed_wide
from ..elementwise.select import where
from ..elementwise.unary import logical_not, tanh
from ..layout.reshape import reshape, transpose
from ..linalg.matmul import matmul
from ..reduction.reduce import reduce_any, reduce_sum
from ..reduction.softmax import softmax
from .attention_kernels import visible_range
from .backward import OP, attention_backward, parts_of


@gradient("attention")
def _attention(call: VjpContext) -> VjpResult:
    """Use the fused op unless the gradient of a mask is needed; compute float16 in float32."""
    masks = call.inputs[3:]
    added = tuple(m for m in masks if is_smooth(m))
    *bshd, result_bshd = call.attrs.as_ints("is_bshd")

    def build(*tensors: Tensor, name: str | None) -> tuple[Tensor, ...]:
        *operands, grad = tensors
        q, k, v = (_with_layout(t, is_bshd) for t, is_bshd in zip(operands[:3], bshd, strict=True))
        grad = _with_layout(grad, result_bshd)
        mask = next(iter((*operands[3:], *masks)), None)
        pulled = _composed_gradient if added and call.wanted[3] else attention_backward
        gradients = pulled(q, k, v, grad, mask, call.attrs)
        back = (_with_layout(t, is_bshd) for t, is_bshd in zip(gradients[:3], bshd, strict=True))
        return (*back, *gradients[3:])

    gradients = all_computed_wide(build, (*call.inputs[:3], *added, call.grad), None)
    return (*gradients, *(None,) * (len(call.inputs) - len(gradients)))


def _composed_gradient(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, mask: Tensor | None, attrs: Attrs
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v and an additive mask, composed of forward ops.

    Keys and values must be finite, even at masked positions.
    """
    f = _formula(q, k, v, g, mask, attrs)
    of_q = mul(_shaped(matmul(f.rows(f.slopes), k), q.shape), attrs.as_float("scale"))
    of_k = matmul(f.rows(f.slopes), f.scaled, transpose_a=True)
    of_v = matmul(f.rows(f.weights), f.rows(g), transpose_a=True)
    of_mask = () if mask is None else (sum_to(f.masked, mask.shape),)
    return of_q, of_k, of_v, *of_mask


@gradient(OP)
def _attention_backward(call: VjpContext) -> VjpResult:
    masks = call.inputs[4:]
    added = tuple(m for m in masks if is_smooth(m))

    def build(*tensors: Tensor, name: str | None) -> tuple[Tensor, ...]:
        *operands, pulled = tensors
        mask = next(iter((*operands[4:], *masks)), None)
        return _second_order(operands, mask, pulled, call.attrs)

    gradients = all_computed_wide(build, (*call.inputs[:4], *added, call.grad), None)
    return (*gradients, *(None,) * (len(call.inputs) - len(gradients)))


def _second_order(
    operands: list[Tensor], mask: Tensor | None, pulled: Tensor, attrs: Attrs
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v, g and an additive mask."""
    q, k, v, g = operands[:4]
    f, scale = _formula(q, k, v, g, mask, attrs), attrs.as_float("scale")
    u_q, u_k, u_v = parts_of(pulled, q, k, v)
    slopes, rows_of_g = f.rows(f.slopes), f.rows(g)
    scaled_u = f.rows(mul(u_q, scale))
    of_slopes = f.scores(
        matmul(scaled_u, k, transpose_b=True) + matmul(f.scaled, u_k, transpose_b=True)
    )
    of_masked = of_slopes if f.flatness is None else mul(of_slopes, f.flatness)
    differences = sub(of_masked, _mean(f.weights, of_masked))
    of_products = mul(f.weights, differences)
    of_weights = f.scores(matmul(rows_of_g, u_v, transpose_b=True)) + mul(differences, f.away)
    of_capped = mul(f.weights, sub(of_weights, _mean(f.weights, of_weights)))
    of_scores = of_capped
    if f.bent is not None and f.flatness is not None:
        through = mul(mul(f.bent, -2 / attrs.as_float("softcap")), mul(of_slopes, f.masked))
        of_scores = mul(of_capped + through, f.flatness)
    rows = f.rows(of_scores)
    of_q = matmul(slopes, u_k) + matmul(rows, k)
    of_k = matmul(slopes, scaled_u, transpose_a=True) + matmul(rows, f.scaled, transpose_a=True)
    of_v = matmul(f.rows(of_products), rows_of_g, transpose_a=True)
    of_g = _shaped(matmul(f.rows(f.weights), u_v) + matmul(f.rows(of_products), v), g.shape)
    of_mask = (sum_to(of_capped, m.shape) for m in (mask,) if m is not None and is_smooth(m))
    return mul(_shaped(of_q, q.shape), scale), of_k, of_v, of_g, *of_mask


# -- the formula -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Formula:
    """Intermediate values of the gradient. Scores are (batch, heads, queries, keys).

    Attributes
    ----------
    scaled : Tensor
        q times the scale, as rows of the heads of k.
    bent, flatness : Tensor or None
        tanh of the soft cap, and its derivative.
    away : Tensor
        g v^T minus its mean under the softmax weights.
    masked, slopes : Tensor
        Gradients with respect to the scores after and before the soft cap.
    """

    heads: int
    shape: Shape
    scaled: Tensor
    bent: Tensor | None
    flatness: Tensor | None
    weights: Tensor
    away: Tensor
    masked: Tensor
    slopes: Tensor

    def rows(self, x: Tensor) -> Tensor:
        """Return queries that share a key head as rows of one matrix, so that products sum over
        them.
        """
        return _rows(x, self.heads)

    def scores(self, x: Tensor) -> Tensor:
        """Reshape rows of scores to (batch, heads, queries, keys)."""
        return _shaped(x, self.shape)


def _formula(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, mask: Tensor | None, attrs: Attrs
) -> _Formula:
    shape, heads = (*q.shape[:3], k.shape[2]), k.shape[1]
    softcap = attrs.as_float("softcap")
    scaled = _rows(mul(q, attrs.as_float("scale")), heads)
    scores = _shaped(matmul(scaled, k, transpose_b=True), shape)
    bent = tanh(div(scores, softcap)) if softcap else None
    flatness = None if bent is None else sub(1.0, mul(bent, bent))
    hides, seen = _masks(attrs, () if mask is None else (mask,), *shape[2:])
    weights = softmax(scores if bent is None else mul(bent, softcap), mask=hides)
    if seen is not None:
        weights = where(seen, weights, 0.0)
    of_weights = _shaped(matmul(_rows(g, heads), v, transpose_b=True), shape)
    away = sub(of_weights, _mean(weights, of_weights))
    masked = mul(weights, away)
    slopes = masked if flatness is None else mul(masked, flatness)
    return _Formula(heads, shape, scaled, bent, flatness, weights, away, masked, slopes)


def _mean(weights: Tensor, x: Tensor) -> Tensor:
    return reduce_sum(mul(weights, x), -1, keepdims=True)


def _rows(x: Tensor, heads: int) -> Tensor:
    share = x.shape[1] // max(1, heads)
    return _shaped(x, (x.shape[0], heads, share * x.shape[2], x.shape[3]))


def _shaped(x: Tensor, shape: Shape) -> Tensor:
    return x if x.shape == shape else reshape(x, shape)


def _with_layout(x: Tensor, bshd: int) -> Tensor:
    return transpose(x, (0, 2, 1, 3)) if bshd else x


def _masks(
    attrs: Attrs, masks: tuple[Tensor, ...], queries: int, keys: int
) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask of the softmax and the visible keys; each is None if it is not needed.

    There are no visible keys to track if every query sees a key. A query without visible keys gets
    a mask row that masks nothing, because its softmax and higher-order gradients would be NaN.
    """
    low, high = visible_range(attrs)
    sides: list[Tensor] = []
    for far, compare, bound in (
        (low > 1 - queries, greater_equal, low),
        (high < keys - 1, less_equal, high),
    ):
        if far:
            sides.append(compare(arange(keys), reshape(arange(bound, bound + queries), (-1, 1))))
    if not masks and high >= 0 and queries - 1 + low < keys:
        return (reduce(logical_and, sides) if sides else None), None
    mask = reshape(masks[0], masks[0].shape or (1,)) if masks else None
    added = mask if mask is not None and is_smooth(mask) else None
    if mask is not None:
        sides.append(mask if added is None else not_equal(mask, -math.inf))
    seen = reduce(logical_and, sides)
    sees = reduce_any(seen, -1, keepdims=True)
    if added is None:
        return logical_or(seen, logical_not(sees)), seen
    hidden = where(sees, as_tensor(-math.inf, like=added), 0.0)
    return where(seen, added, hidden), seen

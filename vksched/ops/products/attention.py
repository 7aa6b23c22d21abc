"""Attention without its score matrix: a tile of queries meets the keys a tile at a time.

q: rows of all heads that share keys   x   k, v: keys, in parts
each (rows, part): sums, largest score, total weight -> one result, or parts that are combined
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from ...errors import DTypeError, ShapeError
from ...types import BOOL, FLOAT32, Shape, TensorType, as_float, as_int, broadcast_shapes
from ..core.attrs import Attrs, AttrValue
from ..core.gradient import Pull, Pulled, gradient, is_smooth, sum_to
from ..core.op import Op, Work, register
from ..core.tensor import Tensor, TensorLike, apply, as_tensor
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
from ..elementwise.half import all_computed_wide
from ..elementwise.select import where
from ..elementwise.unary import logical_not, tanh
from ..moves.layout import reshape, transpose
from ..rows.reduce import reduce_any, reduce_sum
from ..rows.softmax import as_mask, softmax
from ..sources.create import arange
from .attention_host import HOST, attention_reference
from .attention_kernels import KERNEL, UNBOUNDED, by_heads, seen_keys
from .matmul import matmul

# -- types and values --------------------------------------------------------------------------


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    q, k, v = inputs[:3]
    if any(t.dtype != FLOAT32 for t in (q, k, v)):
        got = " and ".join(t.dtype for t in (q, k, v))
        raise DTypeError(f"[attention] expected float32, got {got}; try vs.cast")
    if any(t.rank != 4 for t in (q, k, v)):
        raise ShapeError(
            "[attention] expected (batch, heads, length, size) three times, got "
            f"{q.shape}, {k.shape} and {v.shape}; try heads= for (batch, length, heads * size)"
        )
    q, k, v = by_heads(inputs, attrs)
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ShapeError(
            "[attention] expected q (b, h, m, d), k (b, g, n, d) and v (b, g, n, e), "
            f"got {q.shape}, {k.shape} and {v.shape}"
        )
    heads, shared = q.shape[1], k.shape[1]
    if heads != shared and (shared == 0 or heads % shared):
        raise ShapeError(
            f"[attention] expected heads of q that are a multiple of those of k, got {heads} "
            f"and {shared}"
        )
    if len(inputs) > 3:
        mask, scores = inputs[3], (*q.shape[:3], k.shape[2])
        if mask.dtype not in (BOOL, FLOAT32):
            raise DTypeError(
                f"[attention] expected a mask of bool or float32, got {mask.dtype}; try vs.cast"
            )
        if mask.rank > 4 or broadcast_shapes("attention", mask.shape, scores) != scores:
            raise ShapeError(
                f"[attention] expected a mask that broadcasts to {scores}, got {mask.shape}"
            )
    shape = (*q.shape[:3], v.shape[3])
    if attrs.as_ints("by_length")[3]:
        shape = (shape[0], shape[2], shape[1], shape[3])
    return TensorType(shape, q.dtype)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    q, k, v = (t.shape for t in by_heads(inputs, attrs))
    flops = 2.0 * math.prod(q[:3]) * k[2] * (q[3] + v[3])
    return Work(flops, float(sum(t.device_bytes for t in inputs) + output.device_bytes))


register(
    Op(
        "attention",
        _infer,
        attention_reference,
        KERNEL,
        work=_work,
        host=HOST,
    )
)


# -- gradient ----------------------------------------------------------------------------------


@gradient("attention")
def _gradient(call: Pull) -> Pulled:
    """The weights are made again, as they are not kept; of float16 in float32, as in the op."""
    mask = call.inputs[3:]
    added = tuple(m for m in mask if is_smooth(m))

    def build(*tensors: Tensor, name: str | None) -> tuple[Tensor, ...]:
        *operands, output, grad = tensors
        return _pulled(call.attrs, (*operands, *mask)[:4], output, grad)

    operands = (*call.inputs[:3], *added, call.output, call.grad)
    made = all_computed_wide(build, operands, None)
    return (*made, None) if len(added) < len(mask) else made


def _pulled(
    attrs: Attrs, operands: tuple[Tensor, ...], output: Tensor, grad: Tensor
) -> tuple[Tensor, ...]:
    """Returns the gradients of q, k, v and a mask that is added.

    weights p = softmax(s), result o = p v:
        dv = p^T do,  ds = p (do v^T - sum(do o)),  dq = ds k scale,  dk = ds^T q scale

    Queries that share a head of k and v are rows of one matrix, so that products sum over them.
    Keys and values must be finite where they are hidden, too.
    """
    *turned, turn_result = attrs.as_ints("by_length")
    q, k, v = (_swapped(t, turn) for t, turn in zip(operands[:3], turned, strict=True))
    output, grad = _swapped(output, turn_result), _swapped(grad, turn_result)
    shape, shared = (*q.shape[:3], k.shape[2]), k.shape[1]
    rows = q.shape[1] // max(1, shared) * q.shape[2]
    scale, softcap = attrs.as_float("scale"), attrs.as_float("softcap")

    def shared_rows(x: Tensor) -> Tensor:
        return _shaped(x, (x.shape[0], shared, rows, x.shape[3]))

    scaled = shared_rows(mul(q, scale))
    scores = _shaped(matmul(scaled, k, transpose_b=True), shape)
    bent = tanh(div(scores, softcap)) if softcap else None
    mask, seen = _masks(attrs, operands[3:], *shape[2:])
    weights = softmax(scores if bent is None else mul(bent, softcap), mask=mask)
    if seen is not None:
        weights = where(seen, weights, 0.0)
    grad_rows = shared_rows(grad)
    of_weights = _shaped(matmul(grad_rows, v, transpose_b=True), shape)
    of_masked = mul(weights, sub(of_weights, reduce_sum(mul(grad, output), -1, keepdims=True)))
    of_scores = of_masked if bent is None else mul(of_masked, sub(1.0, mul(bent, bent)))
    score_rows = shared_rows(of_scores)
    of_q = mul(_shaped(matmul(score_rows, k), q.shape), scale)
    of_k = matmul(score_rows, scaled, transpose_a=True)
    of_v = matmul(shared_rows(weights), grad_rows, transpose_a=True)
    made = (_swapped(t, turn) for t, turn in zip((of_q, of_k, of_v), turned, strict=True))
    return (*made, *(sum_to(of_masked, m.shape) for m in operands[3:] if is_smooth(m)))


def _shaped(x: Tensor, shape: Shape) -> Tensor:
    return x if x.shape == shape else reshape(x, shape)


def _swapped(x: Tensor, turned: int) -> Tensor:
    return transpose(x, (0, 2, 1, 3)) if turned else x


def _masks(
    attrs: Attrs, given: tuple[Tensor, ...], queries: int, keys: int
) -> tuple[Tensor | None, Tensor | None]:
    """Returns the mask of a softmax, or None; and which keys are seen, or None where every query
    sees one. A query that sees none gets a row of the mask that hides nothing, as its softmax would
    be NaN, also in gradients of gradients.
    """
    low, high = seen_keys(attrs)
    sides: list[Tensor] = []
    for far, compare, bound in (
        (low > 1 - queries, greater_equal, low),
        (high < keys - 1, less_equal, high),
    ):
        if far:
            sides.append(compare(arange(keys), reshape(arange(bound, bound + queries), (-1, 1))))
    if not given and high >= 0 and queries - 1 + low < keys:
        return (reduce(logical_and, sides) if sides else None), None
    mask = reshape(given[0], given[0].shape or (1,)) if given else None
    added = mask if mask is not None and is_smooth(mask) else None
    if mask is not None:
        sides.append(mask if added is None else not_equal(mask, -math.inf))
    seen = reduce(logical_and, sides)
    sees = reduce_any(seen, -1, keepdims=True)
    if added is None:
        return logical_or(seen, logical_not(sees)), seen
    hidden = where(sees, as_tensor(-math.inf, like=added), 0.0)
    return where(seen, added, hidden), seen


# -- builder -----------------------------------------------------------------------------------


def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    mask: TensorLike | None = None,
    *,
    causal: bool = False,
    past: int = 0,
    window: tuple[int | None, int | None] = (None, None),
    scale: float | None = None,
    softcap: float = 0.0,
    heads: int | None = None,
    kv_heads: int | None = None,
    by_length: bool = False,
    name: str | None = None,
) -> Tensor:
    """softmax(q k^T * scale) v for every head, as ONNX Attention; the scores are never stored.

    q: (b, h, m, d), k: (b, g, n, d), v: (b, g, n, e) -> (b, h, m, e); h is a multiple of g, and
    h / g heads of q in a row share a head of k and v. by_length: operands and result are
    (b, length, heads, size) instead; with `heads` (and `kv_heads`, by default the same) they are
    (b, length, heads * size).
    mask: broadcasts to (b, h, m, n); bool, true where a key is seen, or float32, added to the
    scores after the soft cap softcap * tanh(score / softcap).
    causal: query i sees the keys up to i + past; window: and no more than so many to the left and
    right of i + past. scale: by default 1 / sqrt(d).
    A hidden key, or one of weight 0, counts as not there, whatever k and v hold; the result of a
    query that sees no key is 0.
    """
    operands = [as_tensor(q)]
    operands += [as_tensor(t, like=operands[0]) for t in (k, v)]
    if heads is not None or kv_heads is not None:
        q, k, v = _apart(operands, heads, kv_heads)
        out = attention(
            *(q, k, v, mask),
            causal=causal,
            past=past,
            window=window,
            scale=scale,
            softcap=softcap,
            by_length=True,
        )
        return reshape(out, (*out.shape[:2], out.shape[2] * out.shape[3]), name=name)
    if not isinstance(window, Sequence) or len(window) != 2 or isinstance(window, str):
        raise ShapeError(f"[attention] expected a window (left, right), got {window!r}")
    left, right = (_bound(side) for side in window)
    past = as_int("attention", "past", past)
    if not 0 <= abs(past) < UNBOUNDED // 2:
        raise ShapeError(f"[attention] expected a past under 2**29, got {past}")
    depth = operands[0].shape[-1] if operands[0].rank else 1
    if scale is None:
        scale = 1 / math.sqrt(max(1, depth))
    scale, softcap = (
        as_float("attention", what, value)
        for what, value in (("scale", scale), ("softcap", softcap))
    )
    if not (abs(scale) <= 3e38 and 0 <= softcap <= 3e38):
        raise DTypeError(
            f"[attention] expected a float32 scale and a softcap of 0 or more, got {scale!r} and "
            f"{softcap!r}"
        )
    attrs: dict[str, AttrValue] = {
        "scale": float(scale),
        "softcap": float(softcap),
        "past": past,
        "left": left,
        "right": 0 if causal else right,
        "by_length": (int(by_length),) * 4,
        "none_seen_is_nan": False,
    }
    if mask is not None:
        operands.append(as_mask(mask, operands[0]))
    return apply("attention", operands, attrs, name)


def _bound(side: int | None) -> int:
    if side is None:
        return -1
    keys = as_int("attention", "window", side)
    if not 0 <= keys < UNBOUNDED // 2:
        raise ShapeError(f"[attention] expected a window of 0 or more keys or None, got {side}")
    return keys


def _apart(operands: list[Tensor], heads: int | None, kv_heads: int | None) -> list[Tensor]:
    """(batch, length, heads * size) as (batch, length, heads, size)."""
    heads, kv_heads = (
        None if count is None else as_int("attention", what, count)
        for what, count in (("heads", heads), ("kv_heads", kv_heads))
    )
    counts = (heads or kv_heads or 0, kv_heads or heads or 0, kv_heads or heads or 0)
    out = []
    for tensor, count in zip(operands, counts, strict=True):
        if tensor.rank != 3 or count <= 0 or tensor.shape[2] % count:
            raise ShapeError(
                f"[attention] expected (batch, length, {count} heads * size), got {tensor.shape}"
            )
        out.append(reshape(tensor, (*tensor.shape[:2], count, tensor.shape[2] // count)))
    return out

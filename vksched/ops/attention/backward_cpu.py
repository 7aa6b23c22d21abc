"""Gradients of attention in numpy, for pieces of the scores that fit into a cache.

scores of a piece, a = g v^T -> weights p, ds = p (a - sum(p a)) -> products with k, q and g
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...common.dtypes import NDArray, Shape
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece
from ..linalg.matmul_blocks import heads
from ..linalg.operands import round_up_to_vec4
from .attention_cpu import masked_keys, to_weights

_SCORES = 1 << 18
"""Maximum scores of a piece, unless a single query has more."""


def shapes_of_parts(q: Shape, k: Shape, v: Shape) -> tuple[Shape, Shape, Shape]:
    """Return the shapes of the gradients of q, k and v in the result.

    Queries that share a head of k are rows of one matrix.
    """
    (batch, heads, queries, depth), (_, shared, keys, columns) = q, v
    rows = heads // max(1, shared) * queries
    lead = (batch, shared)
    return (*lead, rows, depth), (*lead, keys, depth), (*lead, keys, columns)


def size_of_parts(shapes: tuple[Shape, ...]) -> int:
    """Return the elements of each gradient in the result per head of k, a multiple of four."""
    return round_up_to_vec4(max(math.prod(shape[2:]) for shape in shapes))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of the scores: slices of examples, key heads, query heads of each, and queries."""

    examples: slice
    shared: slice
    share: slice
    queries: slice

    @property
    def is_first(self) -> bool:
        """Return True if this is the first piece that adds to its keys."""
        return (self.share.start, self.queries.start) == (0, 0)

    def of_q(self, x: NDArray) -> NDArray:
        """Index x (batch, heads of k, heads of q for each, queries, size)."""
        return x[self.examples, self.shared, self.share, self.queries]

    def of_k(self, x: NDArray) -> NDArray:
        """Index x (batch, heads of k, keys, size)."""
        return x[self.examples, self.shared]


def _pieces(batch: int, shared: int, share: int, queries: int, keys: int) -> Iterator[_Piece]:
    """Yield whole examples if they have few scores, else key heads, else queries of one head."""
    of_head = share * queries * keys
    if of_head > _SCORES:
        step = max(1, _SCORES // keys)
        for b, g, h in np.ndindex(batch, shared, share):
            one = slice(b, b + 1), slice(g, g + 1), slice(h, h + 1)
            for start in range(0, queries, step):
                yield _Piece(*one, slice(start, start + step))
        return
    heads = min(shared, _SCORES // of_head)
    examples = max(1, _SCORES // (of_head * shared))
    for b in range(0, batch, examples):
        for g in range(0, shared, heads):
            rest = slice(0, share), slice(0, queries)
            yield _Piece(slice(b, b + examples), slice(g, g + heads), *rest)


def _compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    q, k, v, g, *masks = inputs
    shapes = shapes_of_parts(q.shape, k.shape, v.shape)
    (batch, shared, rows, _), keys = shapes[0], k.shape[2]
    if batch * shared * rows * keys == 0:
        out[...] = 0
        return
    parts = []
    for part, shape in zip(out, shapes, strict=True):
        size = math.prod(shape[2:])
        part[..., size:] = 0
        parts.append(part[..., :size].reshape(shape))  # a view, because whole rows are contiguous
    by_q = (batch, shared, q.shape[1] // shared, q.shape[2])
    scores = (batch, q.shape[1], q.shape[2], keys)
    of_scores = [np.broadcast_to(mask, scores).reshape(*by_q, keys) for mask in masks]
    rows_of = [x.reshape(*by_q, x.shape[-1]) for x in (q, g, parts[0])]
    for piece in _pieces(*by_q, keys):
        *of_rows, of_q = (piece.of_q(x) for x in rows_of)
        masked = tuple(piece.of_q(mask) for mask in of_scores)
        of_keys = [piece.of_k(x) for x in (k, v)]
        gradients = _of_piece(of_rows, of_keys, masked, piece.queries.start, attrs)
        of_q[...] = gradients[0].reshape(of_q.shape)
        for part, more in zip(parts[1:], gradients[1:], strict=True):
            if piece.is_first:
                piece.of_k(part)[...] = more
            else:
                piece.of_k(part)[...] += more


def _of_piece(
    of_rows: list[NDArray],
    of_keys: list[NDArray],
    mask: tuple[NDArray, ...],
    start: int,
    attrs: Attrs,
) -> tuple[NDArray, ...]:
    """Return the contributions of a piece to the gradients of q, k and v.

    `start` is its first query.
    """
    (q, g), (k, v) = of_rows, of_keys
    scale = q.dtype.type(attrs.as_float("scale"))
    by_query, keys = q.shape[:4], k.shape[2]
    q, g = _joined(q * scale), _joined(g)
    weights = np.matmul(q, k.swapaxes(2, 3))
    bent = None
    if attrs.as_float("softcap"):
        softcap = q.dtype.type(attrs.as_float("softcap"))
        weights /= softcap
        bent = np.tanh(weights)
        np.multiply(bent, softcap, out=weights)
    apart = weights.reshape(*by_query, keys)
    hidden = tuple(masked_keys(attrs, mask, start, by_query[3], keys))
    if mask and mask[0].dtype != bool:
        apart += mask[0]
    to_weights(apart, hidden)
    slopes = np.matmul(g, v.swapaxes(2, 3))
    # subtract the gradient at the largest weight first, for precision if that weight is almost 1
    slopes -= np.take_along_axis(slopes, weights.argmax(-1)[..., None], -1)
    slopes -= np.einsum("...k,...k->...", weights, slopes)[..., None]
    slopes *= weights
    for each in hidden:
        np.copyto(slopes.reshape(apart.shape), 0, where=each)
    if bent is not None:
        bent *= bent
        slopes *= np.subtract(1, bent, out=bent)
    of_q = np.matmul(slopes, k) * scale
    return of_q, *(np.matmul(x.swapaxes(2, 3), y) for x, y in ((slopes, q), (weights, g)))


def _joined(x: NDArray) -> NDArray:
    """Return the rows of all query heads, concatenated."""
    return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3], x.shape[4])


def attention_backward_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Return the gradients of q, k and v, concatenated."""
    shapes = shapes_of_parts(*(x.shape for x in inputs[:3]))
    out = np.empty((3, *shapes[0][:2], size_of_parts(shapes)), inputs[0].dtype)
    _compute(inputs, attrs, out)
    return out


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split by heads and batch."""
    q, k, v, g, *masks = inputs
    (batch, shared), scores = k.shape[:2], (*q.shape[:3], k.shape[2])
    share = q.shape[1] // shared
    wide = [np.broadcast_to(mask, scores) for mask in masks]
    work = math.prod(scores) * (3 * q.shape[3] + 2 * v.shape[3])
    for some, of_k in heads(batch, shared, work):
        of_q = slice(of_k.start * share, of_k.stop * share)
        rows = [x[some, of_q] for x in (q, g, *wide)]
        yield (rows[0], k[some, of_k], v[some, of_k], *rows[1:]), out[:, some, of_k]


CPU_KERNEL = CpuKernel(_compute, _cut)

"""Fuse attention that model files write as matmuls around a softmax, with adjacent transposes.

    q, k -> matmul -> mul scale -> add mask -> softmax -> matmul v    is    q, k, v -> attention

Attention kernels read and write both (b, heads, length, size) and (b, length, heads, size), so
transposes between the two are folded. A row whose keys are all masked gives NaN, as softmax does.
Examples: tests/passes/test_patterns.py.
"""

from __future__ import annotations

import math

import numpy as np

from ..common.dtypes import BOOL, FLOAT32
from ..ir.attrs import Attrs, AttrValue
from ..ir.graph import Node
from ..ir.precision import precision_attrs, precision_of
from .pattern import scaled, single_use
from .rewrite import Rewriter

BUFFERS_OF_MASKED = 5
"""Number of buffers that a kernel of masked attention binds."""
SWAPPED = (0, 2, 1, 3)
ROUNDS_TO_FINITE = float(np.finfo(np.float32).max) * (1 + 2.0**-26)
"""Upper bound of a sum of masks; half a unit in the last place more rounds to infinity."""
MOVES = ("reshape", "expand", "transpose", "slice", "gather", "concat")


def to_attention(r: Rewriter, node: Node) -> int | None:
    """Match softmax(q k^T * scale + mask) v."""
    if len(node.inputs) != 2 or node.type.dtype != FLOAT32 or node.attrs["transpose_a"]:
        return None
    soft = single_use(r, node.inputs[0], "softmax")
    if soft is None or soft.attrs.as_int("axis") != len(soft.type.shape) - 1:
        return None
    found = _unmask(r, soft)
    if found is None:
        return None
    scores, mask = found
    base, scale = scaled(r, scores)
    product = single_use(r, base, "matmul")
    if product is None or len(product.inputs) != 2 or product.attrs["transpose_a"]:
        return None
    if precision_of(product.attrs) != precision_of(node.attrs):
        return None
    if len(product.type.shape) not in (3, 4) or product.type != soft.type:
        return None
    q, of_q = scaled(r, product.inputs[0])
    k, of_k = scaled(r, product.inputs[1])
    scale *= of_q * of_k
    v = node.inputs[1]
    lead = product.type.shape[:-2]
    if any(r[i].type.shape[:-2] != lead for i in (q, k, v)) or not 0 < abs(scale) <= 3e38:
        return None
    if not product.attrs["transpose_b"]:
        k = _swap_last(r, k)
    if node.attrs["transpose_b"]:
        v = _swap_last(r, v)
    operands = [_with_heads(r, i) for i in (q, k, v)]
    if mask is not None:
        operands.append(mask)
    attrs: dict[str, AttrValue] = {"scale": scale, "softcap": 0.0, "past_len": 0, "left": -1}
    attrs |= {"right": -1, "is_bshd": (0, 0, 0, 0)}
    attrs |= precision_attrs(node.attrs)
    attrs["fully_masked_is_nan"] = soft.type.shape[-1] > 0  # an empty sum is 0
    fused = _emit(r, "attention", operands, attrs)
    return r.emit("reshape", (fused,), {"shape": node.type.shape}) if len(lead) == 1 else fused


def _unmask(r: Rewriter, soft: Node) -> tuple[int, int | None] | None:
    """Return the scores and the mask of a softmax; None for masks that attention cannot add."""
    scores, masks = soft.inputs[0], list(soft.inputs[1:])
    replaced = None if masks else _unreplace(r, soft)
    if replaced is not None:
        return replaced
    while (total := single_use(r, scores, "add")) is not None:
        side = next((s for s in (0, 1) if _makes_scores(r, total, s)), None)
        if side is None:
            break
        scores = total.inputs[side]
        masks.append(total.inputs[1 - side])
    if not masks:
        return scores, None
    if len(soft.type.shape) != 4 or not r.allows(BUFFERS_OF_MASKED):
        return None
    if len(masks) > 1 and any(r[mask].type.dtype != FLOAT32 for mask in masks):
        return None
    # large masks of opposite signs round differently if they are added to each other first
    if len(masks) > 1 and not sum(_largest(r, mask) for mask in masks) < ROUNDS_TO_FINITE:
        return None
    mask = masks[0]
    for other in masks[1:]:
        mask = r.emit("add", (mask, other))
    return scores, mask


def _unreplace(r: Rewriter, soft: Node) -> tuple[int, int] | None:
    """Match `where(mask, scores, -inf)`, in either operand order, and return (scores, mask)."""
    chosen = single_use(r, soft.inputs[0], "where")
    if chosen is None or len(soft.type.shape) != 4 or not r.allows(BUFFERS_OF_MASKED):
        return None
    mask, *sides = chosen.inputs
    for side, other in ((0, 1), (1, 0)):
        filled = r.scalar(sides[other])
        if filled == -math.inf and r[sides[side]].type == chosen.type:
            return sides[side], mask if side == 0 else r.emit("logical_not", (mask,))
    return None


def _makes_scores(r: Rewriter, total: Node, side: int) -> bool:
    node = r[total.inputs[side]]
    return node.type == total.type and node.op in ("matmul", "mul", "div", "add")


MAX_MASK_NODES = 64
"""Maximum number of nodes that are visited to bound the values of a mask."""


def _largest(r: Rewriter, node_id: int) -> float:
    """Return an upper bound of the absolute values of a mask; infinity if unknown."""
    largest, pending, seen = 0.0, [node_id], set[int]()
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        node, array = r[at], r.data(at)
        if array is not None and not np.isfinite(array).all():
            return math.inf
        if array is not None:
            largest = max(largest, float(np.abs(array).max(initial=0)))
        elif node.op == "where":
            pending += node.inputs[1:]
        elif node.op in MOVES:
            pending += node.inputs if node.op == "concat" else node.inputs[:1]
        elif node.op == "cast" and r[node.inputs[0]].type.dtype == BOOL:
            largest = max(largest, 1.0)
        else:
            return math.inf
        if len(seen) > MAX_MASK_NODES:
            return math.inf
    return largest


def _swap_last(r: Rewriter, node_id: int) -> int:
    """Return a value with its last two axes swapped, merged with a preceding transpose."""
    node, rank = r[node_id], len(r[node_id].type.shape)
    source = node.inputs[0] if node.inputs else node_id
    if node.op == "reshape" and r.same_device(node_id):
        inner = r[source].type.shape
        if len(inner) >= 2 and inner[-2:] == node.type.shape[-2:] and r[source].op == "transpose":
            shape = (*node.type.shape[:-2], *reversed(node.type.shape[-2:]))
            return r.emit("reshape", (_swap_last(r, source),), {"shape": shape})
    axes = (*range(rank - 2), rank - 1, rank - 2)
    if node.op == "transpose" and r.same_device(node_id):
        before = node.attrs.as_ints("axes")
        axes, node_id = tuple(before[a] for a in axes), source
    if axes == tuple(range(rank)):
        return node_id
    return r.emit("transpose", (node_id,), {"axes": axes})


def _with_heads(r: Rewriter, node_id: int) -> int:
    shape = r[node_id].type.shape
    return node_id if len(shape) == 4 else r.emit("reshape", (node_id,), {"shape": (1, *shape)})


ATTENTION = ("attention", "attention_with_kvcache")
"""Ops whose operands 0 to 2 and result are (b, heads, length, size) or (b, length, heads, size)."""


def _emit(r: Rewriter, op: str, operands: list[int], attrs: dict[str, AttrValue]) -> int:
    """Emit attention that reads its operands without their transposes."""
    is_bshd = list(Attrs(attrs).as_ints("is_bshd"))
    for side in range(3):
        operand = r[operands[side]]
        transposed = operand.op == "transpose" and operand.attrs.as_ints("axes") == SWAPPED
        if transposed and r.same_device(operand.id):
            operands[side] = operand.inputs[0]
            is_bshd[side] ^= 1
    return r.emit(op, operands, attrs | {"is_bshd": tuple(is_bshd)})


def fold_transpose_into_attention(r: Rewriter, node: Node) -> int | None:
    """Fold transposes of heads and length into the attention that reads them."""
    fused = _emit(r, node.op, list(node.inputs), dict(node.attrs))
    return fused if r[fused].inputs != node.inputs else None


def fold_output_transpose(r: Rewriter, node: Node) -> int | None:
    """Fold a transpose of heads and length into the attention before it."""
    found = (single_use(r, node.inputs[0], op) for op in ATTENTION)
    attention = next((one for one in found if one is not None), None)
    if attention is None or node.attrs.as_ints("axes") != SWAPPED:
        return None
    *others, last = attention.attrs.as_ints("is_bshd")
    attrs = dict(attention.attrs) | {"is_bshd": (*others, 1 - last)}
    return r.emit(attention.op, attention.inputs, attrs)

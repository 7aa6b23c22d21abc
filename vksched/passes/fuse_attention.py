"""Attention that a file writes out as products around a softmax, and the transposes beside it.

    q, k -> matmul -> mul scale -> add mask -> softmax -> matmul v    is    q, k, v -> attention

A kernel of attention reads and writes (b, heads, length, size) and (b, length, heads, size) alike,
so the transposes between the two go. Where a mask hides all keys, softmax gives NaN, and so does
this attention. Examples: tests/passes/test_patterns.py.
"""

from __future__ import annotations

import math

import numpy as np

from ..common.dtypes import BOOL, FLOAT32
from ..ir.attrs import Attrs, AttrValue
from ..ir.graph import Node
from ..ir.precision import kept_precision, precision_of
from .pattern import scaled, single_use
from .rewrite import Rewriter

BUFFERS_OF_MASKED = 5
"""That a kernel of attention with a mask binds."""
SWAPPED = (0, 2, 1, 3)
ROUNDS_TO_FINITE = float(np.finfo(np.float32).max) * (1 + 2.0**-26)
"""What a sum of masks stays under: half a unit in the last place more would be infinite."""
MOVES = ("reshape", "expand", "transpose", "slice", "gather", "concat")


def to_attention(r: Rewriter, node: Node) -> int | None:
    """softmax(q k^T * scale + mask) v."""
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
    attrs |= kept_precision(node.attrs)
    attrs["fully_masked_is_nan"] = soft.type.shape[-1] > 0  # a sum of nothing is 0
    made = _emit(r, "attention", operands, attrs)
    return r.emit("reshape", (made,), {"shape": node.type.shape}) if len(lead) == 1 else made


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
    # large ones of both signs round otherwise when they are added to each other first
    if len(masks) > 1 and not sum(_largest(r, mask) for mask in masks) < ROUNDS_TO_FINITE:
        return None
    mask = masks[0]
    for other in masks[1:]:
        mask = r.emit("add", (mask, other))
    return scores, mask


def _unreplace(r: Rewriter, soft: Node) -> tuple[int, int] | None:
    """Return the scores and the bool mask of where(mask, scores, -inf), or with the two turned."""
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
"""Nodes that are looked at to learn how large the values of a mask may be."""


def _largest(r: Rewriter, node_id: int) -> float:
    """Returns what no value of a mask exceeds in magnitude; infinity where that is not known."""
    largest, left, seen = 0.0, [node_id], set[int]()
    while left:
        at = left.pop()
        if at in seen:
            continue
        seen.add(at)
        node, array = r[at], r.data(at)
        if array is not None and not np.isfinite(array).all():
            return math.inf
        if array is not None:
            largest = max(largest, float(np.abs(array).max(initial=0)))
        elif node.op == "where":
            left += node.inputs[1:]
        elif node.op in MOVES:
            left += node.inputs if node.op == "concat" else node.inputs[:1]
        elif node.op == "cast" and r[node.inputs[0]].type.dtype == BOOL:
            largest = max(largest, 1.0)
        else:
            return math.inf
        if len(seen) > MAX_MASK_NODES:
            return math.inf
    return largest


def _swap_last(r: Rewriter, node_id: int) -> int:
    """A value with its last two axes swapped; through what can take that up."""
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
"""Ops whose operands 0 to 2, and whose result, lie by heads or by length."""


def _emit(r: Rewriter, op: str, operands: list[int], attrs: dict[str, AttrValue]) -> int:
    """Attention that reads its operands from before they were transposed."""
    turns = list(Attrs(attrs).as_ints("is_bshd"))
    for side in range(3):
        operand = r[operands[side]]
        turned = operand.op == "transpose" and operand.attrs.as_ints("axes") == SWAPPED
        if turned and r.same_device(operand.id):
            operands[side] = operand.inputs[0]
            turns[side] ^= 1
    return r.emit(op, operands, attrs | {"is_bshd": tuple(turns)})


def fold_transpose_into_attention(r: Rewriter, node: Node) -> int | None:
    """Attention behind transposes of heads and length."""
    made = _emit(r, node.op, list(node.inputs), dict(node.attrs))
    return made if r[made].inputs != node.inputs else None


def fold_output_transpose(r: Rewriter, node: Node) -> int | None:
    """Attention before a transpose of heads and length."""
    found = (single_use(r, node.inputs[0], op) for op in ATTENTION)
    made = next((one for one in found if one is not None), None)
    if made is None or node.attrs.as_ints("axes") != SWAPPED:
        return None
    *turns, last = made.attrs.as_ints("is_bshd")
    attrs = dict(made.attrs) | {"is_bshd": (*turns, 1 - last)}
    return r.emit(made.op, made.inputs, attrs)

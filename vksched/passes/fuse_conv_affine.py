"""Folded: a scale and a shift for each channel behind a convolution become its weights and bias.

    conv(x, w) * scale + shift     is     conv(x, w * scale, bias = shift)

as batch norms with given statistics are written out. The weights are multiplied once, on the host;
graphs that share a weight and a scale share what is made of them. Weights that are not known, are
placed by the user, are no float32, or would not be finite or vanish stay as they are, as do those
that float16 would not hold where precision allows it.
Examples: tests/passes/test_fuse_conv_affine.py.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator
from types import NoneType

import numpy as np

from ..common.dtypes import FLOAT32, NDArray
from ..common.errors import VkschedError
from ..ir.evaluate import compute
from ..ir.graph import Node
from ..ir.precision import allows_half
from .pattern import single_use
from .rewrite import Rewriter

MAX_CHANNELS, MAX_OPS = 1 << 14, 8
"""Of a row that is computed when the graph is made: its values, and ops one behind the other."""
LEAST, MAX_FLOAT32 = (float(m) for m in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
"""The least number of float32 with all of its bits, and the largest."""
MAX_FLOAT16 = float(np.finfo(np.float16).max)


class _Key:
    """Stands for an array that was made of a weight, as long as that is there."""


_scaled: weakref.WeakKeyDictionary[object, dict[bytes, tuple[_Key, NDArray]]]
_scaled = weakref.WeakKeyDictionary()
"""By the key of a weight and the digest of a scale."""


def fold_scale(r: Rewriter, node: Node) -> int | None:
    """A convolution times a row of its channels has that scale in its weights, and in its bias."""
    for conv, row in _behind(r, node):
        x, w, *bias = conv.inputs
        scaled = _scaled_weight(r, w, row, MAX_FLOAT16 if allows_half(conv.attrs) else MAX_FLOAT32)
        shifts = [_shifted(r, i, 0.0, row) for i in bias]
        if scaled is not None and None not in shifts:
            return r.emit("conv", (x, scaled, *(i for i in shifts if i is not None)), conv.attrs)
    return None


def fold_shift(r: Rewriter, node: Node) -> int | None:
    """A convolution plus a row of its channels has it in its bias."""
    for conv, row in _behind(r, node):
        x, w, *bias = conv.inputs
        made = _shifted(r, bias[0], row, 1.0) if bias else _row(r, row)
        if made is not None and r[w].declaration.leaf:
            return r.emit("conv", (x, w, made), conv.attrs)
    return None


def _behind(r: Rewriter, node: Node) -> Iterator[tuple[Node, NDArray]]:
    """Yield each operand of a node that is a convolution, with the other operand, known, as one
    value for each of its channels.
    """
    for side in (0, 1):
        conv, other = single_use(r, node.inputs[side], "conv"), r[node.inputs[1 - side]].type
        if conv is None or conv.type != node.type or conv.type.dtype != FLOAT32:
            continue
        rank, channels = conv.type.rank, conv.type.shape[1]
        shape = (1,) * (rank - other.rank) + other.shape
        each = (1, channels, *(1,) * (rank - 2))
        if shape not in (each, (1,) * rank) or not 0 < channels <= MAX_CHANNELS:
            continue
        values = _known(r, node.inputs[1 - side])
        if values is not None:
            yield conv, np.array(np.broadcast_to(values.reshape(-1), channels))


def _known(r: Rewriter, node_id: int, most: int = MAX_OPS) -> NDArray | None:
    """Return a few values that are constants or weights, or that a few ops make of such."""
    node = r[node_id]
    declared = node.declaration
    if not 0 < node.type.size <= MAX_CHANNELS or not r.is_free(node_id) or most == 0:
        return None
    if declared.leaf:
        return r.data(node_id)
    if declared.opaque or declared.stateful or node.op.startswith("random") or not node.inputs:
        return None
    operands = [_known(r, i, most - 1) for i in node.inputs]
    given = tuple(a for a in operands if a is not None)
    if len(given) < len(operands):
        return None
    try:
        with np.errstate(all="ignore"):
            return np.asarray(compute(declared, given, node.attrs))
    except VkschedError:  # for the run to raise, which is where the caller looks for it
        return None


def _scaled_weight(r: Rewriter, node_id: int, row: NDArray, most: float) -> int | None:
    """Return weights with each channel of results multiplied. most: their largest magnitude."""
    leaf, key, values = r[node_id], r.key(node_id), r.data(node_id)
    if leaf.type.dtype != FLOAT32 or values is None or not r.is_free(node_id):
        return None
    if leaf.op != "weight" or isinstance(key, (tuple, NoneType)):  # small: made anew each time
        made = _times(values, row)
        if made is None or not _is_within(made, most):
            return None
        return r.constant(made, _key("scaled", made), leaf.op)
    known, digest = _scaled.setdefault(key, {}), _digest(row)
    if digest not in known:
        made = _times(values, row)
        if made is None:
            return None
        known[digest] = _Key(), made
    own, made = known[digest]
    return r.constant(made, own, leaf.op) if _is_within(made, most) else None


def _times(values: NDArray, row: NDArray) -> NDArray | None:
    """Return a new array, None of one that is not finite, or has a channel of which too few bits
    are left, though scale and weights have them all.
    """
    with np.errstate(all="ignore"):
        made = values * row.reshape(-1, *(1,) * (values.ndim - 1))
    before, after = (abs(x).reshape(len(x), -1).max(1, initial=0) for x in (values, made))
    lost = (after < LEAST) & (before >= LEAST) & (abs(row) >= LEAST)
    return made if np.isfinite(made).all() and not lost.any() else None


def _is_within(values: NDArray, most: float) -> bool:
    return bool(max(values.max(initial=0), -values.min(initial=0)) <= most)


def _shifted(
    r: Rewriter, node_id: int, shift: NDArray | float, scale: NDArray | float
) -> int | None:
    """Return a known bias, multiplied and then shifted."""
    values = _known(r, node_id)
    if values is None:
        return None
    with np.errstate(all="ignore"):
        return _row(r, np.asarray(values * scale + shift, np.float32))


def _row(r: Rewriter, row: NDArray) -> int | None:
    return r.constant(row, _key("row", row)) if np.isfinite(row).all() else None


def _key(what: str, values: NDArray) -> tuple[object, ...]:
    return "folded", what, values.shape, _digest(values)


def _digest(values: NDArray) -> bytes:
    return hashlib.blake2b(values.tobytes(), digest_size=32).digest()

"""Fold a scale and a shift per channel after a convolution into its weights and bias.

    conv(x, w) * scale + shift     is     conv(x, w * scale, bias = shift)

Model files write batch norms with fixed statistics in this form. The weights are scaled once on the
CPU; graphs that share a weight and a scale share the result. Weights are not scaled if they are
unknown, pinned by the user, not float32, or if the result overflows or underflows, in float16 if
the precision mode permits it. Examples: tests/passes/test_fuse_conv_affine.py.
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
"""Maximum size, and maximum chain of ops, of a row computed while the graph is rewritten."""
MIN_NORMAL, MAX_FLOAT32 = (float(m) for m in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
"""The smallest normal float32 and the largest finite one."""
MAX_FLOAT16 = float(np.finfo(np.float16).max)


class _Key:
    """The key of an array derived from a weight, cached for the lifetime of the weight."""


_scaled: weakref.WeakKeyDictionary[object, dict[bytes, tuple[_Key, NDArray]]]
_scaled = weakref.WeakKeyDictionary()
"""Scaled weights by the key of the weight and the digest of the scale."""


def fold_scale(r: Rewriter, node: Node) -> int | None:
    """Fold the product of a convolution and a row of channels into its weights and bias."""
    for conv, row in _conv_operands(r, node):
        x, w, *bias = conv.inputs
        scaled = _scaled_weight(r, w, row, MAX_FLOAT16 if allows_half(conv.attrs) else MAX_FLOAT32)
        shifts = [_shifted(r, i, 0.0, row) for i in bias]
        if scaled is not None and None not in shifts:
            return r.emit("conv", (x, scaled, *(i for i in shifts if i is not None)), conv.attrs)
    return None


def fold_shift(r: Rewriter, node: Node) -> int | None:
    """Fold the sum of a convolution and a row of channels into its bias."""
    for conv, row in _conv_operands(r, node):
        x, w, *bias = conv.inputs
        shifted = _shifted(r, bias[0], row, 1.0) if bias else _row(r, row)
        if shifted is not None and r[w].declaration.leaf:
            return r.emit("conv", (x, w, shifted), conv.attrs)
    return None


def _conv_operands(r: Rewriter, node: Node) -> Iterator[tuple[Node, NDArray]]:
    """Yield each convolution operand of a node with the other operand per channel."""
    for side in (0, 1):
        conv, other = single_use(r, node.inputs[side], "conv"), r[node.inputs[1 - side]].type
        if conv is None or conv.type != node.type or conv.type.dtype != FLOAT32:
            continue
        rank, channels = conv.type.rank, conv.type.shape[1]
        shape = (1,) * (rank - other.rank) + other.shape
        per_channel = (1, channels, *(1,) * (rank - 2))
        if shape not in (per_channel, (1,) * rank) or not 0 < channels <= MAX_CHANNELS:
            continue
        values = _known(r, node.inputs[1 - side])
        if values is not None:
            yield conv, np.array(np.broadcast_to(values.reshape(-1), channels))


def _known(r: Rewriter, node_id: int, most: int = MAX_OPS) -> NDArray | None:
    """Return the values of a small constant or weight, or of a few ops on them; None if unknown."""
    node = r[node_id]
    declared = node.declaration
    if not 0 < node.type.size <= MAX_CHANNELS or not r.is_free(node_id) or most == 0:
        return None
    if declared.leaf:
        return r.data(node_id)
    if declared.opaque or declared.stateful or node.op.startswith("random") or not node.inputs:
        return None
    operands = [_known(r, i, most - 1) for i in node.inputs]
    values = tuple(a for a in operands if a is not None)
    if len(values) < len(operands):
        return None
    try:
        with np.errstate(all="ignore"):
            return np.asarray(compute(declared, values, node.attrs))
    except VkschedError:  # the run raises it
        return None


def _scaled_weight(r: Rewriter, node_id: int, row: NDArray, most: float) -> int | None:
    """Return weights with each output channel scaled. most: maximum absolute value allowed."""
    leaf, key, values = r[node_id], r.key(node_id), r.data(node_id)
    if leaf.type.dtype != FLOAT32 or values is None or not r.is_free(node_id):
        return None
    if leaf.op != "weight" or isinstance(key, (tuple, NoneType)):  # small: not cached
        scaled = _times(values, row)
        if scaled is None or not _is_within(scaled, most):
            return None
        return r.constant(scaled, _key("scaled", scaled), leaf.op)
    cached, digest = _scaled.setdefault(key, {}), _digest(row)
    if digest not in cached:
        scaled = _times(values, row)
        if scaled is None:
            return None
        cached[digest] = _Key(), scaled
    own, scaled = cached[digest]
    return r.constant(scaled, own, leaf.op) if _is_within(scaled, most) else None


def _times(values: NDArray, row: NDArray) -> NDArray | None:
    """Return a scaled array; None if it is not finite, or if a channel underflows although scale
    and weights are normal numbers.
    """
    with np.errstate(all="ignore"):
        scaled = values * row.reshape(-1, *(1,) * (values.ndim - 1))
    before, after = (abs(x).reshape(len(x), -1).max(1, initial=0) for x in (values, scaled))
    lost = (after < MIN_NORMAL) & (before >= MIN_NORMAL) & (abs(row) >= MIN_NORMAL)
    return scaled if np.isfinite(scaled).all() and not lost.any() else None


def _is_within(values: NDArray, most: float) -> bool:
    return bool(max(values.max(initial=0), -values.min(initial=0)) <= most)


def _shifted(
    r: Rewriter, node_id: int, shift: NDArray | float, scale: NDArray | float
) -> int | None:
    """Return a known bias, scaled and then shifted."""
    values = _known(r, node_id)
    if values is None:
        return None
    with np.errstate(all="ignore"):
        return _row(r, np.asarray(values * scale + shift, np.float32))


def _row(r: Rewriter, row: NDArray) -> int | None:
    return r.constant(row, _key("row", row)) if np.isfinite(row).all() else None


def _key(kind: str, values: NDArray) -> tuple[object, ...]:
    return "folded", kind, values.shape, _digest(values)


def _digest(values: NDArray) -> bytes:
    return hashlib.blake2b(values.tobytes(), digest_size=32).digest()

"""Fuse norms that model files write as small ops, the scale and shift after a norm, and a bias
after a matmul.

    x -> mean -> sub -> square -> mean -> add eps -> sqrt -> div      is      x -> layer_norm

Examples: tests/passes/test_patterns.py.
"""

from __future__ import annotations

from ..common.dtypes import FLOAT32
from ..ir.attrs import AttrValue
from ..ir.graph import Node
from ..ops.elementwise.pointwise import MIN_NORMAL
from .pattern import factors, is_square, single_use
from .rewrite import Rewriter


def to_norm(r: Rewriter, node: Node) -> int | None:
    """Match a quotient, or a product with an inverse, that is a layer norm or an RMS norm."""
    if node.type.dtype != FLOAT32 or not node.type.shape:
        return None
    sides = (node.inputs,) if node.op == "div" else (node.inputs, tuple(reversed(node.inputs)))
    for top, below in sides:
        root = _rooted(r, below, inverse=node.op == "mul")
        if root is None or r[top].type != node.type:
            continue
        mean, eps = root
        if not (eps == 0 or MIN_NORMAL <= eps):
            continue
        axis = _trailing(mean, len(node.type.shape))
        if axis is None:
            continue
        x = _centred(r, top, mean)
        if x is not None:
            return _emit(r, "layer_norm", x, axis, eps)
        if is_square(r, mean.inputs[0], top):
            return _emit(r, "rms_norm", top, axis, eps)
    return None


def _rooted(r: Rewriter, node_id: int, inverse: bool) -> tuple[Node, float] | None:
    """Return (m, eps) if a value is sqrt(m + eps), or its inverse, and m a mean; else None."""
    if inverse:
        node = single_use(r, node_id, "rsqrt", "reciprocal", "div", "pow")
        if node is None:
            return None
        if node.op == "rsqrt" or (node.op == "pow" and r.scalar(node.inputs[1]) == -0.5):
            return _mean_and_eps(r, node.inputs[0])
        if node.op == "pow" or (node.op == "div" and r.scalar(node.inputs[0]) != 1.0):
            return None
        node_id = node.inputs[-1]
    node = single_use(r, node_id, "sqrt", "pow")
    if node is None or (node.op == "pow" and r.scalar(node.inputs[1]) != 0.5):
        return None
    return _mean_and_eps(r, node.inputs[0])


def _mean_and_eps(r: Rewriter, node_id: int) -> tuple[Node, float] | None:
    node, eps = r[node_id], 0.0
    if node.op == "add":
        if not r.has_single_use(node_id):
            return None
        eps, others = factors(r, node, "add")
        if len(others) != 1:
            return None
        node_id = others[0]
    mean = single_use(r, node_id, "reduce_mean")
    return None if mean is None else (mean, float(eps))


def _trailing(mean: Node, rank: int) -> int | None:
    """Return the first axis of a mean over the last axes with keepdims; None for other means."""
    axes = mean.attrs.as_ints("axes")
    first = rank - len(axes)
    is_trailing = mean.attrs.as_bool("keepdims") and axes == tuple(range(first, rank))
    return first if is_trailing and axes else None


def _centred(r: Rewriter, node_id: int, mean: Node) -> int | None:
    """Return x if a value is x - mean(x) without other readers; else None."""
    node = r[node_id]
    if node.op != "sub" or not is_square(r, mean.inputs[0], node_id):
        return None
    square = r[mean.inputs[0]]
    times = 1 + sum(i == node_id for i in square.inputs)
    x, middle = node.inputs
    own = single_use(r, middle, "reduce_mean")
    if own is None or not r.is_read(node_id, times):
        return None
    same = own.inputs[0] == x and dict(own.attrs) == dict(mean.attrs)
    return x if same and r[x].type == node.type else None


def _emit(r: Rewriter, op: str, x: int, axis: int, eps: float) -> int:
    attrs: dict[str, AttrValue] = {
        "axis": axis,
        "eps": eps,
        "kind": op,
        "scaled": False,
        "shifted": False,
    }
    return r.emit(op, (x,), attrs)


def scale_norm(r: Rewriter, node: Node) -> int | None:
    """Fold the product of a norm and a row into the scale of the norm."""
    for side in (0, 1):
        norm, row = (
            single_use(r, node.inputs[side], "layer_norm", "rms_norm"),
            node.inputs[1 - side],
        )
        if norm is None or norm.attrs["scaled"] or norm.attrs["shifted"]:
            continue
        if r[row].type.shape == norm.type.shape[norm.attrs.as_int("axis") :] and _is_row_of(
            r, norm, row
        ):
            return r.emit(norm.op, (*norm.inputs, row), dict(norm.attrs) | {"scaled": True})
    return None


def shift_norm(r: Rewriter, node: Node) -> int | None:
    """Fold the sum of a layer norm and a row into the shift of the norm."""
    for side in (0, 1):
        norm, row = single_use(r, node.inputs[side], "layer_norm"), node.inputs[1 - side]
        if norm is None or norm.attrs["shifted"]:
            continue
        if r[row].type.shape == norm.type.shape[norm.attrs.as_int("axis") :] and _is_row_of(
            r, norm, row
        ):
            return r.emit(norm.op, (*norm.inputs, row), dict(norm.attrs) | {"shifted": True})
    return None


def _is_row_of(r: Rewriter, norm: Node, row: int) -> bool:
    return r[row].type.dtype == norm.type.dtype and len(r[row].type.shape) > 0


def add_bias(r: Rewriter, node: Node) -> int | None:
    """Fold the sum of a matmul and a row into the bias of the matmul."""
    for side in (0, 1):
        product, row = single_use(r, node.inputs[side], "matmul"), node.inputs[1 - side]
        if product is None or len(product.inputs) != 2 or product.type != node.type:
            continue
        row_type = r[row].type
        if row_type.shape == product.type.shape[-1:] and row_type.dtype == product.type.dtype:
            return r.emit("matmul", (*product.inputs, row), product.attrs)
    return None

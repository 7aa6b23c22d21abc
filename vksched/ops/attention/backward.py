"""Gradients of attention with respect to q, k and v in one op, which recomputes the scores.

    weights p = softmax(s), gradient of the result g, a = g v^T:
        dv = p^T g,  ds = p (a - sum(p a)),  dq = ds k scale,  dk = ds^T q scale

Examples: tests/ops/test_ops.py, tests/autograd/test_rules_products.py.
"""

from __future__ import annotations

import math

from ...common.dtypes import FLOAT32, TensorType
from ...common.errors import DTypeError, ShapeError
from ...ir.attrs import Attrs
from ...ir.op import Op, Work, register
from ...ir.tensor import Tensor, apply
from ..layout.reshape import reshape, slice_
from .attention import SCORES, infer_attention
from .backward_cpu import (
    CPU_KERNEL,
    attention_backward_reference,
    shapes_of_parts,
    size_of_parts,
)
from .backward_kernels import KERNEL

OP = "attention_backward"
ATTRS = tuple(SCORES)
"""The attributes of attention that affect its gradient."""


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    """Return (3, batch, heads of k, elements): dq, dk and dv, each padded to the largest one."""
    q, k, v, g, *masks = inputs
    by_heads = Attrs({**attrs, "is_bshd": (0, 0, 0, 0)})
    result = infer_attention((q, k, v, *masks), by_heads)
    if g.dtype != FLOAT32:
        raise DTypeError(f"[{OP}] expected a gradient of float32, got {g.dtype}; try vs.cast")
    if g.shape != result.shape:
        raise ShapeError(f"[{OP}] expected a gradient of shape {result.shape}, got {g.shape}")
    shapes = shapes_of_parts(q.shape, k.shape, v.shape)
    return TensorType((3, *shapes[0][:2], size_of_parts(shapes)), q.dtype)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    """Estimate the work of five products: three with q, k and ds, and two with g, v and p."""
    q, v = inputs[0].shape, inputs[2].shape
    flops = 2.0 * math.prod(q[:3]) * v[2] * (3 * q[3] + 2 * v[3])
    return Work(flops, float(sum(t.device_bytes for t in inputs) + output.device_bytes))


register(
    Op(
        OP,
        _infer,
        attention_backward_reference,
        KERNEL,
        attrs=SCORES,
        operands=(4, 5),
        work=_work,
        roundable_operands=(0, 1, 2, 3),
        cpu=CPU_KERNEL,
    )
)


def attention_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, mask: Tensor | None, attrs: Attrs
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v in BHSD layout, for the gradient `g` of the result.

    `attrs` are the attributes of attention.
    """
    masks = () if mask is None else (mask,)
    merged = apply(OP, (q, k, v, g, *masks), {name: attrs[name] for name in ATTRS})
    return parts_of(merged, q, k, v)


def parts_of(merged: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v from the merged result of the op."""
    shapes = shapes_of_parts(q.shape, k.shape, v.shape)
    of_q, of_k, of_v = (
        reshape(slice_(merged, (i, 0), (i + 1, math.prod(shape[2:])), axes=(0, 3)), t.shape)
        for i, (t, shape) in enumerate(zip((q, k, v), shapes, strict=True))
    )
    return of_q, of_k, of_v

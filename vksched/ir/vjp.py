"""Vector-Jacobian products: gradient rules of the ops.

    x, w -> y = op(x, w) -> ... -> loss          forward, as the user wrote it
    dx, dw <- rule(x, w, y, dy) <- ... <- 1      backward, built of the same ops

A rule follows the declaration of its op and returns tensors. Gradients are thus placed, fused,
explained and executed like other nodes, and can be differentiated again. A rule runs once per call,
in time that does not depend on sizes. `vksched.autograd` walks from the loss to the operands;
`vksched ops grad` compares each rule with central differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..common.dtypes import FLOATS, Shape
from .attrs import Attrs
from .rule_registry import RuleRegistry
from .tensor import Tensor, apply


@dataclass(frozen=True, slots=True)
class VjpContext:
    """Arguments of a gradient rule: one call and the gradient of its result.

    Attributes
    ----------
    inputs
        Operands.
    output
        Result.
    grad
        Gradient of the loss with respect to the result, in its type.
    wanted
        For each operand True if its gradient is used.
    through
        Differentiates another expression of the result with respect to these operands.
    """

    inputs: tuple[Tensor, ...]
    output: Tensor
    grad: Tensor
    attrs: Attrs
    wanted: tuple[bool, ...]
    through: Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor | None, ...]]


VjpResult = tuple[Tensor | None, ...]
"""Gradient of the loss for each operand, in its type; None if it is not differentiable."""
Rule = Callable[[VjpContext], VjpResult]

RULES = RuleRegistry[Rule]("gradient")
gradient, no_gradient = RULES.declare, RULES.exclude
rule_of, why_no_gradient = RULES.get, RULES.reason
"""A gradient stops at an op with a reason; an op with neither rule nor reason is an error."""


# -- building blocks of rules ----------------------------------------------------------------------


def is_smooth(tensor: Tensor) -> bool:
    """Return True if a tensor can have a gradient: floats can, integers and bools cannot."""
    return tensor.dtype in FLOATS


def sum_to(grad: Tensor, shape: Shape) -> Tensor:
    """Return the gradient of a broadcast operand: the sum over the repeated axes."""
    if grad.shape == shape:
        return grad
    lead = grad.rank - len(shape)
    repeated = (i + lead for i, n in enumerate(shape) if n == 1 and grad.shape[i + lead] != 1)
    axes = (*range(lead), *repeated)
    summed = apply("reduce_sum", (grad,), {"axes": axes, "keepdims": False}) if axes else grad
    return summed if summed.shape == shape else summed.reshape(shape)

"""Gradient rules: how the gradient of a result becomes those of the operands, op by op.

    x, w -> y = op(x, w) -> ... -> loss          forward, as the user wrote it
    dx, dw <- rule(x, w, y, dy) <- ... <- 1      backward, made of the same ops

A rule stands below the declaration of its op and returns tensors. So gradients are placed, fused,
explained and run like all others, and gradients of gradients need nothing more. It is built for
each call once, in time that does not depend on sizes. The walk from the loss to the operands is
`vksched.autograd`; `vksched ops grad` compares each rule with central differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..common.dtypes import FLOATS, Shape
from ..common.errors import VkschedError
from .attrs import Attrs
from .tensor import Tensor, apply


@dataclass(frozen=True, slots=True)
class VjpContext:
    """What a rule sees: one call and the gradient of its result.

    inputs: the operands. output: the result. grad: the gradient of the loss by the result; its
    type is that of the result. wanted: for each operand whether its gradient is used. through: the
    walk back from the result, made once more of operands by other ops, to these operands.
    """

    inputs: tuple[Tensor, ...]
    output: Tensor
    grad: Tensor
    attrs: Attrs
    wanted: tuple[bool, ...]
    through: Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor | None, ...]]


VjpResult = tuple[Tensor | None, ...]
"""For each operand the gradient of the loss by it, of the operand's type; None where the result
does not depend on it smoothly, as on positions or masks of bools.
"""
Rule = Callable[[VjpContext], VjpResult]

_RULES: dict[str, Rule] = {}
_REASONS: dict[str, str] = {}


def gradient(*ops: str) -> Callable[[Rule], Rule]:
    """Declare the decorated function as the gradient rule of ops."""

    def declare(rule: Rule) -> Rule:
        for op in ops:
            _declare(op)
            _RULES[op] = rule
        return rule

    return declare


def no_gradient(reason: str, *ops: str) -> None:
    """Declare that ops have no gradient, and why: a clause that follows the op's name in errors,
    such as "gives positions". A gradient stops there.
    """
    for op in ops:
        _declare(op)
        _REASONS[op] = reason


def _declare(op: str) -> None:
    if op in _RULES or op in _REASONS:
        raise VkschedError(f"[gradient] {op!r} has two rules")


def rule_of(op: str) -> Rule | None:
    """Return the rule of an op, or None."""
    return _RULES.get(op)


def why_no_gradient(op: str) -> str:
    """Return why a gradient stops at an op; "" where the op has a rule or nothing is declared."""
    return _REASONS.get(op, "")


# -- what rules are made of ----------------------------------------------------------------------


def is_smooth(tensor: Tensor) -> bool:
    """Return whether a tensor can have a gradient: floats can, integers and bools cannot."""
    return tensor.dtype in FLOATS


def sum_to(grad: Tensor, shape: Shape) -> Tensor:
    """Return the gradient of an operand that was broadcast from a shape: the sum over what was
    repeated.
    """
    if grad.shape == shape:
        return grad
    lead = grad.rank - len(shape)
    repeated = (i + lead for i, n in enumerate(shape) if n == 1 and grad.shape[i + lead] != 1)
    axes = (*range(lead), *repeated)
    summed = apply("reduce_sum", (grad,), {"axes": axes, "keepdims": False}) if axes else grad
    return summed if summed.shape == shape else summed.reshape(shape)

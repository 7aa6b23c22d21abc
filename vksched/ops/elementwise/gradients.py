"""Gradient rules of the elementwise ops, one line each where a line does.

g stands for the gradient of the result y; operands that were broadcast get the sum over what was
repeated. `vksched ops grad` compares each rule with central differences.
"""

from __future__ import annotations

from ..core.gradient import Pull, Pulled, gradient, sum_to
from ..core.tensor import Tensor
from .binary import mul
from .unary import neg


def _broadcast(call: Pull, *grads: Tensor | None) -> Pulled:
    """Returns gradients of the result's shape as such of the operands' shapes."""
    return tuple(
        None if g is None else sum_to(g, x.shape) for g, x in zip(grads, call.inputs, strict=True)
    )


# -- of one operand ----------------------------------------------------------------------------


@gradient("neg")
def _neg(call: Pull) -> Pulled:
    return (neg(call.grad),)


@gradient("exp")
def _exp(call: Pull) -> Pulled:
    return (call.grad * call.output,)


# -- of two operands ---------------------------------------------------------------------------


@gradient("add")
def _add(call: Pull) -> Pulled:
    return _broadcast(call, call.grad, call.grad)


@gradient("sub")
def _sub(call: Pull) -> Pulled:
    return _broadcast(call, call.grad, -call.grad)


@gradient("mul")
def _mul(call: Pull) -> Pulled:
    (a, b), g = call.inputs, call.grad
    return _broadcast(call, mul(g, b), mul(g, a))

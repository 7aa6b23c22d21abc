"""Stochastic gradient descent, with momentum where it is wanted."""

from __future__ import annotations

from math import inf

from ..common.errors import ShapeError
from ..ir.tensor import Tensor
from ..ops.elementwise import addcmul
from .optimizer_state import (
    Params,
    Rate,
    Updates,
    count_steps,
    in_range,
    listed,
    zeros_beside,
)


def sgd(
    params: Params,
    grads: Params,
    lr: Rate = 1e-2,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    *,
    name: str = "sgd",
) -> Updates:
    """The next values of parameters, as torch.optim.SGD:

        g = grad + weight_decay * p
        v = momentum * v + g
        p = p - lr * v                  nesterov: p - lr * (g + momentum * v)

    params: float32 states, alone, in a sequence or in a dict; grads: in the same form. lr: a
    number, a float32 scalar or a function of the number of steps done. name: of its own states.

    Returns:
        updates for `sched.compile`, those of its own states among them.

    Raises:
        GradientError, ShapeError, DTypeError: parameters and gradients that do not belong together.
    """
    op = "sgd"
    decay = in_range(op, "weight_decay", weight_decay, 0, inf)
    kept = in_range(op, "momentum", momentum, 0, 1)
    if nesterov and not kept:
        raise ShapeError(f"[{op}] expected a momentum above 0 beside nesterov, got {momentum!r}")
    pairs, steps = listed(op, params, grads), count_steps(op, lr, name)
    out: Updates = steps.updates
    for param, grad in pairs:
        slope: Tensor = grad + decay * param if decay else grad
        velocity: Tensor | None = None
        if kept:
            held = zeros_beside(param, f"{name}.velocity")
            velocity = out[held] = kept * held + slope
            slope = slope + kept * velocity if nesterov else velocity
        if slope is grad or slope is velocity:  # both are values of their own
            out[param] = addcmul(param, steps.rate, slope, -1.0)
        else:  # passes make one node of it and of what makes the slope
            out[param] = param - steps.rate * slope
    return out

"""Stochastic gradient descent with optional momentum."""

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
    zeros_for,
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
    """Return the next values of parameters by gradient descent, as torch.optim.SGD:

        g = grad + weight_decay * p
        v = momentum * v + g
        p = p - lr * v                  nesterov: p - lr * (g + momentum * v)

    Parameters
    ----------
    params
        Float32 states: one, a sequence or a dict.
    grads
        Their gradients, with the structure of `params`.
    lr
        The learning rate: a number, a float32 scalar or a function of the number of completed
        steps.
    momentum
        The decay rate of the velocity; 0 disables it.
    nesterov
        Use Nesterov momentum.
    weight_decay
        The coefficient of L2 regularization.
    name
        A prefix for the names of the optimizer's own states.

    Returns
    -------
    dict
        Updates for `sched.compile`, including those of the optimizer's own states.

    Raises
    ------
    GradientError, ShapeError, DTypeError
        The parameters and gradients do not match.
    """
    op = "sgd"
    decay = in_range(op, "weight_decay", weight_decay, 0, inf)
    decay_rate = in_range(op, "momentum", momentum, 0, 1)
    if nesterov and not decay_rate:
        raise ShapeError(f"[{op}] expected a momentum above 0 with nesterov, got {momentum!r}")
    pairs, steps = listed(op, params, grads), count_steps(op, lr, name)
    out: Updates = steps.updates
    for param, grad in pairs:
        slope: Tensor = grad + decay * param if decay else grad
        velocity: Tensor | None = None
        if decay_rate:
            held = zeros_for(param, f"{name}.velocity")
            velocity = out[held] = decay_rate * held + slope
            slope = slope + decay_rate * velocity if nesterov else velocity
        if slope is grad or slope is velocity:  # both are existing values
            out[param] = addcmul(param, steps.rate, slope, -1.0)
        else:  # passes fuse it with the ops of the slope
            out[param] = param - steps.rate * slope
    return out

"""Adam, and AdamW with decoupled weight decay."""

from __future__ import annotations

import math
from math import inf

from ..ir.tensor import Tensor
from ..ops.elementwise import expm1, rsqrt, sqrt, square
from .optimizer_state import (
    Params,
    Rate,
    Updates,
    count_steps,
    in_range,
    listed,
    two_betas,
    zeros_for,
)


def adam(
    params: Params,
    grads: Params,
    lr: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    name: str = "adam",
) -> Updates:
    """Return the next values of parameters by Adam, as torch.optim.Adam.

    Weight decay is added to the gradient, as in L2 regularization. Parameters, result and errors
    are those of `adamw`.

    References
    ----------
    Kingma and Ba, Adam: a method for stochastic optimization, ICLR 2015.
    """
    return _adam("adam", params, grads, lr, betas, eps, weight_decay, False, name)


def adamw(
    params: Params,
    grads: Params,
    lr: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    *,
    name: str = "adamw",
) -> Updates:
    """Return the next values of parameters by AdamW, as torch.optim.AdamW; t is the step, from 1:

        m = beta1 * m + (1 - beta1) * grad
        v = beta2 * v + (1 - beta2) * grad^2
        p = p - lr * weight_decay * p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    Parameters
    ----------
    params
        Float32 states: one, a sequence or a dict.
    grads
        Their gradients, with the structure of `params`.
    lr
        The learning rate: a number, a float32 scalar or a function of the number of completed
        steps.
    betas
        The decay rates of both moments.
    eps
        Added to the denominator.
    weight_decay
        The coefficient of decoupled weight decay.
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

    References
    ----------
    Loshchilov and Hutter, Decoupled weight decay regularization, ICLR 2019.
    """
    return _adam("adamw", params, grads, lr, betas, eps, weight_decay, True, name)


def _adam(
    op: str,
    params: Params,
    grads: Params,
    lr: Rate,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    name: str,
) -> Updates:
    first, second = two_betas(op, betas)
    least = in_range(op, "eps", eps, 0, inf)
    decay = in_range(op, "weight_decay", weight_decay, 0, inf)
    pairs, steps = listed(op, params, grads), count_steps(op, lr, name)
    # scalars shared by all parameters; expm1 computes 1 - beta^t without cancellation
    rate = steps.rate / _bias_correction(first, steps.number) if first else steps.rate
    inverse_root = rsqrt(_bias_correction(second, steps.number)) if second else 1.0
    out: Updates = steps.updates
    for param, grad in pairs:
        mean, power = (zeros_for(param, f"{name}.{what}") for what in ("mean", "power"))
        slope = grad + decay * param if decay and not decoupled else grad
        out[mean] = first * mean + (1.0 - first) * slope
        out[power] = second * power + (1.0 - second) * square(slope)
        decayed = param - (steps.rate * decay) * param if decay and decoupled else param
        out[param] = decayed - rate * out[mean] / (sqrt(out[power]) * inverse_root + least)
    return out


def _bias_correction(beta: float, number: Tensor) -> Tensor:
    """Return 1 - beta^t, which corrects the bias of a moving average that began with 0."""
    return -expm1(number * math.log(beta))

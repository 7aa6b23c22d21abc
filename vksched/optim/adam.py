"""Adam, and AdamW, which takes weight decay apart from the gradient."""

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
    zeros_beside,
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
    """The next values of parameters, as torch.optim.Adam: AdamW's, but weight decay is added to the
    gradient, as in L2 regularisation. Arguments, result and errors as in `adamw`.

    Source: Kingma and Ba, Adam: a method for stochastic optimization, ICLR 2015.
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
    """The next values of parameters, as torch.optim.AdamW; t is the number of the step, from 1:

        m = beta1 * m + (1 - beta1) * grad
        v = beta2 * v + (1 - beta2) * grad^2
        p = p - lr * weight_decay * p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    params: float32 states, alone, in a sequence or in a dict; grads: in the same form. lr: a
    number, a float32 scalar or a function of the number of steps done. name: of its own states.

    Returns:
        updates for `sched.compile`, those of its own states among them.

    Raises:
        GradientError, ShapeError, DTypeError: parameters and gradients that do not belong together.

    Source: Loshchilov and Hutter, Decoupled weight decay regularization, ICLR 2019.
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
    apart: bool,
    name: str,
) -> Updates:
    first, second = two_betas(op, betas)
    least = in_range(op, "eps", eps, 0, inf)
    decay = in_range(op, "weight_decay", weight_decay, 0, inf)
    pairs, steps = listed(op, params, grads), count_steps(op, lr, name)
    # scalars, made once for all parameters; expm1 keeps the digits of 1 - beta^t
    rate = steps.rate / _missing(first, steps.number) if first else steps.rate
    widen = rsqrt(_missing(second, steps.number)) if second else 1.0
    out: Updates = steps.updates
    for param, grad in pairs:
        mean, power = (zeros_beside(param, f"{name}.{what}") for what in ("mean", "power"))
        slope = grad + decay * param if decay and not apart else grad
        out[mean] = first * mean + (1.0 - first) * slope
        out[power] = second * power + (1.0 - second) * square(slope)
        kept = param - (steps.rate * decay) * param if decay and apart else param
        out[param] = kept - rate * out[mean] / (sqrt(out[power]) * widen + least)
    return out


def _missing(beta: float, number: Tensor) -> Tensor:
    """Return 1 - beta^t, the share of the steps so far in a mean that began with 0."""
    return -expm1(number * math.log(beta))

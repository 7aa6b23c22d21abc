"""Lion: updates of a fixed size by the sign of an averaged gradient, with a single moment."""

from __future__ import annotations

from math import inf

from ..ops.elementwise import sign
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


def lion(
    params: Params,
    grads: Params,
    lr: Rate = 1e-4,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    *,
    name: str = "lion",
) -> Updates:
    """Return the next values of parameters by Lion:

        p = p - lr * (sign(beta1 * m + (1 - beta1) * grad) + weight_decay * p)
        m = beta2 * m + (1 - beta2) * grad

    Parameters
    ----------
    params
        Float32 states: one, a sequence or a dict.
    grads
        Their gradients, with the structure of `params`.
    lr
        The learning rate: a number, a float32 scalar or a function of the number of completed
        steps. Typical rates are a third to a tenth of those of AdamW.
    betas
        The interpolation weight of the update, and the decay rate of the moment.
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
    Chen and others, Symbolic discovery of optimization algorithms, NeurIPS 2023.
    """
    op = "lion"
    first, second = two_betas(op, betas)
    decay = in_range(op, "weight_decay", weight_decay, 0, inf)
    pairs, steps = listed(op, params, grads), count_steps(op, lr, name)
    out: Updates = steps.updates
    for param, grad in pairs:
        mean = zeros_for(param, f"{name}.mean")
        update = sign(first * mean + (1.0 - first) * grad)
        out[param] = param - steps.rate * (update + decay * param if decay else update)
        out[mean] = second * mean + (1.0 - second) * grad
    return out

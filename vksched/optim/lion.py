"""Lion: steps of one size, by the sign of a mean of gradients; one moment instead of Adam's two."""

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
    zeros_beside,
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
    """The next values of parameters:

        p = p - lr * (sign(beta1 * m + (1 - beta1) * grad) + weight_decay * p)
        m = beta2 * m + (1 - beta2) * grad

    params: float32 states, alone, in a sequence or in a dict; grads: in the same form. lr: a
    number, a float32 scalar or a function of the number of steps done; about a third to a tenth of
    AdamW's. name: of its own states.

    Returns:
        updates for `sched.compile`, those of its own states among them.

    Raises:
        GradientError, ShapeError, DTypeError: parameters and gradients that do not belong together.

    Source: Chen and others, Symbolic discovery of optimization algorithms, NeurIPS 2023.
    """
    op = "lion"
    first, second = two_betas(op, betas)
    decay = in_range(op, "weight_decay", weight_decay, 0, inf)
    pairs, steps = listed(op, params, grads), count_steps(op, lr, name)
    out: Updates = steps.updates
    for param, grad in pairs:
        mean = zeros_beside(param, f"{name}.mean")
        way = sign(first * mean + (1.0 - first) * grad)
        out[param] = param - steps.rate * (way + decay * param if decay else way)
        out[mean] = second * mean + (1.0 - second) * grad
    return out

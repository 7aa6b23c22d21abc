"""Schedules of learning rates: functions of the number of completed steps, a float32 scalar.

rate │   ╭──╮            warmup: linear from 0 to the peak
     │  ╱    ╲           then cosine or linear decay to the last rate
     │ ╱      ╰──────    then constant
     └─────────────── steps
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..common.dtypes import as_float, as_int
from ..common.errors import ShapeError
from ..ir.tensor import Tensor
from ..ops.elementwise import clip, cos, minimum

Schedule = Callable[[Tensor], Tensor]


def constant(rate: float, warmup: int = 0) -> Schedule:
    """Return a constant schedule.

    Parameters
    ----------
    rate
        The learning rate.
    warmup
        The number of warmup steps, the first of which has rate / warmup.
    """
    peak, rising = as_float("constant", "rate", rate), _steps("constant", "warmup", warmup)
    return lambda done: _warmup_factor(done, rising) * peak


def linear(peak: float, steps: int, last: float = 0.0, warmup: int = 0) -> Schedule:
    """Return a schedule with linear decay.

    Parameters
    ----------
    peak
        The rate after the warmup.
    steps
        The number of steps, warmup included.
    last
        The rate after these steps.
    warmup
        The number of warmup steps.
    """
    return _decay("linear", peak, steps, last, warmup, lambda part: 1.0 - part)


def cosine(peak: float, steps: int, last: float = 0.0, warmup: int = 0) -> Schedule:
    """Return a schedule with decay along half a cosine.

    Parameters
    ----------
    peak
        The rate after the warmup.
    steps
        The number of steps, warmup included.
    last
        The rate after these steps.
    warmup
        The number of warmup steps.

    References
    ----------
    Loshchilov and Hutter, SGDR, ICLR 2017.
    """
    return _decay("cosine", peak, steps, last, warmup, lambda part: 0.5 + 0.5 * cos(part * math.pi))


def _decay(
    op: str, peak: float, steps: int, last: float, warmup: int, shape: Callable[[Tensor], Tensor]
) -> Schedule:
    high, low = as_float(op, "peak", peak), as_float(op, "last", last)
    rising, whole = _steps(op, "warmup", warmup), _steps(op, "steps", steps)
    if whole <= rising:
        raise ShapeError(f"[{op}] expected more steps than the {rising} of the warmup, got {steps}")

    def rate(done: Tensor) -> Tensor:
        part = clip((done - float(rising)) * (1.0 / (whole - rising)), 0.0, 1.0)
        return _warmup_factor(done, rising) * (low + (high - low) * shape(part))

    return rate


def _warmup_factor(done: Tensor, rising: int) -> Tensor:
    """Return the fraction of the peak that a warmup has reached."""
    return minimum((done + 1.0) * (1.0 / max(rising, 1)), 1.0)


def _steps(op: str, what: str, value: int) -> int:
    number = as_int(op, what, value)
    if number < 0:
        raise ShapeError(f"[{op}] expected {what} of 0 or more, got {value!r}")
    return number

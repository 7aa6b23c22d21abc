"""Common parts of optimizers: parameters with gradients, the step count, the learning rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ..common.dtypes import FLOAT32, as_float, as_floats
from ..common.errors import DTypeError, GradientError, GraphError, ShapeError
from ..ir.tensor import Tensor, as_tensor
from ..ops.creation.state import state
from ..ops.elementwise import add, cast

Params = Tensor | Sequence[Tensor] | Mapping[Any, Tensor]
"""States, or their gradients with an equal structure."""
Updates = dict[Tensor, Tensor]
"""States to their next values, as in `sched.compile(..., updates=)`."""
Rate = float | Tensor | Callable[[Tensor], Tensor]
"""A learning rate: a number, a float32 scalar such as an input, or a function from the number of
completed steps, a float32 scalar, to a float32 scalar.
"""


def listed(op: str, params: Params, grads: Params) -> list[tuple[Tensor, Tensor]]:
    """Return each parameter with its gradient.

    Raises
    ------
    GradientError
        The structures differ, there are no parameters, or one is no state or occurs
        twice.
    ShapeError, DTypeError
        A gradient has another type than its parameter, or is not float32.
    """
    if isinstance(params, Tensor):
        params, grads = (params,), (grads,) if isinstance(grads, Tensor) else grads
    if isinstance(params, Mapping):
        if not isinstance(grads, Mapping) or params.keys() != grads.keys():
            raise GradientError(
                f"[{op}] expected gradients as a dict of the keys of params; try "
                "vs.grad(loss, params)"
            )
        pairs = [(params[key], grads[key]) for key in params]
    else:
        found = sequence(op, "params", params)
        listed_grads = () if isinstance(grads, (Tensor, Mapping)) else sequence(op, "grads", grads)
        if len(found) != len(listed_grads):
            raise GradientError(
                f"[{op}] expected a sequence of {len(found)} gradients, one for each parameter; "
                "try vs.grad(loss, params)"
            )
        pairs = list(zip(found, listed_grads, strict=True))
    if not pairs:
        raise GradientError(f"[{op}] expected parameters, got none")
    for param, grad in pairs:
        if not isinstance(param, Tensor) or param.op != "state":
            raise GradientError(
                f"[{op}] expected states as params, got {param!r}; try vs.state(array, name)"
            )
        if param.dtype != FLOAT32:
            raise DTypeError(
                f"[{op}] expected parameters of float32, got {param.name}: {param.type}"
            )
        if not isinstance(grad, Tensor) or grad.type != param.type:
            raise ShapeError(f"[{op}] expected a gradient of {param.type}, got {grad!r}")
    if len({param for param, _ in pairs}) != len(pairs):
        raise GradientError(f"[{op}] expected each parameter once")
    return pairs


def sequence(op: str, what: str, values: object) -> tuple[Any, ...]:
    """Return the elements of an iterable. what: its name in the error.

    Raises
    ------
    GradientError
        It is not iterable.
    """
    if isinstance(values, Iterable):
        return tuple(values)
    raise GradientError(
        f"[{op}] expected {what} as a Tensor, or as a sequence or dict of them, got {values!r}"
    )


def zeros_for(param: Tensor, what: str) -> Tensor:
    """Return a state of zeros for a parameter, backed up on the host if the parameter is."""
    moment = state(np.zeros(param.shape, np.float32), what, backup=bool(param.attrs["backup"]))
    moment.name = f"{param.name}.{what}"  # independent of the current name scope
    return moment


@dataclass(frozen=True, slots=True)
class Steps:
    """The step count: `held` is its state, `number` the current step as float32, from 1, and `rate`
    the learning rate of this step, shared by all parameters.
    """

    held: Tensor
    number: Tensor
    rate: Tensor

    @property
    def updates(self) -> Updates:
        """The next value of the step count."""
        return {self.held: add(self.held, 1)}


def count_steps(op: str, rate: Rate, name: str) -> Steps:
    """Return a new step count with its learning rate.

    Raises
    ------
    DTypeError, ShapeError
        The rate is neither a number of 0 or more, nor a float32 scalar, nor
        a function that returns one.
    GraphError
        The name is empty or no str.
    """
    if not isinstance(name, str) or not name:
        raise GraphError(f"[{op}] expected text as name, got {name!r}")
    held = state(np.zeros((), np.int32), f"{name}.steps")
    done = cast(held, FLOAT32)
    return Steps(held, add(done, 1.0), rate_of(op, rate, done))


def rate_of(op: str, rate: Rate, done: Tensor) -> Tensor:
    """Return a learning rate as a float32 scalar. done: the number of completed steps."""
    if callable(rate) and not isinstance(rate, Tensor):
        rate = rate(done)
    if isinstance(rate, Tensor):
        if rate.shape != () or rate.dtype != FLOAT32:
            raise ShapeError(f"[{op}] expected a float32 scalar as lr, got {rate.type}")
        return rate
    return as_tensor(in_range(op, "lr", rate, 0, inf), like=done)


def in_range(op: str, what: str, value: object, low: float, high: float) -> float:
    """Return a number in low..high, without high.

    Raises
    ------
    DTypeError
        It is no number. ShapeError: it is out of range.
    """
    number = as_float(op, what, value)
    if not low <= number < high:
        legal = f"of {low:g} or more" if high == inf else f"from {low:g} to below {high:g}"
        raise ShapeError(f"[{op}] expected {what} {legal}, got {value!r}")
    return number


def two_betas(op: str, values: object) -> tuple[float, float]:
    """Return the two decay rates of moments.

    Raises
    ------
    DTypeError
        They are no numbers. ShapeError: they are not two, or not in 0..1, without 1.
    """
    numbers = as_floats(op, "betas", values)
    if len(numbers) != 2:
        raise ShapeError(f"[{op}] expected two numbers as betas, got {values!r}")
    first, second = (in_range(op, "betas", number, 0, 1) for number in numbers)
    return first, second

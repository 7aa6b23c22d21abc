"""Gradient rules of the elementwise ops, one line each where a line does.

x: the operand, y: the result, g: its gradient. Operands that were broadcast get the sum over what
was repeated. Rules of several roundings take float16 in float32, as functions of several ops do.
At kinks they follow PyTorch: 0 for relu and abs at 0, half each for equal operands of maximum, all
at the ends of clip. Slopes that grow without bound are cut off, so that 0 times them is 0, not NaN.
`vksched ops grad` compares each rule with central differences; kinks are in
tests/autograd/test_rules_elementwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...types import FLOAT16, FLOAT32, FLOAT64
from ..core.gradient import Pull, Pulled, Rule, gradient, is_smooth, sum_to
from ..core.tensor import Tensor
from .activation import sigmoid
from .binary import (
    div,
    equal,
    logical_and,
    maximum,
    mul,
    pow,
)
from .half import all_computed_wide
from .select import cast, clip, where
from .unary import (
    erf,
    exp,
    log,
    neg,
    sign,
    square,
)


def _broadcast(call: Pull, *grads: Tensor | None) -> Pulled:
    """Returns gradients of the result's shape as such of the operands' shapes."""
    return tuple(
        None if g is None else sum_to(g, x.shape) for g, x in zip(grads, call.inputs, strict=True)
    )


def _wide(build: Callable[..., tuple[Tensor, ...]], call: Pull) -> tuple[Tensor, ...]:
    """Returns build(operands, result, gradient); of float16 in float32, rounded once."""
    return all_computed_wide(
        lambda *given, name: build(*given), (*call.inputs, call.output, call.grad), None
    )


# -- of one operand ----------------------------------------------------------------------------

Slope = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x, y, g) -> the gradient of x."""

_ONE_STEP: dict[str, Slope] = {
    "positive": lambda x, y, g: g,
    "neg": lambda x, y, g: neg(g),
    "abs": lambda x, y, g: g * sign(x),
    "exp": lambda x, y, g: g * y,
    "log": lambda x, y, g: g / x,
    "relu": lambda x, y, g: where(y <= 0.0, 0.0, g),
    "clip": lambda x, y, g: where(equal(x, y), g, 0.0),
}


def _gelu_slope(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    """Phi(x) + x phi(x)."""
    density = exp(square(x) * -0.5) * (1 / math.sqrt(2 * math.pi))
    return g * (erf(x * math.sqrt(0.5)) * 0.5 + 0.5 + x * density)


def _gelu_tanh_slope(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    """Of x sigmoid(u), u = 2 sqrt(2 / pi) (x + 0.044715 x^3); beyond 20 it is flat in float64."""
    z, k = clip(x, -20.0, 20.0), 2 * math.sqrt(2 / math.pi)
    q = square(z)
    s = sigmoid(z * (q * (0.044715 * k) + k))
    return g * (s + s * (1.0 - s) * z * (q * (3 * 0.044715 * k) + k))


def _silu_slope(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    s = sigmoid(x)
    return g * (s + y * (1.0 - s))


_SLOPES: dict[str, Slope] = {
    "rsqrt": lambda x, y, g: g * -0.5 * y * y * y,
    "reciprocal": lambda x, y, g: -(g * y * y),
    "square": lambda x, y, g: g * x * 2.0,
    "tanh": lambda x, y, g: g * (1.0 - square(y)),
    "erf": lambda x, y, g: g * (2 / math.sqrt(math.pi)) * exp(neg(square(x))),
    "sigmoid": lambda x, y, g: g * (y * (1.0 - y)),
    "silu": _silu_slope,
    "gelu": _gelu_slope,
    "gelu_tanh": _gelu_tanh_slope,
}


def _one_step(slope: Slope) -> Rule:
    return lambda call: (slope(call.inputs[0], call.output, call.grad),)


def _several(slope: Slope) -> Rule:
    return lambda call: _wide(lambda x, y, g: (slope(x, y, g),), call)


for _op, _slope in _ONE_STEP.items():
    gradient(_op)(_one_step(_slope))
for _op, _slope in _SLOPES.items():
    gradient(_op)(_several(_slope))


BELOW_ROOTS = {FLOAT16: 2e-4, FLOAT32: 1e-23, FLOAT64: 1e-23}
"""Less than the root of any number above 0 that devices have."""


@gradient("sqrt")
def _sqrt(call: Pull) -> Pulled:
    """0 where the gradient is 0 at 0, and finite: that of a norm at 0 becomes 0."""
    least = BELOW_ROOTS[call.output.dtype]
    return _wide(lambda x, y, g: (g * 0.5 / maximum(y, least),), call)


@gradient("cast")
def _cast(call: Pull) -> Pulled:
    """Floats alone; that some digits are rounded away does not count."""
    (x,) = call.inputs
    return (cast(call.grad, x.dtype) if is_smooth(x) else None,)


# -- of several operands -----------------------------------------------------------------------


@gradient("add")
def _add(call: Pull) -> Pulled:
    return _broadcast(call, call.grad, call.grad)


@gradient("sub")
def _sub(call: Pull) -> Pulled:
    return _broadcast(call, call.grad, neg(call.grad))


@gradient("mul")
def _mul(call: Pull) -> Pulled:
    (a, b), g = call.inputs, call.grad
    return _broadcast(call, mul(g, b), mul(g, a))


@gradient("div")
def _div(call: Pull) -> Pulled:
    of_a = div(call.grad, call.inputs[1])
    return _broadcast(call, of_a, neg(of_a * call.output))


def _pow_slopes(a: Tensor, b: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """b a^(b-1) and y log a, without NaN from 0 * inf at a = 0, also in their own gradients."""
    zero = equal(a, 0.0)
    lower = b - 1.0
    if b.op != "constant" or b.data is None or not b.data.all():  # 0^0 is flat in a
        lower = where(logical_and(zero, equal(b, 0.0)), 0.0, lower)
    base = where(logical_and(zero, b >= 0.0), 1.0, a)
    return g * (b * pow(a, lower)), g * (y * log(base))


@gradient("pow")
def _pow(call: Pull) -> Pulled:
    return _broadcast(call, *_wide(_pow_slopes, call))


def _shared(call: Pull, over: Tensor, under: Tensor) -> Pulled:
    """over, under: where a loses, and where b does; equal operands get half each."""
    (a, b), g = call.inputs, call.grad
    half = where(equal(a, b), g * 0.5, g)
    return _broadcast(call, where(over, 0.0, half), where(under, 0.0, half))


@gradient("maximum")
def _maximum(call: Pull) -> Pulled:
    a, b = call.inputs
    return _shared(call, a < b, a > b)


@gradient("minimum")
def _minimum(call: Pull) -> Pulled:
    a, b = call.inputs
    return _shared(call, a > b, a < b)


@gradient("where")
def _where(call: Pull) -> Pulled:
    condition, g = call.inputs[0], call.grad
    return _broadcast(call, None, where(condition, g, 0.0), where(condition, 0.0, g))

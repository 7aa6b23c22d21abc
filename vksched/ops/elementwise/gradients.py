"""Gradient rules of the elementwise ops.

x: the operand, y: the result, g: its gradient. Gradients of broadcast operands are summed over the
repeated axes. Rules with several roundings compute float16 in float32. At kinks the rules follow
PyTorch: 0 for relu and abs at 0, half each for equal operands of maximum, all at the ends of clip.
Unbounded slopes are clamped, so that 0 times them is 0, not NaN. `vksched ops grad` compares each
rule with central differences; kinks are in tests/autograd/test_rules_elementwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...common.dtypes import FLOAT16, FLOAT32, FLOAT64
from ...ir.tensor import Tensor
from ...ir.vjp import Rule, VjpContext, VjpResult, gradient, is_smooth, no_gradient, sum_to
from .activation import sigmoid, softplus
from .binary import div, equal, floor_divide, hypot, logical_and, maximum, minimum, mul, pow
from .fp16 import all_computed_wide
from .pointwise import COMPARISONS, MIN_NORMAL, unary
from .select import cast, clip, where
from .unary import abs, cos, cosh, exp, log, neg, round, rsqrt, sign, sin, sinh, square, tanh


def _broadcast(call: VjpContext, *grads: Tensor | None) -> VjpResult:
    """Sum gradients of the result's shape to the operands' shapes."""
    return tuple(
        None if g is None else sum_to(g, x.shape) for g, x in zip(grads, call.inputs, strict=True)
    )


def _wide(build: Callable[..., tuple[Tensor, ...]], call: VjpContext) -> tuple[Tensor, ...]:
    """Return build(operands, result, gradient); float16 is computed in float32 and rounded once."""
    return all_computed_wide(
        lambda *args, name: build(*args), (*call.inputs, call.output, call.grad), None
    )


# -- one operand ------------------------------------------------------------------------------

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


def _gelu_bend(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    """Return phi(x) (2 - x^2), the derivative of the slope; beyond 40 phi is 0 in float64."""
    q = square(clip(x, -40.0, 40.0))
    return g * (exp(q * -0.5) * (2.0 - q) * (1 / math.sqrt(2 * math.pi)))


def _gelu_tanh_bend(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    """Return the derivative of s + s (1 - s) x u' with s = sigmoid(u), u = 2 sqrt(2 / pi) (x +
    0.044715 x^3); beyond 20 it is 0 in float64.
    """
    z, k = clip(x, -20.0, 20.0), 2 * math.sqrt(2 / math.pi)
    q = square(z) * (0.044715 * k)
    s, rise = sigmoid(z * (q + k)), q * 3.0 + k
    return g * (s * (1.0 - s) * (rise * 2.0 + q * 6.0 + (1.0 - s * 2.0) * z * square(rise)))


def _silu_slope(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    s = sigmoid(x)
    return g * (s + y * (1.0 - s))


def _mish_slope(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    t = tanh(softplus(x))
    return g * (t + x * sigmoid(x) * (1.0 - square(t)))


def _softsign_slope(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    divisor = abs(x) + 1.0
    return g / divisor / divisor


def _hard_swish_slope(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    return where(x <= -3.0, 0.0, where(x < 3.0, g * (x * (1 / 3) + 0.5), g))


_SLOPES: dict[str, Slope] = {
    "rsqrt": lambda x, y, g: g * -0.5 * y * y * y,
    "reciprocal": lambda x, y, g: neg(g * y * y),
    "square": lambda x, y, g: g * x * 2.0,
    "expm1": lambda x, y, g: g * exp(x),
    "log1p": lambda x, y, g: g / (x + 1.0),
    "log2": lambda x, y, g: g / x * (1 / math.log(2)),
    "log10": lambda x, y, g: g / x * (1 / math.log(10)),
    "sin": lambda x, y, g: g * cos(x),
    "cos": lambda x, y, g: neg(g * sin(x)),
    "tan": lambda x, y, g: g * (square(y) + 1.0),
    "asin": lambda x, y, g: g * rsqrt((1.0 - x) * (x + 1.0)),
    "acos": lambda x, y, g: neg(g * rsqrt((1.0 - x) * (x + 1.0))),
    "atan": lambda x, y, g: g / (square(x) + 1.0),
    "sinh": lambda x, y, g: g * cosh(x),
    "cosh": lambda x, y, g: g * sinh(x),
    "tanh": lambda x, y, g: g * (1.0 - square(y)),
    "asinh": lambda x, y, g: g / hypot(x, 1.0),
    "acosh": lambda x, y, g: g * rsqrt(x - 1.0) * rsqrt(x + 1.0),
    "atanh": lambda x, y, g: g / ((1.0 - x) * (x + 1.0)),
    "erf": lambda x, y, g: g * (2 / math.sqrt(math.pi)) * exp(neg(square(x))),
    "erfc": lambda x, y, g: g * (-2 / math.sqrt(math.pi)) * exp(neg(square(x))),
    "sigmoid": lambda x, y, g: g * (y * (1.0 - y)),
    "silu": _silu_slope,
    "gelu": lambda x, y, g: g * unary("gelu_backward", x, None),
    "gelu_tanh": lambda x, y, g: g * unary("gelu_tanh_backward", x, None),
    "gelu_backward": _gelu_bend,
    "gelu_tanh_backward": _gelu_tanh_bend,
    "mish": _mish_slope,
    "softplus": lambda x, y, g: g * sigmoid(x),
    "softsign": _softsign_slope,
    "hard_swish": _hard_swish_slope,
}


def _one_step(slope: Slope) -> Rule:
    return lambda call: (slope(call.inputs[0], call.output, call.grad),)


def _several(slope: Slope) -> Rule:
    return lambda call: _wide(lambda x, y, g: (slope(x, y, g),), call)


for _op, _slope in _ONE_STEP.items():
    gradient(_op)(_one_step(_slope))
for _op, _slope in _SLOPES.items():
    gradient(_op)(_several(_slope))


# -- one operand, with attributes -------------------------------------------------------------


def _below(x: Tensor) -> Tensor:
    """Return exp(x) for x <= 0; larger x, whose result is not selected, must not overflow."""
    return exp(minimum(x, 0.0))


def _inside(y: Tensor, g: Tensor) -> Tensor:
    """Return g where 0 < y < 1, else 0."""
    return where(logical_and(y > 0.0, y < 1.0), g, 0.0)


_WITH_ALPHA: dict[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {
    "elu": lambda x, y, g, alpha: where(x <= 0.0, g * alpha * _below(x), g),
    "celu": lambda x, y, g, alpha: g * exp(minimum(x, 0.0) * (1 / alpha)),
    "leaky_relu": lambda x, y, g, alpha: where(x <= 0.0, g * alpha, g),
    "thresholded_relu": lambda x, y, g, alpha: where(x <= alpha, 0.0, g),
    "hard_sigmoid": lambda x, y, g, alpha: _inside(y, g * alpha),
}


def _by_alpha(slope: Callable[[Tensor, Tensor, Tensor, float], Tensor]) -> Rule:
    return lambda call: _wide(lambda x, y, g: (slope(x, y, g, call.attrs.as_float("alpha")),), call)


for _op, _alpha_slope in _WITH_ALPHA.items():
    gradient(_op)(_by_alpha(_alpha_slope))


@gradient("selu")
def _selu(call: VjpContext) -> VjpResult:
    alpha, gamma = call.attrs.as_float("alpha"), call.attrs.as_float("gamma")
    return _wide(
        lambda x, y, g: (where(x <= 0.0, g * (alpha * gamma) * _below(x), g * gamma),), call
    )


BELOW_ROOTS = {FLOAT16: 2e-4, FLOAT32: 1e-23, FLOAT64: 1e-23}
"""A lower bound of the square roots of positive numbers on devices."""


@gradient("sqrt")
def _sqrt(call: VjpContext) -> VjpResult:
    """Return 0 where g is 0 at x = 0, else finite values: the gradient of a norm at 0 is 0."""
    least = BELOW_ROOTS[call.output.dtype]
    return _wide(lambda x, y, g: (g * 0.5 / maximum(y, least),), call)


@gradient("cast")
def _cast(call: VjpContext) -> VjpResult:
    """Return a gradient for floats only, and ignore rounding."""
    (x,) = call.inputs
    return (cast(call.grad, x.dtype) if is_smooth(x) else None,)


@gradient("reduce_precision")
def _reduce_precision(call: VjpContext) -> VjpResult:
    """Return the gradient of the equivalent cast, and 0 where the value saturates."""
    if call.attrs["overflow"] != "saturate":
        return (call.grad,)
    largest = call.attrs.as_float("max_finite")
    return _wide(lambda x, y, g: (where(abs(x) > largest, 0.0, g),), call)


# -- several operands -------------------------------------------------------------------------


@gradient("add")
def _add(call: VjpContext) -> VjpResult:
    return _broadcast(call, call.grad, call.grad)


@gradient("sub")
def _sub(call: VjpContext) -> VjpResult:
    return _broadcast(call, call.grad, neg(call.grad))


@gradient("mul")
def _mul(call: VjpContext) -> VjpResult:
    (a, b), g = call.inputs, call.grad
    return _broadcast(call, mul(g, b), mul(g, a))


@gradient("div")
def _div(call: VjpContext) -> VjpResult:
    of_a = div(call.grad, call.inputs[1])
    return _broadcast(call, of_a, neg(of_a * call.output))


def _pow_slopes(a: Tensor, b: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return b a^(b-1) and y log a without NaN at a = 0, also in second derivatives."""
    zero = equal(a, 0.0)
    lower = b - 1.0
    if b.op != "constant" or b.data is None or not b.data.all():  # 0^0 is constant in a
        lower = where(logical_and(zero, equal(b, 0.0)), 0.0, lower)
    base = where(logical_and(zero, b >= 0.0), 1.0, a)
    return g * (b * pow(a, lower)), g * (y * log(base))


def _remainder_slopes(a: Tensor, b: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return slopes with the quotient taken as constant."""
    return g, neg(g * floor_divide(a, b))


def _fmod_slopes(a: Tensor, b: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    return g, neg(g * round((a - y) / b))


def _atan2_slopes(a: Tensor, b: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return b / (a^2 + b^2) and -a / (a^2 + b^2), by divisions without overflow; 0 at (0, 0)."""
    length = maximum(hypot(a, b), MIN_NORMAL)
    return g * (b / length) / length, neg(g * (a / length) / length)


def _hypot_slopes(a: Tensor, b: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    length = maximum(y, MIN_NORMAL)  # 0 at (0, 0)
    return g * (a / length), g * (b / length)


def _logaddexp_slopes(a: Tensor, b: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    return g * sigmoid(a - b), g * sigmoid(b - a)


def _prelu_slopes(x: Tensor, slope: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    below = x <= 0.0
    return where(below, g * slope, g), where(below, g * x, 0.0)


_TWO: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "pow": _pow_slopes,
    "remainder": _remainder_slopes,
    "fmod": _fmod_slopes,
    "atan2": _atan2_slopes,
    "hypot": _hypot_slopes,
    "logaddexp": _logaddexp_slopes,
    "prelu": _prelu_slopes,
}


def _of_two(slopes: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Rule:
    return lambda call: _broadcast(call, *_wide(slopes, call))


for _op, _slopes in _TWO.items():
    gradient(_op)(_of_two(_slopes))


@gradient("copysign")
def _copysign(call: VjpContext) -> VjpResult:
    """Return a gradient for a only: the result is piecewise constant in the sign of b."""
    return _broadcast(call, call.grad * (sign(call.inputs[0]) * sign(call.output)), None)


def _shared(call: VjpContext, over: Tensor, under: Tensor) -> VjpResult:
    """Return gradients of maximum or minimum; equal operands get half each.

    over, under: comparisons that are True where b, or a, is selected.
    """
    (a, b), g = call.inputs, call.grad
    half = where(equal(a, b), g * 0.5, g)
    return _broadcast(call, where(over, 0.0, half), where(under, 0.0, half))


@gradient("maximum")
def _maximum(call: VjpContext) -> VjpResult:
    a, b = call.inputs
    return _shared(call, a < b, a > b)


@gradient("minimum")
def _minimum(call: VjpContext) -> VjpResult:
    a, b = call.inputs
    return _shared(call, a > b, a < b)


@gradient("where")
def _where(call: VjpContext) -> VjpResult:
    condition, g = call.inputs[0], call.grad
    return _broadcast(call, None, where(condition, g, 0.0), where(condition, 0.0, g))


@gradient("addcmul")
def _addcmul(call: VjpContext) -> VjpResult:
    value = call.attrs.as_float("value")
    _, of_a, of_b = _wide(lambda x, a, b, y, g: (g, g * b * value, g * a * value), call)
    return _broadcast(call, call.grad, of_a, of_b)


# -- without a gradient ------------------------------------------------------------------------

no_gradient(
    "is flat wherever it is smooth", "floor", "ceil", "trunc", "round", "sign", "floor_divide"
)
no_gradient("gives the next float, whatever that is", "nextafter")
no_gradient(
    "gives bools",
    *COMPARISONS,
    "signbit",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "logical_and",
    "logical_or",
    "logical_xor",
)
no_gradient(
    "works on bits",
    "bitcast",
    "bitwise_invert",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
)

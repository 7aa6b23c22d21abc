"""Rules for activations."""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from .... import ops
from ....ir.tensor import Tensor
from ..nodes.node import NodeContext
from .narrow_types import NUMBERS, fit, is_float
from .registry import rule


def _thresholded(x: Tensor, alpha: float) -> Tensor:
    """Return x above alpha, else 0; NaN stays NaN."""
    return ops.where(x > alpha, x, ops.zeros_like(x))


def _parametric_softplus(x: Tensor, alpha: float, beta: float) -> Tensor:
    return ops.mul(ops.softplus(ops.mul(x, beta)), alpha)


def _scaled_tanh(x: Tensor, alpha: float, beta: float) -> Tensor:
    return ops.mul(ops.tanh(ops.mul(x, beta)), alpha)


ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "Celu": (ops.celu, ("alpha",)),
    "Elu": (ops.elu, ("alpha",)),
    "HardSigmoid": (ops.hard_sigmoid, ("alpha", "beta")),
    "HardSwish": (ops.hard_swish, ()),
    "LeakyRelu": (ops.leaky_relu, ("alpha",)),
    "Mish": (ops.mish, ()),
    "ParametricSoftplus": (_parametric_softplus, ("alpha", "beta")),
    "ScaledTanh": (_scaled_tanh, ("alpha", "beta")),
    "Selu": (ops.selu, ("alpha", "gamma")),
    "Sigmoid": (ops.sigmoid, ()),
    "Softplus": (ops.softplus, ()),
    "Softsign": (ops.softsign, ()),
    "ThresholdedRelu": (_thresholded, ("alpha",)),
}
"""Activations and their attributes; the schema has the defaults."""


def _activation(
    build: Callable[..., Tensor], names: tuple[str, ...]
) -> Callable[[NodeContext], Tensor]:
    def activation(n: NodeContext) -> Tensor:
        return fit(build(n.tensor(0), *(n.attr(name) for name in names)), n.elem_type(0))

    return activation


for _name, (_build, _names) in ACTIVATIONS.items():
    rule(_name, types=NUMBERS)(_activation(_build, _names))


@rule("Relu", types=NUMBERS)
def relu(n: NodeContext) -> Tensor:
    return ops.relu(n.tensor(0))


@rule("Gelu", types=NUMBERS)
def gelu(n: NodeContext) -> Tensor:
    return fit(ops.gelu(n.tensor(0), n.attr("approximate", "none")), n.elem_type(0))


def swish(x: Tensor, alpha: float) -> Tensor:
    """Return x * sigmoid(alpha * x)."""
    return ops.silu(x) if alpha == 1 else x * ops.sigmoid(x * alpha)


@rule("Swish", types=NUMBERS)
def swish_rule(n: NodeContext) -> Tensor:
    return fit(swish(n.tensor(0), n.attr("alpha", 1.0)), n.elem_type(0))


@rule("SwiGLU", types=NUMBERS)
def swiglu(n: NodeContext) -> Tensor:
    gate = fit(swish(n.tensor(0), n.attr("alpha", 1.0)), n.elem_type(0))
    return fit(gate * n.tensor(1), n.elem_type(0))


@rule("PRelu", types=NUMBERS)
def prelu(n: NodeContext) -> Tensor:
    x, slope = n.tensor(0), n.tensor(1)
    if n.version < 7 and slope.rank == 1 and slope.size > 1:  # the slope is one value per channel
        slope = slope.reshape((slope.size, *(1,) * (x.rank - 2)))
    if is_float(n.elem_type(0)):
        return fit(ops.prelu(x, slope), n.elem_type(0))
    if n.elem_type(0) == TensorProto.UINT32:
        return x  # no element is below 0
    return fit(ops.where(x < 0, x * slope, x), n.elem_type(0))


@rule("Shrink", types=NUMBERS)
def shrink(n: NodeContext) -> Tensor:
    """Move x towards 0 by bias if |x| > lambd, else return 0."""
    x, bias, lambd = n.tensor(0), n.attr("bias", 0.0), n.attr("lambd", 0.5)
    n.require(is_float(n.elem_type(0)), "integers")
    below, above = x < -lambd, x > lambd
    zero = ops.zeros_like(x)
    shrunk = ops.where(below, x + bias, ops.where(above, x - bias, zero))
    return fit(shrunk, n.elem_type(0))

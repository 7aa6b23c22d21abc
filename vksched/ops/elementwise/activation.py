"""Activations as defined by ONNX and PyTorch. NaN propagates in all of them."""

from __future__ import annotations

import numpy as np

from ...common.dtypes import FLOAT32, NDArray
from ...common.errors import DTypeError
from ...ir.attr_domains import Float
from ...ir.tensor import Tensor, TensorLike, binary
from ..lowering.native_kernels import one_pass
from .pointwise import MIN_NORMAL, declare_binary, declare_unary, number, unary
from .select import clip
from .special import (
    gelu_backward_into,
    gelu_backward_reference,
    gelu_into,
    gelu_reference,
    gelu_tanh_backward_into,
    gelu_tanh_backward_reference,
    gelu_tanh_into,
    gelu_tanh_reference,
    sigmoid_into,
    silu_into,
)


def sigmoid_reference(x: NDArray) -> NDArray:
    """Return 1 / (1 + exp(-x)) without overflow."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e / (1 + e), 1 / (1 + e)), x.dtype)


def _softplus(x: NDArray) -> NDArray:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _elu(x: NDArray, alpha: float) -> NDArray:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _celu(x: NDArray, alpha: float) -> NDArray:
    return np.asarray(np.maximum(x, 0) + np.minimum(alpha * np.expm1(x / alpha), 0))


_PLAIN = {
    "sigmoid": sigmoid_reference,
    "silu": lambda x: x * sigmoid_reference(x),
    "gelu": gelu_reference,
    "gelu_tanh": gelu_tanh_reference,
    "gelu_backward": gelu_backward_reference,
    "gelu_tanh_backward": gelu_tanh_backward_reference,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "softplus": _softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "hard_swish": lambda x: x * np.clip((x + 3) / 6, 0, 1),  # x / 6 + 0.5 cancels near -3
}
_INTO = {
    name: one_pass(name, passes)
    for name, passes in (
        ("sigmoid", sigmoid_into),
        ("silu", silu_into),
        ("gelu", gelu_into),
        ("gelu_tanh", gelu_tanh_into),
        ("gelu_backward", gelu_backward_into),
        ("gelu_tanh_backward", gelu_tanh_backward_into),
    )
}
for _name, _compute in _PLAIN.items():
    declare_unary(_name, (FLOAT32,), _compute, into=_INTO.get(_name))
for _name, _rule, _parameters in (
    ("elu", _elu, ("alpha",)),
    ("celu", _celu, ("alpha",)),
    ("selu", lambda x, alpha, gamma: gamma * _elu(x, alpha), ("alpha", "gamma")),
    ("leaky_relu", lambda x, alpha: np.where(x < 0, alpha * x, x), ("alpha",)),
    ("thresholded_relu", lambda x, alpha: np.where(x <= alpha, 0, x), ("alpha",)),
    ("hard_sigmoid", lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1), ("alpha", "beta")),
):
    declare_unary(_name, (FLOAT32,), _rule, parameters={each: Float() for each in _parameters})
declare_binary("prelu", (FLOAT32,), lambda x, slope: np.where(x < 0, x * slope, x))


# -- builders ----------------------------------------------------------------------------------


def sigmoid(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return 1 / (1 + exp(-x)), as ONNX Sigmoid, without overflow."""
    return unary("sigmoid", x, name)


def hard_sigmoid(
    x: TensorLike, alpha: float = 0.2, beta: float = 0.5, *, name: str | None = None
) -> Tensor:
    """Return alpha * x + beta clipped to 0..1, as ONNX HardSigmoid."""
    op = "hard_sigmoid"
    return unary(op, x, name, alpha=number(op, "alpha", alpha), beta=number(op, "beta", beta))


def silu(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return x * sigmoid(x), as ONNX Swish with alpha 1."""
    return unary("silu", x, name)


def hard_swish(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return x times (x + 3) / 6 clipped to 0..1, as ONNX HardSwish."""
    return unary("hard_swish", x, name)


def gelu(x: TensorLike, approximate: str = "none", *, name: str | None = None) -> Tensor:
    """Return x * Phi(x), as ONNX Gelu. approximate: "none" (erf) or "tanh"."""
    if approximate not in ("none", "tanh"):
        raise DTypeError(f'[gelu] expected approximate "none" or "tanh", got {approximate!r}')
    return unary("gelu" if approximate == "none" else "gelu_tanh", x, name)


def mish(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return x * tanh(softplus(x)), as ONNX Mish."""
    return unary("mish", x, name)


def softplus(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return log(1 + exp(x)), as ONNX Softplus, without overflow."""
    return unary("softplus", x, name)


def softsign(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return x / (1 + abs(x)), as ONNX Softsign; an infinite x gives NaN."""
    return unary("softsign", x, name)


def elu(x: TensorLike, alpha: float = 1.0, *, name: str | None = None) -> Tensor:
    """Return x if x > 0, else alpha * (exp(x) - 1), as ONNX Elu."""
    return unary("elu", x, name, alpha=number("elu", "alpha", alpha))


def celu(x: TensorLike, alpha: float = 1.0, *, name: str | None = None) -> Tensor:
    """Return max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0), as ONNX Celu; alpha is not 0."""
    value = number("celu", "alpha", alpha)
    if abs(np.float32(value)) < MIN_NORMAL:
        raise DTypeError(
            f"[celu] expected an alpha other than 0 in float32, by which it divides, "
            f"got {alpha!r}; try vs.relu"
        )
    return unary("celu", x, name, alpha=value)


def selu(
    x: TensorLike,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
    *,
    name: str | None = None,
) -> Tensor:
    """Return gamma * x if x > 0, else gamma * alpha * (exp(x) - 1), as ONNX Selu."""
    first, second = number("selu", "alpha", alpha), number("selu", "gamma", gamma)
    return unary("selu", x, name, alpha=first, gamma=second)


def leaky_relu(x: TensorLike, alpha: float = 0.01, *, name: str | None = None) -> Tensor:
    """Return x if x >= 0, else alpha * x, as ONNX LeakyRelu."""
    return unary("leaky_relu", x, name, alpha=number("leaky_relu", "alpha", alpha))


def prelu(x: TensorLike, slope: TensorLike, *, name: str | None = None) -> Tensor:
    """Return x if x >= 0, else slope * x, as ONNX PRelu; x and slope broadcast."""
    return binary("prelu", x, slope, name)


def thresholded_relu(x: TensorLike, alpha: float = 1.0, *, name: str | None = None) -> Tensor:
    """Return x if x > alpha, else 0, as ONNX ThresholdedRelu."""
    return unary("thresholded_relu", x, name, alpha=number("thresholded_relu", "alpha", alpha))


def relu6(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return min(max(x, 0), 6), as torch.nn.ReLU6."""
    return clip(x, 0, 6, name=name)

"""Rules for recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from ....common.dtypes import FLOAT32, INT32
from ....common.errors import UnsupportedOp
from ....ir.tensor import Tensor
from ....ops import (
    elu,
    gru,
    hard_sigmoid,
    leaky_relu,
    lstm,
    relu,
    rnn,
    sigmoid,
    softplus,
    softsign,
    tanh,
    thresholded_relu,
    transpose,
)
from ..nodes.node import NodeContext
from ..nodes.schemas import MICROSOFT
from .narrow_types import NUMBERS, cast
from .quantize import centred, is_zero, parameter, widened
from .registry import rule

Activation = Callable[[Tensor], Tensor]

_PLAIN: dict[str, Activation] = {
    "relu": relu,
    "sigmoid": sigmoid,
    "softplus": softplus,
    "softsign": softsign,
    "tanh": tanh,
}


def _affine(x: Tensor, alpha: float, beta: float) -> Tensor:
    return x * alpha + beta


def _scaled_tanh(x: Tensor, alpha: float, beta: float) -> Tensor:
    return tanh(x * beta) * alpha


_OF_NUMBERS: dict[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {
    "affine": (_affine, (1.0, 0.0)),
    "elu": (elu, (1.0,)),
    "hardsigmoid": (hard_sigmoid, (0.2, 0.5)),
    "leakyrelu": (leaky_relu, (0.01,)),
    "scaledtanh": (_scaled_tanh, (1.0, 1.0)),
    "thresholdedrelu": (thresholded_relu, (1.0,)),
}
"""Activations with alpha, or alpha and beta, and their default values."""


@lru_cache(maxsize=64)
def _activation(name: str, *numbers: float) -> Activation:
    """Return a cached function per name and numbers: equal directions are computed as one."""
    if numbers:
        build = _OF_NUMBERS[name][0]
        return lambda x: build(x, *numbers)
    return _PLAIN[name]


def _activations(n: NodeContext) -> list[Activation] | None:
    """Return the activations; each one that has an alpha or beta consumes the next value."""
    names = n.attr("activations", ())
    if not names or not n.has_attr("activations"):
        return None
    activation_args = [list(n.attr("activation_alpha", ())), list(n.attr("activation_beta", ()))]
    out = []
    for name in map(str.lower, names):
        if name in _PLAIN:
            out.append(_activation(name))
        elif name in _OF_NUMBERS:
            defaults = _OF_NUMBERS[name][1]
            numbers = [
                g.pop(0) if g else d for g, d in zip(activation_args, defaults, strict=False)
            ]
            out.append(_activation(name, *numbers))
        else:
            raise UnsupportedOp(f"{n.op_type} with the activation {name}")
    return out


def _layer(
    n: NodeContext,
    build: Callable[..., tuple[Tensor, ...]],
    states: int,
    weights: tuple[Tensor, Tensor] | None = None,
) -> list[Tensor]:
    """Operands: x, w, r, b, sequence_lens, then the initial states; `weights` replace w and r."""
    batch_first = bool(n.attr("layout", 0))

    def squeezed(t: Tensor | None) -> Tensor | None:
        return t if t is None or not batch_first else transpose(t, (1, 0, 2))

    initial = [squeezed(n.optional(5 + i)) for i in range(states)]
    names = ("initial_h", "initial_c")[:states]
    y, *last = build(
        squeezed(n.tensor(0)),
        *(weights or (n.tensor(1), n.tensor(2))),
        n.optional(3),
        sequence_lens=n.optional(4),
        direction=str(n.attr("direction", "forward")).lower(),
        activations=_activations(n),
        clip=n.attr("clip", None),
        **dict(zip(names, initial, strict=True)),
    )
    if batch_first:  # y: (time, direction, batch, hidden)
        return [transpose(y, (2, 0, 1, 3)), *(transpose(t, (1, 0, 2)) for t in last)]
    return [y, *last]


@rule("RNN", rounds=True)
def rnn_rule(n: NodeContext) -> list[Tensor]:
    return _layer(n, rnn, 1)


@rule("GRU", rounds=True)
def gru_rule(n: NodeContext) -> list[Tensor]:
    linear = bool(n.attr("linear_before_reset", 0))
    return _layer(n, partial(gru, linear_before_reset=linear), 1)


@rule("LSTM", rounds=True)
def lstm_rule(n: NodeContext) -> list[Tensor]:
    coupled = bool(n.attr("input_forget", 0))
    return _layer(n, partial(lstm, peepholes=n.optional(7), input_forget=coupled), 2)


@rule("DynamicQuantizeLSTM", types=NUMBERS, domain=MICROSOFT)
def dynamic_quantize_lstm(n: NodeContext) -> list[Tensor]:
    """Compute an LSTM with dequantized 8-bit weights; onnxruntime also rounds x and each state to 8
    bits.

    Shapes
    ------
    w, r: (directions, inputs, 4 * hidden)
    scales, zero points: (directions[, 4 * hidden])
    """

    def weight(index: int, scale: int) -> Tensor:
        def place(value: Any) -> Any:
            return value.reshape((value.shape[0], 1, value.shape[1] if len(value.shape) > 1 else 1))

        of_each = parameter(n, scale, FLOAT32, place)
        zero = None if is_zero(n, scale + 1) else parameter(n, scale + 1, INT32, place)
        result = widened(n.tensor(index), zero, of_each)
        if result is None:
            result = cast(centred(n, index, scale + 1, place), FLOAT32) * of_each
        return transpose(result, (0, 2, 1))

    coupled = bool(n.attr("input_forget", 0))
    build = partial(lstm, peepholes=n.optional(7), input_forget=coupled)
    return _layer(n, build, 2, (weight(1, 8), weight(2, 10)))

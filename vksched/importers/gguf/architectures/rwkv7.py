"""RWKV 7: all layers have a recurrent state in place of attention, which a generalised delta rule
updates. ARWKV 7 has its time mix in a Qwen 2.5.

    x, token before -> r, w, k, v, a, g
    S = diag(decay(w)) S - (key * a) (key^T S) + k v^T       key: k, scaled by channel, of length 1
    (norm(S^T r) + (r * r_k * k) v) * g -> output

Layers after the first one mix their values with those of the first one.

Source: https://arxiv.org/abs/2503.14456
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ....common.dtypes import Shape
from ....ir.tensor import Tensor, constant
from ....ops import (
    exp,
    gated_delta_rule,
    reduce_sum,
    reshape,
    rms_norm,
    sigmoid,
    tanh,
)
from ..hparams.hparams import HParams
from .family import Activation, Family, Norms
from .mixer import MixerLayer
from .token_shift import (
    TIME_SHIFT,
    WKV_STATE,
    ChannelMix,
    change,
    head_sizes,
    normed_heads,
    wkv_shapes,
)

DECAY = -math.exp(-0.5)
"""The logarithm of the strongest decay."""
FIRST_VALUES = "first_values"
EPS = 1e-24
"""The epsilon of the squared lengths of keys."""


class Rwkv7:
    """The mixer: RWKV 7's time mix."""

    def state_shapes(self, hyper: HParams) -> Mapping[str, Shape]:
        return wkv_shapes(hyper)

    def mix(self, layer: MixerLayer, x: Tensor) -> Tensor:
        hyper, (rows, tokens, width) = layer.layers.hyper, x.shape
        heads, size = head_sizes(hyper)
        gated = layer.name("time_mix_g1.weight") in layer.layers.weights
        names = ("r", "w", "k", "v", "a", "g")[: 6 if gated else 5]
        shift, shares = change(layer, TIME_SHIFT, x), _shares(layer, len(names), width)
        mixed = {name: x + shift * shares[at] for at, name in enumerate(names)}
        r = layer.linear(mixed["r"], "time_mix_receptance", width)
        k = layer.linear(mixed["k"], "time_mix_key", width)
        v = self._values(layer, mixed["v"])
        decay = DECAY * sigmoid(_low_rank(layer, "w", mixed["w"], tanh))
        rate = sigmoid(_low_rank(layer, "a", mixed["a"]))

        def by_head(each: Tensor) -> Tensor:
            return reshape(each, (rows, tokens, heads, size))

        key = by_head(k * layer.weight("time_mix_k_k.weight", (width,)))
        key = rms_norm(key, eps=EPS / size) / math.sqrt(size)
        k = k + k * (rate - 1) * layer.weight("time_mix_k_a.weight", (width,))
        r, k, v, decay, rate = map(by_head, (r, k, v, decay, rate))
        steps = layer.without_padding(constant(np.ones((rows, tokens, heads), np.float32)))
        decays = layer.without_padding(decay)

        def recurrence(before: Tensor) -> tuple[Tensor, Tensor]:
            # the op decays the state before its old value is read
            removal = key * exp(-decays), key * rate
            return gated_delta_rule(r, k, v, decays, steps, before, removal=removal)

        out = layer.recur(WKV_STATE, rows, recurrence, (size, heads, size))
        bonus = r * k * reshape(layer.weight("time_mix_r_k.weight", (width,)), (heads, size))
        own = reshape(v * reduce_sum(bonus, -1, keepdims=True), (rows, tokens, width))
        out = normed_heads(layer, out) + own
        if gated:
            out = out * _low_rank(layer, "g", mixed["g"], sigmoid)
        return layer.linear(out, "time_mix_output", width)

    def _values(self, layer: MixerLayer, x: Tensor) -> Tensor:
        """Return the values of a layer, mixed with those of the first layer."""
        v = layer.linear(x, "time_mix_value", x.shape[2])
        if layer.number == 0:
            layer.shared[FIRST_VALUES] = v
            _skip(layer)
            return v
        share = sigmoid(_low_rank(layer, "v", x))
        return v + (layer.shared[FIRST_VALUES] - v) * share


def _shares(layer: MixerLayer, count: int, width: int) -> Tensor:
    """Return the shares of the token before in each kind of input, (count, width)."""
    return layer.reshaped("time_mix_lerp_fused.weight", (count, width))


def _low_rank(
    layer: MixerLayer, kind: str, x: Tensor, activation: Activation | None = None
) -> Tensor:
    """Return x through two matrices of low rank with an activation between, plus a vector unless it
    is the gate.
    """
    name, width = f"time_mix_{kind}", x.shape[2]
    rank = layer.layers.weights.rows(layer.name(f"{name}1.weight"))
    y = layer.linear(x, f"{name}1", rank)
    y = layer.linear(activation(y) if activation else y, f"{name}2", width)
    return y if kind == "g" else y + layer.weight(f"{name}0.weight", (width,))


def _skip(layer: MixerLayer) -> None:
    """Accept the tensors of the first layer that would mix its values with themselves."""
    weights = layer.layers.weights
    for part in "012":
        if shape := weights.shape(name := layer.name(f"time_mix_v{part}.weight")):
            weights.require(name, shape)


RWKV7 = Family(
    mixer=Rwkv7(),
    channel_mixer=ChannelMix(receptance=False),
    layer_norms=True,
    embedding_norm="token_embd_norm",
    feed_forward_norms=Norms("attn_norm_2"),
)
ARWKV7 = Family(mixer=Rwkv7())

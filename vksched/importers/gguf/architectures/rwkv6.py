"""RWKV 6: all layers have a recurrent state in place of attention, with decays that depend on the
token. QRWKV 6 has its time mix in a Qwen 2.5, with fewer heads of keys.

    x, token before -> shares of the token before -> w, k, v, r, g
    o = S^T r + (r * first * k) v;  S = diag(decay(w)) S + k v^T        norm(o) * silu(g) -> output
    QRWKV 6:  S = diag(decay(w)) S + (1 - decay(w)) k v^T;  o = S^T r   o * sigmoid(g) -> output

Source: https://arxiv.org/abs/2404.05892
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ....common.dtypes import Shape
from ....common.errors import ModelFormatError
from ....ir.tensor import Tensor, constant
from ....ops import (
    concat,
    exp,
    gated_delta_rule,
    matmul,
    reduce_sum,
    reshape,
    sigmoid,
    silu,
    tanh,
    transpose,
)
from ..hparams.hparams import HParams
from .family import Family, Norms
from .grouped_linear import grouped_linear
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

KINDS = "wkvrg"
"""The inputs of a layer in the order of files."""


class Rwkv6:
    """The mixer: RWKV 6's time mix, or that of QRWKV 6 in files without `time_mix_first`."""

    def state_shapes(self, hyper: HParams) -> Mapping[str, Shape]:
        return wkv_shapes(hyper)

    def mix(self, layer: MixerLayer, x: Tensor) -> Tensor:
        hyper, weights, (rows, tokens, width) = layer.layers.hyper, layer.layers.weights, x.shape
        heads, size = head_sizes(hyper)
        of_heads = rows, tokens, heads, size
        mixed = _inputs(layer, x)
        shared = _key_heads(layer, heads, size)
        r = reshape(layer.linear(mixed["r"], "time_mix_receptance", width), of_heads)
        k, v = (
            reshape(
                layer.linear(mixed[kind], f"time_mix_{part}", shared * size),
                (rows, tokens, shared, size),
            )
            for kind, part in (("k", "key"), ("v", "value"))
        )
        gate = layer.linear(mixed["g"], "time_mix_gate", width)
        rank = weights.rows(layer.name("time_mix_decay_w1.weight"))
        low = tanh(layer.linear(mixed["w"], "time_mix_decay_w1", rank))
        w = layer.linear(low, "time_mix_decay_w2", width)
        w = reshape(w + layer.weight("time_mix_decay.weight", (width,)), of_heads)
        k, v = (_repeated(each, heads) for each in (k, v))
        if layer.name("time_mix_first.weight") not in weights:
            k = k * (1 - exp(-exp(w)))
            out = _attended(layer, r / math.sqrt(size), k, v, -exp(w), after=True)
            out = reshape(out, x.shape) * sigmoid(gate)
        else:
            first = layer.weight("time_mix_first.weight", (heads, size))
            own = reduce_sum(r * k * first, -1, keepdims=True) * v
            out = _attended(layer, r, k, v, -exp(w), after=False) + own
            out = normed_heads(layer, out) * silu(gate)
        return layer.linear(out, "time_mix_output", width)


def _inputs(layer: MixerLayer, x: Tensor) -> dict[str, Tensor]:
    """Return the inputs of the layer by kind, each mixed with the token before it."""
    (rows, tokens, width), weights = x.shape, layer.layers.weights
    shift = change(layer, TIME_SHIFT, x)
    rank = weights.rows(layer.name("time_mix_w1.weight")) // len(KINDS)
    low = x + shift * layer.reshaped("time_mix_lerp_x.weight", (width,))
    low = tanh(layer.linear(low, "time_mix_w1", len(KINDS) * rank))
    table = layer.weight("time_mix_w2.weight", (len(KINDS), width, rank))
    parts = grouped_linear(reshape(low, (rows, tokens, len(KINDS), rank)), table)
    if layer.name("time_mix_lerp_fused.weight") in weights:
        usual = layer.reshaped("time_mix_lerp_fused.weight", (len(KINDS), width))
    else:  # older files
        names = [f"time_mix_lerp_{kind}.weight" for kind in KINDS]
        usual = concat([layer.reshaped(name, (1, width)) for name in names], axis=0)
    return {kind: x + shift * (parts[:, :, at] + usual[at]) for at, kind in enumerate(KINDS)}


def _key_heads(layer: MixerLayer, heads: int, size: int) -> int:
    """Return the number of heads of keys, each of which some heads of queries share.

    Raises
    ------
    ModelFormatError
        They are no whole heads, or their number does not divide that of queries.
    """
    name = layer.name("time_mix_key.weight")
    values = layer.layers.weights.rows(name)
    if not values or values % size or heads % (values // size):
        raise ModelFormatError(
            f"[gguf] tensor '{name}': expected a divisor of {heads} heads of {size} values as "
            f"keys, got {values} values; try to convert the model again"
        )
    return values // size


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Return heads of keys or values (b, n, shared, size), each for some heads of queries."""
    rows, tokens, shared, size = x.shape
    if shared == heads:
        return x
    apart = concat([reshape(x, (rows, tokens, shared, 1, size))] * (heads // shared), axis=3)
    return reshape(apart, (rows, tokens, heads, size))


def _attended(
    layer: MixerLayer, r: Tensor, k: Tensor, v: Tensor, decay: Tensor, after: bool
) -> Tensor:
    """Return S^T r of each token, (b, n, heads, size), after its update or before it. decay: the
    logarithms of decays.
    """
    rows, tokens, heads, size = r.shape
    steps = layer.without_padding(constant(np.ones((rows, tokens, heads), np.float32)))
    decay = layer.without_padding(decay)
    nothing = constant(np.zeros(k.shape, np.float32))

    def recurrence(before: Tensor) -> tuple[Tensor, Tensor]:
        # the state before a token is that after the token before it
        q = r if after else concat([r[:, 1:], r[:, :1]], axis=1) if tokens > 1 else r
        seen, state = gated_delta_rule(q, k, v, decay, steps, before, removal=(nothing, nothing))
        if after:
            return seen, state
        by_head = transpose(before, (0, 2, 1, 3))
        begun = transpose(matmul(transpose(r[:, :1], (0, 2, 1, 3)), by_head), (0, 2, 1, 3))
        return (concat([begun, seen[:, :-1]], axis=1) if tokens > 1 else begun), state

    return layer.recur(WKV_STATE, rows, recurrence, (size, heads, size))


RWKV6 = Family(
    mixer=Rwkv6(),
    channel_mixer=ChannelMix(receptance=True),
    layer_norms=True,
    embedding_norm="token_embd_norm",
    feed_forward_norms=Norms("attn_norm_2"),
)
RWKV6_QWEN2 = Family(mixer=Rwkv6())

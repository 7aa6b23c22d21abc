"""Kimi Linear: most layers have Kimi Delta Attention, the others latent attention without rotary
embedding. It has experts, and a shared expert.

    x -> q, k, v -> short convolutions -> silu -> q, k of length 1 -> gated delta rule -> norm
    x -> small -> decays of all channels of keys, and the rate of each head ---^           |
    x -> small -> gate -------------------------------------------> sigmoid(gate) * ------> output

Source: https://arxiv.org/abs/2510.26692
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ....common.dtypes import Shape
from ....common.errors import ModelFormatError
from ....ir.tensor import Tensor
from ....ops import gated_delta_rule, reshape, rms_norm, sigmoid, silu, softplus
from ..hparams.hparams import HParams
from .family import Family
from .gated_delta_net import EPS
from .mixer import MixerLayer
from .short_conv import short_conv

DELTA_STATE = "delta_state"


def _sizes(hyper: HParams) -> tuple[int, int, int]:
    """Return the number of heads, the size of a head and the taps of the convolutions.

    Raises
    ------
    ModelFormatError
        A key is missing.
    """
    for name, value in {
        "kda.head_dim": hyper.ssm.state,
        "ssm.conv_kernel": hyper.ssm.kernel,
    }.items():
        if not value:
            raise ModelFormatError(
                f"[gguf] key '{hyper.architecture}.{name}': expected a whole number over 0 in a "
                "model with recurrent layers, got none; try to convert the model again"
            )
    return max(hyper.heads), hyper.ssm.state, hyper.ssm.kernel


class KimiDeltaAttention:
    """The mixer: a gated delta rule with a decay for each channel of keys."""

    def state_shapes(self, hyper: HParams) -> Mapping[str, Shape]:
        heads, size, taps = _sizes(hyper)
        of_parts = {f"conv_state_{part}": (taps - 1, heads * size) for part in "qkv"}
        return {**of_parts, DELTA_STATE: (size, heads, size)}

    def mix(self, layer: MixerLayer, x: Tensor) -> Tensor:
        hyper, (rows, tokens, _) = layer.layers.hyper, x.shape
        heads, size, _ = _sizes(hyper)
        channels, of_heads = heads * size, (rows, tokens, heads, size)
        q, k, v = (reshape(_projected(layer, x, part), of_heads) for part in "qkv")
        q, k = (rms_norm(each, eps=EPS / size) / math.sqrt(size) for each in (q, k))
        step = layer.linear(layer.linear(x, "ssm_f_a", size), "ssm_f_b", channels)
        step = softplus(step + layer.weight("ssm_dt.bias", (channels,)))
        decay = reshape(step, of_heads) * layer.reshaped("ssm_a", (heads, 1))
        rate = sigmoid(layer.linear(x, "ssm_beta", heads))
        decay, rate = layer.without_padding(decay), layer.without_padding(rate)

        def attended(before: Tensor) -> tuple[Tensor, Tensor]:
            return gated_delta_rule(q / math.sqrt(size), k, v, decay, rate, before)

        out = layer.recur(DELTA_STATE, rows, attended, (size, heads, size))
        gate = layer.linear(layer.linear(x, "ssm_g_a", size), "ssm_g_b", channels)
        out = rms_norm(out, layer.weight("ssm_norm.weight", (size,)), eps=hyper.eps)
        out = reshape(out, gate.shape) * sigmoid(gate)
        return layer.linear(out, "attn_output", hyper.width)


def _projected(layer: MixerLayer, x: Tensor, part: str) -> Tensor:
    """Return q, k or v after its convolution, (b, n, channels)."""
    heads, size, taps = _sizes(layer.layers.hyper)
    weight = layer.reshaped(f"ssm_conv1d_{part}.weight", (heads * size, taps))
    projected = layer.linear(x, f"attn_{part}", heads * size)
    return silu(short_conv(layer, f"conv_state_{part}", projected, weight))


KIMI_LINEAR = Family(mixer=KimiDeltaAttention(), unturned_every=1)

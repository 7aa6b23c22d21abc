"""Gated DeltaNet: linear attention with a state per head, in layers between those with attention.

    x -> q, k, v -> short convolution -> silu -> q, k of length 1 -> gated delta rule -> norm
    x -> decay and rate of each head ---------------------------------^                    |
    x -> gate --------------------------------------------------------> silu(gate) * ------> output

Source: https://arxiv.org/abs/2412.06464
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ....common.dtypes import Shape
from ....common.errors import ModelFormatError
from ....ir.tensor import Tensor
from ....ops import (
    concat,
    gated_delta_rule,
    reshape,
    rms_norm,
    sigmoid,
    silu,
    softplus,
    split,
)
from ..hparams.hparams import HParams
from .mixer import MixerLayer
from .short_conv import short_conv

EPS = 1e-6
"""The epsilon of the lengths of q and k."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer. keys, heads: the numbers of heads of q and k, and of v. key_length,
    value_length: the sizes of a head. taps: those of the convolution.
    """

    keys: int
    heads: int
    key_length: int
    value_length: int
    taps: int

    @property
    def parts(self) -> tuple[int, int, int]:
        """The channels of q, k and v."""
        of_keys = self.keys * self.key_length
        return of_keys, of_keys, self.heads * self.value_length

    @property
    def share(self) -> int:
        """The number of heads of v that share a head of q and k."""
        return self.heads // self.keys


def sizes_of(hyper: HParams) -> Sizes:
    """Return the sizes of a file.

    Raises
    ------
    ModelFormatError
        A key is missing, or the sizes do not match.
    """
    ssm, prefix = hyper.ssm, f"[gguf] key '{hyper.architecture}.ssm"
    names = {"conv_kernel": ssm.kernel, "state_size": ssm.state, "inner_size": ssm.inner}
    names |= {"group_count": ssm.groups, "time_step_rank": ssm.heads}
    for name, value in names.items():
        if not value:
            raise ModelFormatError(
                f"{prefix}.{name}': expected a whole number over 0 in a model with recurrent "
                "layers, got none; try to convert the model again"
            )
    if ssm.heads % ssm.groups:
        raise ModelFormatError(
            f"{prefix}.group_count': expected a number that divides the {ssm.heads} heads, got "
            f"{ssm.groups}"
        )
    if ssm.inner % ssm.heads:
        raise ModelFormatError(
            f"{prefix}.inner_size': expected a multiple of the {ssm.heads} heads, got {ssm.inner}"
        )
    return Sizes(ssm.groups, ssm.heads, ssm.state, ssm.inner // ssm.heads, ssm.kernel)


@dataclass(frozen=True)
class GatedDeltaNet:
    """The mixer. tiled: heads i, i + keys, i + 2 keys, ... of v share head i of q and k, not
    consecutive ones.
    """

    tiled: bool

    def state_shapes(self, hyper: HParams) -> Mapping[str, Shape]:
        sizes = sizes_of(hyper)
        return {
            "conv_state": (sizes.taps - 1, sum(sizes.parts)),
            "delta_state": (sizes.key_length, sizes.heads, sizes.value_length),
        }

    def mix(self, layer: MixerLayer, x: Tensor) -> Tensor:
        sizes, hyper = sizes_of(layer.layers.hyper), layer.layers.hyper
        (rows, tokens, _), channels = x.shape, sum(sizes.parts)
        of_values = rows, tokens, sizes.heads, sizes.value_length
        mixed, gate = _projections(layer, sizes, x)
        weight = layer.weight("ssm_conv1d.weight", (channels, sizes.taps))
        q, k, v = split(silu(short_conv(layer, "conv_state", mixed, weight)), sizes.parts, -1)
        q, k = (_normalized(each, sizes) for each in (q, k))
        if self.tiled and sizes.share > 1:
            q, k = (concat([each] * sizes.share, axis=2) for each in (q, k))
        beta, decay = _rates(layer, sizes, x)

        def attended(before: Tensor) -> tuple[Tensor, Tensor]:
            scaled, values = q / math.sqrt(sizes.key_length), reshape(v, of_values)
            return gated_delta_rule(scaled, k, values, decay, beta, before)

        shape = self.state_shapes(hyper)["delta_state"]
        out = layer.recur("delta_state", rows, attended, shape)
        norm = layer.weight("ssm_norm.weight", (sizes.value_length,))
        out = rms_norm(out, norm, eps=hyper.eps) * silu(reshape(gate, of_values))
        return layer.linear(reshape(out, gate.shape), "ssm_out", hyper.width)


def _projections(layer: MixerLayer, sizes: Sizes, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return q, k and v, joined, and the gate. Older files join all four by head of q."""
    of_values = sizes.parts[2]
    if layer.name("ssm_in.weight") not in layer.layers.weights:
        mixed = layer.linear(x, "attn_qkv", sum(sizes.parts))
        return mixed, layer.linear(x, "attn_gate", of_values)
    rows, tokens, _ = x.shape
    each = (*(part // sizes.keys for part in sizes.parts), of_values // sizes.keys)
    joined = layer.linear(x, "ssm_in", sum(sizes.parts) + of_values)
    parts = split(reshape(joined, (rows, tokens, sizes.keys, sum(each))), each, -1)
    *qkv, gate = (reshape(part, (rows, tokens, -1)) for part in parts)
    return concat(qkv, axis=2), gate


def _normalized(x: Tensor, sizes: Sizes) -> Tensor:
    """Return q or k with heads of length 1, (b, n, keys, key length)."""
    heads = reshape(x, (*x.shape[:2], sizes.keys, sizes.key_length))
    return rms_norm(heads, eps=EPS / sizes.key_length) / math.sqrt(sizes.key_length)


def _rates(layer: MixerLayer, sizes: Sizes, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the update rates and the logarithms of decays, each (b, n, heads); 0 for padding,
    which changes no state.
    """
    rows, tokens, _ = x.shape
    of_heads = rows, tokens, sizes.heads
    if layer.name("ssm_ba.weight") in layer.layers.weights:
        joined = layer.linear(x, "ssm_ba", 2 * sizes.heads)
        parts = split(reshape(joined, (rows, tokens, sizes.keys, 2 * sizes.share)), 2, -1)
        rate, decay = (reshape(part, of_heads) for part in parts)
    else:
        rate, decay = (layer.linear(x, name, sizes.heads) for name in ("ssm_beta", "ssm_alpha"))
    step = softplus(decay + layer.weight("ssm_dt.bias", (sizes.heads,)))
    decay = step * layer.weight("ssm_a", (sizes.heads,))
    return layer.without_padding(sigmoid(rate)), layer.without_padding(decay)

"""Token shift: RWKV's layers read each token mixed with the one before it.

    mixed[t] = x[t] + (x[t - 1] - x[t]) * share        a share for each channel

The recurrent state of a token shift is the last token of the text.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....common.dtypes import Shape
from ....common.errors import ModelFormatError
from ....ir.tensor import Tensor
from ....ops import concat, layer_norm, relu, reshape, sigmoid, square
from ..hparams.hparams import HParams
from .mixer import MixerLayer

TIME_SHIFT, CHANNEL_SHIFT, WKV_STATE = "time_shift", "channel_shift", "wkv_state"
NORM_EPS = 64e-5
"""The epsilon of the norm of each head's output."""


def head_sizes(hyper: HParams) -> tuple[int, int]:
    """Return the number of heads and the size of a head.

    Raises
    ------
    ModelFormatError
        The file has no size of a head, or one that does not divide the width, or a layer has
        attention.
    """
    if not all(hyper.recurrent):
        layer = hyper.recurrent.index(False)
        raise ModelFormatError(
            f"[gguf] key '{hyper.architecture}.attention.head_count': expected no heads of "
            f"attention in {hyper.architecture!r}, got some in layer {layer}"
        )
    size = hyper.ssm.state
    if not size or hyper.width % size:
        raise ModelFormatError(
            f"[gguf] key '{hyper.architecture}.wkv.head_size': expected a divisor of the width "
            f"{hyper.width}, got {size or 'none'}; try to convert the model again"
        )
    return hyper.width // size, size


def wkv_shapes(hyper: HParams) -> Mapping[str, Shape]:
    """Return the shapes of the states of a layer's time mix."""
    heads, size = head_sizes(hyper)
    return {TIME_SHIFT: (1, hyper.width), WKV_STATE: (size, heads, size)}


def change(layer: MixerLayer, state: str, x: Tensor) -> Tensor:
    """Return the difference of the token before each token and itself, for x (b, n, width)."""
    rows, tokens, width = x.shape

    def shifted(before: Tensor) -> tuple[Tensor, Tensor]:
        joined = concat([before, x], axis=1)
        return joined[:, :tokens] - x, layer.last_inputs(joined, 1)

    return layer.recur(state, rows, shifted, (1, width))


def normed_heads(layer: MixerLayer, x: Tensor) -> Tensor:
    """Return the outputs of heads, (b, n, heads, size), each normalized, as (b, n, width); not
    normalized if the file has no such norm.
    """
    width, name = layer.layers.hyper.width, "time_mix_ln.weight"
    joined = (*x.shape[:2], width)
    if layer.name(name) not in layer.layers.weights:
        return reshape(x, joined)
    scale, shift = (layer.weight(f"time_mix_ln.{part}", (width,)) for part in ("weight", "bias"))
    return reshape(layer_norm(x, eps=NORM_EPS), joined) * scale + shift


class ChannelMix:
    """The mixer in place of the feed-forward. receptance: sigmoids scale its output (RWKV 6)."""

    def __init__(self, receptance: bool) -> None:
        self._receptance = receptance

    def state_shapes(self, hyper: HParams) -> Mapping[str, Shape]:
        return {CHANNEL_SHIFT: (1, hyper.width)}

    def mix(self, layer: MixerLayer, x: Tensor) -> Tensor:
        hyper, width = layer.layers.hyper, x.shape[2]
        shift = change(layer, CHANNEL_SHIFT, x)

        def mixed(which: str) -> Tensor:
            return x + shift * layer.reshaped(f"channel_mix_lerp_{which}.weight", (width,))

        inner = hyper.feed_forward[layer.number]
        y = square(relu(layer.linear(mixed("k"), "channel_mix_key", inner)))
        y = layer.linear(y, "channel_mix_value", width)
        if not self._receptance:
            return y
        return sigmoid(layer.linear(mixed("r"), "channel_mix_receptance", width)) * y

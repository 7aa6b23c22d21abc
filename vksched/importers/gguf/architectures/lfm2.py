"""LFM 2: most layers have a short convolution between two gates, the others attention with QK-norm.
LFM 2 MoE has experts, too.

    x -> in -> entering gate * inputs -> short convolution -> * leaving gate -> out

Source: https://arxiv.org/abs/2511.23404
"""

from __future__ import annotations

from collections.abc import Mapping

from ....common.dtypes import Shape
from ....common.errors import ModelFormatError
from ....ir.tensor import Tensor
from ....ops import split
from ..hparams.hparams import HParams
from .family import Family
from .mixer import MixerLayer
from .short_conv import short_conv

STATE = "conv_state"


def _taps(hyper: HParams) -> int:
    """Return the taps of the convolutions.

    Raises
    ------
    ModelFormatError
        The key is missing.
    """
    if not hyper.ssm.kernel:
        raise ModelFormatError(
            f"[gguf] key '{hyper.architecture}.shortconv.l_cache': expected a whole number over 0 "
            "in a model with short convolutions, got none; try to convert the model again"
        )
    return hyper.ssm.kernel


class ShortConv:
    """The mixer: a convolution between two gates."""

    def state_shapes(self, hyper: HParams) -> Mapping[str, Shape]:
        return {STATE: (_taps(hyper) - 1, hyper.width)}

    def mix(self, layer: MixerLayer, x: Tensor) -> Tensor:
        width, taps = x.shape[2], _taps(layer.layers.hyper)
        gates = layer.linear(x, "shortconv.in_proj", 3 * width)
        entering, leaving, inputs = split(gates, 3, -1)
        weight = layer.weight("shortconv.conv.weight", (width, taps))
        y = leaving * short_conv(layer, STATE, entering * inputs, weight)
        return layer.linear(y, "shortconv.out_proj", width)


LFM2 = Family(head_norms="each", output_norm="token_embd_norm", mixer=ShortConv())

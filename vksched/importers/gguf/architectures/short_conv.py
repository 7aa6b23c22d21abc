"""Short convolution: each channel is filtered by a few taps over the last tokens, causally.

    y[t] = w[0] x[t - taps + 1] + ... + w[taps - 1] x[t]

Its recurrent state holds the inputs of the last taps - 1 tokens.
"""

from __future__ import annotations

from ....ir.tensor import Tensor
from ....ops import concat, transpose
from .mixer import MixerLayer


def short_conv(
    layer: MixerLayer, state: str, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Return x (b, n, channels), filtered by a weight (channels, taps).

    state: the name of the state, of shape (taps - 1, channels).
    """
    (rows, tokens, channels), taps = x.shape, weight.shape[1]
    filters = transpose(weight)

    def filtered(before: Tensor) -> tuple[Tensor, Tensor]:
        joined = concat([before, x], axis=1) if taps > 1 else x
        y = joined[:, :tokens] * filters[0]
        for tap in range(1, taps):
            y = y + joined[:, tap : tap + tokens] * filters[tap]
        return (y if bias is None else y + bias), layer.last_inputs(joined, taps - 1)

    return layer.recur(state, rows, filtered, (taps - 1, channels))

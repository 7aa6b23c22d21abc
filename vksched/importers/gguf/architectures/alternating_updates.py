"""Alternating updates: several residual streams, of which a layer computes one (Gemma 3n).

    streams -> prediction of all streams -> active one -> layer --+--> corrected streams
                      '-------------------------------------------'

The matrices of prediction and correction depend on the token. A layer has a second residual path of
low rank, LAuReL, and may set most gates of its feed-forward to 0.

Sources: https://arxiv.org/abs/2301.13310, https://arxiv.org/abs/2411.07501
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....ir.tensor import Tensor
from ....ops import concat, expand, matmul, maximum, reduce_mean, relu, reshape, sqrt, square, tanh
from ..hparams.altup import AltUp
from .grouped_linear import grouped_linear
from .linear_layers import LinearLayers

LEAST_SQUARE = 1e-5
"""The least mean square by which streams are divided."""


@dataclass(frozen=True)
class AlternatingUpdates:
    """The residual streams of one graph, (b, n, streams, width)."""

    layers: LinearLayers
    altup: AltUp

    def spread(self, x: Tensor) -> Tensor:
        """Return the streams of the embeddings x (b, n, width)."""
        b, n, width = x.shape
        others = self.altup.streams - 1
        same = expand(reshape(x, (b, n, 1, width)), (b, n, others, width))
        return concat([same[:, :, :1], self._mapped(same, "altup_proj", x)], axis=2)

    def merged(self, streams: Tensor) -> Tensor:
        """Return the mean of the streams, (b, n, width)."""
        first = streams[:, :, 0]
        others = self._mapped(streams[:, :, 1:], "altup_unembd_proj", first)
        return reduce_mean(concat([streams[:, :, :1], others], axis=2), 2)

    def _mapped(self, streams: Tensor, name: str, like: Tensor) -> Tensor:
        """Return linear maps of streams, with the magnitude of `like` (b, n, width)."""
        b, n, count, width = streams.shape
        table = self.layers.weights.take(f"{name}.weight", (count, width, width))
        y = grouped_linear(streams, table)
        wanted = sqrt(reduce_mean(square(like), -1, keepdims=True))
        own = sqrt(maximum(reduce_mean(square(y), -1, keepdims=True), LEAST_SQUARE))
        return y * (reshape(wanted, (b, n, 1, 1)) / own)

    def predicted(self, layer: int, streams: Tensor) -> Tensor:
        """Return the prediction of a layer's streams."""
        b, n, count, _ = streams.shape
        router = self._router(layer, self.active(streams))
        mix = self.layers.linear(router, f"blk.{layer}.altup_predict_coef", count * count)
        return streams + matmul(reshape(mix, (b, n, count, count)), streams)

    def corrected(self, layer: int, predicted: Tensor, y: Tensor) -> Tensor:
        """Return streams, corrected by the layer's output y (b, n, width)."""
        b, n, count, width = predicted.shape
        coefs = self.layers.linear(self._router(layer, y), f"blk.{layer}.altup_correct_coef", count)
        error = reshape(y - self.active(predicted), (b, n, 1, width))
        return predicted + reshape(coefs + 1, (b, n, count, 1)) * error

    def scaled(self, layer: int, streams: Tensor) -> Tensor:
        """Return the active stream as per-layer embeddings read it, (b, n, width)."""
        scale = self.layers.weights.take(
            f"blk.{layer}.altup_correct_scale.weight", (self.layers.hyper.width,)
        )
        return self.active(streams) * scale

    def active(self, streams: Tensor) -> Tensor:
        """Return the active stream, (b, n, width)."""
        return streams[:, :, self.altup.active]

    def augmented(self, layer: int, x: Tensor, normed: Tensor) -> Tensor:
        """Return the residual stream x after attention with the path of low rank. normed: the input
        of attention.
        """
        layers, name = self.layers, f"blk.{layer}.laurel"
        rank = layers.weights.size_of(f"{name}_l.weight")
        low = layers.linear(normed, f"{name}_l", rank)
        y = layers.norm(layers.linear(low, f"{name}_r", x.shape[2]), f"{name}_post_norm")
        return (x + normed + y) * math.sqrt(0.5)

    def _router(self, layer: int, x: Tensor) -> Tensor:
        """Return the weights of a token's stream, (b, n, streams)."""
        normed = self.layers.norm(x, f"blk.{layer}.altup_router_norm") * (1 / x.shape[2])
        return tanh(self.layers.linear(normed, f"blk.{layer}.altup_router", self.altup.streams))


def sparse(gate: Tensor, cutoff: float) -> Tensor:
    """Return the parts of gates that are over `cutoff` standard deviations over their mean, else 0.

    gate: (b, n, inner).
    """
    mean = reduce_mean(gate, -1, keepdims=True)
    deviation = sqrt(reduce_mean(square(gate - mean), -1, keepdims=True))
    return relu(gate - (mean + deviation * cutoff))

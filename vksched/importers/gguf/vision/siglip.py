"""Siglip: builds the graph of the encoder of pictures of Gemma 3, and its projector.

    pixels -> patches -> linear + positions -> layers -> norm -> means of squares -> norm -> tokens

    a layer:  x -> norm -> attention of all patches -> add -> norm -> up -> GELU -> down -> add

Sources: https://arxiv.org/abs/2303.15343, https://arxiv.org/abs/2503.19786
"""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.name_scope import name_scope
from ....ir.tensor import Tensor
from ....ops import (
    attention,
    gelu,
    layer_norm,
    linear,
    matmul,
    reduce_mean,
    reshape,
    rms_norm,
    transpose,
)
from ..architectures.weights import Weights
from .vision_hparams import CHANNELS, VisionHParams


@dataclass(frozen=True)
class Siglip:
    """The builder of one graph."""

    hyper: VisionHParams
    weights: Weights

    def tokens(self, pixels: Tensor) -> Tensor:
        """Return the tokens of pictures, (b, tokens, text_width).

        pixels: (b, 3, image_size, image_size), normalized.

        Raises
        ------
        ModelFormatError
            The file's tensors do not match the network.
        """
        x = self._embedded(pixels)
        for layer in range(self.hyper.layers):
            with name_scope(f"v.blk.{layer}"):
                x = self._layer(f"v.blk.{layer}", x)
        x = self._norm(x, "v.post_ln")
        with name_scope("mm"):
            x = self._projected(x)
        self.weights.require_all("clip")
        return x

    def _embedded(self, pixels: Tensor) -> Tensor:
        hyper, name = self.hyper, "v.patch_embd"
        grid, side, width = hyper.grid, hyper.patch_size, hyper.width
        size = CHANNELS * side * side
        with name_scope(name):
            cut = reshape(pixels, (pixels.shape[0], CHANNELS, grid, side, grid, side))
            patches = transpose(cut, (0, 2, 4, 1, 3, 5))
            patches = reshape(patches, (pixels.shape[0], grid * grid, size))
            kernel = self.weights.take(f"{name}.weight", (width, CHANNELS, side, side))
            x = linear(patches, reshape(kernel, (width, size)), self._vector(f"{name}.bias", width))
            return x + self.weights.take("v.position_embd.weight", (grid * grid, width))

    def _layer(self, name: str, x: Tensor) -> Tensor:
        hyper, y = self.hyper, self._norm(x, f"{name}.ln1")
        q, k, v = (self._linear(y, f"{name}.attn_{which}", hyper.width) for which in "qkv")
        seen = attention(q, k, v, num_heads=hyper.heads)
        x = x + self._linear(seen, f"{name}.attn_out", hyper.width)
        y = self._norm(x, f"{name}.ln2")
        up, down = f"{name}.ffn_up", f"{name}.ffn_down"
        if self.weights.rows(f"{up}.weight") != hyper.inner:
            up, down = down, up  # older converters have the names the other way round
        inner = gelu(self._linear(y, up, hyper.inner), approximate="tanh")
        return x + self._linear(inner, down, hyper.width)

    def _projected(self, x: Tensor) -> Tensor:
        hyper = self.hyper
        side = hyper.grid // hyper.pool
        squares = reshape(x, (x.shape[0], side, hyper.pool, side, hyper.pool, hyper.width))
        x = reshape(reduce_mean(squares, (2, 4)), (x.shape[0], side * side, hyper.width))
        scale = self._vector("mm.soft_emb_norm.weight", hyper.width)
        shape = hyper.width, hyper.text_width
        table = self.weights.take("mm.input_projection.weight", shape)
        return matmul(rms_norm(x, scale, eps=hyper.eps), table)

    def _linear(self, x: Tensor, name: str, size: int) -> Tensor:
        weight = self.weights.take(f"{name}.weight", (size, x.shape[-1]))
        return linear(x, weight, self._vector(f"{name}.bias", size))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale, shift = (self._vector(f"{name}.{kind}", x.shape[-1]) for kind in ("weight", "bias"))
        return layer_norm(x, scale, shift, eps=self.hyper.eps)

    def _vector(self, name: str, size: int) -> Tensor:
        return self.weights.take(name, (size,))

"""Latent attention: multi-head attention to compressed keys and values, which all heads share.

    x -> queries of each head -> x matrix of the head --+--> queries (rank) | rotated part
    x -> compressed keys and values (rank) | rotated part    keys of one head, which are cached

    attention -> weighted sums of the compressed values (rank) -> x matrix of the head -> values

The matrices that expand keys and values of a head are applied to queries and to results instead, so
that neither is stored expanded. Values are the first `rank` elements of the cached keys.

Source: https://arxiv.org/abs/2405.04434, section 2.1
"""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.tensor import Tensor
from ....ops import concat, reshape, split, transpose
from ..hparams.latent import Latent
from .grouped_linear import grouped_linear
from .linear_layers import LinearLayers
from .positions import Positions


@dataclass(frozen=True)
class LatentAttention:
    """The latent attention of one graph."""

    layers: LinearLayers
    at: Positions
    latent: Latent

    def queries_keys(self, layer: int, x: Tensor, is_rotated: bool) -> tuple[Tensor, Tensor]:
        """Return queries and keys of a layer, (b, heads, n, size) and (b, 1, n, size), for x
        (b, n, width). size: `rank` and the rotated dimensions; these are not rotated if the layer
        has no rotary embedding.
        """
        hyper, latent, name = self.layers.hyper, self.latent, f"blk.{layer}.attn_"
        (b, n, _), heads, dims = x.shape, hyper.heads[layer], hyper.rope.dims
        plain = latent.key_length - dims
        both = reshape(self._queries(name, x, heads), (b, n, heads, latent.key_length))
        q, q_rotated = split(both, [plain, dims], -1)
        q = grouped_linear(q, self._expansion(layer, "k", (latent.rank, plain)))
        q_rotated = transpose(q_rotated, (0, 2, 1, 3))
        compressed = self.layers.linear(x, f"{name}kv_a_mqa", latent.rank + dims)
        k, k_rotated = split(compressed, [latent.rank, dims], -1)
        k = reshape(self.layers.norm(k, f"{name}kv_a_norm"), (b, 1, n, latent.rank))
        k_rotated = reshape(k_rotated, (b, 1, n, dims))
        if is_rotated:
            q_rotated, k_rotated = (self.at.rotate(each, False) for each in (q_rotated, k_rotated))
        q = concat([transpose(q, (0, 2, 1, 3)), q_rotated], axis=3)
        return q, concat([k, k_rotated], axis=3)

    def values(self, layer: int, seen: Tensor) -> Tensor:
        """Return the heads' values, (b, n, heads * value_length), from weighted sums of cached
        rows, (b, n, heads * size).
        """
        hyper, latent = self.layers.hyper, self.latent
        (b, n, _), heads = seen.shape, hyper.heads[layer]
        rows = reshape(seen, (b, n, heads, latent.rank + hyper.rope.dims))[..., : latent.rank]
        weight = self._expansion(layer, "v", (latent.value_length, latent.rank))
        return reshape(grouped_linear(rows, weight), (b, n, heads * latent.value_length))

    def _queries(self, name: str, x: Tensor, heads: int) -> Tensor:
        """Return the queries of all heads, (b, n, heads * key_length)."""
        latent, size = self.latent, heads * self.latent.key_length
        if not latent.query_rank:
            return self.layers.linear(x, f"{name}q", size)
        compressed = self.layers.linear(x, f"{name}q_a", latent.query_rank)
        return self.layers.linear(
            self.layers.norm(compressed, f"{name}q_a_norm"), f"{name}q_b", size
        )

    def _expansion(self, layer: int, which: str, matrix: tuple[int, int]) -> Tensor:
        """Return the matrices of all heads that expand keys or values, (heads, *matrix). Older
        files have one tensor for both.
        """
        latent, heads, weights = self.latent, self.layers.hyper.heads[layer], self.layers.weights
        name = f"blk.{layer}.attn_"
        if (both := f"{name}kv_b.weight") in weights:
            each = latent.key_length - self.layers.hyper.rope.dims + latent.value_length
            weights.require(both, (heads * each, latent.rank))
        return weights.take(f"{name}{which}_b.weight", (heads, *matrix))

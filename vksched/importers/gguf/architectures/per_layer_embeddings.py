"""Per-layer embeddings: a small vector of each token for each layer, which gates its output.

    ids -> embeddings of all layers ---+--> one vector per layer (Gemma 3n and 4)
    x -> linear -> norm of each layer -'

    a layer:  x -> linear -> activation * vector of the layer -> linear -> norm

Source: https://ai.google.dev/gemma/docs/gemma-3n
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....ir.name_scope import name_scope
from ....ir.tensor import Tensor
from ....ops import embedding, reshape
from .linear_layers import LinearLayers


@dataclass(frozen=True)
class PerLayerEmbeddings:
    """The per-layer embeddings of one graph."""

    layers: LinearLayers

    def vectors(self, ids: Tensor, x: Tensor) -> Tensor:
        """Return the vectors of all layers. ids: (b, n), x: the embeddings (b, n, width) -> (b, n,
        layers, size).
        """
        layers, hyper = self.layers, self.layers.hyper
        size = hyper.per_layer_width
        shape = (*ids.shape, hyper.layers, size)
        with name_scope("per_layer_token_embd"):
            table = layers.weights.take(
                "per_layer_token_embd.weight", (hyper.vocabulary, hyper.layers * size)
            )
            own = reshape(embedding(table, ids) * math.sqrt(size), shape)
        with name_scope("per_layer_model_proj"):
            mapped = layers.linear(x, "per_layer_model_proj", hyper.layers * size)
            mapped = reshape(mapped * hyper.width**-0.5, shape)
            return (layers.norm(mapped, "per_layer_proj_norm") + own) * math.sqrt(0.5)

    def gated(self, layer: int, x: Tensor, vector: Tensor) -> Tensor:
        """Return the addition to the residual stream. x: (b, n, width), vector: (b, n, size)."""
        layers, hyper, name = self.layers, self.layers.hyper, f"blk.{layer}"
        gate = layers.linear(x, f"{name}.inp_gate", hyper.per_layer_width, layers.scale_rows)
        y = layers.linear(
            layers.family.activation(gate) * vector, f"{name}.proj", hyper.width, layers.scale_rows
        )
        return layers.norm(y, f"{name}.post_norm")

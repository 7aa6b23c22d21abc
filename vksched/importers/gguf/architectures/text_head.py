"""TextHead: computes the embedding of a text, or its scores, from the hidden states of its tokens.

hidden states -> pooling -> dense layers, in few files ----------------------> normalized embedding
                   '-----> cls -> activation -> norm -> cls.output -> scores, one for each label

Files of rerankers may lack `cls` and the norm, or `cls.output`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....common.errors import ModelFormatError
from ....ir.name_scope import name_scope
from ....ir.tensor import Tensor
from ....ops import linear, lp_normalize, softmax
from ..pooling import pooled
from .linear_layers import LinearLayers

DENSE = ("dense_2", "dense_3")
"""The layers that follow pooling; other libraries number them as modules of the model."""


@dataclass(frozen=True)
class TextHead:
    """The layers of one graph after the hidden states."""

    layers: LinearLayers

    def embedding(self, hidden: Tensor, counts: Tensor, way: str) -> Tensor:
        """Return the embedding of each text, normalized to length 1.

        hidden: (b, n, width), counts: (b,) -> (b, width).
        """
        with name_scope("pooling"):
            x = pooled(hidden, counts, way)
            for name, sizes in zip(DENSE, self.layers.hyper.dense, strict=True):
                if f"{name}.weight" in self.layers.weights:
                    x = self._dense(x, name, sizes)
            width = self.layers.hyper.width
            if x.shape[1] != width:
                raise ModelFormatError(
                    f"[gguf] key '{self.layers.hyper.architecture}.dense_3_feat_out': expected "
                    f"dense layers that end with {width} features, got {x.shape[1]}"
                )
            return lp_normalize(x)

    def _dense(self, x: Tensor, name: str, sizes: tuple[int, int]) -> Tensor:
        inputs, outputs = sizes
        if inputs != x.shape[1]:
            raise ModelFormatError(
                f"[gguf] key '{self.layers.hyper.architecture}.{name}_feat_in': expected "
                f"{x.shape[1]}, the number of features before tensor '{name}.weight', got {inputs}"
            )
        return linear(x, self.layers.weights.take(f"{name}.weight", (outputs, inputs)))

    def scores(self, hidden: Tensor, counts: Tensor, causal: bool) -> Tensor:
        """Return the scores of each text, (b, labels). causal: the last token has seen the whole
        text, and the scores of several labels are probabilities, as the logits are those of words
        such as "yes" and "no". A single score is a logit.

        hidden: (b, n, width), counts: (b,).
        """
        layers, hyper = self.layers, self.layers.hyper
        labels = max(1, len(hyper.labels))
        with name_scope("classifier"):
            x = pooled(hidden, counts, "last" if causal else hyper.classifier_pooling)
            has_head, has_output = (f"{each}.weight" in layers.weights for each in _PARTS)
            if not has_head and not has_output:
                raise ModelFormatError(
                    "[gguf] expected a tensor 'cls.weight' or 'cls.output.weight' in a file of "
                    "pooling 'rank', got none; try a file of a reranker"
                )
            if has_head:
                x = layers.linear(x, "cls", hyper.width if has_output else labels)
                x = layers.family.head_activation(x)
                if "cls.norm.weight" in layers.weights:
                    x = layers.norm(x, "cls.norm")
            if has_output:
                x = layers.linear(x, "cls.output", labels)
            return softmax(x) if causal and labels > 1 else x


_PARTS = ("cls", "cls.output")

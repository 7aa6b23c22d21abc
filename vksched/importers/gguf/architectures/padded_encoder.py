"""PaddedEncoder: builds the graph of a batch of padded texts: hidden states, then a text head."""

from __future__ import annotations

from dataclasses import dataclass

from ....common.dtypes import INT32
from ....common.errors import ModelFormatError, ShapeError
from ....ir.tensor import Tensor
from ..hparams.hparams import HParams
from .family import Family
from .network import Network
from .text_head import TextHead
from .token_layout import PaddedTexts
from .weights import Weights


@dataclass(frozen=True)
class PaddedEncoder:
    """The builder of one graph."""

    family: Family
    hyper: HParams
    weights: Weights

    @property
    def causal(self) -> bool:
        """True if a token sees no later ones."""
        return self.hyper.causal and not self.family.encoder

    def embeddings(self, ids: Tensor, counts: Tensor, way: str) -> Tensor:
        """Return the embedding of each text, (b, width). way: the pooling.

        ids: (b, n) int32, counts: (b,) int32.
        """
        network = self._network(ids, counts)
        embeddings = TextHead(network.layers).embedding(network.hidden(ids), counts, way)
        network.require_all()
        return embeddings

    def scores(self, ids: Tensor, counts: Tensor) -> Tensor:
        """Return the scores of each text, (b, labels); for the parameters see `embeddings`."""
        network = self._network(ids, counts)
        scores = TextHead(network.layers).scores(network.hidden(ids), counts, self.causal)
        network.require_all()
        return scores

    def _network(self, ids: Tensor, counts: Tensor) -> Network:
        family, hyper = self.family, self.hyper
        if counts.shape != ids.shape[:1] or counts.dtype != INT32:
            raise ShapeError(f"[model] expected counts (b,) of int32, got {counts.type}")
        if hyper.window and not self.causal and not family.symmetric_window:
            raise ModelFormatError(
                f"[gguf] key '{hyper.architecture}.attention.sliding_window': expected 0 in an "
                f"encoder, got {hyper.window}"
            )
        if family.sinks and not self.causal:
            raise ModelFormatError(
                f"[gguf] key '{hyper.architecture}.attention.causal': expected true in a network "
                "with attention sinks, got false"
            )
        text = PaddedTexts(ids.shape[1], counts, self.causal)
        return Network(family, hyper, self.weights, text)

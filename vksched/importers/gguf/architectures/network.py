"""Network: builds the graph of a transformer; a Family holds the architecture's parameters.

    ids -> embedding -> layers -> norm -> hidden states -> logits

    a layer:  x -> norm -> q, k, v -> rotary embedding -> attention -> output -> norm --+-> ...
              '-------------------------------------------------------------------------'
              ... -> norm -> activation(gate) * up -> down -> norm -> add

The norms of a layer differ between families, some follow the residual addition, and the gate is
optional.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ....common.errors import ModelFormatError
from ....ir.name_scope import name_scope
from ....ir.tensor import Tensor
from ....ops import (
    concat,
    embedding,
    expand_dims,
    gather,
    linear,
    tanh,
)
from ..hparams.hparams import EMBEDDING, OUTPUT, HParams
from .alternating_updates import AlternatingUpdates
from .attention import Attention
from .family import Family, Norms
from .feed_forward import FeedForward
from .linear_layers import LinearLayers
from .mixer import Mixer, MixerLayer
from .per_layer_embeddings import PerLayerEmbeddings
from .pictures import Pictures, split_rows
from .positions import Positions, Tables
from .token_layout import SequenceLayout, last_tokens
from .weights import Weights

Block = Callable[[int, Tensor, Tensor], Tensor]
"""The number of a layer, x (b, n, width), x before its norm -> the output of a block."""


@dataclass
class Network:
    """The builder of one graph."""

    family: Family
    hyper: HParams
    weights: Weights
    text: SequenceLayout
    tables: Tables = field(default_factory=dict)
    """The position tables, which all parts of a text share."""
    scale_rows: bool = False
    """As in `LinearLayers`."""
    shared: dict[str, Tensor] = field(default_factory=dict)
    """The tensors by name that mixers of several layers share."""
    pictures: Pictures | None = None
    """The tokens of pictures in the text."""
    deepstack: list[Tensor] = field(default_factory=list)
    """The rows that first layers add for tokens of pictures, while the graph is built."""

    @cached_property
    def layers(self) -> LinearLayers:
        """The linear layers and norms."""
        return LinearLayers(self.family, self.hyper, self.weights, self.scale_rows)

    @cached_property
    def feed_forward(self) -> FeedForward:
        """The feed-forward blocks."""
        return FeedForward(self.layers)

    @cached_property
    def attention(self) -> Attention:
        """The attention blocks."""
        at = Positions(self.family, self.hyper, self.weights, self.text, self.tables)
        return Attention(self.layers, self.text, at)

    @cached_property
    def altup(self) -> AlternatingUpdates | None:
        """The residual streams, if the model has several."""
        sizes = self.hyper.altup
        return AlternatingUpdates(self.layers, sizes) if sizes else None

    @cached_property
    def per_layer(self) -> PerLayerEmbeddings:
        """The per-layer embeddings."""
        return PerLayerEmbeddings(self.layers)

    def logits(self, ids: Tensor) -> Tensor:
        """Return the next-token logits of each token, or of the last one.

        ids: (b, n) int32, or the tokens of a picture (b, n, width) -> (b, n, vocabulary) or
        (b, vocabulary).

        Raises
        ------
        ModelFormatError
            The network is an encoder, or the file's tensors do not match the network.
        """
        hyper, shape = self.hyper, (self.hyper.vocabulary, self.hyper.width)
        if hyper.pooling == "rank":
            raise ModelFormatError(
                f"[gguf] expected a model that goes on with texts, got a reranker, "
                f"{hyper.architecture!r}; try vs.Reranker or `vksched rerank`"
            )
        if not hyper.causal or self.family.encoder:
            raise ModelFormatError(
                f"[gguf] expected a model that goes on with texts, got an encoder, "
                f"{hyper.architecture!r}; try vs.Embedder or `vksched embed`"
            )
        x = self._layers(ids)
        with name_scope("output"):
            if self.text.last is not None:
                # the last layer has the row alone, unless it has one row anyway
                x = x[:, 0] if ids.shape[1] > 1 else last_tokens(x, self.text.last)
            own = OUTPUT in self.weights
            head = self.weights.take(OUTPUT if own else EMBEDDING, shape)
            shift = self.layers.bias("output", hyper.vocabulary)
            logits = linear(self.layers.norm(x, self.family.output_norm), head, shift)
            if scale := hyper.logit_scale:
                logits = logits * (1 / scale if self.family.logits_over_scale else scale)
            if hyper.output_softcap:
                logits = tanh(logits / hyper.output_softcap) * hyper.output_softcap
        embedding_only = (EMBEDDING,) if ids.rank == 3 else ()
        self.weights.require_all(hyper.architecture, besides=(*embedding_only, *self._unused()))
        return logits

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the hidden states after the last layer and its norm.

        ids: (b, n) int32 -> (b, n, width).

        Raises
        ------
        ModelFormatError
            The file's tensors do not match the network.
        """
        x = self._layers(ids)
        with name_scope("output"):
            return self.layers.norm(x, self.family.output_norm)

    def require_all(self) -> None:
        """Raise ModelFormatError if a tensor of the file, except those for logits, was not used."""
        self.weights.require_all(self.hyper.architecture, besides=(OUTPUT, *self._unused()))

    def _unused(self) -> list[str]:
        """Return the tensors that a file may have without use."""
        hyper, out = self.hyper, self._predicting()
        for layer in range(hyper.layers - hyper.shared_kv_layers, hyper.layers):
            out += [f"blk.{layer}.attn_{which}.weight" for which in ("k", "v", "k_norm")]
        return out

    def _predicting(self) -> list[str]:
        """Return the tensors of the layers after the last one, which only predict further tokens.
        Files may leave them out.
        """
        hyper, out = self.hyper, []
        for layer in range(hyper.layers, hyper.layers + hyper.predicting_layers):
            start = f"blk.{layer}."
            own = [name for name in self.weights.names() if name.startswith(start)]
            if own and not any(name.startswith(f"{start}nextn.") for name in own):
                raise ModelFormatError(
                    f"[gguf] key '{hyper.architecture}.nextn_predict_layers': expected tensors "
                    f"'{start}nextn.*' in each of these last layers, got "
                    f"{hyper.predicting_layers}, and none there; try to convert the model again"
                )
            out += own
        return out

    def _layers(self, ids: Tensor) -> Tensor:
        x = self._embedded(ids)
        vectors = self.per_layer.vectors(ids, x) if self.hyper.per_layer_width else None
        if self.altup and vectors is not None:
            return self._alternating(self.altup, x, vectors)
        for layer in range(self.hyper.layers):
            with name_scope(f"blk.{layer}"):
                x = self._layer(layer, x)
                if layer < len(self.deepstack):
                    x = x + self.attention.output_rows(layer, self.deepstack[layer])
                if vectors is not None:
                    vector = self.attention.output_rows(layer, vectors[:, :, layer])
                    x = x + self.per_layer.gated(layer, x, vector)
                if (scale := f"blk.{layer}.layer_output_scale.weight") in self.weights:
                    x = x * self.weights.take(scale, (1,))
        return x

    def _alternating(self, altup: AlternatingUpdates, x: Tensor, vectors: Tensor) -> Tensor:
        """Return the hidden states of a model with several residual streams."""
        streams = altup.spread(x)
        for layer in range(self.hyper.layers):
            with name_scope(f"blk.{layer}"):
                predicted = altup.predicted(layer, streams)
                y = self._layer(layer, altup.active(predicted))
                streams = altup.corrected(layer, predicted, y)
                active = altup.scaled(layer, streams)
                added = self.per_layer.gated(layer, active, vectors[:, :, layer])
                rest = streams[:, :, 1:] + expand_dims(added, 2)
                streams = concat([streams[:, :, :1], rest], axis=2)
        x, last = altup.merged(streams), self.text.last
        return x if last is None or x.shape[1] == 1 else expand_dims(last_tokens(x, last), 1)

    def _embedded(self, ids: Tensor) -> Tensor:
        hyper, family = self.hyper, self.family
        if ids.rank == 3:
            x, *self.deepstack = split_rows(ids, hyper.deepstack)
            return x
        table = self.weights.take(EMBEDDING, (hyper.vocabulary, hyper.width))
        with name_scope("token_embd"):
            x = embedding(table, ids if self.pictures is None else self.pictures.text_ids(ids))
            if family.scaled_embedding:
                x = x * math.sqrt(hyper.width)
            if hyper.embedding_scale:
                x = x * hyper.embedding_scale
            if self.pictures is not None:
                x, self.deepstack = self.pictures.inserted(ids, x)
        if family.token_types:
            shape = hyper.token_types, hyper.width
            x = x + self.weights.take("token_types.weight", shape)[0]
        if family.learned_positions:
            with name_scope("position_embd"):
                x = x + self._positions(ids.shape[1])
        return self.layers.norm(x, family.embedding_norm)

    def _positions(self, tokens: int) -> Tensor:
        """Return the position embeddings of the tokens, (tokens, width) or (b, tokens, width)."""
        hyper, at = self.hyper, self.text.positions
        table = self.weights.take("position_embd.weight", (hyper.context, hyper.width))
        return table[:tokens] if at is None else gather(table, at)

    def _layer(self, layer: int, x: Tensor) -> Tensor:
        family, read = self.family, x
        for norms, part in self._blocks(layer):
            before, after, both = (
                name and f"blk.{layer}.{name}" for name in (norms.before, norms.after, norms.sum)
            )
            normed = self.layers.norm(read, before)
            y = self.layers.norm(part(layer, normed, read), after)
            if y.shape != x.shape:
                x, read = (
                    self.attention.output_rows(layer, x),
                    self.attention.output_rows(layer, read),
                )
            if self.hyper.residual_scale:
                y = y * self.hyper.residual_scale
            again = norms.second_sum and f"blk.{layer}.{norms.second_sum}"
            y, x = self.layers.norm(x + y, both), x
            if again and self.layers.has_norm(again):
                y = self.layers.norm(x + y, again)
            x = y
            if self.altup and norms is family.attention_norms:
                x = self.altup.augmented(layer, x, normed)
            read = read if family.parallel and self.hyper.parallel else x
        every = self.hyper.halved_every
        x = x * 0.5 if every and (layer + 1) % every == 0 else x
        return self.attention.output_rows(layer, x)

    def _blocks(self, layer: int) -> Iterator[tuple[Norms, Block]]:
        """Yield the blocks of a layer, with the names of their norms."""
        family, has_feed_forward = self.family, self.feed_forward.exists(layer)
        is_single = family.single_block and has_feed_forward
        if not is_single and (not family.optional_blocks or self.hyper.heads[layer]):
            yield family.attention_norms, self._mixer(layer)
        if has_feed_forward:
            yield family.feed_forward_norms, self._channel_mixer(layer)

    def _mixer(self, layer: int) -> Block:
        """Return the block of a layer that mixes tokens."""
        family = self.family
        if family.optional_blocks and not self.hyper.kv_heads[layer]:
            return self._linear_attention
        if family.mixer is None or not family.with_state(self.hyper)[layer]:
            return self.attention.block
        # a mixer in place of the feed-forward reads all tokens
        block = self._mixing(family.mixer, layer, family.channel_mixer is not None)
        if not family.mixer_with_attention:
            return block

        def with_attention(layer: int, x: Tensor, residual: Tensor) -> Tensor:
            y = block(layer, x, residual)
            return self.attention.block(layer, x, residual) + y

        return with_attention

    def _linear_attention(self, layer: int, x: Tensor, _residual: Tensor) -> Tensor:
        """Return the output of a linear layer in place of attention."""
        rows = self.attention.output_rows(layer, x)
        return self.layers.linear(rows, f"blk.{layer}.attn_output", self.hyper.width)

    def _channel_mixer(self, layer: int) -> Block:
        """Return the feed-forward block of a layer, or the one in place of it."""
        mixer = self.family.channel_mixer
        return self._mixing(mixer, layer, False) if mixer else self.feed_forward.block

    def _mixing(self, mixer: Mixer, layer: int, all_tokens: bool) -> Block:
        """Return the block of a mixer. all_tokens: return the rows that are not read later, too."""
        own = MixerLayer(layer, self.layers, self.text, self.shared)

        def mix(layer: int, x: Tensor, _residual: Tensor) -> Tensor:
            y = mixer.mix(own, x)
            return y if all_tokens else self.attention.output_rows(layer, y)

        return mix

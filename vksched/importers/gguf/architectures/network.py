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
    clip,
    embedding,
    gather,
    linear,
    reshape,
    rms_norm,
    sigmoid,
    split,
    tanh,
    transpose,
)
from ..hparams.hparams import EMBEDDING, OUTPUT, HParams
from .attention_sinks import widened
from .family import Family, Norms
from .feed_forward import FeedForward
from .linear_layers import LinearLayers
from .mixer import MixerLayer
from .pictures import Pictures
from .positions import Positions, Tables
from .token_layout import AttentionMask, SequenceLayout, last_tokens
from .weights import Weights

Block = Callable[[int, Tensor], Tensor]
"""The number of a layer, x (b, n, width) -> the output of a block of the layer."""


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
    pictures: Pictures | None = None
    """The tokens of pictures in the text."""

    @cached_property
    def layers(self) -> LinearLayers:
        """The linear layers and norms."""
        return LinearLayers(self.family, self.hyper, self.weights, self.scale_rows)

    @cached_property
    def feed_forward(self) -> FeedForward:
        """The feed-forward blocks."""
        return FeedForward(self.layers)

    @cached_property
    def at(self) -> Positions:
        """The positions of the tokens."""
        return Positions(self.family, self.hyper, self.weights, self.text, self.tables)

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
        self.weights.require_all(hyper.architecture, besides=(*embedding_only, *self._predicting()))
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
        self.weights.require_all(self.hyper.architecture, besides=(OUTPUT, *self._predicting()))

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
        for layer in range(self.hyper.layers):
            with name_scope(f"blk.{layer}"):
                x = self._layer(layer, x)
        return x

    def _embedded(self, ids: Tensor) -> Tensor:
        hyper, family = self.hyper, self.family
        if ids.rank == 3:
            return ids
        table = self.weights.take(EMBEDDING, (hyper.vocabulary, hyper.width))
        with name_scope("token_embd"):
            x = embedding(table, ids if self.pictures is None else self.pictures.text_ids(ids))
            if family.scaled_embedding:
                x = x * math.sqrt(hyper.width)
            if hyper.embedding_scale:
                x = x * hyper.embedding_scale
            if self.pictures is not None:
                x = self.pictures.inserted(ids, x)
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
            y = self.layers.norm(part(layer, self.layers.norm(read, before)), after)
            if y.shape != x.shape:
                x, read = self._output_rows(layer, x), self._output_rows(layer, read)
            if self.hyper.residual_scale:
                y = y * self.hyper.residual_scale
            again = norms.second_sum and f"blk.{layer}.{norms.second_sum}"
            y, x = self.layers.norm(x + y, both), x
            if again and self.layers.has_norm(again):
                y = self.layers.norm(x + y, again)
            x = y
            read = read if family.parallel and self.hyper.parallel else x
        return self._output_rows(layer, x)

    def _blocks(self, layer: int) -> Iterator[tuple[Norms, Block]]:
        """Yield the blocks of a layer, with the names of their norms."""
        family, has_feed_forward = self.family, self.feed_forward.exists(layer)
        if not (family.single_block and has_feed_forward):
            yield family.attention_norms, self._mixer(layer)
        if has_feed_forward:
            yield family.feed_forward_norms, self.feed_forward.block

    def _mixer(self, layer: int) -> Block:
        """Return the block of a layer that mixes tokens."""
        mixer, with_attention = self.family.mixer, self.family.mixer_with_attention
        if mixer is None or not (self.hyper.recurrent[layer] or with_attention):
            return self._attention
        own = MixerLayer(layer, self.layers, self.text)

        def mix(layer: int, x: Tensor) -> Tensor:
            y = self._output_rows(layer, mixer.mix(own, x))
            return self._attention(layer, x) + y if with_attention else y

        return mix

    # -- attention -------------------------------------------------------------------------------

    def _attention(self, layer: int, x: Tensor) -> Tensor:
        hyper, window = self.hyper, self._window(layer)
        is_rotated = self._is_rotated(layer)
        q, k, v, gate = self._queries_keys_values(layer, x)
        if is_rotated:
            q, k = (self.at.rotate(each, window > 0) for each in (q, k))
        if self.family.norms_after_rope:
            q = self.layers.norm(q, f"blk.{layer}.attn_q_norm")
            k = self.layers.norm(k, f"blk.{layer}.attn_k_norm")
        if hyper.temperature_scale and (self.family.tempered == "all" or not is_rotated):
            q = self.at.tempered(q)
        scale, sink, chunked = self._scale(layer), self.family.sinks, self.family.chunked
        if sink:
            own = self.weights.take(f"blk.{layer}.attn_sinks.weight", (hyper.heads[layer],))
            q, k = widened(q, k, own, scale)
        attention_mask = AttentionMask(
            scale, hyper.softcap, window, chunked, sink, self.family.alibi
        )
        seen = self.text.attend(layer, q, k, v, attention_mask)
        seen = transpose(seen, (0, 2, 1, 3))
        joined = reshape(seen, (*x.shape[:2], hyper.heads[layer] * hyper.value_length))
        if self.family.gated_attention == "input":
            gate = self.layers.linear(x, f"blk.{layer}.attn_gate", joined.shape[2])
        if gate is not None:
            joined = joined * sigmoid(gate)
        rows, inner = self._output_rows(layer, joined), self.family.attention_norms.inner
        rows = self.layers.norm(rows, inner and f"blk.{layer}.{inner}")
        is_scaled = self.scale_rows and not inner
        return self.layers.linear(rows, f"blk.{layer}.attn_output", hyper.width, is_scaled)

    def _output_rows(self, layer: int, x: Tensor) -> Tensor:
        """Return the rows of a layer that are read later: in the last layer the row of the token
        whose logits are wanted, else all rows.
        """
        last = self.text.last
        if last is None or layer < self.hyper.layers - 1 or x.shape[1] == 1:
            return x
        return reshape(last_tokens(x, last), (x.shape[0], 1, x.shape[2]))

    def _window(self, layer: int) -> int:
        """Return the attention window of a layer; 0 for full attention."""
        declared, every = self.hyper.windowed, self.family.full_every
        windowed = declared[layer] if declared else not every or (layer + 1) % every > 0
        return self.hyper.window if windowed else 0

    def _is_rotated(self, layer: int) -> bool:
        """Return True if a layer has rotary embedding."""
        family = self.family
        if (
            family.learned_positions
            or family.alibi
            or family.rotated_if_finetuned
            and not self.hyper.rope.finetuned
            or (every := family.unturned_every)
            and (layer + 1) % every == 0
        ):
            return False
        return not (family.full_unturned and self.hyper.window and not self._window(layer))

    def _scale(self, layer: int) -> float:
        hyper = self.hyper
        by_width = hyper.layers == self.family.scale_by_width
        size = hyper.width / hyper.heads[layer] if by_width else hyper.key_length
        return hyper.scale or 1 / math.sqrt(size)

    def _queries_keys_values(
        self, layer: int, x: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return queries, keys and values, each (b, heads, n, size), and the gate of attention's
        output if it is a part of the queries, (b, n, heads * size).
        """
        hyper, name = self.hyper, f"blk.{layer}.attn_"
        heads, shared = hyper.heads[layer], hyper.kv_heads[layer]
        shapes = {
            "q": (heads, hyper.key_length),
            "k": (shared, hyper.key_length),
            "v": (shared, hyper.value_length),
        }
        sizes = [count * size for count, size in shapes.values()]
        has_gate = self.family.gated_attention == "queries"
        sizes[0] *= 1 + has_gate
        is_scaled = self.layers.scales_input(self.family.attention_norms)
        if "attn_qkv" in self.family.joined or f"{name}qkv.weight" in self.weights:
            flat = self._apart(self.layers.linear(x, f"{name}qkv", sum(sizes), is_scaled), sizes)
        else:
            flat = tuple(
                self.layers.linear(x, name + which, size, is_scaled)
                for which, size in zip(shapes, sizes, strict=True)
            )
        gate: Tensor | None = None
        if has_gate:
            apart = reshape(flat[0], (*x.shape[:2], heads, 2 * hyper.key_length))
            query, gate = (reshape(half, (*x.shape[:2], -1)) for half in split(apart, 2, -1))
            flat = query, *flat[1:]
        unnormed = hyper.experts and hyper.experts == self.family.unnormed_experts
        norms = "" if unnormed else self.family.head_norms
        out = []
        for which, part in zip(shapes, flat, strict=True):
            if hyper.qkv_clip:
                part = clip(part, -hyper.qkv_clip, hyper.qkv_clip)
            normed = norms and which != "v"
            if normed and norms == "all":
                part = self.layers.norm(part, f"{name}{which}_norm")
            apart = reshape(part, (*x.shape[:2], *shapes[which]))
            if normed and norms == "each":
                apart = self.layers.norm(apart, f"{name}{which}_norm")
            if normed and norms == "plain" and self._is_rotated(layer):
                apart = rms_norm(apart, eps=hyper.eps)
            out.append(transpose(apart, (0, 2, 1, 3)))
        return out[0], out[1], out[2], gate

    def _apart(self, merged: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        """Return queries, keys and values (b, n, size) of a merged product."""
        if not self.family.qkv_by_head:
            return split(merged, sizes, -1)
        heads = reshape(merged, (*merged.shape[:2], -1, sum(sizes) // max(self.hyper.heads)))
        each = [size // max(self.hyper.heads) for size in sizes]
        parts = split(heads, each, -1)
        return tuple(reshape(part, (*merged.shape[:2], -1)) for part in parts)

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
from dataclasses import dataclass, field
from functools import cached_property

from ....common.errors import ModelFormatError
from ....ir.name_scope import name_scope
from ....ir.tensor import Tensor
from ....ops import (
    arange,
    embedding,
    gather,
    layer_norm,
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
from .moe import Experts
from .positions import Positions, Tables
from .scaled_rows import scaled_rows
from .token_layout import AttentionMask, SequenceLayout
from .weights import Weights


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
    """Scale the rows of unbounded inputs of products into float16's range; see scaled_rows.py."""
    _scaled: dict[Tensor, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Inputs of several products with scaled rows, and their factors."""

    @cached_property
    def at(self) -> Positions:
        """The positions of the tokens."""
        return Positions(self.family, self.hyper, self.weights, self.text, self.tables)

    def logits(self, ids: Tensor) -> Tensor:
        """Return the next-token logits of each token, or of the last one.

        ids: (b, n) int32 -> (b, n, vocabulary) or (b, vocabulary).

        Raises
        ------
        ModelFormatError
            The network is an encoder, or the file's tensors do not match the network.
        """
        hyper, shape = self.hyper, (self.hyper.vocabulary, self.hyper.width)
        if not hyper.causal or self.family.encoder:
            raise ModelFormatError(
                f"[gguf] expected a model that goes on with texts, got an encoder, "
                f"{hyper.architecture!r}; try vs.Embedder or `vksched embed`"
            )
        x = self._layers(ids)
        with name_scope("output"):
            if self.text.last is not None:
                # the last layer has the row alone, unless it has one row anyway
                x = x[:, 0] if ids.shape[1] > 1 else self._last_token(x, self.text.last)
            own = OUTPUT in self.weights
            head = self.weights.take(OUTPUT if own else EMBEDDING, shape)
            shift = self._bias("output", hyper.vocabulary)
            logits = linear(self._norm(x, self.family.output_norm), head, shift)
            if scale := hyper.logit_scale:
                logits = logits * (1 / scale if self.family.logits_over_scale else scale)
            if hyper.output_softcap:
                logits = tanh(logits / hyper.output_softcap) * hyper.output_softcap
        self.weights.require_all(hyper.architecture)
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
            x = self._norm(x, self.family.output_norm)
        self.weights.require_all(self.hyper.architecture, besides=(OUTPUT,))
        return x

    def _layers(self, ids: Tensor) -> Tensor:
        x = self._embedded(ids)
        for layer in range(self.hyper.layers):
            with name_scope(f"blk.{layer}"):
                x = self._layer(layer, x)
        return x

    def _embedded(self, ids: Tensor) -> Tensor:
        hyper, family = self.hyper, self.family
        table = self.weights.take(EMBEDDING, (hyper.vocabulary, hyper.width))
        with name_scope("token_embd"):
            x = embedding(table, ids)
            if family.scaled_embedding:
                x = x * math.sqrt(hyper.width)
            if hyper.embedding_scale:
                x = x * hyper.embedding_scale
        if family.token_types:
            shape = hyper.token_types, hyper.width
            x = x + self.weights.take("token_types.weight", shape)[0]
        if family.learned_positions:
            with name_scope("position_embd"):
                x = x + self._positions(ids.shape[1])
        return self._norm(x, family.embedding_norm)

    def _positions(self, tokens: int) -> Tensor:
        """Return the position embeddings of the tokens, (tokens, width) or (b, tokens, width)."""
        hyper, at = self.hyper, self.text.positions
        table = self.weights.take("position_embd.weight", (hyper.context, hyper.width))
        return table[:tokens] if at is None else gather(table, at)

    def _layer(self, layer: int, x: Tensor) -> Tensor:
        family, read = self.family, x
        for norms, part in (
            (family.attention_norms, self._attention),
            (family.feed_forward_norms, self._feed_forward),
        ):
            before, after, both = (
                name and f"blk.{layer}.{name}" for name in (norms.before, norms.after, norms.sum)
            )
            y = self._norm(part(layer, self._norm(read, before)), after)
            if y.shape != x.shape:
                x, read = self._output_rows(layer, x), self._output_rows(layer, read)
            if self.hyper.residual_scale:
                y = y * self.hyper.residual_scale
            x = self._norm(x + y, both)
            read = read if family.parallel else x
        return x

    # -- attention -------------------------------------------------------------------------------

    def _attention(self, layer: int, x: Tensor) -> Tensor:
        hyper, window = self.hyper, self._window(layer)
        is_rotated = self._is_rotated(layer)
        q, k, v = self._queries_keys_values(layer, x)
        if is_rotated:
            q, k = (self.at.rotate(each, window > 0) for each in (q, k))
        if hyper.temperature_scale and (self.family.tempered == "all" or not is_rotated):
            q = self.at.tempered(q)
        scale, sink, chunked = self._scale(layer), self.family.sinks, self.family.chunked
        if sink:
            own = self.weights.take(f"blk.{layer}.attn_sinks.weight", (hyper.heads[layer],))
            q, k = widened(q, k, own, scale)
        attention_mask = AttentionMask(scale, hyper.softcap, window, chunked, sink)
        seen = self.text.attend(layer, q, k, v, attention_mask)
        seen = transpose(seen, (0, 2, 1, 3))
        joined = reshape(seen, (*x.shape[:2], hyper.heads[layer] * hyper.value_length))
        rows = self._output_rows(layer, joined)
        return self._linear(rows, f"blk.{layer}.attn_output", hyper.width, self.scale_rows)

    def _output_rows(self, layer: int, x: Tensor) -> Tensor:
        """Return the rows of a layer that are read later: in the last layer the row of the token
        whose logits are wanted, else all rows.
        """
        last = self.text.last
        if last is None or layer < self.hyper.layers - 1 or x.shape[1] == 1:
            return x
        rows, _, width = x.shape
        return reshape(self._last_token(x, last), (rows, 1, width))

    @staticmethod
    def _last_token(x: Tensor, last: Tensor) -> Tensor:
        """Return the token of each row whose logits are wanted, (b, width)."""
        rows, tokens, width = x.shape
        if not last.rank:
            return gather(x, last, axis=1)
        chosen = arange(0, rows * tokens, tokens) + last
        return gather(reshape(x, (rows * tokens, width)), chosen)

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

    def _queries_keys_values(self, layer: int, x: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values, each (b, heads, n, size)."""
        hyper, name = self.hyper, f"blk.{layer}.attn_"
        heads, shared = hyper.heads[layer], hyper.kv_heads[layer]
        shapes = {
            "q": (heads, hyper.key_length),
            "k": (shared, hyper.key_length),
            "v": (shared, hyper.value_length),
        }
        sizes = [count * size for count, size in shapes.values()]
        is_scaled = self._scales_input(self.family.attention_norms)
        if "attn_qkv" in self.family.joined or f"{name}qkv.weight" in self.weights:
            flat = split(self._linear(x, f"{name}qkv", sum(sizes), is_scaled), sizes, -1)
        else:
            flat = tuple(
                self._linear(x, name + which, size, is_scaled)
                for which, size in zip(shapes, sizes, strict=True)
            )
        unnormed = hyper.experts and hyper.experts == self.family.unnormed_experts
        norms = "" if unnormed else self.family.head_norms
        out = []
        for which, part in zip(shapes, flat, strict=True):
            normed = norms and which != "v"
            if normed and norms == "all":
                part = self._norm(part, f"{name}{which}_norm")
            apart = reshape(part, (*x.shape[:2], *shapes[which]))
            if normed and norms == "each":
                apart = self._norm(apart, f"{name}{which}_norm")
            if normed and norms == "plain" and self._is_rotated(layer):
                apart = rms_norm(apart, eps=hyper.eps)
            out.append(transpose(apart, (0, 2, 1, 3)))
        return tuple(out)

    # -- feed-forward, linear layers, norms
    # -----------------------------------------------------------

    def _feed_forward(self, layer: int, x: Tensor) -> Tensor:
        name = f"blk.{layer}.ffn"
        if f"{name}_gate_inp.weight" in self.weights:
            return self._experts(name, x)
        return self._gated(x, name, "", self.hyper.feed_forward[layer])

    def _gated(self, x: Tensor, name: str, kind: str, inner: int) -> Tensor:
        """Return the input of the down projection, from the gate and up weights of a kind, for
        example "blk.0.ffn_up_shexp".
        """
        family = self.family
        is_scaled = self._scales_input(family.feed_forward_norms)
        if "ffn_up" in family.joined:
            gate, up = split(self._linear(x, f"{name}_up{kind}", 2 * inner, is_scaled), 2, -1)
            between = family.between(gate, up)
        elif family.gated:
            gate = self._linear(x, f"{name}_gate{kind}", inner, is_scaled)
            between = family.between(gate, self._linear(x, f"{name}_up{kind}", inner, is_scaled))
        else:
            between = family.activation(self._linear(x, f"{name}_up{kind}", inner, is_scaled))
        return self._linear(between, f"{name}_down{kind}", self.hyper.width, self.scale_rows)

    def _experts(self, name: str, x: Tensor) -> Tensor:
        hyper, family, width = self.hyper, self.family, self.hyper.width
        count, inner = hyper.experts, hyper.expert_inner
        shapes = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
        gate, up, down = (
            self.weights.take(
                f"{name}_{which}_exps.weight",
                (count, *shape),
                [
                    f"{name}_{which}.{expert}.weight" for expert in range(count)
                ],  # older files have one tensor per expert
            )
            for which, shape in shapes.items()
        )
        shifts = [
            self.weights.take(f"{name}_{which}_exps.bias", (count, shape[0]))
            for which, shape in shapes.items()
            if family.shifted_experts
        ]
        experts = Experts(
            *(gate, up, down, hyper.experts_used, family.renormed_experts, family.between),
            gated=family.gated_experts,
            shifts=shifts,
            scale_rows=self.scale_rows,
        )
        scores = self._linear(x, f"{name}_gate_inp", count)
        with name_scope("experts"):
            mixed = experts.mix(x, scores)
        if hyper.expert_scale:
            mixed = mixed * hyper.expert_scale
        kind = family.shared_expert or ("added" if hyper.shared_inner else "")
        return mixed + self._shared_expert(name, x, kind) if kind else mixed

    def _shared_expert(self, name: str, x: Tensor, kind: str) -> Tensor:
        """Return the output of the shared expert."""
        hyper, width = self.hyper, self.hyper.width
        y = self._gated(x, name, "_shexp", hyper.shared_inner or hyper.expert_inner)
        if kind == "added":
            return y
        opened = self.weights.take(f"{name}_gate_inp_shexp.weight", (width,))
        return y * sigmoid(linear(x, reshape(opened, (1, width))))

    def _scales_input(self, norms: Norms) -> bool:
        """Return True to scale the rows of a block's input: no norm bounds it."""
        return self.scale_rows and not (norms.before or norms.sum)

    def _linear(self, x: Tensor, name: str, size: int, scale_rows: bool = False) -> Tensor:
        """Return x times a weight, plus its bias if the file has one or the family requires it.
        scale_rows: x may exceed float16's range.
        """
        weight = self.weights.take(f"{name}.weight", (size, x.shape[-1]))
        if not scale_rows:
            return linear(x, weight, self._bias(name, size))
        if x not in self._scaled:
            self._scaled[x] = scaled_rows(x)
        x, unscale = self._scaled[x]
        y, bias = linear(x, weight) * unscale, self._bias(name, size)
        return y if bias is None else y + bias

    def _bias(self, name: str, size: int) -> Tensor | None:
        """Return the bias of a linear layer; None if it is optional and the file has none."""
        biased = name.rpartition(".")[2] in self.family.biases or f"{name}.bias" in self.weights
        return self.weights.take(f"{name}.bias", (size,)) if biased else None

    def _norm(self, x: Tensor, name: str) -> Tensor:
        """Return x normalized by a norm of the file; return x if the name is ""."""
        if not name:
            return x
        size, eps = x.shape[-1:], self.hyper.eps
        scale = self.weights.take(f"{name}.weight", size)
        if not self.family.layer_norms:
            return rms_norm(x, scale, eps=eps)
        shift = self.weights.take(f"{name}.bias", size) if self.family.shifted_norms else None
        return layer_norm(x, scale, shift, eps=eps)

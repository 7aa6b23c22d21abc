"""Attention: the attention block of a layer.

x -> q, k, v -> norms of heads -> rotary embedding -> attention -> gate -> output
     '-> or compressed keys and values (latent_attention.py)

Layers may use the keys and values of an earlier layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from ....common.errors import ModelFormatError
from ....ir.tensor import Tensor
from ....ops import arange, clip, reshape, rms_norm, sigmoid, split, transpose
from ..hparams.hparams import HParams
from .alibi import PositionDigits
from .attention_sinks import widened
from .family import Family
from .latent_attention import LatentAttention
from .linear_layers import LinearLayers
from .positions import Positions
from .token_layout import AttentionMask, SequenceLayout, last_queries, last_tokens


@dataclass(frozen=True)
class Attention:
    """The attention blocks of one graph. keys_values: the keys and values of each layer that has
    its own, filled while the graph is built.
    """

    layers: LinearLayers
    text: SequenceLayout
    at: Positions
    keys_values: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def family(self) -> Family:
        """The architecture's parameters."""
        return self.layers.family

    @property
    def hyper(self) -> HParams:
        """The model's sizes."""
        return self.layers.hyper

    @cached_property
    def latent(self) -> LatentAttention | None:
        """The latent attention, if the model has it."""
        sizes = self.hyper.latent
        return LatentAttention(self.layers, self.at, sizes) if sizes else None

    @cached_property
    def digits(self) -> PositionDigits | None:
        """The positions of keys, if the model is a decoder with ALiBi."""
        if not self.hyper.alibi or self.family.encoder:
            return None
        at = self.text.positions
        length = self.text.length
        return PositionDigits(self.hyper.alibi, length, arange(length) if at is None else at)

    def block(self, layer: int, x: Tensor, _residual: Tensor) -> Tensor:
        """Return the output of a layer's attention for x (b, n, width)."""
        hyper, window = self.hyper, self._window(layer)
        is_rotated, source = self._is_rotated(layer), self._kv_layer(layer)
        gate: Tensor | None = None
        if self.latent:
            q, *own = self.latent.queries_keys(layer, x, is_rotated)
        else:
            (q, *own), gate = self._heads(layer, x)
        if source == layer:
            self.keys_values[layer] = own[0], own[-1]
        k, v = self.keys_values[source]
        if hyper.temperature_scale and (self.family.tempered == "all" or not is_rotated):
            q = self.at.tempered(q)
        scale, chunked = self._scale(layer), self.family.chunked
        name, kind = f"blk.{layer}.attn_sinks.weight", self.family.sinks
        sink = kind == "all" or kind == "some" and name in self.layers.weights
        if sink:
            sinks = self.layers.weights.take(name, (hyper.heads[layer],))
            q, k = widened(q, k, sinks, scale)
        if self.digits:
            q, k = self.digits.widened(q, k, scale)
        has_digits = self.digits is not None
        bias = 0.0 if has_digits else hyper.alibi
        attention_mask = AttentionMask(
            scale, hyper.softcap, window, chunked, sink, bias, has_digits
        )
        last = self._last(layer, x.shape[1])
        if last is not None and attention_mask.has_one_rule:
            q = last_queries(q, last)
        seen = self.text.attend(source, q, k, v, attention_mask)
        seen = transpose(seen, (0, 2, 1, 3))
        joined = reshape(seen, (*seen.shape[:2], hyper.heads[layer] * seen.shape[3]))
        if joined.shape[1] != x.shape[1]:
            x = self.output_rows(layer, x)
            gate = gate if gate is None else self.output_rows(layer, gate)
        if self.family.gated_attention == "input":
            gate = self.layers.linear(x, f"blk.{layer}.attn_gate", joined.shape[2])
        if gate is not None:
            joined = joined * sigmoid(gate)
        rows, inner = self.output_rows(layer, joined), self.family.attention_norms.inner
        rows = self.latent.values(layer, rows) if self.latent else rows
        rows = self.layers.norm(rows, inner and f"blk.{layer}.{inner}")
        is_scaled = self.layers.scale_rows and not inner
        y = self.layers.linear(rows, f"blk.{layer}.attn_output", hyper.width, is_scaled)
        return y * hyper.value_scale if hyper.value_scale else y

    def output_rows(self, layer: int, x: Tensor) -> Tensor:
        """Return the rows of a layer that are read later: in the last layer the row of the token
        whose logits are wanted, else all rows.
        """
        last = self._last(layer, x.shape[1])
        return x if last is None else reshape(last_tokens(x, last), (x.shape[0], 1, x.shape[2]))

    def _last(self, layer: int, tokens: int) -> Tensor | None:
        """Return the index of the only token of a layer that is read later; None for all tokens."""
        is_read = layer < self.hyper.layers - 1 or self.hyper.altup
        return None if is_read or tokens == 1 else self.text.last

    def _kv_layer(self, layer: int) -> int:
        """Return the layer whose keys and values a layer uses: of the last layers, the last one
        before them with the same kind of window.
        """
        own = self.hyper.layers - self.hyper.shared_kv_layers
        if layer < own:
            return layer
        is_windowed = self._window(layer) > 0
        found = [each for each in range(own) if (self._window(each) > 0) == is_windowed]
        if not found:
            raise ModelFormatError(
                f"[gguf] key '{self.hyper.architecture}.attention.shared_kv_layers': expected "
                f"{self.hyper.shared_kv_layers} layers that use keys and values of an earlier one "
                f"with the same window, got none before layer {layer}"
            )
        return found[-1]

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
            or self.hyper.alibi
            or family.rotated_if_finetuned
            and not self.hyper.rope.finetuned
            or (every := family.unturned_every)
            and (layer + 1) % every == 0
        ):
            return False
        return not (family.full_unturned and self.hyper.window and not self._window(layer))

    def _scale(self, layer: int) -> float:
        hyper = self.hyper
        if self.family.unscaled:
            return 1.0
        by_width = hyper.layers == self.family.scale_by_width
        size = hyper.width / hyper.heads[layer] if by_width else hyper.key_length
        factor = hyper.latent.score_factor if hyper.latent else 1.0
        return hyper.scale or factor / math.sqrt(size)

    def _heads(self, layer: int, x: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Return queries, keys and values as attention reads them, each (b, heads, n, size); only
        queries in a layer that uses keys and values of another one. Also return the gate of
        attention's output if it is a part of the queries, (b, n, heads * size).
        """
        windowed, (parts, gate) = self._window(layer) > 0, self._queries_keys_values(layer, x)
        if self._is_rotated(layer):
            parts[:2] = [self.at.rotate(each, windowed) for each in parts[:2]]
        if self.family.norms_after_rope:
            names = (f"blk.{layer}.attn_{which}_norm" for which in "qk")
            parts[:2] = [self.layers.norm(*each) for each in zip(parts, names, strict=False)]
        return parts, gate

    def _queries_keys_values(self, layer: int, x: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Return queries, keys and values before rotary embedding, as `_heads`."""
        hyper, name = self.hyper, f"blk.{layer}.attn_"
        heads, shared = hyper.heads[layer], hyper.kv_heads[layer]
        key, value = hyper.head_sizes(layer)
        shapes = {"q": (heads, key), "k": (shared, key), "v": (shared, value)}
        if self._kv_layer(layer) != layer:
            del shapes["k"], shapes["v"]
        sizes = [count * size for count, size in shapes.values()]
        has_gate = self.family.gated_attention == "queries"
        sizes[0] *= 1 + has_gate
        is_scaled = self.layers.scales_input(self.family.attention_norms)
        if "attn_qkv" in self.family.joined or f"{name}qkv.weight" in self.layers.weights:
            flat = self._apart(self.layers.linear(x, f"{name}qkv", sum(sizes), is_scaled), sizes)
        else:
            names = {which: name + which for which in shapes}
            if self.family.normed_values and f"{name}v.weight" not in self.layers.weights:
                names["v"] = f"{name}k"
            flat = tuple(
                self.layers.linear(x, names[which], size, is_scaled)
                for which, size in zip(shapes, sizes, strict=True)
            )
        gate: Tensor | None = None
        if has_gate:
            apart = reshape(flat[0], (*x.shape[:2], heads, 2 * key))
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
            plain = normed and norms == "plain" and self._is_rotated(layer)
            if plain or (which == "v" and self.family.normed_values):
                apart = rms_norm(apart, eps=hyper.eps)
            out.append(transpose(apart, (0, 2, 1, 3)))
        return out, gate

    def _apart(self, merged: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        """Return queries, keys and values (b, n, size) of a merged product."""
        if not self.family.qkv_by_head:
            return split(merged, sizes, -1)
        heads = reshape(merged, (*merged.shape[:2], -1, sum(sizes) // max(self.hyper.heads)))
        each = [size // max(self.hyper.heads) for size in sizes]
        parts = split(heads, each, -1)
        return tuple(reshape(part, (*merged.shape[:2], -1)) for part in parts)

"""Decoder: the network that most language models are, with what sets its families apart as data.

ids -> embedding -> layers -> norm -> logits

a layer:  x -> norm -> q, k, v -> turned by position -> attention -> output --+-> norm -> ...
          '-------------------------------------------------------------------'
          ... -> silu(gate) * up -> down -> added again
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ....errors import ModelFormatError
from ....ops import (
    attention,
    embedding,
    gather,
    linear,
    reshape,
    rms_norm,
    rotary_embedding,
    silu,
    transpose,
)
from ....ops.core.scope import scope
from ....ops.core.tensor import Tensor, constant
from ..hyper import EMBEDDING, Hyper
from ..weights import Weights
from .positions import angle_tables


class Text(Protocol):
    """The text that the tokens of a call belong to.

    length: of the text at most. positions: of the tokens in it, (n,); None: 0, 1, ... last: whose
    logits are wanted, as an index of the tokens; None: those of all.
    """

    @property
    def length(self) -> int: ...

    @property
    def positions(self) -> Tensor | None: ...

    @property
    def last(self) -> Tensor | None: ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns the attention of a layer. q: (b, heads, n, d), k, v: (b, kv_heads, n, d), turned
        by position -> (b, heads, n, d).
        """


@dataclass(frozen=True)
class WholeText:
    """A text that is given from its first token on. Each token sees itself and those before it."""

    length: int
    positions: None = None
    last: None = None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, causal=True)


@dataclass(frozen=True)
class Decoder:
    """A family of decoders.

    interleaved: positions turn elements 2 i and 2 i + 1 of a head as a pair, not i and i + d / 2.
    biases: q, k and v have them. head_norms: each head of q and k is normed.
    """

    interleaved: bool
    biases: bool = False
    head_norms: bool = False

    def logits(self, hyper: Hyper, weights: Weights, ids: Tensor, text: Text) -> Tensor:
        """Returns the logits of what follows each token, or the last one.

        ids: (b, n) int32 -> (b, n, vocabulary) or (b, vocabulary).

        Raises:
            ModelFormatError: the file has other tensors than this architecture.
        """
        if hyper.experts:
            raise ModelFormatError(
                f"[gguf] key '{hyper.architecture}.expert_count': expected 0, got {hyper.experts}: "
                "layers of experts are not supported in this architecture"
            )
        return _Call(self, hyper, weights, text).logits(ids)


@dataclass
class _Call:
    """One graph that is written."""

    style: Decoder
    hyper: Hyper
    weights: Weights
    text: Text
    angles: tuple[Tensor, Tensor] = field(init=False)

    def logits(self, ids: Tensor) -> Tensor:
        hyper, shape = self.hyper, (self.hyper.vocabulary, self.hyper.width)
        self.angles = self._angles()
        table = self.weights.take(EMBEDDING, shape)
        with scope("token_embd"):
            x = embedding(table, ids)
        for layer in range(hyper.layers):
            with scope(f"blk.{layer}"):
                x = x + self._attention(layer, self._norm(x, f"blk.{layer}.attn_norm"))
                x = x + self._feed_forward(layer, self._norm(x, f"blk.{layer}.ffn_norm"))
        with scope("output"):
            if self.text.last is not None:
                x = gather(x, self.text.last, axis=1)
            own = "output.weight" in self.weights
            head = self.weights.take("output.weight", shape) if own else table
            logits = linear(self._norm(x, "output_norm"), head)
        self.weights.require_all(hyper.architecture)
        return logits

    def _attention(self, layer: int, x: Tensor) -> Tensor:
        hyper = self.hyper
        heads, shared = hyper.heads[layer], hyper.kv_heads[layer]
        q = self._heads(layer, x, "q", heads, hyper.key_length)
        k = self._heads(layer, x, "k", shared, hyper.key_length)
        v = self._heads(layer, x, "v", shared, hyper.value_length)
        seen = transpose(self.text.attend(layer, self._turned(q), self._turned(k), v), (0, 2, 1, 3))
        joined = reshape(seen, (*x.shape[:2], heads * hyper.value_length))
        return self._product(joined, f"blk.{layer}.attn_output", hyper.width)

    def _heads(self, layer: int, x: Tensor, which: str, heads: int, size: int) -> Tensor:
        """Returns queries, keys or values as (b, heads, n, size)."""
        name = f"blk.{layer}.attn_{which}"
        flat = self._product(x, name, heads * size, biased=self.style.biases)
        apart = reshape(flat, (*x.shape[:2], heads, size))
        if self.style.head_norms and which != "v":
            apart = self._norm(apart, f"{name}_norm")
        return transpose(apart, (0, 2, 1, 3))

    def _turned(self, x: Tensor) -> Tensor:
        cos, sin = self.angles
        dims = self.hyper.rope.dims
        return rotary_embedding(x, cos, sin, interleaved=self.style.interleaved, rotary_dim=dims)

    def _feed_forward(self, layer: int, x: Tensor) -> Tensor:
        inner, name = self.hyper.feed_forward[layer], f"blk.{layer}.ffn"
        gate = silu(self._product(x, f"{name}_gate", inner))
        up = self._product(x, f"{name}_up", inner)
        return self._product(gate * up, f"{name}_down", self.hyper.width)

    def _product(self, x: Tensor, name: str, size: int, biased: bool = False) -> Tensor:
        """Returns x times a weight, plus its bias where the file has one. biased: it must."""
        weight = self.weights.take(f"{name}.weight", (size, x.shape[-1]))
        biased = biased or f"{name}.bias" in self.weights
        shift = self.weights.take(f"{name}.bias", (size,)) if biased else None
        return linear(x, weight, shift)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = self.weights.take(f"{name}.weight", (x.shape[-1],))
        return rms_norm(x, scale, eps=self.hyper.eps)

    def _angles(self) -> tuple[Tensor, Tensor]:
        """Returns cos and sin of the angles of all tokens."""
        slowed = None
        if "rope_freqs.weight" in self.weights:
            half = (self.hyper.rope.dims // 2,)
            slowed = self.weights.take("rope_freqs.weight", half).data
        cos, sin = map(constant, angle_tables(self.hyper, slowed, self.text.length))
        positions = self.text.positions
        if positions is None:
            return cos, sin
        return gather(cos, positions), gather(sin, positions)

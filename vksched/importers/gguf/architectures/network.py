"""Network: what most language models are; a Family tells them apart.

ids -> embedding -> layers -> norm -> hidden states -> logits

a layer:  x -> norm -> q, k, v -> turned by position -> attention -> output -> norm --+-> ...
          '---------------------------------------------------------------------------'
          ... -> norm -> activation(gate) * up -> down -> norm -> added again

Which norms there are differs, some are of the sum, and the gate may be missing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ....errors import ModelFormatError
from ....ops import (
    embedding,
    gather,
    layer_norm,
    linear,
    reshape,
    rms_norm,
    rotary_embedding,
    sigmoid,
    split,
    tanh,
    transpose,
)
from ....ops.core.scope import scope
from ....ops.core.tensor import Tensor, constant
from ....types import NDArray
from ..hyper import EMBEDDING, OUTPUT, Hyper
from ..weights import Weights
from .experts import Experts
from .family import Family
from .positions import angle_tables
from .text import Text


@dataclass
class Network:
    """One graph that is written."""

    family: Family
    hyper: Hyper
    weights: Weights
    text: Text
    tables: dict[float, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """cos and sin of the angles of all positions, by the base that a layer has of its own, or 0.
    The parts of a text share them.
    """
    angles: dict[float, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """The same of the positions of the tokens."""

    def logits(self, ids: Tensor) -> Tensor:
        """Returns the logits of what follows each token, or the last one.

        ids: (b, n) int32 -> (b, n, vocabulary) or (b, vocabulary).

        Raises:
            ModelFormatError: the network is an encoder, or the file has other tensors than it.
        """
        hyper, shape = self.hyper, (self.hyper.vocabulary, self.hyper.width)
        if not hyper.causal or self.family.encoder:
            raise ModelFormatError(
                f"[gguf] expected a model that goes on with texts, got an encoder, "
                f"{hyper.architecture!r}; try vs.Embedder or `vksched embed`"
            )
        x = self._layers(ids)
        with scope("output"):
            if self.text.last is not None:
                x = gather(x, self.text.last, axis=1)
            own = OUTPUT in self.weights
            head = self.weights.take(OUTPUT if own else EMBEDDING, shape)
            logits = linear(self._norm(x, self.family.output_norm), head)
            if hyper.output_softcap:
                logits = tanh(logits / hyper.output_softcap) * hyper.output_softcap
        self.weights.require_all(hyper.architecture)
        return logits

    def hidden(self, ids: Tensor) -> Tensor:
        """Returns what the last layer, and its norm, make of each token.

        ids: (b, n) int32 -> (b, n, width).

        Raises:
            ModelFormatError: the file has other tensors than the network.
        """
        x = self._layers(ids)
        with scope("output"):
            x = self._norm(x, self.family.output_norm)
        self.weights.require_all(self.hyper.architecture, besides=(OUTPUT,))
        return x

    def _layers(self, ids: Tensor) -> Tensor:
        hyper = self.hyper
        if self.family.capped and not (hyper.softcap and hyper.output_softcap):
            raise ModelFormatError(
                f"[gguf] expected the keys '{hyper.architecture}.attn_logit_softcapping' and "
                "'.final_logit_softcapping', got none; try to convert the model again"
            )
        x = self._embedded(ids)
        for layer in range(hyper.layers):
            with scope(f"blk.{layer}"):
                x = self._layer(layer, x)
        return x

    def _embedded(self, ids: Tensor) -> Tensor:
        hyper, family = self.hyper, self.family
        table = self.weights.take(EMBEDDING, (hyper.vocabulary, hyper.width))
        with scope("token_embd"):
            x = embedding(table, ids)
            if family.scaled_embedding:
                x = x * math.sqrt(hyper.width)
        if family.token_types:
            shape = hyper.token_types, hyper.width
            x = x + self.weights.take("token_types.weight", shape)[0]
        if family.learned_positions:
            with scope("position_embd"):
                x = x + self._positions(ids.shape[1])
        return self._norm(x, family.embedding_norm)

    def _positions(self, tokens: int) -> Tensor:
        """Returns the vectors of the tokens' positions, (tokens, width)."""
        hyper, at = self.hyper, self.text.positions
        table = self.weights.take("position_embd.weight", (hyper.context, hyper.width))
        return table[:tokens] if at is None else gather(table, at)

    def _layer(self, layer: int, x: Tensor) -> Tensor:
        for norms, part in (
            (self.family.attention_norms, self._attention),
            (self.family.feed_forward_norms, self._feed_forward),
        ):
            before, after, both = (
                name and f"blk.{layer}.{name}" for name in (norms.before, norms.after, norms.sum)
            )
            made = part(layer, self._norm(x, before))
            x = self._norm(x + self._norm(made, after), both)
        return x

    # -- attention -------------------------------------------------------------------------------

    def _attention(self, layer: int, x: Tensor) -> Tensor:
        hyper, window = self.hyper, self._window(layer)
        q, k, v = self._queries_keys_values(layer, x)
        if not self.family.learned_positions:
            q, k = (self._turned(each, window > 0) for each in (q, k))
        how = {"scale": self._scale(layer), "softcap": hyper.softcap}
        seen = transpose(self.text.attend(layer, q, k, v, window=window, **how), (0, 2, 1, 3))
        joined = reshape(seen, (*x.shape[:2], hyper.heads[layer] * hyper.value_length))
        return self._product(joined, f"blk.{layer}.attn_output", hyper.width)

    def _window(self, layer: int) -> int:
        every = self.family.full_every
        return 0 if every and (layer + 1) % every == 0 else self.hyper.window

    def _scale(self, layer: int) -> float:
        hyper = self.hyper
        by_width = hyper.layers == self.family.scale_by_width
        size = hyper.width / hyper.heads[layer] if by_width else hyper.key_length
        return hyper.scale or 1 / math.sqrt(size)

    def _queries_keys_values(self, layer: int, x: Tensor) -> tuple[Tensor, ...]:
        """Returns each as (b, heads, n, size)."""
        hyper, name = self.hyper, f"blk.{layer}.attn_"
        heads, shared = hyper.heads[layer], hyper.kv_heads[layer]
        shapes = {
            "q": (heads, hyper.key_length),
            "k": (shared, hyper.key_length),
            "v": (shared, hyper.value_length),
        }
        sizes = [count * size for count, size in shapes.values()]
        if "attn_qkv" in self.family.joined:
            flat = split(self._product(x, f"{name}qkv", sum(sizes)), sizes, -1)
        else:
            flat = tuple(
                self._product(x, name + which, size)
                for which, size in zip(shapes, sizes, strict=True)
            )
        out = []
        for which, part in zip(shapes, flat, strict=True):
            apart = reshape(part, (*x.shape[:2], *shapes[which]))
            if self.family.head_norms and which != "v":
                apart = self._norm(apart, f"{name}{which}_norm")
            out.append(transpose(apart, (0, 2, 1, 3)))
        return tuple(out)

    def _turned(self, x: Tensor, windowed: bool) -> Tensor:
        rope = self.hyper.rope
        base = (rope.window_base or self.family.window_base) if windowed else 0.0
        if base not in self.angles:
            self.angles[base] = self._angles(base)
        cos, sin = self.angles[base]
        return rotary_embedding(
            x, cos, sin, interleaved=self.family.interleaved, rotary_dim=rope.dims
        )

    def _angles(self, base: float) -> tuple[Tensor, Tensor]:
        """Returns cos and sin of the angles of all tokens, by a base or that of the file."""
        if base not in self.tables:
            self.tables[base] = self._table(base)
        cos, sin = self.tables[base]
        positions = self.text.positions
        if positions is None:
            return cos, sin
        return gather(cos, positions), gather(sin, positions)

    def _table(self, base: float) -> tuple[Tensor, Tensor]:
        rope, length = self.hyper.rope, self.text.length
        if base:
            rope = replace(rope, base=base, scaling="none", factor=1.0)
        slowed = None
        if "rope_freqs.weight" in self.weights:
            slowed = self._slowed("rope_freqs.weight")
        elif "rope_factors_long.weight" in self.weights:
            short, long = map(self._slowed, (f"rope_factors_{w}.weight" for w in ("short", "long")))
            slowed = long if length > rope.original else short
        cos, sin = map(constant, angle_tables(self.hyper, rope, slowed, length))
        return cos, sin

    def _slowed(self, name: str) -> NDArray:
        """Returns what the speed of each pair is divided by."""
        found = np.asarray(self.weights.take(name, (self.hyper.rope.dims // 2,)).data)
        if not (found > 0).all():
            raise ModelFormatError(f"[gguf] tensor {name!r}: expected numbers over 0")
        return found

    # -- feed forward, products, norms -----------------------------------------------------------

    def _feed_forward(self, layer: int, x: Tensor) -> Tensor:
        name = f"blk.{layer}.ffn"
        if f"{name}_gate_inp.weight" in self.weights:
            return self._experts(name, x)
        return self._gated(x, name, "", self.hyper.feed_forward[layer])

    def _gated(self, x: Tensor, name: str, kind: str, inner: int) -> Tensor:
        """Returns what products named after a kind make of x, as "blk.0.ffn_up_shexp"."""
        activation = self.family.activation
        if "ffn_up" in self.family.joined:
            gate, up = split(self._product(x, f"{name}_up{kind}", 2 * inner), 2, -1)
            between = activation(gate) * up
        elif self.family.gated:
            gate = activation(self._product(x, f"{name}_gate{kind}", inner))
            between = gate * self._product(x, f"{name}_up{kind}", inner)
        else:
            between = activation(self._product(x, f"{name}_up{kind}", inner))
        return self._product(between, f"{name}_down{kind}", self.hyper.width)

    def _experts(self, name: str, x: Tensor) -> Tensor:
        hyper, family, width = self.hyper, self.family, self.hyper.width
        count, inner = hyper.experts, hyper.expert_inner
        gate, up = (
            self.weights.take(f"{name}_{which}_exps.weight", (count, inner, width))
            for which in ("gate", "up")
        )
        down = self.weights.take(f"{name}_down_exps.weight", (count, width, inner))
        experts = Experts(
            gate, up, down, hyper.experts_used, family.renormed_experts, family.activation
        )
        scores = self._product(x, f"{name}_gate_inp", count)
        with scope("experts"):
            mixed = experts.mix(x, scores)
        if not family.shared_expert:
            return mixed
        opened = self.weights.take(f"{name}_gate_inp_shexp.weight", (width,))
        shared = self._gated(x, name, "_shexp", hyper.shared_inner)
        return mixed + shared * sigmoid(linear(x, reshape(opened, (1, width))))

    def _product(self, x: Tensor, name: str, size: int) -> Tensor:
        """Returns x times a weight, plus its bias where the file has one or must."""
        weight = self.weights.take(f"{name}.weight", (size, x.shape[-1]))
        biased = name.rpartition(".")[2] in self.family.biases or f"{name}.bias" in self.weights
        shift = self.weights.take(f"{name}.bias", (size,)) if biased else None
        return linear(x, weight, shift)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        """Returns x by a norm of the file, or as it is where the norm has no name."""
        if not name:
            return x
        size, eps = x.shape[-1:], self.hyper.eps
        scale = self.weights.take(f"{name}.weight", size)
        if self.family.layer_norms:
            return layer_norm(x, scale, self.weights.take(f"{name}.bias", size), eps=eps)
        return rms_norm(x, scale, eps=eps)

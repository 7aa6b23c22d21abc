"""Family: what sets the networks of a family of language models apart, as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ....ir.tensor import Tensor
from ....ops import gelu, relu, silu, square

Activation = Callable[[Tensor], Tensor]
Gating = Callable[[Tensor, Tensor], Tensor]
GELU_TANH: Activation = partial(gelu, approximate="tanh")


def squared_relu(x: Tensor) -> Tensor:
    """Return the square of what is over 0."""
    return square(relu(x))


@dataclass(frozen=True)
class Norms:
    """The names of the norms of what enters attention or a feed-forward part, of what leaves it,
    and of the sum with what entered; "" where there is none.
    """

    before: str = ""
    after: str = ""
    sum: str = ""


@dataclass(frozen=True)
class Family:
    """What sets the networks of a family apart.

    encoder: tokens see those behind them, too; it reads texts and does not go on with them.
    interleaved: positions turn elements 2 i and 2 i + 1 of a head as a pair, not i and i + d / 2.
    learned_positions: a vector is added to each token instead. token_types: another one, that of
    type 0. embedding_norm, output_norm: the norm of all of these, and of the last layer.
    biases: names of products that must have them; others have them where the file has.
    head_norms: q and k are normed: "each" head, "all" heads as one vector, or each "plain", without
    scales, in layers that turn them; not in models of so many experts as `unnormed_experts`.
    layer_norms: norms have a mean, and a shift where `shifted_norms`.
    parallel: both parts of a layer read what the layer does.
    gated: an activation of one product is a factor of another one, or what `gating` makes of both.
    joined: the tensors that hold several: "attn_qkv", and "ffn_up" with the gate before it.
    scaled_embedding: embeddings are multiplied by the root of the width.
    logits_over_scale: logits are divided by the scale of the file, not multiplied.
    full_every: so many layers follow each other of which only the last sees all tokens, where the
    file has a window and does not say in which layers; 0: all layers have it. chunked: the window
    is one of the pieces of so many tokens that a text is cut into.
    window_base: the rotary base in layers with a window, where the file does not say; 0: as in
    others. window_scaled: their positions are scaled as those of others.
    unturned_every: each so manyth layer turns nothing; 0: none. full_unturned: nor do those that
    see all tokens, where others have a window.
    tempered_from: the number of the first position for what queries grow by, which those of
    `tempered` layers do: "all" or "unturned" ones.
    sinks: each head of queries sees a score of nothing, too.
    yarn_rounded: the pairs between which YaRN slows more and more are whole numbers.
    scale_by_width: models of so many layers scale scores by the width and heads, not by key_length.
    renormed_experts: the weights of the experts that a token has sum to 1. gated_experts: they are
    sigmoids, and factors of what an expert reads. shifted_experts: their products have biases.
    shared_expert: one more reads all tokens, "gated"
    by a product of its own or "added"; "" where there is none.
    """

    encoder: bool = False
    interleaved: bool = False
    learned_positions: bool = False
    token_types: bool = False
    embedding_norm: str = ""
    output_norm: str = "output_norm"
    biases: Sequence[str] = ()
    head_norms: str = ""
    unnormed_experts: int = 0
    layer_norms: bool = False
    shifted_norms: bool = True
    attention_norms: Norms = Norms("attn_norm")
    feed_forward_norms: Norms = Norms("ffn_norm")
    parallel: bool = False
    activation: Activation = silu
    gated: bool = True
    gating: Gating | None = None
    joined: Sequence[str] = ()
    scaled_embedding: bool = False
    logits_over_scale: bool = False
    full_every: int = 0
    chunked: bool = False
    window_base: float = 0.0
    window_scaled: bool = True
    unturned_every: int = 0
    full_unturned: bool = False
    tempered: str = "all"
    tempered_from: int = 0
    sinks: bool = False
    yarn_rounded: bool = True
    scale_by_width: int = 0
    renormed_experts: bool = True
    gated_experts: bool = False
    shifted_experts: bool = False
    shared_expert: str = ""

    def between(self, gate: Tensor, up: Tensor) -> Tensor:
        """Returns what the last product of a feed-forward part reads."""
        return self.gating(gate, up) if self.gating else self.activation(gate) * up

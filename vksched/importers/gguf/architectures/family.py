"""Family: what sets the networks of a family of language models apart, as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ....ops import gelu, silu
from ....ops.core.tensor import Tensor

Activation = Callable[[Tensor], Tensor]
GELU_TANH: Activation = partial(gelu, approximate="tanh")


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
    head_norms: each head of q and k is normed. layer_norms: norms have a mean and a shift.
    gated: an activation of one product is a factor of another one.
    joined: the tensors that hold several: "attn_qkv", and "ffn_up" with the gate before it.
    scaled_embedding: embeddings are multiplied by the root of the width.
    capped: scores and logits have soft caps.
    full_every: so many layers follow each other of which only the last sees all tokens, where the
    file has a window; 0: all layers have it. window_base: the rotary base in layers with a window,
    where the file does not say; they are not scaled. 0: as in others.
    scale_by_width: models of so many layers scale scores by the width and heads, not by key_length.
    renormed_experts: the weights of the experts that a token has sum to 1. shared_expert: one more
    reads all tokens, by a gate of its own.
    """

    encoder: bool = False
    interleaved: bool = False
    learned_positions: bool = False
    token_types: bool = False
    embedding_norm: str = ""
    output_norm: str = "output_norm"
    biases: Sequence[str] = ()
    head_norms: bool = False
    layer_norms: bool = False
    attention_norms: Norms = Norms("attn_norm")
    feed_forward_norms: Norms = Norms("ffn_norm")
    activation: Activation = silu
    gated: bool = True
    joined: Sequence[str] = ()
    scaled_embedding: bool = False
    capped: bool = False
    full_every: int = 0
    window_base: float = 0.0
    scale_by_width: int = 0
    renormed_experts: bool = True
    shared_expert: bool = False

"""Family: the architecture parameters of a family of language models, as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ....common.errors import ModelFormatError
from ....ir.tensor import Tensor
from ....ops import gelu, relu, silu, square, tanh
from ..hparams.hparams import HParams
from .mixer import Mixer
from .routing import Router

Activation = Callable[[Tensor], Tensor]
Gating = Callable[[Tensor, Tensor], Tensor]
GELU_TANH: Activation = partial(gelu, approximate="tanh")


def squared_relu(x: Tensor) -> Tensor:
    """Return the squared ReLU of x."""
    return square(relu(x))


@dataclass(frozen=True)
class Norms:
    """The names of the norms before a block, after it, and after the residual addition, and of the
    norm before the block's last linear layer; "" if absent. second_sum: the norm after another
    addition of the block's input, if the file has it.
    """

    before: str = ""
    after: str = ""
    sum: str = ""
    inner: str = ""
    second_sum: str = ""


@dataclass(frozen=True)
class Family:
    """The architecture parameters of a family.

    encoder: attention is bidirectional; the model embeds texts and cannot generate.

    interleaved: rotary embedding pairs elements 2 i and 2 i + 1 of a head, not i and i + d / 2.
    learned_positions: learned position embeddings instead of rotary ones. token_types: the
    embedding of token type 0 is added. embedding_norm, output_norm: the names of the norms of the
    embeddings and of the last layer.

    biases: names of linear layers that require a bias; it is optional in others. optional_norms:
    the ends of names of norms that files may lack.

    head_norms: QK-norm of "each" head, of "all" heads as one vector, or "plain" for each head
    without weights in layers with rotary embedding; not in models of `unnormed_experts` experts.
    norms_after_rope: QK-norm of each head after the rotary embedding instead.

    layer_norms: layer norm instead of RMS norm, with biases if `shifted_norms`. norm_weights:
    norms have weights; otherwise all are plain layer norms.

    parallel: attention and feed-forward read the input of the layer.

    gated: the feed-forward multiplies by the activation of a gate, or combines gate and up by
    `gating`. optional_gate: files have a gate, or merge it into the up weights, or have none.

    joined: tensors with merged weights: "attn_qkv", and "ffn_up" with the gate first.
    qkv_by_head: merged queries, keys and values lie side by side for each head.

    scaled_embedding: embeddings are multiplied by the square root of the width.

    logits_over_scale: logits are divided by the file's logit scale instead of multiplied.

    full_every: every `full_every`-th layer has full attention, if the file has a window and does
    not list its layers; 0: all layers have the window. chunked: the window is a chunk of the text.
    symmetric_window: a token sees half of the window on each side, in an encoder.

    window_base: the default rotary base of layers with a window; 0: that of all others.
    window_scaled: position scaling applies to layers with a window, too.

    unturned_every: every `unturned_every`-th layer has no rotary embedding; 0: none. full_unturned:
    layers with full attention have none in models with windows. rotated_if_finetuned: only models
    whose files declare finetuned rotary scaling have rotary embedding.

    tempered_from: the position of the first token for attention temperature scaling, which the
    layers of `tempered` have: "all", or those "unturned" (without rotary embedding).

    sinks: the layers with attention sinks: "all", or "some" by the file. gated_attention: sigmoids
    scale attention's output: those of a linear layer of the "input", or of the second half of each
    head of "queries"; "" for none.

    yarn_rounded: the bounds of the YaRN ramp are rounded to integers.

    scale_by_width: models of these numbers of layers scale scores by width / heads instead of
    key_length.

    unscaled: scores have scale 1. normed_values: each head of values is normalized without weights,
    and is that of keys if the file has no matrix for values.

    expert_branch: layers with experts have a dense block, too; each of the two has its own norms.

    gated_experts: expert weights scale the experts' input and are not normalized. shifted_experts:
    expert layers have biases. router: chooses the experts instead of the file's kind of routing.

    shared_expert: an additional expert for all tokens, "gated" by a linear layer of its own or
    "added"; "" if absent.

    activations: the activations by the names that files may have.

    head_activation: the activation of the first layer of a classification head.

    channel_mixer: the block with a recurrent state in place of the feed-forward of these layers.

    mixer: the block of the layers of `HParams.recurrent`, which have a recurrent state in place of
    attention; None if all layers have attention. mixer_with_attention: all layers have the mixer
    and attention, and add their outputs. single_block: a layer has either feed-forward, or
    attention, or the mixer.

    optional_blocks: layers without heads have no attention, those without heads of keys a linear
    layer instead, and those without an inner size no feed-forward.

    takes_pictures: texts may contain pictures, whose tokens see each other without M-RoPE. mrope:
    the order of the pairs that rotate by positions in time, rows and columns, "sections" or
    "interleaved"; "" without M-RoPE.
    """

    encoder: bool = False
    interleaved: bool = False
    learned_positions: bool = False
    token_types: bool = False
    embedding_norm: str = ""
    output_norm: str = "output_norm"
    biases: Sequence[str] = ()
    optional_norms: tuple[str, ...] = ()
    head_norms: str = ""
    unnormed_experts: int = 0
    norms_after_rope: bool = False
    layer_norms: bool = False
    shifted_norms: bool = True
    norm_weights: bool = True
    attention_norms: Norms = Norms("attn_norm")
    feed_forward_norms: Norms = Norms("ffn_norm")
    parallel: bool = False
    activation: Activation = silu
    activations: tuple[tuple[str, Activation], ...] = ()
    gated: bool = True
    optional_gate: bool = False
    gating: Gating | None = None
    joined: Sequence[str] = ()
    qkv_by_head: bool = False
    scaled_embedding: bool = False
    logits_over_scale: bool = False
    full_every: int = 0
    chunked: bool = False
    symmetric_window: bool = False
    window_base: float = 0.0
    window_scaled: bool = True
    unturned_every: int = 0
    rotated_if_finetuned: bool = False
    full_unturned: bool = False
    tempered: str = "all"
    tempered_from: int = 0
    sinks: str = ""
    gated_attention: str = ""
    yarn_rounded: bool = True
    scale_by_width: int = 0
    unscaled: bool = False
    normed_values: bool = False
    expert_branch: bool = False
    gated_experts: bool = False
    shifted_experts: bool = False
    router: Router | None = None
    shared_expert: str = ""
    mixer: Mixer | None = None
    channel_mixer: Mixer | None = None
    head_activation: Activation = tanh
    mixer_with_attention: bool = False
    single_block: bool = False
    optional_blocks: bool = False
    takes_pictures: bool = False
    mrope: str = ""

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The blocks with recurrent states of a layer."""
        return tuple(each for each in (self.mixer, self.channel_mixer) if each is not None)

    def with_state(self, hyper: HParams) -> tuple[bool, ...]:
        """Return, for each layer, True if it has a recurrent state."""
        if self.mixer is None:
            return (False,) * hyper.layers
        return tuple(
            (self.mixer_with_attention or is_recurrent) and not (self.single_block and inner)
            for is_recurrent, inner in zip(hyper.recurrent, hyper.feed_forward, strict=True)
        )

    def with_activation(self, name: str) -> Family:
        """Return the family with the activation that a file names; the default for ""."""
        known = dict(self.activations)
        if not name or not known:
            return self
        if name not in known:
            raise ModelFormatError(
                f"[gguf] expected a hidden_activation of {', '.join(known)}, got {name[:40]!r}"
            )
        return replace(self, activation=known[name])

    def between(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return the input of the down projection."""
        return self.gating(gate, up) if self.gating else self.activation(gate) * up

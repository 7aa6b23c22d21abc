"""Hyperparameters: the sizes and parameters of a language model, from the metadata of its file."""

from __future__ import annotations

from dataclasses import dataclass
from reprlib import repr as shortened

from ....common.errors import ModelFormatError
from ..read.loader import GgufFile
from ..read.texts import LazyStrings
from .altup import AltUp, read_altup
from .expert_routing import ExpertRouting, read_expert_routing
from .latent import Latent, read_latent
from .metadata_keys import ALIBI, HALVED, SHARING, WITHOUT_ATTENTION, MetadataKeys
from .rope import Rope, read_rope
from .ssm import Ssm, read_ssm
from .xielu import XIELU, read_xielu

MAX_LAYERS = MAX_EXPERTS = 1 << 12
MAX_CONTEXT = (1 << 29) - 1
"""The maximum context length that attention supports."""
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
POOLINGS = ("", "mean", "cls", "last", "rank")
"""Pooling types by the numbers in files."""


@dataclass(frozen=True)
class HParams:
    """The hyperparameters of a model.

    layers: the number of layers, without `predicting_layers` after them that predict further tokens
    only. width: the size of hidden states. heads, kv_heads, feed_forward: sizes of each layer. eps:
    the epsilon of norms. window: the number of visible keys, at most the context; 0 for full
    attention. windowed: whether each layer has the window; () if the file does not list it. scale:
    the scale of scores; 0 for the default by head size. value_scale: the factor of attention's
    output, 0 if absent. temperature_scale, temperature_length:
    queries are scaled by 1 + scale * log(1 + position // length); 0 if absent. qkv_clip: the bound
    of the magnitudes of queries, keys and values, 0 if absent. softcap, output_softcap: the
    softcaps of scores and logits, 0 if absent. embedding_scale, residual_scale, logit_scale: the
    factors of embeddings, residual branches and logits; 0 if absent. experts: the number of experts
    of each layer, of which `experts_used` are active; 0 if absent. expert_inner, shared_inner: the
    inner sizes of experts and of the shared expert. expert_width: the size to which the input of
    experts is projected, 0 if it is not. expert_scale: the factor of the experts' output, 0 if
    absent. routing: the choice of experts. parallel: attention and feed-forward of a family with
    parallel blocks are parallel. causal: causal attention. pooling: the pooling of an
    encoder, one of `POOLINGS`; "" if the file does not name one. dense: the input and output sizes
    of the two dense layers after pooling, 0 if absent. labels: the names of the scores of a
    reranker; () for one score. classifier_pooling: the pooling before the classification head.
    moe_every: in each group of `moe_every` layers the second one has experts; 0 if files do not
    tell. activation: the name of the feed-forward activation; "" for that of the family. recurrent:
    whether each layer has a recurrent state instead of attention, in a family that has some. ssm:
    the sizes of recurrent layers, 0 if absent. halved_every: the hidden states are halved after
    each so many layers, 0 if not. latent: the sizes of latent attention; None if attention is
    another one. deepstack: the number of first layers to whose output an encoder of pictures adds
    rows. alibi: the maximum bias of ALiBi, with which there is no rotary embedding; 0 without.
    """

    architecture: str
    layers: int
    predicting_layers: int
    width: int
    context: int
    vocabulary: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    feed_forward: tuple[int, ...]
    eps: float
    rope: Rope
    window: int
    windowed: tuple[bool, ...]
    scale: float
    value_scale: float
    temperature_scale: float
    temperature_length: int
    qkv_clip: float
    softcap: float
    output_softcap: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    experts: int
    experts_used: int
    expert_inner: int
    shared_inner: int
    expert_width: int
    expert_scale: float
    routing: ExpertRouting
    parallel: bool
    causal: bool
    pooling: str
    token_types: int
    dense: tuple[tuple[int, int], tuple[int, int]]
    labels: tuple[str, ...]
    classifier_pooling: str
    moe_every: int
    activation: str
    recurrent: tuple[bool, ...]
    ssm: Ssm
    latent: Latent | None
    window_head: tuple[int, int]
    shared_kv_layers: int
    per_layer_width: int
    xielu: tuple[XIELU, ...]
    altup: AltUp | None
    halved_every: int
    deepstack: int = 0
    alibi: float = 0.0

    def head_sizes(self, layer: int) -> tuple[int, int]:
        """Return the sizes of keys and of values of a layer."""
        windowed = self.windowed and self.windowed[layer]
        return self.window_head if windowed else (self.key_length, self.value_length)

    @property
    def cached_values(self) -> int:
        """The number of values of a token in the KV cache of all layers."""
        if self.latent:
            return sum(self.kv_heads) * (self.latent.rank + self.rope.dims)
        own = range(self.layers - self.shared_kv_layers)
        return sum(self.kv_heads[layer] * sum(self.head_sizes(layer)) for layer in own)


def architecture_of(file: GgufFile) -> str:
    """Return the name of the architecture, for example "llama" or "qwen2".

    Raises
    ------
    ModelFormatError
        The file does not name it.
    """
    found = file.metadata.get("general.architecture")
    if not isinstance(found, str) or not found:
        raise ModelFormatError(
            "[gguf] expected the name of an architecture as 'general.architecture', got "
            f"{shortened(found)}; try a file of a language model"
        )
    return found


def read_hyper(file: GgufFile) -> HParams:
    """Return the hyperparameters of a file.

    Raises
    ------
    ModelFormatError
        A key is missing, or its value is invalid.
    """
    keys = MetadataKeys(architecture_of(file), file.metadata)
    blocks = keys.whole("block_count", maximum=MAX_LAYERS)
    predicting = keys.whole("nextn_predict_layers", 0, minimum=0, maximum=blocks - 1)
    layers = blocks - predicting
    width = keys.whole("embedding_length")
    least = 0 if keys.architecture in WITHOUT_ATTENTION else 1
    heads = keys.per_layer("attention.head_count", blocks, minimum=least)[:layers]
    head_width = width // max(1, *heads)
    key_length = keys.whole("attention.key_length", head_width)
    feed_forward = keys.per_layer("feed_forward_length", blocks, (0,) * blocks, least)[:layers]
    if keys.architecture in HALVED:
        feed_forward = tuple(size // 2 for size in feed_forward)
    experts = keys.whole("expert_count", 0, minimum=0, maximum=MAX_EXPERTS)
    experts_used = keys.whole("expert_used_count", maximum=experts) if experts else 0
    expert_inner = keys.whole("expert_feed_forward_length", max(feed_forward), minimum=0)
    shared = keys.whole("expert_shared_count", 0, minimum=0, maximum=MAX_EXPERTS)
    eps = "attention.layer_norm_rms_epsilon"
    context = keys.whole("context_length", maximum=MAX_CONTEXT)
    value_length = keys.whole("attention.value_length", head_width)
    windowed = keys.flags("attention.sliding_window_pattern", blocks)[:layers]
    window_head = _read_window_head(keys, key_length, value_length, windowed)
    rope = read_rope(
        keys, keys.whole("attention.key_length_mla", key_length), context, window_head[0]
    )
    latent = read_latent(keys, rope, key_length, value_length)
    kv_heads = _read_shared(keys, heads, blocks) if any(heads) else (0,) * layers
    if latent:
        kv_heads = tuple(min(1, count) for count in kv_heads)
    recurrent = _read_recurrent(keys, kv_heads)
    return HParams(
        architecture=keys.architecture,
        layers=layers,
        predicting_layers=predicting,
        width=width,
        context=context,
        vocabulary=_vocabulary(file, keys),
        heads=heads,
        kv_heads=tuple(
            0 if without else count for count, without in zip(kv_heads, recurrent, strict=True)
        ),
        key_length=latent.key_length if latent else key_length,
        value_length=latent.value_length if latent else value_length,
        feed_forward=feed_forward,
        eps=keys.real(eps if keys.has(eps) else "attention.layer_norm_epsilon"),
        rope=rope,
        window=min(keys.whole("attention.sliding_window", 0, minimum=0), context),
        windowed=windowed,
        scale=keys.real("attention.scale", 0.0),
        value_scale=keys.real("attention.value_scale", 0.0),
        temperature_scale=keys.real("attention.temperature_scale", 0.0),
        temperature_length=keys.whole("attention.temperature_length", rope.original),
        qkv_clip=keys.real("attention.clamp_kqv", 0.0),
        softcap=keys.real("attn_logit_softcapping", 0.0),
        output_softcap=keys.real("final_logit_softcapping", 0.0),
        embedding_scale=keys.real("embedding_scale", 0.0),
        residual_scale=keys.real("residual_scale", 0.0),
        logit_scale=keys.real("logit_scale", 0.0),
        experts=experts,
        experts_used=experts_used,
        expert_inner=expert_inner,
        shared_inner=keys.whole(
            "expert_shared_feed_forward_length", shared * expert_inner, minimum=0
        ),
        expert_width=keys.whole("moe_latent_size", 0, minimum=0),
        expert_scale=keys.real("expert_weights_scale", 0.0),
        routing=read_expert_routing(keys, experts, experts_used),
        parallel=keys.flag("use_parallel_residual", True),
        causal=keys.flag("attention.causal", True),
        pooling=POOLINGS[keys.whole("pooling_type", 0, minimum=0, maximum=len(POOLINGS) - 1)],
        token_types=MetadataKeys("tokenizer.ggml", file.metadata).whole("token_type_count", 1),
        dense=(_read_dense(keys, "dense_2"), _read_dense(keys, "dense_3")),
        labels=keys.texts("classifier.output_labels"),
        classifier_pooling=_read_classifier_pooling(keys),
        moe_every=keys.whole("moe_every_n_layers", 0, minimum=0),
        activation=keys.text("hidden_activation", ""),
        recurrent=recurrent,
        ssm=read_ssm(keys),
        latent=latent,
        window_head=window_head,
        shared_kv_layers=_read_shared_kv_layers(keys, layers),
        per_layer_width=keys.whole("embedding_length_per_layer_input", 0, minimum=0),
        altup=read_altup(keys, layers),
        halved_every=keys.whole("rescale_every_n_layers", 0, minimum=0),
        deepstack=keys.whole("n_deepstack_layers", 0, minimum=0, maximum=layers),
        xielu=read_xielu(MetadataKeys("xielu", file.metadata), layers),
        alibi=_read_alibi(keys),
    )


def _read_alibi(keys: MetadataKeys) -> float:
    """Return the maximum bias of ALiBi, 0 without ALiBi."""
    if keys.architecture not in ALIBI:
        return 0.0
    return keys.real("attention.max_alibi_bias", 0.0 if keys.architecture == "baichuan" else None)


def _read_dense(keys: MetadataKeys, name: str) -> tuple[int, int]:
    """Return the input and output sizes of a dense layer after pooling."""
    return (
        keys.whole(f"{name}_feat_in", 0, minimum=0),
        keys.whole(f"{name}_feat_out", 0, minimum=0),
    )


def _read_classifier_pooling(keys: MetadataKeys) -> str:
    """Return the pooling before the classification head."""
    number = keys.whole("classifier.pooling_type", POOLINGS.index("cls"), minimum=1, maximum=2)
    return POOLINGS[number]


def _read_window_head(
    keys: MetadataKeys, key_length: int, value_length: int, windowed: tuple[bool, ...]
) -> tuple[int, int]:
    """Return the sizes of keys and values in layers with a window, by default those of others."""
    name = "attention.key_length_swa"
    found = keys.whole(name, key_length), keys.whole("attention.value_length_swa", value_length)
    if found != (key_length, value_length) and not windowed:
        raise ModelFormatError(
            f"[gguf] expected the key '{keys.architecture}.attention.sliding_window_pattern' in a "
            f"file with '{name}', got none; try to convert the model again"
        )
    return found


def _read_shared(keys: MetadataKeys, heads: tuple[int, ...], blocks: int) -> tuple[int, ...]:
    """Return the number of KV heads of each layer, each a divisor of the query heads."""
    shared = keys.per_layer("attention.head_count_kv", blocks, heads)[: len(heads)]
    for layer, (of_queries, of_keys) in enumerate(zip(heads, shared, strict=True)):
        if of_keys and of_queries % of_keys:
            raise ModelFormatError(
                f"[gguf] key '{keys.architecture}.attention.head_count_kv': expected a number that "
                f"divides the {of_queries} heads of layer {layer}, got {of_keys}"
            )
    return shared


def _read_shared_kv_layers(keys: MetadataKeys, layers: int) -> int:
    """Return the number of last layers that use keys and values of earlier ones."""
    name = "attention.shared_kv_layers"
    found = keys.whole(name, 0, minimum=0, maximum=layers - 1)
    if found and keys.architecture not in SHARING:
        raise ModelFormatError(
            f"[gguf] key '{keys.architecture}.{name}': expected 0 but for the architectures "
            f"{' and '.join(SHARING)}, got {found}; try to convert the model again"
        )
    return found


def _read_recurrent(keys: MetadataKeys, kv_heads: tuple[int, ...]) -> tuple[bool, ...]:
    """Return whether each layer has no attention: all but every `full_attention_interval`-th, or
    those without KV heads if a file has no such key.
    """
    interval = keys.optional_whole("full_attention_interval")
    if interval is None:
        return tuple(count == 0 for count in kv_heads)
    return tuple((layer + 1) % interval > 0 for layer in range(len(kv_heads)))


def _vocabulary(file: GgufFile, keys: MetadataKeys) -> int:
    """Return the vocabulary size: that of the tokenizer, else of the metadata or the embedding."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, (tuple, LazyStrings)) and tokens:
        return len(tokens)
    table = file.tensors.get(EMBEDDING)
    return keys.whole("vocab_size", None if table is None else table.shape[0])

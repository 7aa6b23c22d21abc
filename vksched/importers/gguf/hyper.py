"""Hyper: the sizes and numbers of a language model, as the metadata of its file has them.

Keys begin with the name of the architecture: "llama.block_count". Wrong or missing ones are a
ModelFormatError that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shortened

import numpy as np

from ...errors import ModelFormatError
from .read.loader import GgufFile
from .read.metadata import Value

MAX_LAYERS = 1 << 12
MAX_SIZE = (1 << 31) - 1
MAX_CONTEXT = (1 << 29) - 1
"""Tokens that attention can tell apart."""
MAX_REAL = 1e38
"""A little of float32 is left, for what is computed of it."""
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
POOLINGS = ("", "mean", "cls", "last", "rank")
"""By the numbers that files have for them."""


@dataclass(frozen=True)
class Rope:
    """Rotary positions. dims: so many of each head are turned. scaling: "none", "linear", "yarn" or
    another way to reach beyond the context of training, by `factor`. original: the tokens of that
    context. attention_factor: of cosines and sines, where texts are longer. window_base: the base
    in layers with a window, 0 where it is the same.
    """

    base: float
    dims: int
    scaling: str
    factor: float
    original: int
    attention_factor: float
    window_base: float


@dataclass(frozen=True)
class Hyper:
    """width: of the hidden state. heads, kv_heads, feed_forward: for each layer. eps: of norms.
    window: so many keys are seen, at most those of the context; 0 where all are. scale: of scores,
    0 where it follows from the size of heads. softcap, output_softcap: of scores and of logits, 0
    where they have none. experts: of each layer, `experts_used` at a time; 0 where layers have
    none. expert_inner: the size between their products; shared_inner: that of one which all tokens
    have. causal: no token sees those behind it. pooling: how an encoder makes one vector of those
    of all tokens, of `POOLINGS`; "" where the file does not say.
    """

    architecture: str
    layers: int
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
    scale: float
    softcap: float
    output_softcap: float
    experts: int
    experts_used: int
    expert_inner: int
    shared_inner: int
    causal: bool
    pooling: str
    token_types: int


def architecture_of(file: GgufFile) -> str:
    """Returns what kind of network it is: "llama", "qwen2".

    Raises:
        ModelFormatError: the file does not say.
    """
    found = file.metadata.get("general.architecture")
    if not isinstance(found, str) or not found:
        raise ModelFormatError(
            "[gguf] expected the name of an architecture as 'general.architecture', got "
            f"{shortened(found)}; try a file of a language model"
        )
    return found


def read_hyper(file: GgufFile) -> Hyper:
    """Returns the hyperparameters of a file.

    Raises:
        ModelFormatError: a key is missing, or no model has such a value.
    """
    keys = _Keys(architecture_of(file), file.metadata)
    layers = keys.whole("block_count", most=MAX_LAYERS)
    width = keys.whole("embedding_length")
    heads = keys.per_layer("attention.head_count", layers)
    head_width = width // max(1, *heads)
    key_length = keys.whole("attention.key_length", head_width)
    feed_forward = keys.per_layer("feed_forward_length", layers, (0,) * layers)
    experts = keys.whole("expert_count", 0, least=0)
    eps = "attention.layer_norm_rms_epsilon"
    context = keys.whole("context_length", most=MAX_CONTEXT)
    return Hyper(
        architecture=keys.architecture,
        layers=layers,
        width=width,
        context=context,
        vocabulary=_vocabulary(file, keys),
        heads=heads,
        kv_heads=_read_shared(keys, heads),
        key_length=key_length,
        value_length=keys.whole("attention.value_length", head_width),
        feed_forward=feed_forward,
        eps=keys.real(eps if keys.has(eps) else "attention.layer_norm_epsilon"),
        rope=_read_rope(keys, key_length, context),
        window=min(keys.whole("attention.sliding_window", 0, least=0), context),
        scale=keys.real("attention.scale", 0.0),
        softcap=keys.real("attn_logit_softcapping", 0.0),
        output_softcap=keys.real("final_logit_softcapping", 0.0),
        experts=experts,
        experts_used=keys.whole("expert_used_count", most=experts) if experts else 0,
        expert_inner=keys.whole("expert_feed_forward_length", max(feed_forward), least=0),
        shared_inner=keys.whole("expert_shared_feed_forward_length", 0, least=0),
        causal=keys.flag("attention.causal", True),
        pooling=POOLINGS[keys.whole("pooling_type", 0, least=0, most=len(POOLINGS) - 1)],
        token_types=_Keys("tokenizer.ggml", file.metadata).whole("token_type_count", 1),
    )


def _read_shared(keys: _Keys, heads: tuple[int, ...]) -> tuple[int, ...]:
    """Returns for each layer the heads of keys and values, which heads of queries share evenly."""
    shared = keys.per_layer("attention.head_count_kv", len(heads), heads)
    for layer, (of_queries, of_keys) in enumerate(zip(heads, shared, strict=True)):
        if of_keys and of_queries % of_keys:
            raise ModelFormatError(
                f"[gguf] key '{keys.architecture}.attention.head_count_kv': expected a number that "
                f"divides the {of_queries} heads of layer {layer}, got {of_keys}"
            )
    return shared


def _read_rope(keys: _Keys, key_length: int, context: int) -> Rope:
    older = keys.real("rope.scale_linear", 1.0)
    factor = keys.real("rope.scaling.factor", older)
    return Rope(
        base=keys.real("rope.freq_base", 10000.0),
        dims=keys.whole("rope.dimension_count", key_length, most=key_length),
        scaling=keys.text("rope.scaling.type", "none" if factor == 1 else "linear"),
        factor=factor,
        original=keys.whole("rope.scaling.original_context_length", context),
        attention_factor=keys.real("rope.scaling.attn_factor", 1.0),
        window_base=keys.real("rope.freq_base_swa", 0.0),
    )


def _vocabulary(file: GgufFile, keys: _Keys) -> int:
    """Returns the number of tokens; without a tokenizer what the file says, or what it embeds."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, tuple) and tokens:
        return len(tokens)
    table = file.tensors.get(EMBEDDING)
    return keys.whole("vocab_size", None if table is None else table.shape[0])


class _Keys:
    """Takes values of one architecture from the metadata, each in its range."""

    def __init__(self, architecture: str, metadata: Mapping[str, Value]) -> None:
        self.architecture = architecture
        self._metadata = metadata

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self._metadata

    def whole(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_SIZE
    ) -> int:
        """Returns a whole number."""
        value = self._get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise self._wrong(name, f"a whole number of {least} to {most}", value)

    def real(self, name: str, default: float | None = None) -> float:
        """Returns a number over 0 that float32 holds with some to spare."""
        value = self._get(name, default)
        if default is not None and not self.has(name):
            return default
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if np.finfo(np.float32).tiny <= value <= MAX_REAL:
                return float(value)
        raise self._wrong(name, f"a float32 over 0, at most {MAX_REAL:g}", value)

    def flag(self, name: str, default: bool) -> bool:
        """Returns whether something is so."""
        value = self._get(name, default)
        if isinstance(value, bool):
            return value
        raise self._wrong(name, "true or false", value)

    def text(self, name: str, default: str) -> str:
        """Returns a word."""
        value = self._get(name, default)
        if isinstance(value, str):
            return value
        raise self._wrong(name, "a word", value)

    def per_layer(
        self, name: str, layers: int, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Returns a number for each layer; one in the file stands for all."""
        value = self._get(name, default)
        if isinstance(value, tuple):
            return value  # type: ignore[return-value]
        if not isinstance(value, np.ndarray):
            return (self.whole(name),) * layers
        found = value.tolist()
        if value.dtype.kind in "iu" and len(found) == layers:
            if all(0 <= each <= MAX_SIZE for each in found):
                return tuple(found)
        raise self._wrong(name, f"{layers} whole numbers of 0 to {MAX_SIZE}", found)

    def _get(self, name: str, default: Value | None) -> Value:
        key = f"{self.architecture}.{name}"
        value = self._metadata.get(key, default)
        if value is None:
            raise ModelFormatError(
                f"[gguf] expected the key {key!r} of a model of architecture "
                f"{self.architecture!r}, got none; try to convert the model again"
            )
        return value

    def _wrong(self, name: str, expected: str, value: object) -> ModelFormatError:
        return ModelFormatError(
            f"[gguf] key '{self.architecture}.{name}': expected {expected}, got {shortened(value)}"
        )

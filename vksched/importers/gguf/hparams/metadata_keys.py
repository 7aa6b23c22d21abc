"""Metadata keys: reads the metadata of one architecture, with a range check for each value.

Keys begin with the name of the architecture: "llama.block_count". An invalid or missing key raises
a ModelFormatError that names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from reprlib import repr as shortened

import numpy as np

from ....common.errors import ModelFormatError
from ..read.metadata import Value
from ..read.texts import LazyStrings

MAX_SIZE = (1 << 31) - 1
MAX_REAL = 1e38
"""The range of numbers: within float32, with headroom for values computed from them."""

LATENT = ("deepseek2", "kimi-linear", "minicpm3", "mistral4", "plm")
"""Architectures with multi-head latent attention."""
ALTERNATING = ("gemma3n",)
"""Architectures with alternating updates."""
SHARING = ("gemma3n", "gemma4")
"""Architectures whose last layers use keys and values of earlier ones."""
ALIBI = ("baichuan", "bloom", "jais", "jina-bert-v2", "mpt")
"""Architectures whose attention scores fall with the distance of tokens; of Baichuan those of the
larger model.
"""
HALVED = ("qwen",)
"""Architectures whose files have the size of gate and up together as that of the feed-forward."""
NORMED_BY_KEY = (
    *("afmoe", "bailingmoe", "bailingmoe2", "deepseek", "dots1", "exaone-moe", "glm4moe", "jamba"),
    *("nemotron_h_moe", "nomic-bert-moe", "olmoe", "qwen2moe", "deepseek2", "mistral4"),
)
"""Architectures whose expert weights have sum 1 only if a key of the file requires it."""
SIGMOIDS = (
    *("afmoe", "bailingmoe2", "dots1", "exaone-moe", "glm4moe", "llama4", "minimax-m2"),
    *("kimi-linear", "mimo2", "nemotron_h_moe"),
)
"""Architectures that compute expert weights by sigmoid by default."""
SOFTMAX, SIGMOID = 1, 2
BAICHUAN_13B_LAYERS = 40
GLM_FLASH_LAYERS, GLM_FLASH_TOKENS = (47, 48), 154880
"""The numbers of layers and of tokens by which files of GLM 4.7 Flash are recognized."""

DELTA_NETS = ("qwen3next", "qwen35", "qwen35moe")
"""Architectures with attention in every fourth layer by default."""
WITHOUT_ATTENTION = ("arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7")
"""Architectures whose files declare 0 heads, and may have no feed-forward."""


def _gating_of_deepseek2(keys: MetadataKeys) -> int:
    """Return the gating of files without that key: softmax of DeepSeek V2, or sigmoid of GLM 4.7
    Flash.
    """
    layers, tokens = keys.whole("block_count"), keys.whole("vocab_size", 0, minimum=0)
    is_glm = layers in GLM_FLASH_LAYERS and tokens == GLM_FLASH_TOKENS
    return SIGMOID if is_glm else SOFTMAX


MINICPM: Mapping[str, Value | Callable[[MetadataKeys], Value]] = {
    "embedding_scale": 12.0,
    "logit_scale": lambda keys: keys.whole("embedding_length") / 256,
    "residual_scale": lambda keys: 1.4 / math.sqrt(keys.whole("block_count")),
}
"""Scales of the models whose files omit them."""


def _alibi_of_baichuan(keys: MetadataKeys) -> float:
    """Return the maximum bias of ALiBi of the model with 13B parameters, 0 for others."""
    return 8.0 if keys.whole("block_count") == BAICHUAN_13B_LAYERS else 0.0


def _scale_of_jais(keys: MetadataKeys) -> float:
    """Return the scale of attention scores, 1 / the size of a head."""
    return keys.whole("attention.head_count") / keys.whole("embedding_length")


DEFAULTS: Mapping[str, Value | Callable[[MetadataKeys], Value]] = {
    **dict.fromkeys([f"{each}.expert_gating_func" for each in SIGMOIDS], SIGMOID),
    **dict.fromkeys([f"{each}.expert_weights_norm" for each in NORMED_BY_KEY], False),
    **dict.fromkeys(
        [f"{each}.attention.max_alibi_bias" for each in ("bloom", "jina-bert-v2")], 8.0
    ),
    "baichuan.attention.max_alibi_bias": _alibi_of_baichuan,
    "jais.attention.scale": _scale_of_jais,
    "deepseek2.expert_gating_func": _gating_of_deepseek2,
    "gemma2.attention.sliding_window": 4096,
    "llama4.attention.sliding_window": 8192,
    "llama4.attention.temperature_length": 8192,
    "llama4.attention.temperature_scale": 0.1,
    **{
        f"{each}.{name}": value
        for each in ("minicpm", "minicpm3")
        for name, value in MINICPM.items()
    },
    "modern-bert.attention.sliding_window_pattern": 3,
    "modern-bert.classifier.pooling_type": 1,
    **dict.fromkeys([f"{each}.full_attention_interval" for each in DELTA_NETS], 4),
}
"""Defaults of keys that files of an architecture omit, as values or from other keys."""
FULL_FIRST = ("modern-bert",)
"""Architectures whose first layer of each period has full attention, not the last one."""
REQUIRED = frozenset(
    {
        "cohere2.attention.sliding_window",
        "cohere2.logit_scale",
        "command-r.logit_scale",
        "gemma-embedding.attention.sliding_window",
        "gemma2.attn_logit_softcapping",
        "gemma2.final_logit_softcapping",
        "gpt-oss.attention.sliding_window",
        "granite.logit_scale",
        "granitemoe.logit_scale",
    }
)
"""Defaults of keys that all other architectures may omit."""


class MetadataKeys:
    """The metadata of one architecture, with range checks."""

    def __init__(self, architecture: str, metadata: Mapping[str, Value]) -> None:
        self.architecture = architecture
        self._metadata = metadata

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self._metadata

    def whole(
        self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_SIZE
    ) -> int:
        """Return an integer."""
        value = self._get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        raise self._wrong(name, f"a whole number of {minimum} to {maximum}", value)

    def optional_whole(self, name: str) -> int | None:
        """Return an integer over 0; None if neither the file nor its architecture has one."""
        key = f"{self.architecture}.{name}"
        return self.whole(name) if key in self._metadata or key in DEFAULTS else None

    def real(
        self,
        name: str,
        default: float | None = None,
        *,
        signed: bool = False,
        maximum: float = MAX_REAL,
    ) -> float:
        """Return a positive number within the range of float32 with headroom; also 0 if that is the
        default. signed: also 0 and negative numbers.
        """
        value = self._get(name, default)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if value == 0 and (default == 0 or signed):
                return 0.0
            if np.finfo(np.float32).tiny <= (abs(value) if signed else value) <= maximum:
                return float(value)
        expected = f"a float32 {'of magnitude ' if signed else ''}over 0, at most {maximum:g}"
        raise self._wrong(name, f"0 or {expected}" if signed else expected, value)

    def flag(self, name: str, default: bool) -> bool:
        """Return a Boolean."""
        value = self._get(name, default)
        if isinstance(value, bool):
            return value
        raise self._wrong(name, "true or false", value)

    def text(self, name: str, default: str) -> str:
        """Return a string."""
        value = self._get(name, default)
        if isinstance(value, str):
            return value
        raise self._wrong(name, "a string", value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings; () if the file has none."""
        value = self._get(name, ())
        if isinstance(value, (tuple, LazyStrings)):
            found = [each for each in value if isinstance(each, str)]
            if len(found) == len(value):
                return tuple(found)
        raise self._wrong(name, "a list of strings", value)

    def per_layer(
        self, name: str, layers: int, default: tuple[int, ...] | None = None, minimum: int = 1
    ) -> tuple[int, ...]:
        """Return an integer for each layer; a scalar in the file applies to all layers, and is at
        least `minimum`.
        """
        if default is not None and not self.has(name):
            return default
        value = self._get(name, None)
        if not isinstance(value, np.ndarray):
            return (self.whole(name, minimum=minimum),) * layers
        found = value.tolist()
        if value.dtype.kind in "iu" and len(found) == layers:
            if all(0 <= each <= MAX_SIZE for each in found):
                return tuple(found)
        raise self._wrong(name, f"{layers} whole numbers of 0 to {MAX_SIZE}", found)

    def reals(self, name: str, layers: int, least: float = -MAX_REAL) -> tuple[float, ...]:
        """Return a number of at least `least` for each layer; () if the file has no such key."""
        if not self.has(name):
            return ()
        value = self._get(name, None)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.shape == (layers,):
            if ((value >= least) & (value < MAX_REAL)).all():
                return tuple(value.tolist())
        expected = f"{layers} numbers below {MAX_REAL:g} and of at least {least:g}"
        raise self._wrong(name, expected, value)

    def flags(self, name: str, layers: int) -> tuple[bool, ...]:
        """Return a Boolean for each layer; () if the file has no such key. A scalar p in the file
        means that every p-th layer is False, and 0 that all are True.
        """
        if not self.has(name) and f"{self.architecture}.{name}" not in DEFAULTS:
            return ()
        value = self._get(name, None)
        if not isinstance(value, np.ndarray):
            period = self.whole(name, minimum=0)
            first = 0 if self.architecture in FULL_FIRST else 1
            return tuple(period == 0 or (each + first) % period > 0 for each in range(layers))
        if value.dtype.kind in "bui" and value.shape == (layers,):
            return tuple(bool(each) for each in value.tolist())
        raise self._wrong(name, f"a whole number or {layers} times true or false", value)

    def _get(self, name: str, default: Value | None) -> Value:
        key = f"{self.architecture}.{name}"
        default = self._default(key, None if key in REQUIRED else default)
        value = self._metadata.get(key, default)
        if value is None:
            raise ModelFormatError(
                f"[gguf] expected the key {key!r} of a model of architecture "
                f"{self.architecture!r}, got none; try to convert the model again"
            )
        return value

    def _default(self, key: str, default: Value | None) -> Value | None:
        if key in self._metadata or key not in DEFAULTS:
            return default
        found = DEFAULTS[key]
        return found(self) if callable(found) else found

    def _wrong(self, name: str, expected: str, value: object) -> ModelFormatError:
        return ModelFormatError(
            f"[gguf] key '{self.architecture}.{name}': expected {expected}, got {shortened(value)}"
        )

"""Latent: the sizes of multi-head latent attention, which caches compressed keys and values.

Source: https://arxiv.org/abs/2405.04434, section 2.1
"""

from __future__ import annotations

from dataclasses import dataclass

from ....common.errors import ModelFormatError
from .metadata_keys import LATENT, MetadataKeys
from .rope import Rope, growth, yarn_share


@dataclass(frozen=True)
class Latent:
    """The sizes of latent attention.

    rank: the size of a token's compressed keys and values, which all heads share. query_rank: the
    size of compressed queries; 0 if they are not compressed. key_length, value_length: the sizes of
    a head; the last `Rope.dims` elements of a key are rotated and not compressed. score_factor: the
    factor of attention scores, from YaRN.
    """

    rank: int
    query_rank: int
    key_length: int
    value_length: int
    score_factor: float


def read_latent(
    keys: MetadataKeys, rope: Rope, key_length: int, value_length: int
) -> Latent | None:
    """Return the sizes of latent attention; None for architectures without it. key_length,
    value_length: the sizes of a head in files without keys for compressed ones.

    Raises
    ------
    ModelFormatError
        A key is missing, or its value is invalid.
    """
    if keys.architecture not in LATENT:
        return None
    name = "attention.key_length_mla"
    key_length = keys.whole(name, key_length)
    if rope.dims >= key_length:
        raise ModelFormatError(
            f"[gguf] key '{keys.architecture}.rope.dimension_count': expected fewer than the "
            f"{key_length} elements of a key, got {rope.dims}"
        )
    scaled = growth(rope.factor, yarn_share(keys)) if rope.scaling == "yarn" else 1.0
    return Latent(
        rank=keys.whole("attention.kv_lora_rank"),
        query_rank=keys.whole("attention.q_lora_rank", 0, minimum=0),
        key_length=key_length,
        value_length=keys.whole("attention.value_length_mla", value_length),
        score_factor=scaled**2,
    )

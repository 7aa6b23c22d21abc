"""Rope: the parameters of rotary embedding, and its scaling beyond the training context."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .metadata_keys import LATENT, MetadataKeys

MAX_SHARE = 1e3
"""The maximum share of YaRN's scale; those of published models are up to 1."""


@dataclass(frozen=True)
class Rope:
    """The parameters of rotary embedding. dims: the number of rotated elements of each head.
    scaling: the context extension: "none", "linear", "yarn", "longrope" or another one, by
    `factor`. original: the training context in tokens. attention_factor: the factor of cos and sin
    beyond the training context. window_base: the base in layers with a window, 0 if it equals
    `base`.

    window_dims: `dims` of layers with a window. slowed: the file's divisors of frequencies apply.

    fast, slow: YaRN keeps the frequencies of pairs with more than `fast` rotations in the training
    context, and divides those with fewer than `slow` rotations by the factor. ext_factor: YaRN's
    extrapolation mix; 0 for linear scaling. finetuned: the model was trained with the scaling.

    sections: the numbers of pairs that rotate by the position in time, row and column of a picture,
    with M-RoPE; () without it.
    """

    base: float
    dims: int
    scaling: str
    factor: float
    original: int
    attention_factor: float
    window_base: float
    window_dims: int
    fast: float = 32.0
    slow: float = 1.0
    ext_factor: float = 1.0
    finetuned: bool = False
    slowed: bool = True
    sections: tuple[int, ...] = ()


def read_rope(keys: MetadataKeys, key_length: int, context: int, window_key_length: int) -> Rope:
    """Return the rotary parameters of a file. key_length, window_key_length: the sizes of a head,
    and of one in layers with a window. context: the model's context in tokens.
    """
    older = keys.real("rope.scale_linear", 0.0)
    factor = keys.real("rope.scaling.factor", 0.0) or older or 1.0
    scaling = keys.text("rope.scaling.type", "none" if factor == 1 else "linear")
    original = keys.whole("rope.scaling.original_context_length", context)
    ext_factor = keys.real("rope.scaling.yarn_ext_factor", 1.0, signed=True)
    dims = keys.whole("rope.dimension_count", key_length, maximum=key_length)
    window_dims = min(dims, window_key_length)
    return Rope(
        base=keys.real("rope.freq_base", 10000.0),
        dims=dims,
        scaling=scaling,
        factor=factor,
        original=original,
        attention_factor=_attention_factor(keys, scaling, factor, context / original, ext_factor),
        window_base=keys.real("rope.freq_base_swa", 0.0),
        window_dims=keys.whole("rope.dimension_count_swa", window_dims, maximum=window_key_length),
        fast=keys.real("rope.scaling.yarn_beta_fast", 32.0),
        slow=keys.real("rope.scaling.yarn_beta_slow", 1.0),
        ext_factor=1.0 if ext_factor < 0 else ext_factor,
        finetuned=keys.flag("rope.scaling.finetuned", False),
        sections=keys.per_layer("rope.dimension_sections", 4, (), 0)[:3],
    )


def _attention_factor(
    keys: MetadataKeys, scaling: str, factor: float, longer: float, ext_factor: float
) -> float:
    """Return the factor of cos and sin. longer: the ratio of the context to the training context.

    Converters write YaRN's factor where a model has its own: as `attention_factor` of transformers,
    which replaces that of the paper. llama.cpp writes -1 as ext_factor and 1 as attention factor
    for "not set". Models with latent attention scale rotated and other dimensions equally, by their
    scores.
    """
    usual, key = 1.0, "rope.scaling.attn_factor"
    if scaling == "longrope" and longer > 1:
        original = keys.whole("rope.scaling.original_context_length", 2)
        usual = math.sqrt(1 + math.log(longer) / math.log(max(original, 2)))
    if scaling != "yarn":
        return keys.real(key, usual)
    if ext_factor:
        share = yarn_share(keys)
        whole = share if share and keys.architecture in LATENT else 1.0
        usual = growth(factor, whole) / growth(factor, share)
    own = keys.real("rope.scaling.yarn_attn_factor", usual)
    return (usual if ext_factor < 0 else own) * keys.real(key, 1.0)


def yarn_share(keys: MetadataKeys) -> float:
    """Return the share of YaRN's attention scale in the scores of all dimensions. Converters write
    a tenth of it for models with latent attention.
    """
    written = keys.real("rope.scaling.yarn_log_multiplier", 0.0, maximum=MAX_SHARE)
    return written * 10 if keys.architecture in LATENT else written


def growth(factor: float, share: float) -> float:
    """Return YaRN's attention scale for a context extension by `factor`."""
    return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0

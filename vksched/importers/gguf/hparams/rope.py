"""Rope: rotary positions, and how they reach beyond the context of training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .metadata_keys import Keys


@dataclass(frozen=True)
class Rope:
    """Rotary positions. dims: so many of each head are turned. scaling: "none", "linear", "yarn",
    "longrope" or another way to reach beyond the context of training, by `factor`. original: the
    tokens of that context. attention_factor: of cosines and sines, where texts are longer.
    window_base: the base in layers with a window, 0 where it is the same.
    fast, slow: pairs that turn more often than `fast` times in the original context keep their
    speed, and those that do so less often than `slow` times are slowed by the factor ("yarn").
    kept: the share of their speed that the first of these keep.
    """

    base: float
    dims: int
    scaling: str
    factor: float
    original: int
    attention_factor: float
    window_base: float
    fast: float = 32.0
    slow: float = 1.0
    ext_factor: float = 1.0


def read_rope(keys: Keys, key_length: int, context: int) -> Rope:
    """Returns what a file says of them. key_length: of heads. context: of the model, in tokens."""
    older = keys.real("rope.scale_linear", 0.0)
    factor = keys.real("rope.scaling.factor", 0.0) or older or 1.0
    scaling = keys.text("rope.scaling.type", "none" if factor == 1 else "linear")
    original = keys.whole("rope.scaling.original_context_length", context)
    return Rope(
        base=keys.real("rope.freq_base", 10000.0),
        dims=keys.whole("rope.dimension_count", key_length, most=key_length),
        scaling=scaling,
        factor=factor,
        original=original,
        attention_factor=_attention_factor(keys, scaling, factor, context / original),
        window_base=keys.real("rope.freq_base_swa", 0.0),
        fast=keys.real("rope.scaling.yarn_beta_fast", 32.0),
        slow=keys.real("rope.scaling.yarn_beta_slow", 1.0),
        ext_factor=keys.real("rope.scaling.yarn_ext_factor", 1.0),
    )


def _attention_factor(keys: Keys, scaling: str, factor: float, longer: float) -> float:
    """Return the factor of cosines and sines. longer: the context by that of training."""
    usual, key = 1.0, "rope.scaling.attn_factor"
    if scaling == "longrope" and longer > 1:
        original = keys.whole("rope.scaling.original_context_length", 2)
        usual = math.sqrt(1 + math.log(longer) / math.log(max(original, 2)))
    if scaling != "yarn":
        return keys.real(key, usual)
    share = keys.real("rope.scaling.yarn_log_multiplier", 0.0)
    usual = _growth(factor, 1.0) / _growth(factor, share)
    return keys.real("rope.scaling.yarn_attn_factor", usual) * keys.real(key, 1.0)


def _growth(factor: float, share: float) -> float:
    """Returns what keeps scores even in texts `factor` times as long."""
    return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0

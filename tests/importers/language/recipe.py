"""Recipe: the settings of a tiny model, as `export.py` makes it with transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


@dataclass(frozen=True)
class Recipe:
    """kind: model type of transformers. more: further settings. encoder: the hidden states are
    wanted, without a causal mask.
    """

    architecture: str
    kind: str
    more: dict[str, Any] = field(default_factory=dict)
    tokens: int = 20
    common: dict[str, Any] = field(default_factory=lambda: COMMON)
    encoder: bool = False

    @property
    def config(self) -> dict[str, Any]:
        return {**self.common, **self.more}

"""Recipes of decoders with ALiBi: BLOOM and MPT."""

from __future__ import annotations

from .recipe import Recipe

ALIBI = {
    "bloom": Recipe(
        "bloom",
        "Bloom",
        common={
            "vocab_size": 37,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_inner": 128,
            "max_position_embeddings": 64,
            "layer_norm_epsilon": 1e-5,
        },
    ),
    "mpt": Recipe(
        "mpt",
        "Mpt",
        common={
            "vocab_size": 37,
            "d_model": 48,
            "n_heads": 6,
            "n_layers": 2,
            "expansion_ratio": 4,
            "max_seq_len": 64,
            "layer_norm_epsilon": 1e-5,
            "attn_config": {"alibi": True, "alibi_bias_max": 8, "clip_qkv": 1.3},
        },
    ),
}

"""A tiny MiMo V2, as `export.py` makes it with transformers 5."""

from __future__ import annotations

from .gemma_recipes import WINDOW
from .recipe import Recipe

MIMO2 = Recipe(
    "mimo2",
    "MiMoV2Flash",
    {
        "num_hidden_layers": 4,
        "head_dim": 12,
        "v_head_dim": 8,
        "num_key_value_heads": 1,
        "layer_types": [
            *("full_attention", "sliding_attention", "sliding_attention", "full_attention"),
        ],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "sliding_window": WINDOW,
        "attention_value_scale": 0.7,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "routed_scaling_factor": 1.7,
        "norm_topk_prob": True,
        "pad_token_id": 0,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 0.34}
            for kind, base in (("full_attention", 2e5), ("sliding_attention", 1e4))
        },
    },
)

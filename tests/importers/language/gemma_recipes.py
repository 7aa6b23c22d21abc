"""Tiny models of the Gemma families, as `export.py` makes them with transformers 5."""

from __future__ import annotations

from .recipe import Recipe

WINDOW = 7
"""Shorter than the text."""

GEMMA = {"head_dim": 16, "sliding_window": WINDOW, "hidden_activation": "gelu_pytorch_tanh"}
GEMMA3 = {
    **GEMMA,
    "query_pre_attn_scalar": 16,
    "num_hidden_layers": 7,
    "rope_theta": 1e6,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
SHARED_KV = {
    "head_dim": 8,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": WINDOW,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 37,
    "final_logit_softcapping": 5.0,
    "tie_word_embeddings": True,
}
PROPORTIONAL = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e6,
    },
}
GEMMA4 = {
    **SHARED_KV,
    "global_head_dim": 16,
    "use_double_wide_mlp": True,
    "rope_parameters": PROPORTIONAL,
}
GEMMA4_LARGE = {
    **GEMMA4,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
}
GEMMA3N = {
    **SHARED_KV,
    "laurel_rank": 6,
    "altup_num_inputs": 4,
    "activation_sparsity_pattern": [0.7, 0.6, 0.0, 0.0, 0.0, 0.0],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    },
}
PER_LAYER = ["full_attention", "sliding_attention", "sliding_attention"]
GEMMAS = {
    "gemma": Recipe("gemma", "Gemma", {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"}),
    "gemma2": Recipe("gemma2", "Gemma2", {**GEMMA, "query_pre_attn_scalar": 16}),
    "gemma2_large": Recipe("gemma2", "Gemma2", {**GEMMA, "query_pre_attn_scalar": 8}),
    "gemma3": Recipe("gemma3", "Gemma3Text", GEMMA3),
    "gemma3_layers": Recipe(
        "gemma3", "Gemma3Text", {**GEMMA3, "num_hidden_layers": 3, "layer_types": PER_LAYER}
    ),
    "gemma3n": Recipe("gemma3n", "Gemma3nText", GEMMA3N),
    "gemma4": Recipe("gemma4", "Gemma4Text", GEMMA4),
    "gemma4_large": Recipe("gemma4", "Gemma4Text", GEMMA4_LARGE),
    "gemma4_experts": Recipe(
        "gemma4",
        "Gemma4Text",
        {
            **GEMMA4_LARGE,
            "num_hidden_layers": 2,
            "layer_types": GEMMA4["layer_types"][:2],
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 3,
            "moe_intermediate_size": 24,
        },
    ),
}

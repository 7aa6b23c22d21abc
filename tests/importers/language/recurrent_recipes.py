"""Tiny models with recurrent layers, as `export.py` makes them with transformers 5."""

from __future__ import annotations

from typing import Any

from .recipe import Recipe

ROPE = {"rope_type": "default", "rope_theta": 1e4}
LFM2 = {
    "num_hidden_layers": 4,
    "norm_eps": 1e-5,
    "conv_L_cache": 3,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False,
    "rope_parameters": ROPE,
    "tie_word_embeddings": True,
}
LFM2_MOE = {
    **LFM2,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "num_dense_layers": 1,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
MAMBA: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "layer_norm_epsilon": 1e-5,
    "expand": 2,
    "conv_kernel": 4,
    "tie_word_embeddings": True,
}
MAMBA1 = {"state_size": 5, "time_step_rank": 3}
MAMBA2 = {
    "state_size": 12,
    "num_heads": 8,
    "head_dim": 8,
    "n_groups": 2,
    "tie_word_embeddings": False,
    "chunk_size": 8,
}
HYBRID = {
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_d_head": 8,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 8,
}
GRANITE_HYBRID = {
    **HYBRID,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.7,
    "logits_scaling": 1.3,
    "tie_word_embeddings": True,
    "num_hidden_layers": 4,
    "mamba_expand": 2,
    "layer_types": ["mamba", "attention", "mamba", "mamba"],
    "position_embedding_type": "nope",
    "rope_parameters": ROPE,
}
FALCON_H1 = {
    **HYBRID,
    "mamba_d_ssm": 64,
    "mamba_rms_norm": False,
    "head_dim": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "embedding_multiplier": 1.5,
    "lm_head_multiplier": 0.8,
    "mlp_multipliers": [0.9, 0.7],
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.8,
    "ssm_multipliers": [0.7, 0.8, 0.9, 1.1, 1.2],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
}
JAMBA = {
    "num_hidden_layers": 4,
    "attn_layer_period": 4,
    "attn_layer_offset": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mamba_d_state": 5,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 3,
}
NEMOTRON_H = {
    "layers_block_type": ["mamba", "mlp", "attention", "mamba", "mlp"],
    "num_hidden_layers": 5,
    "head_dim": 8,
    "ssm_state_size": 12,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "conv_kernel": 4,
    "expand": 2,
    "chunk_size": 8,
    "layer_norm_epsilon": 1e-5,
}
NEMOTRON_H_MOE = {
    **NEMOTRON_H,
    "layers_block_type": ["mamba", "moe", "attention", "mamba", "moe"],
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 28,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
    "n_group": 1,
}
KIMI_LINEAR = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "linear_head_dim": 12,
    "linear_num_heads": 4,
    "linear_conv_kernel_dim": 4,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 1,
    "moe_intermediate_size": 20,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

RECURRENT = {
    "lfm2": Recipe("lfm2", "Lfm2", LFM2),
    "lfm2moe": Recipe("lfm2moe", "Lfm2Moe", LFM2_MOE),
    "mamba": Recipe("mamba", "Mamba", MAMBA1, common=MAMBA),
    "mamba_normed": Recipe("mamba", "FalconMamba", {**MAMBA1, "mixer_rms_eps": 1e-5}, common=MAMBA),
    "mamba2": Recipe("mamba2", "Mamba2", MAMBA2, common=MAMBA),
    "granitehybrid": Recipe(
        "granitehybrid",
        "GraniteMoeHybrid",
        {**GRANITE_HYBRID, "num_local_experts": 0, "shared_intermediate_size": 48},
    ),
    "granitehybrid_experts": Recipe(
        "granitehybrid",
        "GraniteMoeHybrid",
        {
            **GRANITE_HYBRID,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 40,
            "position_embedding_type": "rope",
        },
    ),
    "falcon-h1": Recipe("falcon-h1", "FalconH1", FALCON_H1),
    "jamba": Recipe("jamba", "Jamba", JAMBA),
    "kimi-linear": Recipe("kimi-linear", "KimiLinear", KIMI_LINEAR),
    "nemotron_h": Recipe("nemotron_h", "NemotronH", NEMOTRON_H),
    "nemotron_h_moe": Recipe("nemotron_h_moe", "NemotronH", NEMOTRON_H_MOE),
    "nemotron_h_moe_latent": Recipe(
        "nemotron_h_moe", "NemotronH", {**NEMOTRON_H_MOE, "moe_latent_size": 16}
    ),
}

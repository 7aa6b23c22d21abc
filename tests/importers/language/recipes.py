"""Tiny models of each architecture, as `export.py` makes them with transformers."""

from __future__ import annotations

from .alibi_recipes import ALIBI
from .gemma_recipes import GEMMA, GEMMAS, WINDOW
from .mimo_recipe import MIMO2
from .recipe import COMMON, Recipe
from .recurrent_recipes import RECURRENT

FACTORS = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.5],
    "long_factor": [1.0, 1.6, 3.0, 7.0],
}
PHI = {"pad_token_id": 0, "original_max_position_embeddings": 24}
GPT = {"vocab_size": 37, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 48}

BERT = {
    **{key: value for key, value in COMMON.items() if key[:8] not in ("num_key_", "rms_norm")},
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}
STRETCHED = {"original_max_position_embeddings": 16, "factor": 4.0}
YARN = {
    **STRETCHED,
    "rope_type": "yarn",
    "attention_factor": 1.3,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
}
SPEEDS = {
    **STRETCHED,
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
OLMO3 = {"num_hidden_layers": 4, "sliding_window": WINDOW}
LLAMA4 = {
    "num_hidden_layers": 4,
    "intermediate_size_mlp": 40,
    "intermediate_size": 24,
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": WINDOW,
    "pad_token_id": 0,
    "attn_temperature_tuning": True,
    "floor_scale": 5,
    "attn_scale": 0.1,
}
GRANITE = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.7,
    "logits_scaling": 1.3,
    "tie_word_embeddings": True,
}
COHERE = {"logit_scale": 0.7, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GLM = {"partial_rotary_factor": 0.5, "head_dim": 8, "pad_token_id": 0}
GPT_OSS = {
    "head_dim": 8,
    "sliding_window": WINDOW,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rope_scaling": {
        **STRETCHED,
        "rope_type": "yarn",
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
}
FALCON = {
    "multi_query": True,
    "num_key_value_heads": 1,
    "intermediate_size": 128,
    "layer_norm_epsilon": 1e-5,
}
MINISTRAL = {
    "head_dim": 8,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "llama_4_scaling_beta": 0.1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        **STRETCHED,
    },
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ROUTED = {
    "num_hidden_layers": 3,
    "moe_intermediate_size": 24,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
"""For transformers 5, as all that contain `rope_parameters`."""
SHARED = {
    **ROUTED,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
ERNIE = {
    **ROUTED,
    "moe_num_experts": 8,
    "moe_k": 3,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "tie_word_embeddings": True,
}
LATENT = {
    **SHARED,
    "rms_norm_eps": 1e-6,  # the norms of compressed rows have no other one
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_group": 4,
    "topk_group": 2,
    "pad_token_id": 0,
}
MSCALE = {"rope_theta": 1e4, "rope_type": "yarn", **STRETCHED, "beta_fast": 32.0, "beta_slow": 1.0}
DEEPSEEK2 = {
    **LATENT,
    "scoring_func": "softmax",
    "topk_method": "group_limited_greedy",
    "norm_topk_prob": False,
    "rope_parameters": {**MSCALE, "mscale": 0.707, "mscale_all_dim": 0.707},
}
DBRX = {
    "vocab_size": 37,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": 64,
    "attn_config": {"clip_qkv": 1.3, "kv_n_heads": 2, "rope_theta": 1e4},
    "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 8, "moe_top_k": 3},
    "rope_parameters": ROUTED["rope_parameters"],
}
HUNYUAN = {
    "head_dim": 8,
    "rope_parameters": ROUTED["rope_parameters"],
    "eod_token_id": 3,
    "sep_token_id": 4,
}
PHI_MOE = {
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "attention_bias": True,
    "lm_head_bias": True,
    "sliding_window": None,
    "rope_parameters": ROUTED["rope_parameters"],
}
NEOX = {
    "layer_norm_eps": 1e-5,
    "num_key_value_heads": 4,
    "use_parallel_residual": True,
    "rope_parameters": PARTIAL,
}
WHOLE = {**PARTIAL, "partial_rotary_factor": 1.0}
DELTA_NET = {
    "head_dim": 16,
    "num_hidden_layers": 3,
    "full_attention_interval": 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
}
"""Attention in the second of three layers."""
DELTA_NET_EXPERTS = {
    **DELTA_NET,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
PLAIN = {"embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0}

BY_LAYER = {
    "full_attention": {"rope_type": "default", "rope_theta": 16e4},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
MODERN = {
    "layer_norm_eps": None,
    "type_vocab_size": None,
    "norm_eps": 1e-5,
    "num_hidden_layers": 5,
    "local_attention": 8,
    "hidden_activation": "gelu",
    "pad_token_id": 0,
    "rope_parameters": BY_LAYER,
}

RECIPES = {
    "llama": Recipe("llama", "Llama"),
    "llama_window": Recipe("llama", "Mistral", {"sliding_window": WINDOW}),
    "llama_linear": Recipe(
        "llama", "Llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    ),
    "llama_yarn": Recipe("llama", "Llama", {"rope_scaling": {"rope_type": "yarn", **STRETCHED}}),
    "llama_yarn_told": Recipe("llama", "Llama", {"rope_scaling": YARN}),
    "llama_speeds": Recipe("llama", "Llama", {"rope_scaling": SPEEDS}),
    "llama4": Recipe("llama4", "Llama4Text", LLAMA4),
    "mistral3": Recipe("mistral3", "Ministral3", MINISTRAL),
    "smollm3": Recipe("smollm3", "SmolLM3", {"num_hidden_layers": 4, "pad_token_id": 0}),
    "granite": Recipe("granite", "Granite", GRANITE),
    "granitemoe": Recipe(
        "granitemoe",
        "GraniteMoeShared",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 40,
            **GRANITE,
        },
    ),
    "apertus": Recipe(
        "apertus",
        "Apertus",
        {
            "hidden_act": "xielu",
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "arcee": Recipe("arcee", "Arcee"),
    "ernie4_5": Recipe("ernie4_5", "Ernie4_5", {"head_dim": 8}),
    "exaone": Recipe("exaone", "Llama"),
    "exaone4": Recipe(
        "exaone4", "Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}
    ),
    "exaone4_window": Recipe("exaone4", "Exaone4", {**OLMO3, "sliding_window_pattern": 4}),
    "olmo2": Recipe("olmo2", "Olmo2"),
    "olmo3": Recipe(
        "olmo2", "Olmo3", {**OLMO3, "rope_scaling": {"rope_type": "yarn", **STRETCHED}}
    ),
    "olmoe": Recipe(
        "olmoe", "Olmoe", {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 24}
    ),
    "command-r": Recipe("command-r", "Cohere", COHERE),
    "cohere2": Recipe("cohere2", "Cohere2", {**OLMO3, **COHERE, "sliding_window_pattern": 4}),
    "glm4": Recipe("glm4", "Glm4", GLM),
    "chatglm": Recipe("chatglm", "Glm", {**GLM, "attention_bias": True}),
    "starcoder2": Recipe("starcoder2", "Starcoder2", {"norm_epsilon": 1e-5}),
    "stablelm": Recipe(
        "stablelm", "StableLm", {"partial_rotary_factor": 0.5, "use_qkv_bias": True}
    ),
    "nemotron": Recipe("nemotron", "Nemotron", {"partial_rotary_factor": 0.5, "norm_eps": 1e-5}),
    "phi2": Recipe("phi2", "Phi", {"partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5}),
    "falcon": Recipe("falcon", "Falcon", FALCON),
    "seed_oss": Recipe("seed_oss", "SeedOss", {"head_dim": 8}),
    "gpt-oss": Recipe("gpt-oss", "GptOss", GPT_OSS),
    "qwen2": Recipe("qwen2", "Qwen2"),
    "qwen3": Recipe("qwen3", "Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    **GEMMAS,
    "phi3": Recipe("phi3", "Phi3", {**PHI, "sliding_window": WINDOW}),
    "phi3_short": Recipe("phi3", "Phi3", {**PHI, "rope_scaling": FACTORS}),
    "phi3_long": Recipe("phi3", "Phi3", {**PHI, "rope_scaling": FACTORS}, tokens=30),
    "llama_experts": Recipe("llama", "Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2moe": Recipe("qwen2moe", "Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 40}),
    "qwen3moe": Recipe("qwen3moe", "Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3next": Recipe("qwen3next", "Qwen3Next", {**DELTA_NET_EXPERTS, "norm_topk_prob": True}),
    "qwen35": Recipe("qwen35", "Qwen3_5Text", DELTA_NET, tokens=40),
    "qwen35moe": Recipe("qwen35moe", "Qwen3_5MoeText", DELTA_NET_EXPERTS),
    "gpt2": Recipe("gpt2", "GPT2", {"layer_norm_epsilon": 1e-5}, common=GPT),
    "bert": Recipe("bert", "Bert", common=BERT, encoder=True),
    "jina-bert-v3": Recipe(
        "jina-bert-v3",
        "JinaEmbeddingsV3",
        {
            "layer_norm_eps": 1e-5,
            "type_vocab_size": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 2e4},
        },
        common=BERT,
        encoder=True,
    ),
    "modern-bert": Recipe("modern-bert", "ModernBert", MODERN, common=BERT, encoder=True),
    "modern-bert_silu": Recipe(
        "modern-bert",
        "ModernBert",
        {**MODERN, "hidden_activation": "silu", "global_attn_every_n_layers": 2},
        common=BERT,
        encoder=True,
    ),
    "eurobert": Recipe(
        "eurobert",
        "EuroBert",
        {
            **{f"{role}_token_id": 0 for role in ("pad", "bos", "eos", "mask")},
            "rope_parameters": {"rope_type": "default", "rope_theta": 25e4},
        },
        encoder=True,
    ),
    "gemma-embedding": Recipe(
        "gemma-embedding",
        "Gemma3Text",
        {
            **GEMMA,
            "query_pre_attn_scalar": 16,
            "num_hidden_layers": 7,
            "sliding_window": 8,
            "use_bidirectional_attention": True,
            "rope_parameters": BY_LAYER,
        },
        encoder=True,
    ),
    "llama-embed": Recipe(
        "llama-embed", "Llama", {"rope_parameters": ROUTED["rope_parameters"]}, encoder=True
    ),
    "glm4moe": Recipe(
        "glm4moe", "Glm4Moe", {**SHARED, "rope_parameters": PARTIAL, "num_experts_per_tok": 2}
    ),
    "glm4moe_large": Recipe(
        "glm4moe",
        "Glm4Moe",
        {
            **SHARED,
            "rope_parameters": PARTIAL,
            "use_qk_norm": True,
            "attention_bias": True,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "deepseek2": Recipe("deepseek2", "DeepseekV2", DEEPSEEK2),
    "deepseek2_lite": Recipe(
        "deepseek2",
        "DeepseekV2",
        {**DEEPSEEK2, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1},
    ),
    "deepseek3": Recipe(
        "deepseek2",
        "DeepseekV3",
        {
            **LATENT,
            "scoring_func": "sigmoid",
            "rope_parameters": {**MSCALE, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "glm4moelite": Recipe(
        "deepseek2",
        "Glm4MoeLite",
        {
            **LATENT,
            "scoring_func": "sigmoid",
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        },
    ),
    "mistral4": Recipe(
        "mistral4",
        "Mistral4",
        {
            **LATENT,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 0,
            "rope_parameters": {
                **MSCALE,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
    ),
    "minicpm3": Recipe(
        "minicpm3",
        "MiniCPM3",
        {
            **{key: LATENT[key] for key in LATENT if key.endswith(("_rank", "_rope_head_dim"))},
            "qk_nope_head_dim": 12,
            "num_key_value_heads": 4,
            "rope_parameters": ROUTED["rope_parameters"],
        },
    ),
    "dbrx": Recipe("dbrx", "Dbrx", common=DBRX),
    "dots1": Recipe(
        "dots1",
        "Dots1",
        {**SHARED, "head_dim": 8, "layer_types": ["full_attention"] * 3, "norm_topk_prob": False},
    ),
    "ernie4_5-moe": Recipe("ernie4_5-moe", "Ernie4_5_Moe", ERNIE),
    "minimax-m2": Recipe(
        "minimax-m2",
        "MiniMaxM2",
        {
            "head_dim": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "rope_parameters": PARTIAL,
        },
    ),
    "hunyuan-moe": Recipe(
        "hunyuan-moe",
        "HunYuanMoEV1",
        {**HUNYUAN, "num_experts": 8, "moe_topk": 3, "num_shared_expert": 1},
    ),
    "hunyuan-dense": Recipe("hunyuan-dense", "HunYuanDenseV1", HUNYUAN),
    "phimoe": Recipe("phimoe", "Phimoe", PHI_MOE),
    "olmo": Recipe("olmo", "Olmo", {"clip_qkv": 1.3, "rope_parameters": ROUTED["rope_parameters"]}),
    "bitnet": Recipe(
        "bitnet",
        "BitNet",
        {
            "hidden_act": "silu",
            "rope_parameters": ROUTED["rope_parameters"],
            "tie_word_embeddings": True,
        },
    ),
    "bailingmoe": Recipe(
        "bailingmoe",
        "GraniteMoeShared",
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "shared_intermediate_size": 40,
            "norm_topk_prob": True,
            "attention_multiplier": 8**-0.5,
            "rope_parameters": ROUTED["rope_parameters"],
            **PLAIN,
        },
    ),
    "exaone-moe": Recipe(
        "exaone-moe",
        "ExaoneMoe",
        {
            **SHARED,
            "head_dim": 8,
            "num_hidden_layers": 4,
            "num_experts": 8,
            "num_shared_experts": 1,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 4,
        },
    ),
    "afmoe": Recipe(
        "afmoe",
        "Afmoe",
        {
            **ROUTED,
            "head_dim": 8,
            "num_hidden_layers": 4,
            "num_dense_layers": 1,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_shared_experts": 1,
            "route_norm": True,
            "route_scale": 0.9,
            "sliding_window": WINDOW,
            "mup_enabled": True,
        },
    ),
    "starcoder": Recipe(
        "starcoder",
        "GPTBigCode",
        {"num_key_value_heads": 1, "layer_norm_epsilon": 1e-5},
        common=GPT,
    ),
    "gptneox": Recipe("gptneox", "GPTNeoX", NEOX),
    "gptneox_serial": Recipe("gptneox", "GPTNeoX", {**NEOX, "use_parallel_residual": False}),
    "jais2": Recipe(
        "jais2",
        "Jais2",
        {"layer_norm_eps": 1e-5, "rope_parameters": ROUTED["rope_parameters"]},
    ),
    "orion": Recipe("orion", "StableLm", {"layer_norm_eps": 1e-5, "rope_parameters": WHOLE}),
    "pangu-embedded": Recipe(
        "pangu-embedded",
        "Llama",
        {"attention_bias": True, "rope_parameters": ROUTED["rope_parameters"]},
    ),
    **RECURRENT,
    **ALIBI,
    "mimo2": MIMO2,
}

"""Settings and tensors of DBRX, Apertus, Jina, MiMo V2, DeciLM, PLaMo, MPT and Jais as files have
them, for `convert.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray

EXPERTS = 8
"""The number of experts of the recipe."""
WHICH = {"w1": "gate", "v1": "up", "w2": "down"}
SLOPE, LIMIT = 0.5, -1e-6
"""The defaults of xIELU's other parameters in transformers."""


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of DBRX by the names that other models have for them."""
    inner, attention = config["ffn_config"], config["attn_config"]
    return {
        "num_hidden_layers": config["n_layers"],
        "hidden_size": config["d_model"],
        "num_attention_heads": config["n_heads"],
        "num_key_value_heads": attention["kv_n_heads"],
        "clip_qkv": attention["clip_qkv"],
        "max_position_embeddings": config["max_seq_len"],
        "intermediate_size": inner["ffn_hidden_size"],
        "num_experts": inner["moe_num_experts"],
        "num_experts_per_tok": inner["moe_top_k"],
        "layer_norm_eps": 1e-5,
        "rope_parameters": config["rope_parameters"],
        "vocab_size": config["vocab_size"],
    }


def experts(name: str, array: NDArray) -> dict[str, NDArray]:
    """Return a tensor of DBRX with those of experts apart, as matrices that files have."""
    if ".experts." not in name:
        return {name: array}
    kind = WHICH[name.rpartition(".")[2]]
    apart = array.reshape(EXPERTS, -1, array.shape[1])
    found = apart.swapaxes(1, 2) if kind == "down" else apart
    return {f"blk.{name.split('.')[2]}.ffn_{kind}_exps.weight": found}


def xielu(weights: Mapping[str, NDArray]) -> Iterator[tuple[str, list[float]]]:
    """Yield the keys of the activation's parameters."""
    for which in ("alpha_p", "alpha_n"):
        found = [array for name, array in weights.items() if name.endswith(f"act_fn.{which}")]
        yield f"xielu.{which}", [float(array[0]) for array in found]
    yield "xielu.beta", [SLOPE] * len(found)
    yield "xielu.eps", [LIMIT] * len(found)


def halves(name: str, array: NDArray) -> dict[str, NDArray]:
    """Return a tensor of OpenELM; gates lie before what they are factors of."""
    if "ffn.proj_1" not in name:
        return {name: array}
    blk = f"blk.{name.split('.')[2]}.ffn_"
    parts = zip(("gate", "up"), np.split(array, 2), strict=True)
    return {f"{blk}{kind}.weight": half for kind, half in parts}


def shuffled(name: str, array: NDArray, config: Mapping[str, Any]) -> NDArray:
    """Return a tensor of PLaMo in which heads of queries that share keys are neighbours."""
    shared, heads = config["num_key_value_heads"], config["num_attention_heads"]
    by_head = array if name.endswith("q_proj.weight") else array.T
    by_head = by_head.reshape(heads // shared, shared, -1, by_head.shape[1]).swapaxes(0, 1)
    joined = by_head.reshape(-1, by_head.shape[-1])
    return joined if name.endswith("q_proj.weight") else joined.T


JINA = {
    "self_attn.o_proj": "attn_output",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
}


def jina(name: str, array: NDArray) -> dict[str, NDArray]:
    """Names differ from those that the converter reads."""
    kind, layer, part = [*name.split(".", 2), "", ""][:3]
    own, _, end = part.rpartition(".")
    if own in JINA:
        return {f"blk.{layer}.{JINA[own]}.{end}": array}
    return {f"model.{name}" if kind == "layers" else name: array}


def mimo(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of MiMo V2: layers with windows have twice the heads of keys."""
    kinds, shared = config["layer_types"], config["num_key_value_heads"]
    yield "attention.head_count_kv", [shared * (1 + (kind[:4] == "slid")) for kind in kinds]
    yield "attention.value_length", config["v_head_dim"]
    yield "attention.value_scale", config["attention_value_scale"]
    part = config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    yield "rope.dimension_count", int(config["head_dim"] * part)


def deci(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of DeciLM, whose layers lack some blocks."""
    kinds, heads = config["block_kinds"], config["num_attention_heads"]
    yield "attention.head_count", [heads * (kind != "none") for kind in kinds]
    shared = config["num_key_value_heads"]
    yield "attention.head_count_kv", [shared * (kind == "attention") for kind in kinds]
    yield "feed_forward_length", config["ffn_dims"]
    yield "attention.key_length", config["hidden_size"] // heads
    yield "attention.value_length", config["hidden_size"] // heads


def plamo3(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of PLaMo 3."""
    yield "attention.sliding_window_pattern", [window > 0 for window in config["windows"]]
    yield "rope.freq_base_swa", config["rope_local_theta"]


def mpt(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of MPT."""
    attention, width = config["attn_config"], config["d_model"]
    yield "block_count", config["n_layers"]
    yield "context_length", config["max_seq_len"]
    yield "embedding_length", width
    yield "feed_forward_length", config["expansion_ratio"] * width
    yield "attention.head_count", config["n_heads"]
    yield "attention.layer_norm_epsilon", config["layer_norm_epsilon"]
    yield "attention.max_alibi_bias", float(attention["alibi_bias_max"])
    yield "attention.clamp_kqv", attention["clip_qkv"]


def jais(name: str, array: NDArray, config: Mapping[str, Any]) -> NDArray:
    """Return a tensor of Jais; those of embeddings and logits have their scales."""
    if name.startswith("lm_head."):
        return array * np.float32(config["mup_output_alpha"] * config["mup_width_scale"])
    return array * np.float32(config["mup_embeddings_scale"]) if ".wte." in name else array


def with_alibi(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the key of ALiBi."""
    if "max_alibi_bias" in config:
        yield "attention.max_alibi_bias", config["max_alibi_bias"]


KEYS = {
    "mimo2": mimo,
    "deci": deci,
    "plamo3": plamo3,
    "mpt": mpt,
    "jais": with_alibi,
    "baichuan": with_alibi,
}
"""Iterators of the keys of an architecture that replace those of others."""

"""Writes the keys and tensors of models with recurrent layers as converters do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray

Settings = Mapping[str, Any]
Tensors = dict[str, NDArray]
NORMS = ("mixer.norm.weight", "mamba.norm.weight")
"""Norms of the outputs of a state space."""
EPS = "attention.layer_norm_rms_epsilon"
ATTENTION = ("attention", "full_attention")
BARE = ("ssm_a", "ssm_d")
"""Tensors whose names have no suffix."""


def _first(config: Settings, *names: str) -> Any:
    return next(config[name] for name in names if name in config)


def _attention_layers(config: Settings) -> list[bool]:
    """Return whether each layer has attention."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if kinds:
        return [kind in ATTENTION for kind in kinds]
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    return [at % period == offset for at in range(config["num_hidden_layers"])]


def _state_space(config: Settings, heads: int) -> Iterator[tuple[str, Any]]:
    expand = _first(config, "expand", "mamba_expand") if "mamba_d_ssm" not in config else 0
    yield "ssm.conv_kernel", _first(config, "conv_kernel", "mamba_d_conv")
    yield "ssm.inner_size", config.get("mamba_d_ssm", expand * config.get("hidden_size", 0))
    yield "ssm.state_size", _first(config, "state_size", "mamba_d_state", "ssm_state_size")
    yield "ssm.time_step_rank", heads
    if groups := config.get("n_groups", config.get("mamba_n_groups")):
        yield "ssm.group_count", groups


def _lfm2(config: Settings) -> Iterator[tuple[str, Any]]:
    yield "shortconv.l_cache", config["conv_L_cache"]
    if "num_experts" in config:
        yield "expert_gating_func", 2
        yield "leading_dense_block_count", config["num_dense_layers"]


def _mamba(config: Settings) -> Iterator[tuple[str, Any]]:
    yield "context_length", 1 << 20
    yield "feed_forward_length", 0
    yield "attention.head_count", 0
    yield "attention.key_length", None
    yield "attention.value_length", None
    yield from _state_space(config, config.get("num_heads") or config["time_step_rank"])
    if "mixer_rms_eps" in config:
        yield "ssm.dt_b_c_rms", True


def _hybrid(config: Settings) -> Iterator[tuple[str, Any]]:
    heads = ("mamba_n_heads", "mamba_num_heads", "mamba_dt_rank")
    yield from _state_space(config, _first(config, *heads))


def _granite(config: Settings) -> Iterator[tuple[str, Any]]:
    yield from _hybrid(config)
    yield "rope.scaling.finetuned", config["position_embedding_type"] == "rope"


def _falcon_h1(config: Settings) -> Iterator[tuple[str, Any]]:
    """Its factors are in the weights."""
    yield from _hybrid(config)
    yield "embedding_scale", None


def _nemotron_h(config: Settings) -> Iterator[tuple[str, Any]]:
    yield from _hybrid(config)
    inner = config["intermediate_size"]
    yield "feed_forward_length", [inner * (kind == "mlp") for kind in config["layers_block_type"]]


def _nemotron_h_moe(config: Settings) -> Iterator[tuple[str, Any]]:
    yield from _hybrid(config)
    inner = config["moe_intermediate_size"]
    yield "feed_forward_length", [inner * (kind == "moe") for kind in config["layers_block_type"]]
    yield "expert_shared_feed_forward_length", config["moe_shared_expert_intermediate_size"]
    yield "moe_latent_size", config.get("moe_latent_size")


def _kimi_linear(config: Settings) -> Iterator[tuple[str, Any]]:
    yield "ssm.conv_kernel", config["linear_conv_kernel_dim"]
    yield "ssm.inner_size", None
    yield "ssm.time_step_rank", None
    yield "kda.head_dim", config["linear_head_dim"]
    yield "attention.head_count_kv", [int(each) for each in _attention_layers(config)]
    yield "attention.value_length", None
    yield "leading_dense_block_count", config["mlp_layer_types"].count("dense")
    yield "expert_gating_func", 2


KEYS: dict[str, Callable[[Settings], Iterator[tuple[str, Any]]]] = {
    **dict.fromkeys(("lfm2", "lfm2moe"), _lfm2),
    **dict.fromkeys(("mamba", "mamba2"), _mamba),
    "jamba": _hybrid,
    "granitehybrid": _granite,
    "falcon-h1": _falcon_h1,
    "kimi-linear": _kimi_linear,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h_moe,
}


def keys(architecture: str, config: Settings) -> dict[str, Any]:
    """Return keys that are other ones than those of other models; None for those left out."""
    if architecture not in KEYS:
        return {}
    eps = _first(config, "rms_norm_eps", "layer_norm_epsilon", "norm_eps")
    own = {EPS: eps, "attention.layer_norm_epsilon": None}
    own["attention.sliding_window_pattern"] = None
    if architecture not in ("mamba", "mamba2", "falcon-h1"):
        shared = config["num_key_value_heads"]
        own["attention.head_count_kv"] = [shared * each for each in _attention_layers(config)]
    return own | dict(KEYS[architecture](config))


def tensors(architecture: str, config: Settings, name: str, array: NDArray) -> Tensors:
    """Return a tensor as files have it, by its name there or in transformers."""
    if architecture not in KEYS:
        return {name: array}
    if architecture.startswith("nemotron_h"):
        name = name.replace("model.", "backbone.").replace("_correction_bias", "_correction.bias")
        if ".mixer.experts." in name:
            name = f"{name.replace('backbone', 'model').replace('mixer', 'mlp')}.weight"
    if architecture == "falcon-h1":
        array = array * _falcon_factor(config, name)
    if config.get("num_local_experts") == 0 and "shared_mlp" in name:  # they have no others
        own = name.replace("shared_mlp", "mlp")
        if "output" in own:
            return {own.replace("output_linear", "down_proj"): array}
        halves = zip(("gate", "up"), np.split(array, 2), strict=True)
        return {own.replace("input_linear", f"{kind}_proj"): half for kind, half in halves}
    number = next((part for part in name.split(".") if part.isdigit()), "")
    if architecture == "kimi-linear":
        return _kimi_tensors(name, number, array)
    if name.endswith("block_sparse_moe.router.weight"):
        return {f"blk.{number}.ffn_gate_inp.weight": array}
    heads = architecture not in ("mamba", "jamba")
    if name.endswith(".A_log"):
        rates = -np.exp(array)
        return {f"blk.{number}.ssm_a": rates[:, None] if heads else rates}
    if name.endswith(".D"):
        return {f"blk.{number}.ssm_d": array[:, None] if heads else array}
    if name.endswith(".dt_bias"):
        return {f"blk.{number}.ssm_dt.bias": array}
    if name.endswith(("conv1d.weight", "conv.conv.weight")):
        return {name: array[:, 0]}
    if heads and name.endswith(NORMS):
        groups = _first(config, "n_groups", "mamba_n_groups")
        return {f"blk.{number}.ssm_norm.weight": array.reshape(groups, -1)}
    return {name: array}


KIMI = {
    "forget_gate.f_a_proj.weight": "ssm_f_a.weight",
    "forget_gate.f_b_proj.weight": "ssm_f_b.weight",
    "forget_gate.dt_bias": "ssm_dt.bias",
    "b_proj.weight": "ssm_beta.weight",
    "g_a_proj.weight": "ssm_g_a.weight",
    "g_b_proj.weight": "ssm_g_b.weight",
    "o_norm.weight": "ssm_norm.weight",
}


def _kimi_tensors(name: str, number: str, array: NDArray) -> Tensors:
    """The convolutions of q, k and v are tensors of their own, and axes of size 1 are others."""
    own = name.partition(".self_attn.")[2]
    if own in KIMI:
        return {f"blk.{number}.{KIMI[own]}": array}
    if own == "forget_gate.A_log":
        return {f"blk.{number}.ssm_a": -np.exp(array)}
    if own != "conv1d.weight":
        return {name: array}
    parts = zip("qkv", np.split(array, 3), strict=True)
    return {
        f"blk.{number}.ssm_conv1d_{part}.weight": each.swapaxes(0, 1)[:, :, None]
        for part, each in parts
    }


def _falcon_factor(config: Settings, name: str) -> Any:
    """Return the factor of a weight, or one for each of its rows."""
    factors = {
        "down_proj": config["mlp_multipliers"][1],
        "gate_proj": config["mlp_multipliers"][0],
        "k_proj": config["key_multiplier"] * config["attention_in_multiplier"],
        "q_proj": config["attention_in_multiplier"],
        "v_proj": config["attention_in_multiplier"],
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    part = name.split(".")[-2]
    if part != "in_proj":
        return np.float32(factors.get(part, 1.0))
    inner, groups = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    sizes = (inner, inner, groups, groups, config["mamba_n_heads"])
    rows = np.repeat(np.float32(config["ssm_multipliers"]), sizes)
    return (rows * np.float32(config["ssm_in_multiplier"]))[:, None]

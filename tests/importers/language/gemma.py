"""Keys and tensors of Gemma 3n and 4, which earlier models do not have, for `convert.py`."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray

NEWER = ("gemma3n", "gemma4")
UNTURNED = 1e30
"""The divisor of the speed of pairs that positions do not turn."""
STACKED = re.compile(r"(altup_(?:unembed_)?projections)\.\d+\.weight")


def keys(architecture: str, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a file, without the architecture."""
    layers, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    rope = config["rope_parameters"]
    yield "attention.shared_kv_layers", shared
    yield "embedding_length_per_layer_input", config["hidden_size_per_layer_input"]
    yield "rope.freq_base", rope["full_attention"]["rope_theta"]
    yield "rope.freq_base_swa", rope["sliding_attention"]["rope_theta"]
    if architecture == "gemma3n":
        yield "altup.active_idx", 0
        yield "altup.num_inputs", config["altup_num_inputs"]
        normal = statistics.NormalDist()
        shares = config["activation_sparsity_pattern"]
        scales = [normal.inv_cdf(share) if share else -float("inf") for share in shares]
        yield "activation_sparsity_scale", scales
        return
    for which in ("key", "value"):
        yield f"attention.{which}_length", config["global_head_dim"]
        yield f"attention.{which}_length_swa", config["head_dim"]
    yield "rope.dimension_count", config["global_head_dim"]
    yield "rope.dimension_count_swa", config["head_dim"]
    if config.get("use_double_wide_mlp"):
        inner = config["intermediate_size"]
        yield "feed_forward_length", [inner] * (layers - shared) + [2 * inner] * shared
    if full := config.get("num_global_key_value_heads"):
        windowed = config["num_key_value_heads"]
        kinds = config["layer_types"]
        yield "attention.head_count_kv", [full if "full" in each else windowed for each in kinds]


def tensors(weights: dict[str, NDArray], config: Mapping[str, Any]) -> dict[str, NDArray]:
    """Return weights by the names that files have, or that the package gguf knows."""
    out: dict[str, NDArray] = {}
    several: dict[str, list[NDArray]] = {}
    for name, array in weights.items():
        layer = name.split(".")[2]
        if found := STACKED.search(name):
            several.setdefault(f"model.{found[1]}.weight", []).append(array)
        elif name.endswith("router.scale"):
            out[f"blk.{layer}.ffn_gate_inp.scale"] = array
        elif name.endswith("per_expert_scale"):
            out[f"blk.{layer}.ffn_down_exps.scale"] = array
        else:
            out[name] = array
    out |= {name: np.stack(arrays) for name, arrays in several.items()}
    full = config["rope_parameters"]["full_attention"]
    if share := full.get("partial_rotary_factor"):
        size = config["global_head_dim"] // 2
        rotated = int(share * size)
        values = [1.0] * rotated + [UNTURNED] * (size - rotated)
        out["rope_freqs.weight"] = np.array(values, np.float32)
    return out

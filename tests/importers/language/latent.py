"""Keys and tensors of files with compressed keys and values (multi-head latent attention), for
`convert.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vksched.common.dtypes import NDArray

EXPANDED = ("attention.key_length", "attention.value_length", "attention.head_count_kv")
"""Keys of expanded keys and values, which files with compressed ones have for the latter."""
GATINGS = {"softmax": 1, "sigmoid": 2}


def keys(config: Mapping[str, Any], older: bool) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a file, without the architecture. older: the file has expanded ones."""
    rotated, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    size = config["qk_nope_head_dim"] + rotated
    values = config.get("v_head_dim", config["hidden_size"] // config["num_attention_heads"])
    expanded = size, values, config["num_attention_heads"]
    yield from zip(EXPANDED, expanded if older else (rank + rotated, rank, 1), strict=True)
    if not older:
        yield "attention.key_length_mla", size
        yield "attention.value_length_mla", config["v_head_dim"]
    yield "attention.kv_lora_rank", rank
    if config.get("q_lora_rank"):
        yield "attention.q_lora_rank", config["q_lora_rank"]
    yield "rope.dimension_count", rotated
    if "scoring_func" in config:
        yield "expert_gating_func", GATINGS[config["scoring_func"]]


def split(weights: dict[str, NDArray], config: Mapping[str, Any]) -> dict[str, NDArray]:
    """Return weights with the expansions of keys, transposed, and of values as tensors."""
    out: dict[str, NDArray] = {}
    for name, array in weights.items():
        if "kv_b_proj" not in name:
            out[name] = array
            continue
        heads = array.reshape(config["num_attention_heads"], -1, array.shape[1])
        plain = config["qk_nope_head_dim"]
        out[name.replace("kv_b_proj", "k_b_proj")] = heads[:, :plain].swapaxes(1, 2)
        out[name.replace("kv_b_proj", "v_b_proj")] = heads[:, plain:]
    return out

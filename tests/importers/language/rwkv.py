"""Keys and tensors of files of RWKV, for `convert.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray

Settings = Mapping[str, Any]
Tensors = dict[str, NDArray]
AROUND = {
    "emb.weight": "token_embd.weight",
    "model.embed_tokens.weight": "token_embd.weight",
    "blocks.0.ln0.weight": "token_embd_norm.weight",
    "blocks.0.ln0.bias": "token_embd_norm.bias",
    "ln_out.weight": "output_norm.weight",
    "ln_out.bias": "output_norm.bias",
    "model.norm.weight": "output_norm.weight",
    "head.weight": "output.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "ln1.": "attn_norm.",
    "ln2.": "attn_norm_2.",
    "input_layernorm.": "attn_norm.",
    "post_attention_layernorm.": "ffn_norm.",
    "mlp.gate_proj.": "ffn_gate.",
    "mlp.up_proj.": "ffn_up.",
    "mlp.down_proj.": "ffn_down.",
    "ffn.x_": "channel_mix_lerp_",
    "ffn.time_maa_": "channel_mix_lerp_",
    "ffn.": "channel_mix_",
    "self_attn.time_mixer.": "time_mix_",
    "self_attn.": "time_mix_",
    "att.": "time_mix_",
}
RENAMED = {
    "ln_x.weight": "ln.weight",
    "ln_x.bias": "ln.bias",
    "time_faaaa": "first",
    "time_decay": "decay",
    "time_decay_w1": "decay_w1",
    "time_decay_w2": "decay_w2",
    "time_maa_w1": "w1",
    "time_maa_w2": "w2",
    "time_maa_x": "lerp_x",
}
TRANSPOSED = ("w1", "w2", "a1", "a2", "v1", "v2", "g1", "g2", "decay_w1", "decay_w2")
QWEN = "rkvwg"
"""The order of inputs in the weights of QRWKV 6."""
MIXED = {"rwkv7": "rwkvag", "arwkv7": "rwkvag", "rwkv6": "wkvrg", "rwkv6qwen2": "wkvrg"}
"""The order of inputs in files, by architecture."""


def keys(config: Settings) -> Iterator[tuple[str, Any]]:
    """Yield keys of a file, without the architecture."""
    yield "context_length", 1 << 20
    yield "wkv.head_size", config["head_size"]
    yield "attention.head_count", 0
    if "rescale_every" in config:
        yield "rescale_every_n_layers", config["rescale_every"]


def tensors(architecture: str, config: Settings, weights: Tensors) -> Tensors:
    """Return the tensors of a file."""
    out: Tensors = {}
    for name, array in weights.items():
        if name in AROUND:
            out[AROUND[name]] = array
            continue
        number, part = name.split(".", 3)[1:3] if name[:6] == "blocks" else ("", "")
        if name.startswith("model."):
            number = name.split(".")[2]
        part = name.partition(f".{number}.")[2]
        own = next(new + part[len(old) :] for old, new in LAYER.items() if part.startswith(old))
        out |= _own(architecture, config, f"blk.{number}.", own, array)
    return out


def _own(architecture: str, config: Settings, blk: str, own: str, array: NDArray) -> Tensors:
    """Return a tensor of a layer by its name in the file."""
    layer = int(blk.split(".")[1])
    mix, found, part = own.partition("time_mix_")
    if not found:
        if own.endswith("channel_mix_value.weight") and "rescale_every" in config:
            array = array / 2 ** (layer // config["rescale_every"])
        name = own if own.endswith((".weight", ".bias")) else f"{own}.weight"
        return {blk + name: array.squeeze()}
    part = RENAMED.get(part, part)
    for start in ("x_", "time_maa_"):
        if part.startswith(start):
            return {f"{blk}time_mix_lerp_fused.{part[len(start) :]}": array}
    if part == "output.weight" and "rescale_every" in config:
        array = array / 2 ** (layer // config["rescale_every"])
    if part in TRANSPOSED:
        array = array.swapaxes(-1, -2)
    if architecture == "rwkv6qwen2" and part in ("w1", "w2"):
        parts = array.reshape(5, -1, array.shape[-1])
        parts = parts[[QWEN.index(kind) for kind in MIXED[architecture]]]
        array = parts if part == "w2" else parts.reshape(array.shape)
    if part == "r_k":
        array = array.reshape(-1)
    named = part if part.endswith((".weight", ".bias")) else f"{part}.weight"
    array = array.squeeze() if array.ndim == 3 and array.shape[0] == 1 else array
    if layer == 0 and architecture.endswith("rwkv7"):
        if part in ("v0", "v1", "v2"):
            return {}
        if part in ("a0", "a1", "a2"):  # converters write them twice
            return {f"{blk}time_mix_{name}": array for name in (named, named.replace("a", "v", 1))}
    return {f"{blk}time_mix_{named}": array}


def fused(architecture: str, weights: Tensors) -> Tensors:
    """Return tensors with the shares of a layer as one."""
    out = {name: array for name, array in weights.items() if ".time_mix_lerp_fused." not in name}
    for name in weights:
        start, found, kind = name.partition(".time_mix_lerp_fused.")
        if found and f"{start}.time_mix_lerp_fused.weight" not in out:
            own = [f"{start}{found}{kind}" for kind in MIXED[architecture]]
            parts = [weights[each][0] for each in own if each in weights]
            out[f"{start}.time_mix_lerp_fused.weight"] = np.stack(parts)[:, None]
    return out

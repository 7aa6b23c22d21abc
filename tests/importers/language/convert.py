"""Writes a model of `transformers` as a GGUF file: what converters do, for the tests' tiny models.

The names of tensors are those of the package `gguf`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_files import Draft, Type, ValueType

from vksched.common.dtypes import NDArray

from . import Golden, gemma, latent, nested, recurrent, rwkv
from .published_decoders import OFFSETS

Settings = Mapping[str, Any]
KEYS = {
    "block_count": ("num_hidden_layers", "n_layer"),
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "attention.head_count": ("num_attention_heads", "n_head", "num_query_heads"),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": (
        *("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"),
    ),
    "attention.scale": ("attention_multiplier",),
    "attention.sliding_window": ("sliding_window", "attention_chunk_size", "local_attention"),
    "attention.sliding_window_pattern": ("global_attn_every_n_layers",),
    "attention.clamp_kqv": ("clip_qkv",),
    "attention.temperature_length": ("floor_scale",),
    "attention.temperature_scale": ("attn_scale",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_count": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_shared_count": (
        *("num_shared_experts", "n_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    ),
    "expert_used_count": (*("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"),),
    "expert_weights_norm": ("norm_topk_prob", "route_norm"),
    "expert_weights_scale": ("routed_scaling_factor", "route_scale"),
    "embedding_scale": ("embedding_multiplier",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "full_attention_interval": ("full_attention_interval",),
    "ssm.conv_kernel": ("linear_conv_kernel_dim",),
    "ssm.group_count": ("linear_num_key_heads",),
    "ssm.state_size": ("linear_key_head_dim",),
    "ssm.time_step_rank": ("linear_num_value_heads",),
    "expert_shared_feed_forward_length": (
        *("shared_expert_intermediate_size", "shared_intermediate_size"),
    ),
    "feed_forward_length": ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dims"),
    "hidden_activation": ("hidden_activation",),
    "interleave_moe_layer_step": ("interleave_moe_layer_step",),
    "logit_scale": ("logits_scaling", "logit_scale"),
    "leading_dense_block_count": ("first_k_dense_replace", "moe_layer_start_index"),
    "residual_scale": ("residual_multiplier",),
    "rope.freq_base": ("rope_theta",),
    "use_parallel_residual": ("use_parallel_residual",),
    "vocab_size": ("vocab_size",),
}
"""Of the file, and what they are called in settings."""
KINDS = {
    float: ValueType.FLOAT32,
    int: ValueType.UINT32,
    bool: ValueType.BOOL,
    str: ValueType.STRING,
}
YARN = {
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_log_multiplier": "mscale_all_dim",
    "original_context_length": "original_max_position_embeddings",
}
PERMUTED = (
    *(
        "arcee",
        "baichuan",
        "bailingmoe",
        "deci",
        "deepseek",
        "granite",
        "granitehybrid",
        "granitemoe",
    ),
    *("internlm2", "llama", "llama-embed", "minicpm", "mistral3", "olmo", "smollm3", "xverse"),
)
"""Architectures whose converters put beside each other what positions turn as a pair."""
EXPANDED = ("minicpm3", "plm")
"""Architectures whose files have one tensor that expands keys and values."""
UNMASKED = ("bert", "jina-bert-v3", "modern-bert", "eurobert")
"""Encoders whose files say that attention is not causal; that of others is known."""
SHIFTED = ("gemma", "gemma-embedding", "gemma2", "gemma3", "nemotron")
"""Architectures whose files have norms' weights with 1 added."""
MERGED = ("bailingmoe2", "codeshell", "jina-bert-v3", "qwen")
"""Architectures whose files have one tensor for queries, keys and values."""
OWN_KEYS = {**dict.fromkeys(rwkv.MIXED, rwkv.keys), **nested.KEYS}
"""Iterators of the keys of an architecture that replace those of others."""
EXPERTS = "_exps.weight"
EXPERT = re.compile(r"\.experts\.(\d+)\.")
ONE_MORE = re.compile(r"norm\.weight$")
ROTATED = re.compile(r"self_attn\.([qk])_proj\.(weight|bias)$")
TRANSPOSED = re.compile(r"(c_attn|c_proj|c_fc2?)\.weight$")


def write(
    golden: Golden,
    path: Path,
    more: Settings | None = None,
    kind: Type = Type.F32,
    rounded: bool = False,
    apart: bool = False,
) -> None:
    """Write a model, and more keys. kind: type of weights whose rows are whole blocks; others
    are float32. rounded: so are these, with the values that they have as this kind. apart: each
    expert has tensors of its own, as in old files, and compressed keys and values have one.
    """
    writer = gguf.GGUFWriter(path, golden.architecture)
    adders: dict[type, Callable[..., None]] = {
        float: writer.add_float32,
        int: writer.add_uint32,
        bool: writer.add_bool,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in {**dict(_keys(golden, apart)), **(more or {})}.items():
        adders[type(value)](key, value)
    for name, array in _tensors(golden, apart):
        if array.ndim < 2 or array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            writer.add_tensor(name, array)
        elif rounded:
            writer.add_tensor(name, gguf.dequantize(gguf.quantize(array, kind), kind))
        else:
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def draft(golden: Golden, apart: bool = False) -> Draft:
    """Return the same file in its parts, for tests that change them."""
    built = Draft().with_key("general.architecture", ValueType.STRING, golden.architecture)
    for key, value in dict(_keys(golden, apart)).items():
        if isinstance(value, list):
            built = built.with_key(key, ValueType.ARRAY, value, KINDS[type(value[0])])
        else:
            built = built.with_key(key, KINDS[type(value)], value)
    for name, array in _tensors(golden, apart):
        built = built.with_tensor(name, array.shape, Type.F32, array.tobytes())
    return built


def _keys(golden: Golden, older: bool) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a file; later values of a key replace earlier ones."""
    architecture = golden.architecture
    own = recurrent.keys(architecture, golden.config)
    if architecture in OWN_KEYS:
        own = dict(OWN_KEYS[architecture](golden.config))
    all_keys = dict(_common_keys(golden, older))
    all_keys |= {f"{architecture}.{key}": value for key, value in own.items()}
    yield from ((key, value) for key, value in all_keys.items() if value is not None)


def _common_keys(golden: Golden, older: bool) -> Iterator[tuple[str, Any]]:
    architecture, config = golden.architecture, golden.config
    config = nested.flat(config) if "ffn_config" in config else config
    older = older or architecture in EXPANDED
    is_latent = "kv_lora_rank" in config
    for key, names in KEYS.items():
        found = next((config[name] for name in names if config.get(name) is not None), None)
        if found is not None and not (is_latent and key in latent.EXPANDED):
            yield f"{architecture}.{key}", found
    if is_latent:
        for key, value in latent.keys(config, older):
            yield f"{architecture}.{key}", value
    if architecture in UNMASKED:
        yield f"{architecture}.attention.causal", False
        yield f"{architecture}.pooling_type", int(gguf.PoolingType.MEAN)
    if types := config.get("type_vocab_size"):
        yield "tokenizer.ggml.token_type_count", types
    if layers := config.get("layer_types"):
        windows = [each == "sliding_attention" for each in layers]
        yield f"{architecture}.attention.sliding_window_pattern", windows
    if architecture == "llama4":
        yield f"{architecture}.expert_feed_forward_length", config["intermediate_size"]
    if heads := config.get("linear_num_value_heads"):
        yield f"{architecture}.ssm.inner_size", heads * config["linear_value_head_dim"]
    rope = config.get("rope_parameters") or {}
    part = config.get("partial_rotary_factor", rope.get("partial_rotary_factor"))
    if part and not is_latent:
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        yield f"{architecture}.rope.dimension_count", int(part * size)
    for key, value in _scaling(config):
        yield f"{architecture}.{key}", value
    if architecture == "apertus":
        yield from nested.xielu(golden.weights())
    if architecture == "qwen":
        yield "qwen.feed_forward_length", 2 * config["intermediate_size"]
    if architecture in gemma.NEWER:
        for key, value in gemma.keys(architecture, config):
            yield f"{architecture}.{key}", value


def _scaling(config: Settings) -> Iterator[tuple[str, Any]]:
    """Yield what a file says of how positions are scaled."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        yield "rope.scaling.type", kind
        yield "rope.scaling.factor", scaling["factor"]
    if kind == "yarn":
        for key, name in YARN.items():
            if name in scaling:
                factor = scaling[name]
                if name == "mscale_all_dim" and "kv_lora_rank" in config:
                    factor = 0.1 * factor  # as converters do
                yield f"rope.scaling.{key}", factor if "context" in key else float(factor)
    if "llama_4_scaling_beta" in scaling:
        yield "attention.temperature_scale", scaling["llama_4_scaling_beta"]
    for layers, key in (("full_attention", "freq_base"), ("sliding_attention", "freq_base_swa")):
        if layers in scaling:
            yield f"rope.{key}", scaling[layers]["rope_theta"]
    if "rope_theta" in scaling:
        yield "rope.freq_base", scaling["rope_theta"]
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        longer = np.log(config["max_position_embeddings"] / original)
        yield "rope.scaling.type", kind
        yield "rope.scaling.original_context_length", original
        yield "rope.scaling.attn_factor", float(np.sqrt(1 + longer / np.log(original)))


def _tensors(golden: Golden, apart: bool) -> Iterator[tuple[str, NDArray]]:
    """Yield the tensors of the file."""
    config = golden.config
    numbers = ("num_hidden_layers", "n_layer", "n_layers")
    layers = next(config[name] for name in numbers if name in config)
    arch = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[golden.architecture]
    names = gguf.get_tensor_name_map(arch, layers)
    for name, array in _stacked(golden, apart).items():
        if "act_fn." in name:
            continue  # keys have it
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        found = name if name.startswith(("blk.", "rope_freqs.")) else found
        assert found is not None, name
        if not found.endswith((".weight", ".bias", ".scale", *recurrent.BARE)):
            found += ".weight"
        built = np.ascontiguousarray(_permuted(golden, name, array))
        if apart and found.endswith(EXPERTS):
            for number, own in enumerate(built):
                yield f"{found.removesuffix(EXPERTS)}.{number}.weight", own
        else:
            yield found, built
    scaling = config.get("rope_scaling") or {}
    for which in ("long", "short"):
        if factors := scaling.get(f"{which}_factor"):
            yield f"rope_factors_{which}.weight", np.array(factors, np.float32)
    if scaling.get("rope_type") == "llama3":
        yield "rope_freqs.weight", _speeds(config, scaling)


def _speeds(config: Settings, scaling: Settings) -> NDArray:
    """Return the divisor of the speed of each pair: 1 if a pair turns more often than
    high_freq_factor times in the context of training, the factor if it turns less often than
    low_freq_factor times, and a value between them otherwise.
    """
    dims = config["hidden_size"] // config["num_attention_heads"]
    rates = config["rope_theta"] ** (-np.arange(0, dims, 2) / dims)
    turns = scaling["original_max_position_embeddings"] * rates / (2 * np.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    ramp = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / (ramp + (1 - ramp) / scaling["factor"]), np.float32)


def _stacked(golden: Golden, older: bool) -> dict[str, NDArray]:
    """Return weights with those of a layer's experts as one, and gates apart from the rest."""
    if golden.architecture in rwkv.MIXED:
        own = rwkv.tensors(golden.architecture, golden.config, golden.weights())
        return rwkv.fused(golden.architecture, own)
    apart = APART.get(golden.architecture, lambda name, array: {name: array})
    if golden.architecture in DELTA_NETS:
        apart = partial(_delta_net, golden)
    out: dict[str, NDArray] = {}
    several: dict[str, list[NDArray]] = {}
    weights: dict[str, NDArray] = {}
    for name, array in golden.weights().items():
        weights |= recurrent.tensors(golden.architecture, golden.config, name, array)
    older = older or golden.architecture in EXPANDED
    if "kv_lora_rank" in golden.config and not older:
        weights = latent.split(weights, golden.config)
    if golden.architecture in gemma.NEWER:
        weights = gemma.tensors(weights, golden.config)
    for name, array in weights.items():
        if found := EXPERT.search(name):
            several.setdefault(name.replace(found[0], ".experts."), []).append(array)
        else:
            out |= apart(name, array)
    out |= {name: np.stack(arrays) for name, arrays in several.items()}
    return _merged(out) if golden.architecture in MERGED else out


def _merged(weights: dict[str, NDArray]) -> dict[str, NDArray]:
    """Return weights with those of queries, keys and values as one."""
    out: dict[str, NDArray] = {}
    for name, array in weights.items():
        layer, found, kind = name.partition("self_attn.q_proj.")
        if found:
            own = [weights[f"{layer}self_attn.{which}_proj.{kind}"] for which in "qkv"]
            out[f"blk.{name.split('.')[2]}.attn_qkv.{kind}"] = np.concatenate(own)
        elif ".k_proj." not in name and ".v_proj." not in name:
            out[name] = array
    return out


def _llama4(name: str, array: NDArray) -> dict[str, NDArray]:
    """Matrices of experts are turned, and gates lie before what they are factors of."""
    if ".experts." not in name:
        return {name: array}
    transposed = array.swapaxes(1, 2)
    if "gate_up" not in name:
        return {name: transposed}
    halves = zip(("gate", "up"), np.split(transposed, 2, axis=1), strict=True)
    return {name.replace("gate_up", kind): half for kind, half in halves}


def _gpt_oss(name: str, array: NDArray) -> dict[str, NDArray]:
    """Matrices of experts are turned, and gates lie between what they are factors of."""
    if ".experts." not in name:
        return {name: array}
    rows = array if name.endswith("_bias") else array.swapaxes(1, 2)
    own = name.replace("_bias", ".bias")
    if "gate_up" not in name:
        return {own: rows}
    return {own.replace("gate_up", kind): rows[:, at::2] for at, kind in enumerate(("gate", "up"))}


def _granite(name: str, array: NDArray) -> dict[str, NDArray]:
    """Gates lie before what they are factors of, and names are others."""
    layer, part, kind = (name.rsplit(".", 3) + ["", ""])[:3]
    own = {"block_sparse_moe": "mlp.experts", "shared_mlp": "mlp.shared_expert"}.get(part)
    if own is None or "router" in name:
        return {name: array}
    if kind == "output_linear":
        return {f"{layer}.{own}.down_proj.weight": array}
    halves = zip(("gate", "up"), np.split(array, 2, axis=-2), strict=True)
    return {f"{layer}.{own}.{each}_proj.weight": half for each, half in halves}


def _fused(name: str, array: NDArray) -> dict[str, NDArray]:
    """Gates of experts lie before what they are factors of, and the bias of their choice has
    another name.
    """
    if "correction" in name or "expert_bias" in name:
        return {f"blk.{name.split('.')[2]}.exp_probs_b.bias": array.reshape(-1)}
    if name.endswith("experts.down_proj"):
        return {f"{name}.weight": array}
    if not name.endswith("experts.gate_up_proj"):
        return {name if ".gate." in name else name.replace("mlp.router", "mlp.gate"): array}
    halves = zip(("gate", "up"), np.split(array, 2, axis=1), strict=True)
    return {f"{name.replace('gate_up', kind)}.weight": half for kind, half in halves}


def _bitnet(name: str, array: NDArray) -> dict[str, NDArray]:
    """Norms inside a block have other names."""
    name = name.replace("self_attn.attn_sub_norm", "self_attn.inner_attn_ln")
    return {name.replace("mlp.ffn_sub_norm", "mlp.ffn_layernorm"): array}


def _bailing(name: str, array: NDArray) -> dict[str, NDArray]:
    """As granite's, with the tensors of experts as in `_fused`."""
    parts = _granite if "shared_mlp" in name else _fused
    return parts(name.replace("block_sparse_moe", "mlp"), array)


def _base(name: str, array: NDArray) -> dict[str, NDArray]:
    """Names of a model without a head lack the prefix."""
    return {f"model.{name}": array}


def _delta_net(golden: Golden, name: str, array: NDArray) -> dict[str, NDArray]:
    """Projections of q, k, v and the gate are joined by head, or heads of v are in another order
    than in files.
    """
    layer, found, part = name.partition(".linear_attn.")
    if not found:
        return _fused(name, array + 1 if ONE_MORE.search(name) else array)
    blk, config = f"blk.{layer.rpartition('.')[2]}", golden.config
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    size, columns = config["linear_key_head_dim"], config["linear_value_head_dim"]
    if part == "in_proj_qkvz.weight":
        share = heads // keys * columns
        by_head = array.reshape(keys, -1, array.shape[1])
        ends = np.cumsum([size, size, share])
        q, k, v, z = (each.reshape(-1, array.shape[1]) for each in np.split(by_head, ends, axis=1))
        joined = np.concatenate([q, k, v])
        return {f"{blk}.attn_qkv.weight": joined, f"{blk}.attn_gate.weight": z}

    def tiled(x: NDArray, axis: int, each: int) -> NDArray:
        """Return x with heads that share a key head apart, in files of Qwen 3.5."""
        if golden.architecture == "qwen3next":
            return x
        x = np.moveaxis(x, axis, 0)
        by_head = x.reshape(keys, heads // keys, each, *x.shape[1:]).swapaxes(0, 1)
        return np.moveaxis(by_head.reshape(x.shape), 0, axis)

    first = 2 * keys * size  # channels of q and k
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        array = array.reshape(array.shape[0], array.shape[-1])
        array = np.concatenate([array[:first], tiled(array[first:], 0, columns)])
    named = {
        "in_proj_qkv.weight": ("attn_qkv.weight", lambda x: x),
        "in_proj_z.weight": ("attn_gate.weight", lambda x: tiled(x, 0, columns)),
        "in_proj_a.weight": ("ssm_alpha.weight", lambda x: tiled(x, 0, 1)),
        "in_proj_b.weight": ("ssm_beta.weight", lambda x: tiled(x, 0, 1)),
        "in_proj_ba.weight": ("ssm_ba.weight", lambda x: x),
        "conv1d.weight": ("ssm_conv1d.weight", lambda x: x),
        "A_log": ("ssm_a", lambda x: tiled(-np.exp(x), 0, 1)),
        "dt_bias": ("ssm_dt.bias", lambda x: tiled(x, 0, 1)),
        "norm.weight": ("ssm_norm.weight", lambda x: x),
        "out_proj.weight": ("ssm_out.weight", lambda x: tiled(x, 1, columns)),
    }
    own, change = named[part]
    return {f"{blk}.{own}": change(array)}


DELTA_NETS = ("qwen3next", "qwen35", "qwen35moe")
FUSED = (
    "afmoe",
    *("bailingmoe2", "deepseek2", "dots1", "ernie4_5-moe", "exaone-moe", "glm4moe", "hunyuan-moe"),
    *("jamba", "kimi-linear", "lfm2moe", "mimo2", "minimax-m2", "phimoe"),
)
APART = {
    "llama4": _llama4,
    "gpt-oss": _gpt_oss,
    "granitemoe": _granite,
    **dict.fromkeys(("bailingmoe", "deepseek", "granitehybrid"), _bailing),
    "bitnet": _bitnet,
    "bloom": lambda name, array: {name.removeprefix("transformer."): array},
    "dbrx": nested.experts,
    "openelm": nested.halves,
    "jina-bert-v3": nested.jina,
    **dict.fromkeys(("gemma-embedding", "llama-embed"), _base),
    **dict.fromkeys(FUSED, _fused),
}
"""Takes the experts of a layer apart, by what architectures have one tensor for."""


def _permuted(golden: Golden, name: str, array: NDArray) -> NDArray:
    """Return a tensor as files have it, where it is another than in transformers."""
    architecture, config = golden.architecture, golden.config
    if architecture in PERMUTED and (found := ROTATED.search(name)):
        key = "num_attention_heads" if found[1] == "q" else "num_key_value_heads"
        return interleave(array, config[key])
    if architecture == "plamo3" and array.ndim == 1:
        return array + np.float32(OFFSETS.get(name.split(".")[-2], 1))
    if architecture in SHIFTED and ONE_MORE.search(name):
        return array + 1
    if architecture == "plamo" and name.endswith(("q_proj.weight", "o_proj.weight")):
        return nested.shuffled(name, array, config)
    if architecture in ("gptneox", "bloom") and "query_key_value" in name:
        count = config.get("num_attention_heads") or config["n_head"]
        heads = array.reshape(count, 3, -1, *array.shape[1:])
        return heads.swapaxes(0, 1).reshape(array.shape)
    if architecture == "jais":
        array = nested.jais(name, array, config)
    if architecture in ("gpt2", "jais") and TRANSPOSED.search(name):
        return array.T
    return array[0] if name.endswith("shared_expert_gate.weight") else array


def interleave(array: NDArray, heads: int) -> NDArray:
    """Return rows of which those that positions turn as a pair lie beside each other, not half of
    a head apart.
    """
    apart = array.reshape(heads, 2, -1, *array.shape[1:])
    return apart.swapaxes(1, 2).reshape(array.shape)

"""The published networks of RWKV in float64 numpy, token by token, for `published.py`.

Sources: https://arxiv.org/abs/2404.05892, https://arxiv.org/abs/2503.14456
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray

Weights = Mapping[str, NDArray]
Config = Mapping[str, Any]
Shapes = dict[str, tuple[int, ...]]
TINY = 64e-5
"""The epsilon of the norms of heads."""


def sigmoid(x: NDArray) -> NDArray:
    return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: NDArray) -> NDArray:
    return x * sigmoid(x)


def layer_norm(x: NDArray, eps: float) -> NDArray:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps))


def rms_norm(x: NDArray, weight: NDArray, eps: float) -> NDArray:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight)


def affine_norm(weights: Weights, name: str, x: NDArray, eps: float) -> NDArray:
    return layer_norm(x, eps) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def before(x: NDArray) -> NDArray:
    """Return the token before each token of x (n, width), 0 before the first one."""
    return np.concatenate([np.zeros((1, x.shape[1])), x[:-1]])


# -- RWKV 7 ----------------------------------------------------------------------------------------


def time_mix_7_shapes(config: Config, name: str, gated: bool = True) -> Shapes:
    width, size = config["hidden_size"], config["head_size"]
    shapes: Shapes = {f"{name}x_{kind}": (1, 1, width) for kind in "rwkvag"[: 5 + gated]}
    for kind, rank in config["ranks"].items():
        if kind == "g":
            if not gated:
                continue
        else:
            shapes[f"{name}{kind}0"] = (1, 1, width)
        shapes |= {f"{name}{kind}1": (width, rank), f"{name}{kind}2": (rank, width)}
    shapes |= {f"{name}{kind}": (1, 1, width) for kind in ("k_k", "k_a")}
    shapes[f"{name}r_k"] = (width // size, size)
    for kind in ("receptance", "key", "value", "output"):
        shapes[f"{name}{kind}.weight"] = (width, width)
    return shapes


def time_mix_7(weights: Weights, name: str, x: NDArray, first: list[NDArray], size: int) -> NDArray:
    """Return the time mix of x (n, width). first: the values of the first layer, or nothing yet."""
    shift = before(x) - x
    n, width = x.shape

    def own(part: str) -> NDArray:
        return weights[name + part]

    def mixed(kind: str) -> NDArray:
        return np.asarray(x + shift * own(f"x_{kind}")[0, 0])

    def linear(kind: str, part: str) -> NDArray:
        return mixed(kind) @ own(f"{part}.weight").T

    r, k, v = linear("r", "receptance"), linear("k", "key"), linear("v", "value")
    w = own("w0")[0, 0] + np.tanh(mixed("w") @ own("w1")) @ own("w2")
    decay = np.exp(-np.exp(-np.log1p(np.exp(-w)) - 0.5))
    a = sigmoid(own("a0")[0, 0] + mixed("a") @ own("a1") @ own("a2"))
    if first:
        share = sigmoid(own("v0")[0, 0] + mixed("v") @ own("v1") @ own("v2"))
        v = v + (first[0] - v) * share
    else:
        first.append(v)
    heads = n, width // size, size
    kk = (k * own("k_k")[0, 0]).reshape(heads)
    kk = kk / np.linalg.norm(kk, axis=-1, keepdims=True)
    k = k * (1 + (a - 1) * own("k_a")[0, 0])
    r, k, v, a, decay = (each.reshape(heads) for each in (r, k, v, a, decay))
    state, out = np.zeros((heads[1], size, size)), np.zeros(heads)  # values x keys
    for t in range(n):
        for h in range(heads[1]):
            s = state[h]
            s = s * decay[t, h] - np.outer(s @ kk[t, h], kk[t, h] * a[t, h])
            state[h] = s + np.outer(v[t, h], k[t, h])
            out[t, h] = state[h] @ r[t, h]
    if f"{name}ln_x.weight" in weights:
        scale, move = (own(f"ln_x.{part}") for part in ("weight", "bias"))
        y = layer_norm(out, TINY).reshape(n, width) * scale + move
    else:
        y = out.reshape(n, width)
    y = y + ((r * k * own("r_k")).sum(-1, keepdims=True) * v).reshape(n, width)
    if f"{name}g1" in weights:
        y = y * (sigmoid(mixed("g") @ own("g1")) @ own("g2"))
    return np.asarray(y @ own("output.weight").T)


def rwkv7_shapes(config: Config) -> Shapes:
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes = _around(config)
    for layer in range(config["num_hidden_layers"]):
        name = f"blocks.{layer}."
        shapes |= time_mix_7_shapes(config, f"{name}att.")
        shapes |= _norms(width, f"{name}ln1", f"{name}ln2", f"{name}att.ln_x")
        shapes |= {f"{name}ffn.x_k": (1, 1, width), f"{name}ffn.key.weight": (inner, width)}
        shapes[f"{name}ffn.value.weight"] = (width, inner)
    return shapes


def rwkv7(weights: Weights, config: Config, ids: NDArray) -> NDArray:
    eps, first = config["layer_norm_epsilon"], list[NDArray]()
    x = affine_norm(weights, "blocks.0.ln0", weights["emb.weight"][ids], eps)
    for layer in range(config["num_hidden_layers"]):
        name = f"blocks.{layer}."
        own = affine_norm(weights, f"{name}ln1", x, eps)
        x = x + time_mix_7(weights, f"{name}att.", own, first, config["head_size"])
        own = affine_norm(weights, f"{name}ln2", x, eps)
        own = own + (before(own) - own) * weights[f"{name}ffn.x_k"][0, 0]
        k = np.maximum(own @ weights[f"{name}ffn.key.weight"].T, 0) ** 2
        x = x + k @ weights[f"{name}ffn.value.weight"].T
    return np.asarray(affine_norm(weights, "ln_out", x, eps) @ weights["head.weight"].T)


def arwkv7_shapes(config: Config) -> Shapes:
    shapes = _qwen_shapes(config)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}.self_attn.time_mixer."
        shapes |= time_mix_7_shapes(config, name, gated=config["wkv_has_gate"])
    return shapes


def arwkv7(weights: Weights, config: Config, ids: NDArray) -> NDArray:
    first = list[NDArray]()

    def mix(layer: int, x: NDArray) -> NDArray:
        name = f"model.layers.{layer}.self_attn.time_mixer."
        return time_mix_7(weights, name, x, first, config["head_size"])

    return _qwen(weights, config, ids, mix)


# -- RWKV 6 ----------------------------------------------------------------------------------------


def time_mix_6_shapes(config: Config, name: str) -> Shapes:
    width, size = config["hidden_size"], config["head_size"]
    of_keys = config.get("num_key_value_heads", width // size) * size
    shapes: Shapes = {f"{name}time_maa_{kind}": (1, 1, width) for kind in "xwkvrg"}
    shapes |= {f"{name}time_maa_w1": (width, 5 * config["mix_rank"])}
    shapes |= {f"{name}time_maa_w2": (5, config["mix_rank"], width)}
    shapes |= {f"{name}time_decay": (1, 1, width)}
    shapes |= {f"{name}time_decay_w1": (width, config["decay_rank"])}
    shapes |= {f"{name}time_decay_w2": (config["decay_rank"], width)}
    for kind in ("receptance", "gate", "output"):
        shapes[f"{name}{kind}.weight"] = (width, width)
    for kind in ("key", "value"):
        shapes[f"{name}{kind}.weight"] = (of_keys, width)
    return shapes


def time_mix_6(weights: Weights, name: str, x: NDArray, size: int, order: str) -> NDArray:
    """Return the time mix of x (n, width). order: the inputs by part of time_maa_w1 and _w2."""
    shift = before(x) - x
    n, width = x.shape

    def own(part: str) -> NDArray:
        return weights[name + part]

    joined = np.tanh((x + shift * own("time_maa_x")[0, 0]) @ own("time_maa_w1"))
    parts = joined.reshape(n, 5, -1).swapaxes(0, 1) @ own("time_maa_w2")
    mixed = {
        kind: x + shift * (own(f"time_maa_{kind}")[0, 0] + part)
        for kind, part in zip(order, parts, strict=True)
    }

    def linear(kind: str, part: str) -> NDArray:
        y = mixed[kind] @ own(f"{part}.weight").T
        return y + own(f"{part}.bias") if f"{name}{part}.bias" in weights else y

    is_qwen = f"{name}time_faaaa" not in weights
    r, g = linear("r", "receptance"), linear("g", "gate")
    heads = n, width // size, size
    shared = own("key.weight").shape[0] // size
    k, v = (
        np.repeat(linear(kind, part).reshape(n, shared, size), heads[1] // shared, axis=1)
        for kind, part in (("k", "key"), ("v", "value"))
    )
    w = own("time_decay")[0, 0] + np.tanh(mixed["w"] @ own("time_decay_w1")) @ own("time_decay_w2")
    decay, r = np.exp(-np.exp(w)).reshape(heads), r.reshape(heads)
    k = k * (1 - decay) if is_qwen else k
    state, out = np.zeros((heads[1], size, size)), np.zeros(heads)  # keys x values
    for t in range(n):
        for h in range(heads[1]):
            new = np.outer(k[t, h], v[t, h])
            if is_qwen:
                state[h] = state[h] * decay[t, h][:, None] + new
                out[t, h] = r[t, h] @ state[h] / np.sqrt(size)
            else:
                out[t, h] = r[t, h] @ (state[h] + own("time_faaaa")[h][:, None] * new)
                state[h] = state[h] * decay[t, h][:, None] + new
    if is_qwen:
        return np.asarray(out.reshape(n, width) * sigmoid(g) @ own("output.weight").T)
    scale, move = (own(f"ln_x.{part}") for part in ("weight", "bias"))
    y = layer_norm(out, TINY).reshape(n, width) * scale + move
    return np.asarray(y * silu(g) @ own("output.weight").T)


def rwkv6_shapes(config: Config) -> Shapes:
    width, inner, size = (config[f"{key}_size"] for key in ("hidden", "intermediate", "head"))
    shapes = _around(config)
    for layer in range(config["num_hidden_layers"]):
        name = f"blocks.{layer}."
        shapes |= time_mix_6_shapes(config, f"{name}att.")
        shapes[f"{name}att.time_faaaa"] = (width // size, size)
        shapes |= _norms(width, f"{name}ln1", f"{name}ln2", f"{name}att.ln_x")
        shapes |= {f"{name}ffn.time_maa_{kind}": (1, 1, width) for kind in "kr"}
        shapes |= {f"{name}ffn.key.weight": (inner, width)}
        shapes |= {f"{name}ffn.value.weight": (width, inner)}
        shapes |= {f"{name}ffn.receptance.weight": (width, width)}
    return shapes


def rwkv6(weights: Weights, config: Config, ids: NDArray) -> NDArray:
    eps = config["layer_norm_epsilon"]
    x = affine_norm(weights, "blocks.0.ln0", weights["emb.weight"][ids], eps)
    for layer in range(config["num_hidden_layers"]):
        name = f"blocks.{layer}."
        own = affine_norm(weights, f"{name}ln1", x, eps)
        x = x + time_mix_6(weights, f"{name}att.", own, config["head_size"], "wkvrg")
        own = affine_norm(weights, f"{name}ln2", x, eps)
        for_k, for_r = (
            own + (before(own) - own) * weights[f"{name}ffn.time_maa_{kind}"][0, 0] for kind in "kr"
        )
        k = np.maximum(for_k @ weights[f"{name}ffn.key.weight"].T, 0) ** 2
        gate = sigmoid(for_r @ weights[f"{name}ffn.receptance.weight"].T)
        x = x + gate * (k @ weights[f"{name}ffn.value.weight"].T)
    return np.asarray(affine_norm(weights, "ln_out", x, eps) @ weights["head.weight"].T)


def rwkv6qwen2_shapes(config: Config) -> Shapes:
    shapes = _qwen_shapes(config)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}.self_attn."
        shapes |= time_mix_6_shapes(config, name)
        for part in ("receptance", "key", "value"):
            shapes[f"{name}{part}.bias"] = shapes[f"{name}{part}.weight"][:1]
    return shapes


def rwkv6qwen2(weights: Weights, config: Config, ids: NDArray) -> NDArray:
    def mix(layer: int, x: NDArray) -> NDArray:
        name = f"model.layers.{layer}.self_attn."
        return time_mix_6(weights, name, x, config["head_size"], "rkvwg")

    return _qwen(weights, config, ids, mix)


# -- around the time mix ---------------------------------------------------------------------------


def _norms(width: int, *names: str) -> Shapes:
    return {f"{name}.{part}": (width,) for name in names for part in ("weight", "bias")}


def _around(config: Config) -> Shapes:
    width, tokens = config["hidden_size"], config["vocab_size"]
    around: Shapes = {"emb.weight": (tokens, width), "head.weight": (tokens, width)}
    return around | _norms(width, "blocks.0.ln0", "ln_out")


def _qwen_shapes(config: Config) -> Shapes:
    """Return the shapes of a Qwen 2.5 without its attention."""
    width, inner, tokens = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (tokens, width), "model.norm.weight": (width,)}
    shapes["lm_head.weight"] = (tokens, width)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        shapes |= {f"{name}{norm}.weight": (width,) for norm in (INPUT, OUTPUT)}
        shapes |= {f"{name}mlp.{part}_proj.weight": (inner, width) for part in ("gate", "up")}
        shapes[f"{name}mlp.down_proj.weight"] = (width, inner)
    return shapes


INPUT, OUTPUT = "input_layernorm", "post_attention_layernorm"


def _qwen(weights: Weights, config: Config, ids: NDArray, mix: Any) -> NDArray:
    eps, x = config["rms_norm_eps"], weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        x = x + mix(layer, rms_norm(x, weights[f"{name}{INPUT}.weight"], eps))
        own = rms_norm(x, weights[f"{name}{OUTPUT}.weight"], eps)
        gate, up = (own @ weights[f"{name}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (silu(gate) * up) @ weights[f"{name}mlp.down_proj.weight"].T
    return rms_norm(x, weights["model.norm.weight"], eps) @ weights["lm_head.weight"].T

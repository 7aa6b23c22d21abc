"""The published networks of decoders that `transformers` lacks, in float64 numpy, for
`published.py`: PLM, OpenELM, PLaMo 1 and 3, Maincoder and DeciLM.
"""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray

from .published_rwkv import Config, Shapes, Weights, rms_norm, silu


def rotated(x: NDArray, base: float, interleaved: bool) -> NDArray:
    """Return heads (n, heads, size), rotated by their positions."""
    n, _, size = x.shape
    angles = np.arange(n)[:, None] * base ** (-np.arange(0, size, 2) / size)
    cos, sin = (each[:, None] for each in (np.cos(angles), np.sin(angles)))
    if interleaved:
        even, odd = x[..., ::2], x[..., 1::2]
        pairs = np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
        return pairs.reshape(x.shape)
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, low * sin + high * cos], axis=-1)


def attention(
    q: NDArray,
    k: NDArray,
    v: NDArray,
    window: int = 0,
    *,
    scale: float | None = None,
    bias: NDArray | float = 0.0,
) -> NDArray:
    """Return causal attention of heads (n, heads, size), joined, (n, heads * size of v). window:
    the number of keys that a token sees, 0 for all. scale: that of scores, by default 1 / the root
    of the size. bias: is added to scores, (heads, n, n).
    """
    n, heads, size = q.shape
    scores = np.einsum("qhd,khd->hqk", q, k) * (scale or 1 / np.sqrt(size)) + bias
    seen = np.tri(n, dtype=bool) & ~np.tri(n, k=-(window or n), dtype=bool)
    scores = np.where(seen, scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.asarray(np.einsum("hqk,khd->qhd", shares, v).reshape(n, -1))


def repeated(x: NDArray, heads: int) -> NDArray:
    """Return heads of keys (n, shared, size), each for some consecutive heads of queries."""
    return np.repeat(x, heads // x.shape[1], axis=1)


# -- PLM: latent attention, and a squared ReLU without a gate --------------------------------------


def plm_shapes(config: Config) -> Shapes:
    width, heads, rank = (
        config[key] for key in ("hidden_size", "num_attention_heads", "kv_lora_rank")
    )
    plain, rotary, of_value = (
        config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], width)}
    for layer in range(config["num_hidden_layers"]):
        name, attn = f"model.layers.{layer}.", f"model.layers.{layer}.self_attn."
        shapes[f"{name}input_layernorm.weight"] = (width,)
        shapes[f"{attn}q_proj.weight"] = (heads * (plain + rotary), width)
        shapes[f"{attn}kv_a_proj_with_mqa.weight"] = (rank + rotary, width)
        shapes[f"{attn}kv_a_layernorm.weight"] = (rank,)
        shapes[f"{attn}kv_b_proj.weight"] = (heads * (plain + of_value), rank)
        shapes[f"{attn}o_proj.weight"] = (width, heads * of_value)
        shapes[f"{name}post_attention_layernorm.weight"] = (width,)
        shapes[f"{name}mlp.up_proj.weight"] = (config["intermediate_size"], width)
        shapes[f"{name}mlp.down_proj.weight"] = (width, config["intermediate_size"])
    return shapes | {"model.norm.weight": (width,)}


def plm(weights: Weights, config: Config, ids: NDArray) -> NDArray:
    heads, rank, eps = (
        config[key] for key in ("num_attention_heads", "kv_lora_rank", "rms_norm_eps")
    )
    plain, base, n = config["qk_nope_head_dim"], config["rope_theta"], len(ids)
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        name, attn = f"model.layers.{layer}.", f"model.layers.{layer}.self_attn."
        own = rms_norm(x, weights[f"{name}input_layernorm.weight"], eps)
        q = (own @ weights[f"{attn}q_proj.weight"].T).reshape(n, heads, -1)
        q = np.concatenate([q[..., :plain], rotated(q[..., plain:], base, True)], axis=-1)
        small = own @ weights[f"{attn}kv_a_proj_with_mqa.weight"].T
        kv = rms_norm(small[:, :rank], weights[f"{attn}kv_a_layernorm.weight"], eps)
        kv = (kv @ weights[f"{attn}kv_b_proj.weight"].T).reshape(n, heads, -1)
        shared = repeated(rotated(small[:, None, rank:], base, True), heads)
        k = np.concatenate([kv[..., :plain], shared], axis=-1)
        x = x + attention(q, k, kv[..., plain:]) @ weights[f"{attn}o_proj.weight"].T
        own = rms_norm(x, weights[f"{name}post_attention_layernorm.weight"], eps)
        inner = np.maximum(own @ weights[f"{name}mlp.up_proj.weight"].T, 0) ** 2
        x = x + inner @ weights[f"{name}mlp.down_proj.weight"].T
    return rms_norm(x, weights["model.norm.weight"], eps) @ weights["model.embed_tokens.weight"].T


# -- OpenELM: heads and feed-forwards of a size by layer -------------------------------------------


def openelm_shapes(config: Config) -> Shapes:
    width, size = config["hidden_size"], config["head_dim"]
    shapes: Shapes = {"transformer.token_embeddings.weight": (config["vocab_size"], width)}
    for layer in range(config["num_hidden_layers"]):
        heads, shared, inner = (
            config[key][layer] for key in ("num_query_heads", "num_kv_heads", "ffn_dims")
        )
        name = f"transformer.layers.{layer}."
        shapes[f"{name}attn_norm.weight"] = (width,)
        shapes[f"{name}attn.qkv_proj.weight"] = ((heads + 2 * shared) * size, width)
        shapes |= {f"{name}attn.{which}_norm.weight": (size,) for which in "qk"}
        shapes[f"{name}attn.out_proj.weight"] = (width, heads * size)
        shapes[f"{name}ffn_norm.weight"] = (width,)
        shapes[f"{name}ffn.proj_1.weight"] = (2 * inner, width)
        shapes[f"{name}ffn.proj_2.weight"] = (width, inner)
    return shapes | {"transformer.norm.weight": (width,)}


def openelm(weights: Weights, config: Config, ids: NDArray) -> NDArray:
    eps, base, n = config["rms_norm_eps"], config["rope_theta"], len(ids)
    table = weights["transformer.token_embeddings.weight"]
    x = table[ids]
    for layer in range(config["num_hidden_layers"]):
        name = f"transformer.layers.{layer}."
        heads, shared = (config[key][layer] for key in ("num_query_heads", "num_kv_heads"))
        own = rms_norm(x, weights[f"{name}attn_norm.weight"], eps)
        qkv = (own @ weights[f"{name}attn.qkv_proj.weight"].T).reshape(n, heads + 2 * shared, -1)
        q, k, v = np.split(qkv, [heads, heads + shared], axis=1)
        q, k = (
            rotated(rms_norm(each, weights[f"{name}attn.{which}_norm.weight"], eps), base, False)
            for which, each in (("q", q), ("k", k))
        )
        seen = attention(q, repeated(k, heads), repeated(v, heads))
        x = x + seen @ weights[f"{name}attn.out_proj.weight"].T
        own = rms_norm(x, weights[f"{name}ffn_norm.weight"], eps)
        gate, up = np.split(own @ weights[f"{name}ffn.proj_1.weight"].T, 2, axis=1)
        x = x + (silu(gate) * up) @ weights[f"{name}ffn.proj_2.weight"].T
    return rms_norm(x, weights["transformer.norm.weight"], eps) @ table.T


# -- PLaMo: attention and feed-forward in parallel -------------------------------------------------


def decoder_shapes(config: Config, prefix: str, attn: str, norms: tuple[str, ...]) -> Shapes:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim", width // heads)
    inner, shared = config["intermediate_size"], config["num_key_value_heads"]
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], width)}
    for layer in range(config["num_hidden_layers"]):
        name = f"{prefix}{layer}."
        shapes |= {f"{name}{norm}.weight": (width,) for norm in norms}
        for which, count in (("q", heads), ("k", shared), ("v", shared)):
            shapes[f"{name}{attn}.{which}_proj.weight"] = (count * size, width)
        shapes[f"{name}{attn}.o_proj.weight"] = (width, heads * size)
        shapes |= {f"{name}mlp.{part}_proj.weight": (inner, width) for part in ("gate", "up")}
        shapes[f"{name}mlp.down_proj.weight"] = (width, inner)
    last = {"model.norm.weight": (width,), "lm_head.weight": (config["vocab_size"], width)}
    return {**shapes, **last}


def plamo_shapes(config: Config) -> Shapes:
    return decoder_shapes(config, "model.layers.layers.", "self_attn", ("norm",))


def plamo(weights: Weights, config: Config, ids: NDArray) -> NDArray:
    heads, shared, eps, n = (
        *(config[key] for key in ("num_attention_heads", "num_key_value_heads", "rms_norm_eps")),
        len(ids),
    )
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.layers.{layer}."
        own = rms_norm(x, weights[f"{name}norm.weight"], eps)
        q, k, v = (
            (own @ weights[f"{name}self_attn.{which}_proj.weight"].T).reshape(n, count, -1)
            for which, count in (("q", heads), ("k", shared), ("v", shared))
        )
        q, k = (rotated(each, 1e4, False) for each in (q, k))
        k, v = (np.tile(each, (1, heads // shared, 1)) for each in (k, v))  # head % shared
        x = x + attention(q, k, v) @ weights[f"{name}self_attn.o_proj.weight"].T
        gate, up = (own @ weights[f"{name}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (silu(gate) * up) @ weights[f"{name}mlp.down_proj.weight"].T
    return rms_norm(x, weights["model.norm.weight"], eps) @ weights["lm_head.weight"].T


# -- Maincoder: norms of heads after the rotary embedding ------------------------------------------

NORMS = ("input_layernorm", "post_attention_layernorm")


def maincoder_shapes(config: Config) -> Shapes:
    shapes = decoder_shapes(config, "model.layers.", "self_attn", NORMS)
    for layer in range(config["num_hidden_layers"]):
        for which in "qk":
            name = f"model.layers.{layer}.self_attn.{which}_norm.weight"
            shapes[name] = (config["head_dim"],)
    return shapes


def maincoder(weights: Weights, config: Config, ids: NDArray) -> NDArray:
    heads, shared, eps, n = (
        *(config[key] for key in ("num_attention_heads", "num_key_value_heads", "rms_norm_eps")),
        len(ids),
    )
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        name, attn = f"model.layers.{layer}.", f"model.layers.{layer}.self_attn."
        own = rms_norm(x, weights[f"{name}{NORMS[0]}.weight"], eps)
        q, k, v = (
            (own @ weights[f"{attn}{which}_proj.weight"].T).reshape(n, count, -1)
            for which, count in (("q", heads), ("k", shared), ("v", shared))
        )
        q, k = (
            rms_norm(
                rotated(x_, config["rope_theta"], True), weights[f"{attn}{which}_norm.weight"], eps
            )
            for which, x_ in (("q", q), ("k", k))
        )
        seen = attention(q, repeated(k, heads), repeated(v, heads))
        x = x + seen @ weights[f"{attn}o_proj.weight"].T
        own = rms_norm(x, weights[f"{name}{NORMS[1]}.weight"], eps)
        gate, up = (own @ weights[f"{name}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (silu(gate) * up) @ weights[f"{name}mlp.down_proj.weight"].T
    return rms_norm(x, weights["model.norm.weight"], eps) @ weights["lm_head.weight"].T


# -- PLaMo 3: norms around each block, and sliding windows -----------------------------------------

AROUND = ("pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm")
OFFSETS = dict(zip(AROUND, (1, 1 / 5, 1, 1 / 5**1.5), strict=True))
"""The numbers that are added to the weights of norms; 1 for others."""


def plamo3_shapes(config: Config) -> Shapes:
    width, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], width)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.layers.{layer}."
        shapes |= {f"{name}{norm}.weight": (width,) for norm in AROUND}
        shapes[f"{name}mixer.qkv_proj.weight"] = ((heads + 2 * shared) * size, width)
        shapes |= {f"{name}mixer.{which}.weight": (size,) for which in "qk"}
        shapes[f"{name}mixer.o_proj.weight"] = (width, heads * size)
        shapes[f"{name}mlp.gate_up_proj.weight"] = (2 * inner, width)
        shapes[f"{name}mlp.down_proj.weight"] = (width, inner)
    last = {"model.norm.weight": (width,), "lm_head.weight": (config["vocab_size"], width)}
    return {**shapes, **last}


def plamo3(weights: Weights, config: Config, ids: NDArray) -> NDArray:
    eps, n = config["rms_norm_eps"], len(ids)
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]

    def normed(x: NDArray, name: str) -> NDArray:
        offset = OFFSETS.get(name.rpartition(".")[2], 1)
        return rms_norm(x, weights[f"{name}.weight"] + offset, eps)

    x = weights["model.embed_tokens.weight"][ids]
    for layer, window in enumerate(config["windows"]):
        name = f"model.layers.layers.{layer}."
        qkv = normed(x, f"{name}{AROUND[0]}") @ weights[f"{name}mixer.qkv_proj.weight"].T
        q, k, v = np.split(qkv.reshape(n, heads + 2 * shared, -1), [heads, heads + shared], axis=1)
        base = config["rope_local_theta"] if window else config["rope_theta"]
        q, k = (
            rotated(normed(each, f"{name}mixer.{which}"), base, False)
            for which, each in (("q", q), ("k", k))
        )
        seen = attention(q, repeated(k, heads), repeated(v, heads), window)
        y = seen @ weights[f"{name}mixer.o_proj.weight"].T
        x = x + normed(y, f"{name}{AROUND[1]}")
        own = normed(x, f"{name}{AROUND[2]}")
        gate, up = np.split(own @ weights[f"{name}mlp.gate_up_proj.weight"].T, 2, axis=1)
        y = (silu(gate) * up) @ weights[f"{name}mlp.down_proj.weight"].T
        x = x + normed(y, f"{name}{AROUND[3]}")
    return np.asarray(normed(x, "model.norm") @ weights["lm_head.weight"].T)


# -- DeciLM: layers without some blocks ------------------------------------------------------------


def deci_shapes(config: Config) -> Shapes:
    """Return the shapes of a Llama without the blocks that some layers lack."""
    width, whole = config["hidden_size"], decoder_shapes
    shapes = whole({**config, "intermediate_size": 1}, "model.layers.", "self_attn", NORMS)
    for layer, (kind, inner) in enumerate(
        zip(config["block_kinds"], config["ffn_dims"], strict=True)
    ):
        name = f"model.layers.{layer}."
        attn, mlp = f"{name}self_attn.", f"{name}mlp."
        if kind != "attention":
            shapes = {key: shape for key, shape in shapes.items() if not key.startswith(attn)}
        if kind == "linear":
            shapes[f"{attn}linear_attn.weight"] = (width, width)
        if kind == "none":
            del shapes[f"{name}{NORMS[0]}.weight"]
        shapes = {key: shape for key, shape in shapes.items() if not key.startswith(mlp)}
        if inner:
            shapes |= {f"{mlp}{part}_proj.weight": (inner, width) for part in ("gate", "up")}
            shapes[f"{mlp}down_proj.weight"] = (width, inner)
        else:
            del shapes[f"{name}{NORMS[1]}.weight"]
    return shapes


def deci(weights: Weights, config: Config, ids: NDArray) -> NDArray:
    eps, n = config["rms_norm_eps"], len(ids)
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    x = weights["model.embed_tokens.weight"][ids]
    for layer, kind in enumerate(config["block_kinds"]):
        name, attn = f"model.layers.{layer}.", f"model.layers.{layer}.self_attn."
        if kind != "none":
            own = rms_norm(x, weights[f"{name}{NORMS[0]}.weight"], eps)
        if kind == "linear":
            x = x + own @ weights[f"{attn}linear_attn.weight"].T
        if kind == "attention":
            q, k, v = (
                (own @ weights[f"{attn}{which}_proj.weight"].T).reshape(n, count, -1)
                for which, count in (("q", heads), ("k", shared), ("v", shared))
            )
            q, k = (rotated(each, config["rope_theta"], False) for each in (q, k))
            seen = attention(q, repeated(k, heads), repeated(v, heads))
            x = x + seen @ weights[f"{attn}o_proj.weight"].T
        if config["ffn_dims"][layer]:
            own = rms_norm(x, weights[f"{name}{NORMS[1]}.weight"], eps)
            gate, up = (own @ weights[f"{name}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            x = x + (silu(gate) * up) @ weights[f"{name}mlp.down_proj.weight"].T
    return rms_norm(x, weights["model.norm.weight"], eps) @ weights["lm_head.weight"].T

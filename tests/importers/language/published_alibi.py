"""The published networks of decoders with ALiBi that `transformers` lacks, in float64 numpy, for
`published.py`: Jais 1, and Baichuan with 13B parameters.
"""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray

from .published_decoders import NORMS, attention, decoder_shapes
from .published_rwkv import Config, Shapes, Weights, affine_norm, rms_norm, silu


def distances(heads: int, tokens: int, max_bias: float) -> NDArray:
    """Return the biases of the scores, (heads, tokens, tokens). heads: a power of 2."""
    slopes = 2.0 ** (-max_bias * np.arange(1, heads + 1) / heads)
    at = np.arange(tokens)
    return np.asarray(-slopes[:, None, None] * np.abs(at[:, None] - at))


# -- Jais: GPT 2 with a gate, scales of embeddings and logits, and scores over the size of a head --


def jais_shapes(config: Config) -> Shapes:
    width, inner, words = (
        config[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    shapes: Shapes = {"transformer.wte.weight": (words, width)}
    for layer in range(config["num_hidden_layers"]):
        name = f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{name}{norm}.{kind}": (width,) for kind in ("weight", "bias")}
        for part, columns, rows in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, inner),
            ("mlp.c_fc2", width, inner),
            ("mlp.c_proj", inner, width),
        ):
            shapes[f"{name}{part}.weight"] = (columns, rows)
            shapes[f"{name}{part}.bias"] = (rows,)
    last = {f"transformer.ln_f.{kind}": (width,) for kind in ("weight", "bias")}
    return {**shapes, **last, "lm_head.weight": (words, width)}


def jais(weights: Weights, config: Config, ids: NDArray) -> NDArray:
    heads, eps, n = config["num_attention_heads"], config["layer_norm_epsilon"], len(ids)
    size = config["hidden_size"] // heads
    bias = distances(heads, n, config["max_alibi_bias"])

    def product(x: NDArray, name: str) -> NDArray:
        return np.asarray(x @ weights[f"{name}.weight"] + weights[f"{name}.bias"])

    x = weights["transformer.wte.weight"][ids] * config["mup_embeddings_scale"]
    for layer in range(config["num_hidden_layers"]):
        name = f"transformer.h.{layer}."
        own = affine_norm(weights, f"{name}ln_1", x, eps)
        q, k, v = (
            each.reshape(n, heads, size)
            for each in np.split(product(own, f"{name}attn.c_attn"), 3, axis=1)
        )
        x = x + product(attention(q, k, v, scale=1 / size, bias=bias), f"{name}attn.c_proj")
        own = affine_norm(weights, f"{name}ln_2", x, eps)
        inner = product(own, f"{name}mlp.c_fc") * silu(product(own, f"{name}mlp.c_fc2"))
        x = x + product(inner, f"{name}mlp.c_proj")
    x = affine_norm(weights, "transformer.ln_f", x, eps)
    scale = config["mup_output_alpha"] * config["mup_width_scale"]
    return np.asarray(x @ weights["lm_head.weight"].T * scale)


# -- Baichuan with 13B parameters: Llama with ALiBi ------------------------------------------------


def baichuan_shapes(config: Config) -> Shapes:
    return decoder_shapes(config, "model.layers.", "self_attn", NORMS)


def baichuan(weights: Weights, config: Config, ids: NDArray) -> NDArray:
    heads, eps, n = config["num_attention_heads"], config["rms_norm_eps"], len(ids)
    bias = distances(heads, n, config["max_alibi_bias"])
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        own = rms_norm(x, weights[f"{name}{NORMS[0]}.weight"], eps)
        q, k, v = (
            (own @ weights[f"{name}self_attn.{which}_proj.weight"].T).reshape(n, heads, -1)
            for which in "qkv"
        )
        x = x + attention(q, k, v, bias=bias) @ weights[f"{name}self_attn.o_proj.weight"].T
        own = rms_norm(x, weights[f"{name}{NORMS[1]}.weight"], eps)
        gate, up = (own @ weights[f"{name}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (silu(gate) * up) @ weights[f"{name}mlp.down_proj.weight"].T
    return rms_norm(x, weights["model.norm.weight"], eps) @ weights["lm_head.weight"].T

"""Tiny language models with random weights as GGUF files, and their logits by numpy in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_files import Type

from vksched.common.dtypes import NDArray

Rounding = Callable[[NDArray], NDArray]


@dataclass(frozen=True)
class Tiny:
    """What a model is made of. Sizes fit blocks of 256 elements."""

    architecture: str = "llama"
    kind: str = "F32"
    layers: int = 2
    width: int = 256
    heads: int = 8
    kv_heads: int = 2
    head_size: int = 32
    inner: int = 512
    vocabulary: int = 61
    tied: bool = False
    biases: bool = False
    head_norms: bool = False
    rotary_size: int = 32
    slowed: bool = False
    linear: float = 1.0
    base: float = 10000.0
    eps: float = 1e-5
    context: int = 64

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors by name."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        out: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (self.vocabulary, self.width),
            "output_norm.weight": (self.width,),
        }
        if not self.tied:
            out["output.weight"] = (self.vocabulary, self.width)
        if self.slowed:
            out["rope_freqs.weight"] = (self.rotary_size // 2,)
        for layer in range(self.layers):
            sizes = {
                "attn_norm": (self.width,),
                "attn_q": (queries, self.width),
                "attn_k": (keys, self.width),
                "attn_v": (keys, self.width),
                "attn_output": (self.width, queries),
                "ffn_norm": (self.width,),
                "ffn_gate": (self.inner, self.width),
                "ffn_up": (self.inner, self.width),
                "ffn_down": (self.width, self.inner),
            }
            if self.head_norms:
                sizes |= {"attn_q_norm": (self.head_size,), "attn_k_norm": (self.head_size,)}
            out |= {f"blk.{layer}.{name}.weight": shape for name, shape in sizes.items()}
            if self.biases:
                for which, size in (("q", queries), ("k", keys), ("v", keys)):
                    out[f"blk.{layer}.attn_{which}.bias"] = (size,)
        return out


def write(
    tiny: Tiny, path: Path, rng: np.random.Generator, more: Mapping[str, Any] | None = None
) -> dict[str, NDArray]:
    """Write a model, and more keys; returns its weights as they are in the file, in float32."""
    writer = gguf.GGUFWriter(path, tiny.architecture)
    writer.add_block_count(tiny.layers)
    writer.add_context_length(tiny.context)
    writer.add_embedding_length(tiny.width)
    writer.add_head_count(tiny.heads)
    writer.add_head_count_kv(tiny.kv_heads)
    writer.add_key_length(tiny.head_size)
    writer.add_value_length(tiny.head_size)
    writer.add_feed_forward_length(tiny.inner)
    writer.add_layer_norm_rms_eps(tiny.eps)
    writer.add_rope_freq_base(tiny.base)
    writer.add_rope_dimension_count(tiny.rotary_size)
    writer.add_vocab_size(tiny.vocabulary)
    if tiny.linear != 1:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(tiny.linear)
    adders = {str: writer.add_string, list: writer.add_array, int: writer.add_uint32}
    for key, value in (more or {}).items():
        adders[type(value)](key, value)
    weights: dict[str, NDArray] = {}
    for name, shape in tiny.shapes().items():
        kind = Type[tiny.kind] if len(shape) == 2 else Type.F32
        array = _values(name, shape, rng)
        if kind == Type.F32:
            writer.add_tensor(name, array)
        elif kind == Type.F16:
            array = array.astype(np.float16)
            writer.add_tensor(name, array)
        else:
            array, raw = _quantised(array, kind, rng)
            writer.add_tensor(name, raw, raw_dtype=kind)
        weights[name] = array.astype(np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _values(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray:
    drawn = rng.standard_normal(shape, np.float32)
    if name == "rope_freqs.weight":
        return 1 + np.abs(drawn)
    if len(shape) == 1:
        return 0.2 * drawn + (0 if name.endswith("bias") else 1)
    return drawn if name.startswith("token_embd") else drawn * np.float32(1.5 / shape[1] ** 0.5)


def _quantised(array: NDArray, kind: Type, rng: np.random.Generator) -> tuple[NDArray, NDArray]:
    """Return a weight in blocks as float32, and its bytes. The package makes no blocks of Q4_K:
    there any bytes are taken, with scales that are small.
    """
    if kind == Type.Q4_K:
        blocks = rng.integers(0, 256, (array.size // 256, 144), np.uint8)
        blocks[:, :4] = np.array([6e-4, 4e-3], np.float16).view(np.uint8)
        raw = blocks.reshape(array.shape[0], -1)
    else:
        raw = gguf.quantize(array, kind)
    return gguf.dequantize(raw, kind), raw


def logits_of(
    tiny: Tiny, weights: dict[str, NDArray], ids: NDArray, cached: Rounding = np.asarray
) -> NDArray:
    """Return the logits after each token: the network written out for one text. cached: rounds keys
    and values.
    """
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = w["token_embd.weight"][ids]
    for layer in range(tiny.layers):
        start = f"blk.{layer}."
        of = {name.removeprefix(start): a for name, a in w.items() if name.startswith(start)}
        slowed = w.get("rope_freqs.weight")
        x = x + _attention(tiny, of, _normed(tiny, x, of["attn_norm.weight"]), slowed, cached)
        y = _normed(tiny, x, of["ffn_norm.weight"])
        gate = y @ of["ffn_gate.weight"].T
        gate = gate / (1 + np.exp(-gate))
        x = x + (gate * (y @ of["ffn_up.weight"].T)) @ of["ffn_down.weight"].T
    head = w["token_embd.weight"] if tiny.tied else w["output.weight"]
    return np.asarray(_normed(tiny, x, w["output_norm.weight"]) @ head.T)


def _normed(tiny: Tiny, x: NDArray, scale: NDArray) -> NDArray:
    return np.asarray(x / np.sqrt(np.square(x).mean(-1, keepdims=True) + tiny.eps) * scale)


def _attention(
    tiny: Tiny, of: dict[str, NDArray], x: NDArray, slowed: NDArray | None, cached: Rounding
) -> NDArray:
    length = len(x)
    parts = []
    for which, heads in (("q", tiny.heads), ("k", tiny.kv_heads), ("v", tiny.kv_heads)):
        part = x @ of[f"attn_{which}.weight"].T + of.get(f"attn_{which}.bias", 0)
        part = part.reshape(length, heads, tiny.head_size)
        if tiny.head_norms and which != "v":
            part = _normed(tiny, part, of[f"attn_{which}_norm.weight"])
        parts.append(part if which == "v" else _rotated(tiny, part, slowed))
    q, k, v = parts[0], cached(parts[1]), cached(parts[2])
    out = np.zeros((length, tiny.heads, tiny.head_size))
    for head in range(tiny.heads):
        shared = head * tiny.kv_heads // tiny.heads
        for at in range(length):
            scores = k[: at + 1, shared] @ q[at, head] / np.sqrt(tiny.head_size)
            chances = np.exp(scores - scores.max())
            out[at, head] = chances @ v[: at + 1, shared] / chances.sum()
    return np.asarray(out.reshape(length, -1) @ of["attn_output.weight"].T)


def _rotated(tiny: Tiny, x: NDArray, slowed: NDArray | None) -> NDArray:
    """Pairs of each head as complex numbers, times exp(i angle)."""
    half = tiny.rotary_size // 2
    rates = tiny.base ** (-np.arange(half) / half) / tiny.linear
    if slowed is not None:
        rates = rates / slowed
    spin = np.exp(1j * np.arange(len(x))[:, None, None] * rates)
    first, second = np.arange(half), np.arange(half) + half
    if tiny.architecture == "llama":
        first, second = 2 * np.arange(half), 2 * np.arange(half) + 1
    pairs = (x[..., first] + 1j * x[..., second]) * spin
    out = x.copy()
    out[..., first], out[..., second] = pairs.real, pairs.imag
    return out

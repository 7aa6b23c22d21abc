"""Random language models as GGUF files: llamas of 27 M parameters, one per element type.

Weights are random, and quantized by the package `gguf`. For types that it cannot write, blocks are
random bytes with valid scales, so that the values have the spread of a trained layer. Files are
deterministic for a seed. They have no vocabulary: texts are tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from ...common.dtypes import NDArray

SEED = 22
ROUNDED = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")
"""Types that gguf can quantize."""
SCALES: dict[str, dict[int, float]] = {
    "Q2_K": {80: 1.0, 82: 1.5},
    "Q3_K": {108: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ4_NL": {0: 1.0},
    "IQ4_XS": {0: 1.0},
}
"""Byte offset of each float16 scale in a block by type, and its factor relative to the first: those
of minima make the mean of all values 0.
"""
SYMMETRIC = ("IQ4_NL",)
"""Types whose values except the first have a mean of about 0. A nonzero mean of weights is shared
by all outputs of a matmul; after some layers it dominates the text.
"""
TYPES = (*ROUNDED, *SCALES)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a llama. inner: width of the feed-forward layers. context: context length in
    tokens.
    """

    layers: int = 6
    width: int = 512
    heads: int = 8
    kv_heads: int = 4
    inner: int = 1536
    vocabulary: int = 8192
    context: int = 4096

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...], float]]:
        """Yield name, shape and standard deviation of each weight."""
        keys, by_width = self.kv_heads * self.head_size, self.width**-0.5
        yield "token_embd.weight", (self.vocabulary, self.width), 1.0
        for layer in range(self.layers):
            for name, shape, spread in (
                ("attn_norm", (self.width,), 0.1),
                ("attn_q", (self.width, self.width), 1.5 * by_width),
                ("attn_k", (keys, self.width), 1.5 * by_width),
                ("attn_v", (keys, self.width), by_width),
                ("attn_output", (self.width, self.width), by_width),
                ("ffn_norm", (self.width,), 0.1),
                ("ffn_gate", (self.inner, self.width), by_width),
                ("ffn_up", (self.inner, self.width), by_width),
                ("ffn_down", (self.width, self.inner), self.inner**-0.5),
            ):
                yield f"blk.{layer}.{name}.weight", shape, spread
        yield "output_norm.weight", (self.width,), 0.1
        yield "output.weight", (self.vocabulary, self.width), 3 * by_width


def write_model(path: Path, kind: str, sizes: Sizes | None = None, seed: int = SEED) -> None:
    """Write a random llama whose matrices have an element type of TYPES."""
    sizes, rng = sizes or Sizes(), np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"random {kind}")
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.width)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.inner)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(sizes.head_size)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(sizes.vocabulary)
    writer.add_tokenizer_model("no_vocab")
    for name, shape, spread in sizes.shapes():
        if len(shape) == 1:
            writer.add_tensor(name, 1 + np.float32(spread) * rng.standard_normal(shape, np.float32))
        elif kind in SCALES:
            writer.add_tensor(name, blocks_of(kind, shape, spread, rng), raw_dtype=Type[kind])
        else:
            drawn = np.float32(spread) * rng.standard_normal(shape, np.float32)
            writer.add_tensor(name, gguf.quantize(drawn, Type[kind]), raw_dtype=Type[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def blocks_of(
    kind: str, shape: tuple[int, ...], spread: float, rng: np.random.Generator
) -> NDArray:
    """Return the bytes of a random weight: (rows, bytes of a row). Its values have about mean 0 and
    the standard deviation `spread`.
    """
    elements, size_bytes = gguf.GGML_QUANT_SIZES[Type[kind]]
    count = shape[0] * shape[1] // elements
    blocks = rng.integers(0, 256, (count, size_bytes), np.uint8)
    if kind in SYMMETRIC:
        low, high = rng.integers(1, 16, (2, count, size_bytes), np.uint8)
        blocks = low | high << 4
    _set_scales(kind, blocks, 1e-3)
    some = gguf.dequantize(blocks[: min(count, 1 << 10)], Type[kind])
    _set_scales(kind, blocks, 1e-3 * spread / float(some.std()))
    return blocks.reshape(shape[0], -1)


def _set_scales(kind: str, blocks: NDArray, scale: float) -> None:
    for start, share in SCALES[kind].items():
        value = np.array([scale * share], np.float16)
        blocks[:, start : start + 2] = value.view(np.uint8)

"""The networks as ncnn has them: a text of layers, and their weights behind each other.

ncnn knows no batches of rows: rows are (h, w), the heads of all sequences channels of (h, w).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .numpy_functions import EPSILON, Array, later_of

Line = tuple[str, list[str], list[str], str]
"""Of a layer: its type, the blobs that it reads, those that it makes, and its numbers."""


class NcnnFile:
    """The builder of ncnn's layers; values are names of blobs. gemm: which of its two layers for
    products is taken.
    """

    def __init__(self, params: Mapping[str, Any], gemm: bool) -> None:
        self.width, self.tokens = params.get("width", 384), params.get("tokens", 32)
        self._gemm = gemm
        self.feeds: dict[str, Array] = {}
        self._layers: list[Line] = []
        self._parts: list[bytes] = []

    def _layer(self, kind: str, bottoms: list[str], params: str, weights: bytes = b"") -> str:
        name = f"v{len(self._layers)}"
        self._layers.append((kind, bottoms, [name], params))
        self._parts.append(weights)
        return name

    def input(self, name: str, value: Array) -> str:
        self.feeds[name] = value[0] if value.ndim == 4 else value
        self._layers.append(("Input", [], [name], ""))
        self._parts.append(b"")
        return name

    def embed(self, ids: str, table: Array) -> str:
        rows, columns = table.shape
        params = f"0={columns} 1={rows} 2=0 3={table.size}"
        return self._layer("Embed", [ids], params, _tagged(table))

    def linear(self, x: str, w: Array, bias: Array | None) -> str:
        if self._gemm and bias is not None:
            params = f"2=0 3=0 4=0 5=1 6=1 7=0 8={w.shape[1]} 9={w.shape[0]} 10=4"
            return self._layer("Gemm", [x], params, _tagged(w) + _tagged(bias))
        weight = w if bias is None else w.T
        params = f"0={weight.shape[0]} 1={int(bias is not None)} 2={w.size}"
        return self._layer("InnerProduct", [x], params, _tagged(weight) + _raw(bias))

    def layer_norm(self, x: str, scale: Array, shift: Array) -> str:
        params = f"0={scale.size} 1={EPSILON:f} 2=1"
        return self._layer("LayerNorm", [x], params, _raw(scale, shift))

    def gelu(self, x: str) -> str:
        return self._layer("GELU", [x], "0=0")

    def relu(self, x: str) -> str:
        return self._layer("ReLU", [x], "")

    def relu6(self, x: str) -> str:
        return self._layer("Clip", [x], "0=0 1=6")

    def add(self, a: str, b: str) -> str:
        return self._layer("BinaryOp", [a, b], "0=0")

    def attention(
        self, q: str, k: str, v: str, batch: int, heads: int, causal: bool = False
    ) -> str:
        each = self.width // heads

        def split(x: str) -> str:
            if batch == 1:
                shaped = self._layer("Reshape", [x], f"0={each} 1={heads} 2=-1")
                return self._layer("Permute", [shaped], "0=2")
            shaped = self._layer("Reshape", [x], f"0={each} 1={heads} 11=-1 2={batch}")
            permuted = self._layer("Permute", [shaped], "0=2")  # h and d change places
            return self._layer("Reshape", [permuted], f"0={each} 1={self.tokens} 2=-1")

        parts = [split(q), split(k), split(v)]
        if causal:
            later = _raw(later_of(self.tokens))
            parts.append(self._layer("MemoryData", [], f"0={self.tokens} 1={self.tokens}", later))
        seen = self._layer("SDPA", parts, f"5={int(causal)} 7=0")
        if batch == 1:
            permuted = self._layer("Permute", [seen], "0=2")
        else:
            shaped = self._layer(
                "Reshape", [seen], f"0={each} 1={self.tokens} 11={heads} 2={batch}"
            )
            permuted = self._layer("Permute", [shaped], "0=2")
        return self._layer("Reshape", [permuted], f"0={self.width} 1=-1")

    def causal_attention(self, q: str, k: str, v: str, batch: int, heads: int) -> str:
        return self.attention(q, k, v, batch, heads, causal=True)

    def last(self, x: str) -> str:
        return self._layer("Crop", [x], f"0=0 1={self.tokens - 1} 3={self.width} 4=1")

    def mean(self, x: str, batch: int) -> str:
        shaped = self._layer("Reshape", [x], f"0={self.width} 1={self.tokens} 2={batch}")
        return self._layer("Reduction", [shaped], "0=3 1=0 -23303=1,1 4=0 5=1")

    def grow(self, cached: Array, new: str) -> str:
        rows, columns = cached.shape
        data = self._layer("MemoryData", [], f"0={columns} 1={rows}", _raw(cached))
        return self._layer("Concat", [data, new], "0=0")

    def conv(self, x: str, w: Array, bias: Array, stride: int, pad: int, groups: int = 1) -> str:
        params = f"0={w.shape[0]} 1={w.shape[2]} 3={stride} 4={pad} 5=1 6={w.size}"
        parts = _tagged(w) + _raw(bias)
        if groups == 1:
            return self._layer("Convolution", [x], params, parts)
        return self._layer("ConvolutionDepthWise", [x], f"{params} 7={groups}", parts)

    def max_pool(self, x: str, kernel: int, stride: int, pad: int) -> str:
        return self._layer("Pooling", [x], f"0=0 1={kernel} 2={stride} 3={pad} 5=1")

    def pool(self, x: str) -> str:
        return self._layer("Pooling", [x], "0=1 4=1")

    def finish(self) -> tuple[str, bytes]:
        """Return the text and the weights. A blob has one reader: those of several are split."""
        readers: dict[str, int] = {}
        for _, bottoms, _, _ in self._layers:
            for name in bottoms:
                readers[name] = readers.get(name, 0) + 1
        left = {n: [f"{n}_{i}" for i in range(count)] for n, count in readers.items() if count > 1}
        lines: list[Line] = []
        for kind, bottoms, tops, params in self._layers:
            taken = [left[n].pop() if n in left else n for n in bottoms]
            lines.append((kind, taken, tops, params))
            lines += [("Split", [n], list(left[n]), "") for n in tops if n in left]
        return text_of(lines), b"".join(self._parts)


def text_of(lines: Sequence[Line]) -> str:
    """Return ncnn's text of layers."""
    blobs = sum(len(tops) for _, _, tops, _ in lines)
    text = f"7767517\n{len(lines)} {blobs}\n"
    for number, (kind, bottoms, tops, params) in enumerate(lines):
        joined = " ".join([*bottoms, *tops])
        text += f"{kind} n{number} {len(bottoms)} {len(tops)} {joined} {params}\n"
    return text


def _tagged(array: Array) -> bytes:
    return struct.pack("<I", 0) + _raw(array)


def _raw(*arrays: Array | None) -> bytes:
    return b"".join(np.ascontiguousarray(a, "<f4").tobytes() for a in arrays if a is not None)

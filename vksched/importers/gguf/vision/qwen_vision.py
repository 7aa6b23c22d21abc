"""QwenVision: builds the graph of the encoders of pictures of Qwen 2 VL, 2.5 VL and 3 VL.

    pixels -> patches -> linear -> layers -> norm -> squares of patches -> linear, GELU, linear

    a layer:  x -> norm -> attention of rotated patches -> add -> norm -> feed-forward -> add

Patches are in the order of their squares. 2.5 VL has attention within windows in most layers, RMS
norms, and a gated feed-forward. 3 VL adds positions from a table, interpolated to the picture, and
merges the output of some layers for the first layers of the language model.

Sources: https://arxiv.org/abs/2409.12191, https://arxiv.org/abs/2502.13923
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....common.dtypes import NDArray
from ....ir.name_scope import name_scope
from ....ir.tensor import Tensor, constant
from ....ops import (
    attention,
    concat,
    gather,
    gelu,
    layer_norm,
    linear,
    reshape,
    rms_norm,
    rotary_embedding,
    sigmoid,
    silu,
    split,
    transpose,
)
from ..architectures.weights import Weights
from .vision_hparams import CHANNELS, VisionHParams

BASE = 10000.0
"""The rotary base."""
MERGER_EPS = 1e-6


def window_order(rows: int, columns: int, side: int) -> tuple[NDArray, list[tuple[int, int]]]:
    """Return squares (rows x columns, by number) in the order of their windows, and the number and
    the size of windows of each size in squares. Windows at the right and lower edges are smaller.
    """
    numbers = np.arange(rows * columns).reshape(rows, columns)
    windows = [
        numbers[top : top + side, left : left + side].ravel()
        for top in range(0, rows, side)
        for left in range(0, columns, side)
    ]
    windows.sort(key=len)
    sizes = [len(each) for each in windows]
    return np.concatenate(windows), [(sizes.count(size), size) for size in sorted(set(sizes))]


@dataclass(frozen=True)
class QwenVision:
    """The builder of the graph for pictures of one size. rows, columns: the numbers of squares."""

    hyper: VisionHParams
    weights: Weights
    rows: int
    columns: int

    def tokens(self, pixels: Tensor) -> Tensor:
        """Return the tokens of pictures, (b, rows * columns, text_width), with the rows for first
        layers after them in the last dimension.

        pixels: (b, 3, height, width), normalized.

        Raises
        ------
        ModelFormatError
            The file's tensors do not match the network.
        """
        x, deeper = self._embedded(pixels), []
        for layer in range(self.hyper.layers):
            name = f"v.blk.{layer}"
            with name_scope(name):
                x = self._layer(name, x, self._groups(layer))
                if layer in self.hyper.deepstack:
                    deeper.append(self._deeper(f"v.deepstack.{layer}", x))
        with name_scope("mm"):
            x = self._norm(x, "v.post_ln", MERGER_EPS)
            x = self._merged(self._squares(x), "mm.0", "mm.2")
        out = concat([x, *deeper], axis=2) if deeper else x
        if self._has_windows:
            out = gather(out, constant(np.argsort(self._order).astype(np.int32)), axis=1)
        self.weights.require_all("clip")
        return out

    # -- order -----------------------------------------------------------------------------------

    @property
    def _has_windows(self) -> bool:
        return self.hyper.window_every > 0

    @cached_property
    def _windows(self) -> tuple[NDArray, list[tuple[int, int]]]:
        if not self._has_windows:
            return np.arange(self.rows * self.columns), []
        side = self.hyper.window // (self.hyper.patch_size * self.hyper.pool)
        return window_order(self.rows, self.columns, side)

    @property
    def _order(self) -> NDArray:
        """The squares in the order in which they are computed."""
        return self._windows[0]

    def _groups(self, layer: int) -> list[tuple[int, int]]:
        """Return the number of parts of each size that have attention, and the size in patches."""
        hyper, area = self.hyper, self.hyper.pool**2
        if not self._has_windows or layer % hyper.window_every == hyper.window_every - 1:
            return [(1, self.rows * self.columns * area)]
        return [(count, size * area) for count, size in self._windows[1]]

    @cached_property
    def _places(self) -> NDArray:
        """The row and the column of each patch, (2, patches)."""
        pool = self.hyper.pool
        square, row, column = (
            each.ravel()
            for each in np.meshgrid(self._order, np.arange(pool), np.arange(pool), indexing="ij")
        )
        top, left = np.divmod(square, self.columns)
        return np.stack([top * pool + row, left * pool + column])

    @cached_property
    def _angles(self) -> tuple[Tensor, Tensor]:
        """cos and sin of each patch, (patches, head size / 2): rows, then columns."""
        half = self.hyper.width // self.hyper.heads // 2
        rates = BASE ** (-np.arange(0, half, 2, dtype=np.float64) / half)
        angles = np.concatenate([each[:, None] * rates for each in self._places], axis=1)
        return (
            constant(np.cos(angles).astype(np.float32)),
            constant(np.sin(angles).astype(np.float32)),
        )

    # -- layers ----------------------------------------------------------------------------------

    def _embedded(self, pixels: Tensor) -> Tensor:
        hyper, name = self.hyper, "v.patch_embd"
        side, pool, width, b = hyper.patch_size, hyper.pool, hyper.width, pixels.shape[0]
        size = CHANNELS * side * side
        with name_scope(name):
            height, breadth = self.rows * pool, self.columns * pool
            cut = reshape(pixels, (b, CHANNELS, height, side, breadth, side))
            patches = reshape(transpose(cut, (0, 2, 4, 1, 3, 5)), (b, height, breadth, size))
            patches = reshape(patches, (b, self.rows, pool, self.columns, pool, size))
            patches = transpose(patches, (0, 1, 3, 2, 4, 5))
            patches = reshape(patches, (b, self.rows * self.columns, pool * pool * size))
            if self._has_windows:
                patches = gather(patches, constant(self._order.astype(np.int32)), axis=1)
            patches = reshape(patches, (b, height * breadth, size))
            # files have a matrix for each of two frames of a video, which are equal for a picture
            shape = width, CHANNELS, side, side
            kernels = [self.weights.take(f"{name}.weight{end}", shape) for end in ("", ".1")]
            first, second = (reshape(each, (width, size)) for each in kernels)
            bias = self._optional(f"{name}.bias", width)
            x = linear(patches, first, bias) + linear(patches, second)
            return self._positioned(x) if self._has_table else x

    @property
    def _has_table(self) -> bool:
        return self.hyper.projector == "qwen3vl_merger"

    def _positioned(self, x: Tensor) -> Tensor:
        """Return patches plus their rows of the table of positions, interpolated linearly: the
        corners of the picture are those of the table.
        """
        side, pool = self.hyper.grid, self.hyper.pool
        table = self.weights.take("v.position_embd.weight", (side * side, self.hyper.width))
        taps = []
        for place, count in zip(self._places, (self.rows, self.columns), strict=True):
            at = place * ((side - 1) / max(count * pool - 1, 1))
            low = np.minimum(np.floor(at), side - 1).astype(np.int64)
            taps.append(((low, 1 - (at - low)), (np.minimum(low + 1, side - 1), at - low)))
        for row, row_share in taps[0]:
            for column, column_share in taps[1]:
                share = (row_share * column_share).astype(np.float32)[:, None]
                numbers = constant((row * side + column).astype(np.int32))
                x = x + gather(table, numbers) * constant(share)
        return x

    def _layer(self, name: str, x: Tensor, groups: list[tuple[int, int]]) -> Tensor:
        x = x + self._attention(name, self._norm(x, f"{name}.ln1"), groups)
        return x + self._feed_forward(name, self._norm(x, f"{name}.ln2"))

    def _attention(self, name: str, x: Tensor, groups: list[tuple[int, int]]) -> Tensor:
        width, heads = self.hyper.width, self.hyper.heads
        if f"{name}.attn_qkv.weight" in self.weights:
            q, k, v = split(self._linear(x, f"{name}.attn_qkv", 3 * width), [width] * 3, 2)
        else:
            q, k, v = (self._linear(x, f"{name}.attn_{which}", width) for which in "qkv")
        b, n, _ = x.shape
        q, k, v = (
            transpose(reshape(each, (b, n, heads, width // heads)), (0, 2, 1, 3))
            for each in (q, k, v)
        )
        q, k = (rotary_embedding(each, *self._angles) for each in (q, k))
        parts, start = [], 0
        for count, size in groups:
            own = (self._cut(each, start, count, size) for each in (q, k, v))
            seen = reshape(transpose(attention(*own), (0, 2, 1, 3)), (b, count * size, width))
            parts.append(seen)
            start += count * size
        joined = concat(parts, axis=1) if len(parts) > 1 else parts[0]
        return self._linear(joined, f"{name}.attn_out", width)

    def _cut(self, x: Tensor, start: int, count: int, size: int) -> Tensor:
        """Return some windows of x (b, heads, n, d), (b * count, heads, size, d)."""
        b, heads, n, d = x.shape
        if count * size < n:
            x = x[:, :, start : start + count * size]
        if count == 1:
            return x
        cut = transpose(reshape(x, (b, heads, count, size, d)), (0, 2, 1, 3, 4))
        return reshape(cut, (b * count, heads, size, d))

    def _feed_forward(self, name: str, x: Tensor) -> Tensor:
        width, gate = self.hyper.width, f"{name}.ffn_gate"
        up, down = f"{name}.ffn_up", f"{name}.ffn_down"
        if self.weights.rows(f"{up}.weight") == width:
            up, down = down, up  # older converters have the names the other way round
        size = self.weights.rows(f"{up}.weight")
        inner = self._linear(x, up, size)
        if self.hyper.projector == "qwen2.5vl_merger":
            inner = silu(self._linear(x, gate, size)) * inner
        elif self.hyper.projector == "qwen2vl_merger":
            inner = inner * sigmoid(inner * 1.702)
        else:
            inner = gelu(inner, approximate="tanh")
        return self._linear(inner, down, width)

    # -- tokens ----------------------------------------------------------------------------------

    def _squares(self, x: Tensor) -> Tensor:
        """Return the patches of each square side by side, (b, rows * columns, 4 * width)."""
        b, n, width = x.shape
        area = self.hyper.pool**2
        return reshape(x, (b, n // area, area * width))

    def _deeper(self, name: str, x: Tensor) -> Tensor:
        """Return the rows for a layer of the language model."""
        x = self._norm(self._squares(x), f"{name}.norm", MERGER_EPS)
        return self._merged(x, f"{name}.fc1", f"{name}.fc2")

    def _merged(self, x: Tensor, first: str, second: str) -> Tensor:
        inner = gelu(self._linear(x, first, x.shape[2]))
        return self._linear(inner, second, self.hyper.text_width)

    def _linear(self, x: Tensor, name: str, size: int) -> Tensor:
        weight = self.weights.take(f"{name}.weight", (size, x.shape[-1]))
        return linear(x, weight, self._optional(f"{name}.bias", size))

    def _norm(self, x: Tensor, name: str, eps: float = 0.0) -> Tensor:
        size, eps = x.shape[-1], eps or self.hyper.eps
        scale = self.weights.take(f"{name}.weight", (size,))
        if self.hyper.projector == "qwen2.5vl_merger":
            return rms_norm(x, scale, eps=eps)
        return layer_norm(x, scale, self.weights.take(f"{name}.bias", (size,)), eps=eps)

    def _optional(self, name: str, size: int) -> Tensor | None:
        return self.weights.take(name, (size,)) if name in self.weights else None

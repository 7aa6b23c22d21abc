"""Split KV expansion: the matrices that expand compressed keys and values, from one tensor of both.

    attn_kv_b (heads * (k + v), rank)  -->  attn_k_b (heads, rank, k), transposed, as float32
                                       '->  attn_v_b (heads, v, rank), the same blocks of the file

Files from before latent attention was computed without expansion have this tensor. Examples:
tests/importers/test_gguf_latent.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ....common.dtypes import NDArray, Shape
from ....storage.lazy_array import FileSlice
from ..read.dequantize import dequantize
from ..read.tensors import GgufTensor

KEYS, VALUES, BOTH = "attn_k_b.weight", "attn_v_b.weight", "attn_kv_b.weight"


def half_of(tensors: Mapping[str, GgufTensor], name: str, shape: Shape) -> GgufTensor | None:
    """Return the keys' or the values' part of a tensor with both; None if the file has no tensor
    for this name and shape.
    """
    layer = name.removesuffix(KEYS).removesuffix(VALUES)
    both = tensors.get(layer + BOTH)
    if layer == name or both is None or len(shape) != 3 or len(both.shape) != 2:
        return None
    is_keys = name.endswith(KEYS)
    heads, rank, size = shape if is_keys else (shape[0], shape[2], shape[1])
    rows = both.shape[0] // heads
    if both.shape != (heads * rows, rank) or not 0 < size < rows:
        return None
    if is_keys:
        return GgufTensor(name, shape, "F32", _Transposed(both, heads, size))
    return GgufTensor(name, shape, both.type, _Rows(both, heads, rows - size, size))


class _Rows(FileSlice):
    """The bytes of some rows of each head. each, skipped, own: the bytes of a head in the file, and
    of its rows before these and of these.
    """

    def __init__(self, both: GgufTensor, heads: int, first: int, count: int) -> None:
        row = both.nbytes // both.shape[0]
        self._both, self._each = both, both.nbytes // heads
        self._skipped, self._own = first * row, count * row
        self.size = heads * self._own

    def read(self, start: int, out: NDArray) -> None:
        blocks = self._both.blocks
        while out.size:
            head, done = divmod(start, self._own)
            count, at = min(self._own - done, out.size), head * self._each + self._skipped + done
            if isinstance(blocks, memoryview):
                out[:count] = np.frombuffer(blocks, np.uint8)[at : at + count]
            else:
                blocks.read(at, out[:count])
            out, start = out[count:], start + count


class _Transposed(FileSlice):
    """The bytes of the first `count` rows of each head as float32, transposed."""

    def __init__(self, both: GgufTensor, heads: int, count: int) -> None:
        self._rows, self._both = _Rows(both, heads, 0, count), both
        self._shape = count, both.shape[1]
        self._head = 4 * math.prod(self._shape)
        self.size = heads * self._head

    def read(self, start: int, out: NDArray) -> None:
        while out.size:
            head, done = divmod(start, self._head)
            count = min(self._head - done, out.size)
            out[:count] = self._of_head(head)[done : done + count]
            out, start = out[count:], start + count

    def _of_head(self, head: int) -> NDArray:
        blocks: NDArray = np.empty(self._rows.size * self._head // self.size, np.uint8)
        self._rows.read(head * blocks.size, blocks)
        values = dequantize(self._both.name, self._both.type, self._shape, blocks.data)
        return np.ascontiguousarray(values.T, np.float32).reshape(-1).view(np.uint8)

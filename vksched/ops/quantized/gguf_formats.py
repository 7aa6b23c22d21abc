"""Quantization formats of GGUF files: how the blocks and headers of each format are decoded.

    a file's bytes -> blocks -> quantized values, scales -> words, in the layout of quant_layout.py

Sources: ggml's ggml-quants.c; `gguf.quants` as the oracle. Examples:
tests/ops/test_gguf_formats.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ...common.dtypes import NDArray, Shape
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import OneOf
from ...ir.cpu_kernel import BLOCK, rows_of_piece
from ...storage.lazy_array import ArrayLike, FileSlice, LazyArray, lazy_bytes
from ..lowering import native_kernels
from .quant_layout import BlockFormat, FloatFormat, Format, Parts, check_columns

# -- blocks of a file ----------------------------------------------------------------------------


def _nibbles(parts: NDArray) -> NDArray:
    """Return the lower nibbles of bytes, then the upper ones: (..., bytes) -> (..., 2 bytes)."""
    four: NDArray = np.ascontiguousarray(parts).view(np.uint32)  # shift four bytes at once
    out = np.empty((*four.shape[:-1], 2, four.shape[-1]), np.uint32)
    np.copyto(out[..., 0, :], four)
    np.right_shift(four, np.uint32(4), out=out[..., 1, :])
    out &= np.uint32(0x0F0F0F0F)
    return out.view(np.uint8).reshape(*parts.shape[:-1], -1)


def _bits(parts: NDArray, bits: int) -> NDArray:
    """Return the lowest bits of bytes, then the next: (..., bytes) -> (..., 8 / bits * bytes)."""
    mask = np.uint8((1 << bits) - 1)
    return np.concatenate([parts >> np.uint8(s) & mask for s in range(0, 8, bits)], axis=-1)


def _as_u32(parts: NDArray) -> NDArray:
    """Return the bytes of a tile as words: (..., blocks, bytes) -> (..., words)."""
    words: NDArray = np.ascontiguousarray(parts).reshape(*parts.shape[:-2], -1).view(np.uint32)
    return words


def _block32_decoder(scale_bytes: int, low: int, high: bool = False) -> Callable[[NDArray], Parts]:
    """Return the decoder of blocks of 32 values: scales, optional high bits in a word, low bits.

    Each scale has `scale_bytes` bytes.
    """

    def split(raw: NDArray) -> Parts:
        at = scale_bytes + 4 * high
        quants = raw[..., at:] ^ np.uint8(128) if low == 8 else _nibbles(raw[..., at:])
        if high:
            bits = np.unpackbits(raw[..., scale_bytes:at], axis=-1, bitorder="little")
            quants = quants | bits << np.uint8(4)
        return quants, _as_u32(raw[..., :scale_bytes])

    return split


def _six_bits(raw: NDArray) -> tuple[NDArray, NDArray]:
    """Return scales and minima of q4_K and q5_K: (..., 12) bytes -> (..., 8) each."""
    d, m, both = raw[..., :4], raw[..., 4:8], raw[..., 8:]
    scales = np.concatenate([d & 63, both & 15 | d >> 2 & 48], axis=-1)
    return scales, np.concatenate([m & 63, both >> 4 | m >> 2 & 48], axis=-1)


def _shifted(parts: NDArray, bits: int) -> NDArray:
    """Pack values into a word, the first in its lowest bits: (..., n) -> (...)."""
    shifts = np.arange(parts.shape[-1], dtype=np.uint32) * np.uint32(bits)
    joined: NDArray = np.bitwise_or.reduce(parts.astype(np.uint32) << shifts, axis=-1)
    return joined


def _split_k45(raw: NDArray) -> Parts:
    """Decode q4_K or q5_K. Header: super-block scales, low bits of scales and minima, high bits."""
    block = raw[..., 0, :]
    five = block.shape[-1] > 144
    quants = _nibbles(block[..., 16 + 32 * five :].reshape(*block.shape[:-1], 4, 32))
    quants = quants.reshape(*block.shape[:-1], 8, 32)
    if five:
        high = _bits(block[..., 16:48], 1).reshape(quants.shape)
        quants = quants | high << np.uint8(4)
    scales, minima = _six_bits(block[..., 4:16])
    words = (
        *(block[..., :4].copy().view(np.uint32)[..., 0], _shifted(scales & 15, 4)),
        *(_shifted(minima & 15, 4), _shifted(scales >> 4 | minima >> 4 << 2, 4)),
    )
    return quants, np.stack(words, axis=-1)


def _split_q6_k(raw: NDArray) -> Parts:
    """Decode q6_K. Header: 16 scales of 8 bits, a word with the super-block scale, padding."""
    block = raw[..., 0, :]
    lead = block.shape[:-1]
    low = _nibbles(block[..., :128].reshape(*lead, 2, 64))
    high = _bits(block[..., 128:192].reshape(*lead, 2, 32), 2)
    head = np.zeros((*lead, 24), np.uint8)
    head[..., :18] = block[..., 192:]
    return low | high << np.uint8(4), head.view(np.uint32)


def _split_q2_k(raw: NDArray) -> Parts:
    """Decode q2_K. Header: 16 scales and minima of 4 bits, super-block scales, padding."""
    block = raw[..., 0, :]
    head = np.zeros((*block.shape[:-1], 24), np.uint8)
    head[..., :16], head[..., 16:20] = block[..., :16], block[..., 80:]
    return _bits(block[..., 16:80].reshape(*block.shape[:-1], 2, 32), 2), head.view(np.uint32)


def _split_q3_k(raw: NDArray) -> Parts:
    """Decode q3_K. Header: low bits of 16 scales, their high bits, and the super-block scale."""
    block = raw[..., 0, :]
    lead = block.shape[:-1]
    low = _bits(block[..., 32:96].reshape(*lead, 2, 32), 2).reshape(*lead, 8, 32)
    high = _bits(block[..., :32], 1).reshape(*lead, 8, 32)
    scales = _nibbles(block[..., 96:104])
    words = (
        *(_shifted(scales[..., :8], 4), _shifted(scales[..., 8:], 4)),
        *(_shifted(_bits(block[..., 104:108], 2), 2), _shifted(block[..., 108:], 8)),
    )
    return low | high << np.uint8(2), np.stack(words, axis=-1)


def _split_iq4_xs(raw: NDArray) -> Parts:
    """Decode iq4_xs. Header: the super-block scale, high bits of 8 scales, then their low bits."""
    block = raw[..., 0, :]
    quants = _nibbles(block[..., 8:].reshape(*block.shape[:-1], 8, 16))
    return quants, block[..., :8].copy().view(np.uint32)


# -- headers -------------------------------------------------------------------------------------

Scales = tuple[NDArray, "NDArray | None"]


def _twice(of_runs: NDArray) -> NDArray:
    return np.repeat(of_runs, 2, axis=-1)


def _wide(fp16: NDArray) -> NDArray:
    """Convert the bits of float16 to float32."""
    return fp16.astype(np.uint16).view(np.float16).astype(np.float32)


def _each(word: NDArray, bits: int, count: int = 8) -> NDArray:
    """Unpack `count` values of a word: (...) -> (..., count)."""
    shifts = np.arange(count, dtype=np.uint32) * np.uint32(bits)
    parts: NDArray = word[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return parts


def _fp16_scales(head: NDArray) -> Scales:
    return _twice(np.ascontiguousarray(head).view(np.float16).astype(np.float32)), None


def _pairs(head: NDArray) -> Scales:
    return _twice(_wide(head & 0xFFFF)), _twice(_wide(head >> 16))


def _scales_k45(head: NDArray) -> Scales:
    high = _each(head[..., 3], 4)
    scales = _each(head[..., 1], 4) | (high & 3) << 4
    minima = _each(head[..., 2], 4) | high >> 2 << 4
    both = _wide(head[..., :1] & 0xFFFF), _wide(head[..., :1] >> 16)
    scale, least = (a * b.astype(np.float32) for a, b in zip(both, (scales, minima), strict=True))
    return _twice(scale), -_twice(least)


def _scales_q6_k(head: NDArray) -> Scales:
    scales = np.ascontiguousarray(head[..., :4]).view(np.int8).astype(np.float32)
    return scales * _wide(head[..., 4:5] & 0xFFFF), None


def _scales_q2_k(head: NDArray) -> Scales:
    both = np.ascontiguousarray(head[..., :4]).view(np.uint8)
    scale, least = _wide(head[..., 4:5] & 0xFFFF), _wide(head[..., 4:5] >> 16)
    minima = (both >> np.uint8(4)).astype(np.float32)
    return scale * (both & np.uint8(15)).astype(np.float32), -(least * minima)


def _scales_q3_k(head: NDArray) -> Scales:
    low = np.concatenate([_each(head[..., 0], 4), _each(head[..., 1], 4)], axis=-1)
    scales = (low | _each(head[..., 2], 2, 16) << 4).astype(np.float32) - np.float32(32)
    return _wide(head[..., 3:4] & 0xFFFF) * scales, None


def _scales_iq4_xs(head: NDArray) -> Scales:
    scales = _each(head[..., 1], 4) | _each(head[..., 0] >> 16, 2) << 4
    scale = _wide(head[..., :1] & 0xFFFF)
    return _twice(scale * (scales.astype(np.float32) - np.float32(32))), None


def _scales_mxfp4(head: NDArray) -> Scales:
    """Return powers of two, halved because the table holds doubled values: 2^(e - 128)."""
    powers = np.ascontiguousarray(head).view(np.uint8).astype(np.uint32)
    small = np.uint32(0x00200000) << np.minimum(powers, 1)
    bits = np.where(powers < 2, small, (np.maximum(powers, 1) - 1) << np.uint32(23))
    return _twice(bits.astype(np.uint32).view(np.float32)), None


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _from_bfloat16(bits: NDArray) -> NDArray:
    values: NDArray = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        FloatFormat("f16", 1, 1, 2, 16, 0, 0, _wide),
        FloatFormat("bf16", 30, 1, 2, 16, 0, 0, _from_bfloat16),
        BlockFormat("q8_0", 8, 32, 34, 8, 0, 4, _block32_decoder(2, 8), _fp16_scales, zero=128),
        BlockFormat("q4_0", 2, 32, 18, 4, 0, 4, _block32_decoder(2, 4), _fp16_scales, zero=8),
        BlockFormat("q4_1", 3, 32, 20, 4, 0, 8, _block32_decoder(4, 4), _pairs, shifts=True),
        BlockFormat(
            "q5_0", 6, 32, 22, 4, 1, 4, _block32_decoder(2, 4, True), _fp16_scales, zero=16
        ),
        BlockFormat("q5_1", 7, 32, 24, 4, 1, 8, _block32_decoder(4, 4, True), _pairs, shifts=True),
        BlockFormat("q2_K", 10, 256, 84, 2, 0, 6, _split_q2_k, _scales_q2_k, shifts=True, parts=2),
        BlockFormat("q3_K", 11, 256, 110, 2, 1, 4, _split_q3_k, _scales_q3_k, zero=4, parts=2),
        BlockFormat("q4_K", 12, 256, 144, 4, 0, 4, _split_k45, _scales_k45, shifts=True),
        BlockFormat("q5_K", 13, 256, 176, 4, 1, 4, _split_k45, _scales_k45, shifts=True),
        BlockFormat("q6_K", 14, 256, 210, 4, 2, 6, _split_q6_k, _scales_q6_k, zero=32, parts=2),
        BlockFormat(
            "iq4_nl", 20, 32, 18, 4, 0, 4, _block32_decoder(2, 4), _fp16_scales, table=_IQ4
        ),
        BlockFormat("iq4_xs", 23, 256, 136, 4, 0, 2, _split_iq4_xs, _scales_iq4_xs, table=_IQ4),
        BlockFormat(
            "mxfp4", 39, 32, 17, 4, 0, 2, _block32_decoder(1, 4), _scales_mxfp4, table=_E2M1
        ),
    )
}
"""Formats by name."""
_NUMBERED = {kind.number: kind for kind in FORMATS.values()}

READ_BYTES = 1 << 18
"""Bytes of a file that are read at a time."""

# -- by name ---------------------------------------------------------------------------------------


FORMAT = OneOf(tuple(FORMATS), True)
"""The domain of an attribute that names a format."""


def format_of(name: object) -> Format:
    """Return a format by its name.

    Raises
    ------
    DTypeError
        If the name is unknown.
    """
    if not isinstance(name, str) or name not in FORMATS:
        raise DTypeError(f"[format] expected one of {', '.join(FORMATS)}, got {name!r}")
    return FORMATS[name]


def numbered(number: int) -> Format | None:
    """Return the format with this ggml type number, or None if there is none."""
    return _NUMBERED.get(number)


def repack(name: str, blocks: Any, shape: Shape) -> NDArray:
    """Return a weight as words, uint32 (..., words), converted by several threads.

    Parameters
    ----------
    name : str
        Name of a format.
    blocks : bytes or FileSlice
        Contiguous rows of the weight, as in a GGUF file.
    shape : tuple of int
        (..., columns), in values.
    """
    held = pack_u32(name, blocks, shape)
    if not isinstance(held, LazyArray):
        return held
    words: NDArray = np.empty(held.shape, held.dtype)
    flat, step = words.reshape(-1), BLOCK // 4
    pieces = [(flat[start : start + step], start) for start in range(0, flat.size, step)]
    with ThreadPoolExecutor(max(1, min(len(pieces), os.cpu_count() or 1))) as pool:
        list(pool.map(held.write_to, *zip(*pieces, strict=True)))
    return words


def pack_u32(name: str, blocks: Any, shape: Shape) -> ArrayLike:
    """Return the words of `repack` as a lazy array.

    `blocks`, bytes or FileSlice, must not change. The words of float formats are the file's bytes,
    so the result is a view of these.
    """
    kind = format_of(name)
    if len(shape) < 2:
        raise ShapeError(f"[repack] expected two sizes or more, got {shape}; try (1, columns)")
    rows, columns = math.prod(shape[:-1]), shape[-1]
    check_columns(kind, columns)
    raw = blocks if isinstance(blocks, FileSlice) else _as_bytes(blocks)
    row_bytes, words_shape = kind.row_bytes(columns), (*shape[:-1], kind.row_words(columns))
    if raw.size != rows * row_bytes:
        raise ShapeError(
            f"[repack] expected {rows * row_bytes} bytes for {shape} of {name}, got {raw.size}"
        )
    if isinstance(raw, FileSlice):
        if isinstance(kind, FloatFormat):
            return lazy_bytes(raw, words_shape, np.uint32)
        return Repacked(kind, shape, words_shape, raw)
    raw = raw.reshape(rows, row_bytes)
    if isinstance(kind, FloatFormat):
        return kind.pack_u32(raw, columns).reshape(words_shape)
    return LazyArray(
        words_shape, lambda at, out: _repack_rows(kind, columns, raw[at : at + len(out)], out)
    )


R = TypeVar("R", bound="Repacked")


class Repacked(LazyArray):
    """Words of blocks in a file, repacked lazily. `values` is the dequantized weight's shape."""

    def __init__(self, kind: Format, values: Shape, shape: Shape, blocks: FileSlice) -> None:
        columns = values[-1]
        super().__init__(
            shape,
            partial(_repack_from_file, kind, columns, blocks),
            origin=partial(blocks.origin, values, blocks=kind.name),
        )
        self.place, self.require = blocks.place, blocks.require
        self._name, self._row_bytes = kind.name, kind.row_bytes(columns)

    def part(self, out: NDArray, first: int = 0) -> native_kernels.FilePart:
        """Return the rows from `first` on, to be written to `out`, for `loops.repack_file`."""
        assert self.place is not None
        file, start = self.place
        rows = out.reshape(-1, self.shape[-1])
        return file, start + first * self._row_bytes, self._name, self._row_bytes, rows

    @classmethod
    def write_rows(cls: type[R], parts: Sequence[tuple[R, int, NDArray]]) -> None:
        """Write rows; native loops read all parts of a file in one call."""
        by_file: dict[int | None, list[tuple[R, int, NDArray]]] = {}
        for part in parts:
            place = part[0].place if native_kernels.has_repack_file() else None
            by_file.setdefault(place[0] if place is not None else None, []).append(part)
        left = by_file.pop(None, [])
        for some in by_file.values():
            read = native_kernels.repack_file([array.part(out, row) for array, row, out in some])
            left += some[read:]
            some[0][0].require()
        super().write_rows(left)  # raises the error of a truncated file


def _as_bytes(blocks: Any) -> NDArray:
    data = blocks if isinstance(blocks, np.ndarray) else np.frombuffer(blocks, np.uint8)
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def _repack_from_file(
    kind: Format, columns: int, blocks: FileSlice, first: int, out: NDArray
) -> None:
    """Write rows from `first` on, read in pieces that fit into a core's cache."""
    row_bytes = kind.row_bytes(columns)
    step = max(1, READ_BYTES // row_bytes)
    piece: NDArray = np.empty((min(step, len(out)), row_bytes), np.uint8)
    for at in range(0, len(out), step):
        raw = piece[: len(out) - at]
        blocks.read((first + at) * row_bytes, raw.reshape(-1))
        _repack_rows(kind, columns, raw, out[at : at + step])


def _repack_rows(kind: Format, columns: int, raw: NDArray, out: NDArray) -> None:
    """Convert the bytes of rows to words."""
    if native_kernels.repack(kind.name, raw, out):
        return
    step = rows_of_piece(len(out), len(out) * columns)
    for at in range(0, len(out), step):
        out[at : at + step] = kind.pack_u32(raw[at : at + step], columns)


def unpacked(name: str, words: NDArray, columns: int) -> NDArray:
    """Dequantize words to float32 (..., columns), bitwise equal to `gguf.quants`."""
    values = format_of(name).values_of(words.reshape(-1, words.shape[-1]), columns)
    return np.ascontiguousarray(values).reshape(*words.shape[:-1], columns)

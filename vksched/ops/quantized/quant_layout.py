"""Memory layout of quantized weights on devices: 32-bit words, row by row.

    row     tile | tile | tile | last tile, shorter     a tile holds 256 values
    tile    header | high bits | low bits               all of them whole words
    run     32 values of a tile: a part of each, in which value 4 i + c is entry i of column c

    low bits, 4 and 8   a column after the other, entry 0 in the lowest bits
    2, and high bits    words of bytes: byte j has entry 2 j of all columns, column 0 in the lowest
                        bits; behind these (1 bit), or in a second word (2), is entry 2 j + 1

A value is scale * quantized value (+ shift). Quantized values are divided into low bits (2, 4 or 8)
and high bits (0, 1 or 2). A mask thus extracts four neighbors of four words, or four entries of a
column, and a shift combines high bits with low bits. The header holds the scales, in as few bits as
in the file. Kernels read four words at once. If a header is not a multiple of four words, its last
two words, the tail, are stored separately:

    pair of tiles   tail | tail | tile | tile           the last pair may lack its second tile

A weight is as large as in its file, plus up to 3 % (q2_K: 5 %) for padded headers, up to one header
for rows that are not a multiple of 256, and two words for an odd number of tiles with tails. A run
of f16 or bf16 is its 32 values in order: the file's bytes are the words.

Formats: gguf_formats.py. Examples: tests/ops/test_gguf_formats.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...common.dtypes import UINT32, NDArray, TensorType
from ...common.errors import DTypeError, ShapeError

TILE = 256
"""Values of a tile."""
RUN = 32
"""Values of a run."""
RUNS = TILE // RUN
HALF_RUN = 16
"""Values that share a scale in some formats."""
_COLUMNS = {4: np.uint32, 8: np.uint64}
"""Type that holds the eight entries of a column, by the bits of an entry."""

Parts = tuple[NDArray, NDArray]
"""Decoded blocks: quantized values (..., values), and words of the header (..., words)."""


@dataclass(frozen=True)
class Format:
    """A quantization format, as data.

    Attributes
    ----------
    number : int
        Type number in ggml.
    values, block_bytes : int
        Values and bytes of a block in the file.
    low, high : int
        Low and high bits of a quantized value.
    head : int
        Words of a tile's header.
    """

    name: str
    number: int
    values: int
    block_bytes: int
    low: int
    high: int
    head: int

    @cached_property
    def step(self) -> int:
        """Return the number of which the values of a row are a multiple."""
        return max(self.values, RUN)

    @cached_property
    def tail(self) -> int:
        """Return the words of a header that are stored in front of a pair of tiles: two or none."""
        return self.head % 4

    @cached_property
    def whole(self) -> int:
        """Return the unit in which rows can be split, in values: a tile or a pair of tiles."""
        return 2 * TILE if self.tail else TILE

    @cached_property
    def tile_words(self) -> int:
        """Return the words of a whole tile without its tail."""
        return self.head - self.tail + RUNS * (self.high + self.low)

    def row_words(self, columns: int) -> int:
        """Return the words of a row of `columns` values."""
        tiles = -(-columns // TILE)
        missing = (tiles * TILE - columns) // RUN
        return tiles * self.tile_words + -(-tiles // 2) * 2 * self.tail - missing * self.low

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row in the file."""
        return columns // self.values * self.block_bytes

    @property
    def sums(self) -> int:
        """Return the sums of x that products by quantized values need for each run."""
        raise NotImplementedError

    def pack_u32(self, raw: NDArray, columns: int) -> NDArray:
        """Convert rows from the file's bytes (rows, bytes) to words (rows, words)."""
        raise NotImplementedError

    def values_of(self, words: NDArray, columns: int) -> NDArray:
        """Dequantize the words of rows to float32 (rows, columns)."""
        raise NotImplementedError


@dataclass(frozen=True)
class FloatFormat(Format):
    """16-bit floats, two in a word: a row is bitwise equal to the file's bytes.

    `widen` converts bits, uint16, to float32.
    """

    widen: Callable[[NDArray], NDArray]

    @property
    def sums(self) -> int:
        return 0

    def pack_u32(self, raw: NDArray, columns: int) -> NDArray:
        return raw.view(np.uint32)

    def values_of(self, words: NDArray, columns: int) -> NDArray:
        return self.widen(np.ascontiguousarray(words).view(np.uint16))


@dataclass(frozen=True)
class BlockFormat(Format):
    """Blocks of quantized values that share scales.

    Attributes
    ----------
    split : callable
        Decodes blocks.
    scales : callable
        Converts the header (..., words) to the scale and shift (or None) of each half run, (...,
        16).
    zero : int
        Zero point of the stored values, which are never negative.
    shifts : bool
        Whether values have a shift.
    parts : int
        Parts of a run with their own scale: 1 or 2.
    table : ndarray, optional
        Codebook of the quantized values, if they are indices.
    """

    split: Callable[[NDArray], Parts]
    scales: Callable[[NDArray], tuple[NDArray, NDArray | None]]
    zero: int = 0
    shifts: bool = False
    parts: int = 1
    table: tuple[int, ...] = ()

    @property
    def sums(self) -> int:
        return 0 if self.table else (1 + self.shifts) * self.parts

    @property
    def is_signed(self) -> bool:
        """Return True if quantized values are stored in two's complement, without a zero point."""
        return self.zero == 1 << (self.low - 1) and not self.high

    def pack_u32(self, raw: NDArray, columns: int) -> NDArray:
        rows, tiles, each = len(raw), -(-columns // TILE), TILE // self.values
        blocks = raw.reshape(rows, -1, self.block_bytes)
        missing = tiles * each - blocks.shape[1]
        if missing:  # pad the last tile with zero blocks, which are cropped below
            none = np.zeros((rows, missing, self.block_bytes), np.uint8)
            blocks = np.concatenate([blocks, none], axis=1)
        quants, head = self.split(blocks.reshape(rows, tiles, each, self.block_bytes))
        if self.is_signed:
            quants = quants ^ np.uint8(self.zero)
        quants = quants.reshape(rows, tiles, RUNS, 8, 4)
        front = self.head - self.tail
        parts = [head[..., :front]]
        if self.high:
            parts.append(_packed(quants >> np.uint8(self.low), self.high))
            quants = quants & np.uint8((1 << self.low) - 1)
        parts.append(_packed(quants, self.low))
        words = np.concatenate(parts, axis=-1, dtype=np.uint32, casting="unsafe")
        if self.tail:
            words = np.concatenate([_paired(head[..., front:]), _paired(words)], axis=-1)
        return words.reshape(rows, -1)[:, : self.row_words(columns)]

    def values_of(self, words: NDArray, columns: int) -> NDArray:
        tiles = -(-columns // TILE)
        whole = tiles + tiles % 2 if self.tail else tiles
        filled: NDArray = np.zeros((len(words), self.row_words(whole * TILE)), np.uint32)
        filled[:, : words.shape[1]] = words
        front, low = self.head - self.tail, self.head - self.tail + RUNS * self.high
        tails = filled[:, :0]
        if self.tail:
            pairs = filled.reshape(len(words), whole // 2, filled.shape[1] // (whole // 2))
            tails, filled = pairs[..., : 2 * self.tail], pairs[..., 2 * self.tail :]
        filled = filled.reshape(len(words), whole, self.tile_words)[:, :tiles]
        tails = tails.reshape(len(words), whole, self.tail)[:, :tiles]
        quants = _entries(filled[..., low:], self.low)
        if self.high:
            above = _entries(filled[..., front:low], self.high)
            quants = quants | above << np.uint8(self.low)
        if self.is_signed:
            quants = quants ^ np.uint8(self.zero)
        if self.table:
            numbers = np.asarray(self.table, np.float32)[quants]
        else:
            numbers = quants.astype(np.float32) - np.float32(self.zero)
        numbers = numbers.reshape(len(words), tiles, TILE // HALF_RUN, HALF_RUN)
        scale, shift = self.scales(np.concatenate([filled[..., :front], tails], axis=-1))
        numbers *= scale[..., None]
        if shift is not None:
            numbers += shift[..., None]
        return numbers.reshape(len(words), tiles * TILE)[:, :columns]


def check_columns(kind: Format, columns: int) -> None:
    """Raise ShapeError unless a row consists of whole blocks."""
    if columns <= 0 or columns % kind.step:
        raise ShapeError(
            f"[{kind.name}] expected rows of a multiple of {kind.step} values, got {columns}"
        )


def check_words(op: str, words: TensorType, kind: Format, columns: int) -> None:
    """Check that words are rows of `columns` values in a format.

    Raises
    ------
    DTypeError, ShapeError
        If their type or shape is wrong.
    """
    check_columns(kind, columns)
    if words.dtype != UINT32:
        raise DTypeError(
            f"[{op}] expected words of uint32, got {words.dtype}; try vs.quantized_weight"
        )
    if words.rank == 0 or words.shape[-1] != kind.row_words(columns):
        raise ShapeError(
            f"[{op}] expected rows of {kind.row_words(columns)} words for {columns} values of "
            f"{kind.name}, got {words.shape}"
        )


def _paired(tiles: NDArray) -> NDArray:
    """Return the words of pairs of tiles: (rows, tiles, words) -> (rows, pairs, 2 words)."""
    if tiles.shape[1] % 2:
        tiles = np.pad(tiles, ((0, 0), (0, 1), (0, 0)))
    return tiles.reshape(len(tiles), tiles.shape[1] // 2, -1)


def _packed(entries: NDArray, bits: int) -> NDArray:
    """Pack the entries of runs into words: (..., runs, 8, 4) -> (..., words)."""
    if bits in _COLUMNS:
        return _in_columns(entries, bits)
    # as (runs, j, entry 2 j or 2 j + 1, column): the last axes form a byte
    parts = entries.reshape(*entries.shape[:-2], 4, 2, 4)
    parts = parts.reshape(*parts.shape[:-2], 1, 8) if bits == 1 else parts
    packed = np.zeros(parts.shape[:-1], np.uint8)
    for at in range(parts.shape[-1]):
        packed |= parts[..., at] << np.uint8(bits * at)
    words: NDArray = np.ascontiguousarray(packed.swapaxes(-1, -2)).reshape(*entries.shape[:-3], -1)
    return words.view(np.uint32)


def _in_columns(entries: NDArray, bits: int) -> NDArray:
    """Pack entries into words of columns, shifting four neighbors at once."""
    neighbours: NDArray = np.ascontiguousarray(entries).view(np.uint32)
    parts = neighbours.reshape(*entries.shape[:-2], bits, 8 // bits)
    joined = parts[..., 0].copy()
    for at in range(1, 8 // bits):
        joined |= parts[..., at] << np.uint32(bits * at)
    by_column = joined[..., None].view(np.uint8).swapaxes(-1, -2)
    words: NDArray = np.ascontiguousarray(by_column).reshape(*entries.shape[:-3], -1)
    return words.view(np.uint32)


def _entries(words: NDArray, bits: int) -> NDArray:
    """Unpack the words of `_packed`: (..., words) -> uint8 (..., runs, 8, 4)."""
    words = np.ascontiguousarray(words)
    out: NDArray = np.empty((*words.shape[:-1], RUNS, 8, 4), np.uint8)
    if bits in _COLUMNS:
        columns = words.view(_COLUMNS[bits]).reshape(*words.shape[:-1], RUNS, 4)
        for i in range(8):
            out[..., i, :] = columns >> columns.dtype.type(bits * i)
    else:
        held = words.view(np.uint8).reshape(*words.shape[:-1], RUNS, bits, 4)
        parts = out.reshape(*out.shape[:-2], 4, 2, 4)
        for at in range(8):
            entry, column = divmod(at, 4)
            word, shift = (0, at) if bits == 1 else (entry, bits * column)
            parts[..., entry, column] = held[..., word, :] >> np.uint8(shift)
    out &= np.uint8((1 << bits) - 1)
    return out

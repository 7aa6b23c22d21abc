"""How quantized weights lie on devices: in words, row by row.

    row     tile | tile | tile | last tile, shorter     a tile holds 256 values
    tile    head | high bits | low bits                 all of them whole words
    run     32 values of a tile: a part of each, in which value 4 i + c is entry i of column c

    low bits, 4 and 8   a column after the other, entry 0 in the lowest bits
    2, and high bits    words of bytes: byte j has entry 2 j of all columns, column 0 in the lowest
                        bits; behind these (1 bit), or in a second word (2), is entry 2 j + 1

A value is scale * code (+ shift). Codes are cut into low bits (2, 4 or 8) and high bits (0, 1, 2).
So a mask takes four neighbours of four words, or four entries of a column, and a shift puts high
bits beside low ones. The head holds the scales, as few bits as in the file. Kernels read four words
at once. So of a head that is no multiple of four words the last two, its tail, lie apart:

    pair of tiles   tail | tail | tile | tile           the last pair may lack its second tile

A weight is as large as in its file, up to 3 % (q2_K 5 %), where a head is filled up, up to a head
for rows that are no multiple of 256, and two words for an odd number of tiles with tails. Of f16
and bf16 a run is its 32 values, in order: the file's bytes are the words.

The formats themselves: gguf_formats.py. Examples: tests/ops/test_gguf_formats.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
"""By the bits of an entry, what holds the eight entries of a column."""

Parts = tuple[NDArray, NDArray]
"""Of blocks, (..., bytes): the quantized values (..., values), and the head's words (...,
words).
"""


@dataclass(frozen=True, slots=True)
class Format:
    """One format, as data.

    number: ggml's, of the type. values, block_bytes: of a block in the file. low, high: bits of a
    code. head: words of a tile.
    """

    name: str
    number: int
    values: int
    block_bytes: int
    low: int
    high: int
    head: int

    @property
    def step(self) -> int:
        """Rows have a multiple of so many values."""
        return max(self.values, RUN)

    @property
    def tail(self) -> int:
        """Words of a head that lie in front of a pair of tiles: the last two, or none."""
        return self.head % 4

    @property
    def whole(self) -> int:
        """Values of what rows may be cut into: tiles, or pairs of them."""
        return 2 * TILE if self.tail else TILE

    @property
    def tile_words(self) -> int:
        """Words of a whole tile, without its tail."""
        return self.head - self.tail + RUNS * (self.high + self.low)

    def row_words(self, columns: int) -> int:
        """Return the words of a row of so many values."""
        tiles = -(-columns // TILE)
        missing = (tiles * TILE - columns) // RUN
        return tiles * self.tile_words + -(-tiles // 2) * 2 * self.tail - missing * self.low

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row in the file."""
        return columns // self.values * self.block_bytes

    def pack_u32(self, raw: NDArray, columns: int) -> NDArray:
        """Return the words of rows, (rows, words), of their bytes, (rows, bytes)."""
        raise NotImplementedError

    def values_of(self, words: NDArray, columns: int) -> NDArray:
        """Return the values of rows, float32 (rows, columns), of their words."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FloatFormat(Format):
    """Floats of 16 bits, two in a word: a row has the bytes of the file.

    widen: their bits, uint16 -> float32.
    """

    widen: Callable[[NDArray], NDArray]

    def pack_u32(self, raw: NDArray, columns: int) -> NDArray:
        return raw.view(np.uint32)

    def values_of(self, words: NDArray, columns: int) -> NDArray:
        return self.widen(np.ascontiguousarray(words).view(np.uint16))


@dataclass(frozen=True, slots=True)
class BlockFormat(Format):
    """Codes in blocks that share scales.

    split: takes blocks apart. scales: the head's words (..., words) -> scale and shift of each half
    run, (..., 16); the shift is None where there is none. zero: what is subtracted from a code,
    which is never negative. shifts: whether values have a shift. table: the values that quantized
    values stand for, where they are not numbers themselves.
    """

    split: Callable[[NDArray], Parts]
    scales: Callable[[NDArray], tuple[NDArray, NDArray | None]]
    zero: int = 0
    shifts: bool = False
    table: tuple[int, ...] = ()

    @property
    def is_signed(self) -> bool:
        """Whether quantized values are held in two's complement, and need no subtraction."""
        return self.zero == 1 << (self.low - 1) and not self.high

    def pack_u32(self, raw: NDArray, columns: int) -> NDArray:
        rows, tiles, each = len(raw), -(-columns // TILE), TILE // self.values
        blocks = raw.reshape(rows, -1, self.block_bytes)
        missing = tiles * each - blocks.shape[1]
        if missing:  # blocks of zeros fill the last tile, and are cut off below
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
    """Raise ShapeError unless a row is of whole blocks."""
    if columns <= 0 or columns % kind.step:
        raise ShapeError(
            f"[{kind.name}] expected rows of a multiple of {kind.step} values, got {columns}"
        )


def check_words(op: str, words: TensorType, kind: Format, columns: int) -> None:
    """Raise DTypeError or ShapeError unless words are rows of so many values in a format."""
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
    """Return the entries of runs as words: (..., runs, 8, 4) -> (..., words)."""
    if bits in _COLUMNS:
        return _in_columns(entries, bits)
    # as (runs, j, entry 2 j or 2 j + 1, column): what a byte holds comes last
    parts = entries.reshape(*entries.shape[:-2], 4, 2, 4)
    parts = parts.reshape(*parts.shape[:-2], 1, 8) if bits == 1 else parts
    packed = np.zeros(parts.shape[:-1], np.uint8)
    for at in range(parts.shape[-1]):
        packed |= parts[..., at] << np.uint8(bits * at)
    words: NDArray = np.ascontiguousarray(packed.swapaxes(-1, -2)).reshape(*entries.shape[:-3], -1)
    return words.view(np.uint32)


def _in_columns(entries: NDArray, bits: int) -> NDArray:
    """A word of four neighbours is shifted at once; the bytes that they fill are then put in
    columns.
    """
    neighbours: NDArray = np.ascontiguousarray(entries).view(np.uint32)
    parts = neighbours.reshape(*entries.shape[:-2], bits, 8 // bits)
    joined = parts[..., 0].copy()
    for at in range(1, 8 // bits):
        joined |= parts[..., at] << np.uint32(bits * at)
    by_column = joined[..., None].view(np.uint8).swapaxes(-1, -2)
    words: NDArray = np.ascontiguousarray(by_column).reshape(*entries.shape[:-3], -1)
    return words.view(np.uint32)


def _entries(words: NDArray, bits: int) -> NDArray:
    """Returns what `_packed` packed: (..., words) -> uint8 (..., runs, 8, 4)."""
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

"""Products of many float rows by quantized weights with cooperative matrices, in one dispatch.

    x float32 --round to float16--------> shared memory --+
    x float16 --------------------------> shared memory --+
    words ----dequantize to float16-----> shared memory --+--> cooperative matrices --> + bias

Each workgroup dequantizes the rows of the weight that its tile needs, so that a weight is read once
per tile of rows, and never stored as floats. One dispatch multiplies by up to three weights, or by
two whose products are combined by a gated activation. It can also rotate the first heads of its
results (rotary embedding) and store each head as a matrix.

If the tiles are fewer than the cores of the device, other workgroups compute other parts of k. The
last one of a tile that arrives adds the parts in their order (as attention_decode.py combines its
parts), so that there is no second dispatch, and no barrier.

    tile         128 x 128, 256 x 128, or 64 x 64 for few rows or columns
    subgroup     64 x 64 of it with 32 or 64 lanes, less with fewer lanes

Examples: tests/ops/test_quant_gemm.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ...ir.op import OUTPUT, Call, fp16_operands
from ...ir.precision import allows_half
from ...topology.limits import Limits
from ..linalg.coopmat import (
    FP16,
    MIN_SIDE,
    by_guess,
    coopmat_name,
    coopmat_pays,
    coopmat_subgroups,
    guessed_shape,
    shapes_of,
)
from ..linalg.split_k import MIN_GAIN, PARTS, parts_of, split_name, without_split
from .gemv_rows import rows_of
from .gguf_formats import FORMATS
from .quant_gemm_tile import groups_of
from .quant_layout import RUN

BUFFERS, SPLIT_BUFFERS = 7, 9
"""Buffers of the kernel: x, the weights, a bias, the result and a residual; and with parts of k
their sums and counters.
"""
_LINE_BYTES = 80
"""Bytes of a run of float16 values in shared memory, with the padding between two runs."""
_SUBGROUP_TILES: dict[int, dict[tuple[int, int], tuple[int, int]]] = {
    64: {(256, 128): (64, 128), (128, 128): (64, 64), (64, 64): (64, 32)},
    32: {(256, 128): (64, 64), (128, 128): (64, 64), (64, 64): (64, 32)},
}
"""Rows and columns of a subgroup, by its lanes and by the tile of its workgroup. They are limited
by registers: an invocation has at most 128 sums.
"""
_FP16_SUMS_TILES = dict.fromkeys(((128, 128), (64, 64)), (64, 32))
"""The same with float16 sums beside those of float32, for 32 lanes."""
_FEW_REGISTERS_TILE = (64, 64)
"""The tile of Intel's GPUs, in subgroups of two matrices: their compiler keeps each sum three
times.
"""
_FP16_SUMS, _FP16_ACC = "float16*float16+float16", " fp16acc"
_SOFTWARE_TILES = {(32, 32): (16, 16)}
"""The same for CPU drivers: llvmpipe takes minutes to compile larger tiles."""
_SHARE_OF_PEAK = {(256, 128): 0.9, (128, 128): 0.8, (64, 64): 0.5}
"""Estimated share of the matrix units' peak, from the compilers' counts of other instructions."""
_USUAL_CORES = 32
"""Assumed number of cores of a GPU whose driver does not report it."""
_REDUCE_RUNS = 16
"""Estimated time to write and to add partial sums, in the time of runs."""
_MARGIN = 1.3
"""Minimum estimated gain of a split over the best tile without."""
_FIXED_RUNS = 8
"""Estimated time to start and to store a tile, in the time of runs."""


def _shader(kind: str, splits: bool, fp16_sums: bool) -> str:
    way, sums = "_splitk" if splits else "", "_fp16acc" if fp16_sums else ""
    return f"quant_gemm_coopmat{way}_{kind.lower()}{sums}"


@dataclass(frozen=True, slots=True)
class QuantGemmTile:
    """A variant of `quant_gemm_coopmat`.

    Attributes
    ----------
    shape : tuple of int
        Rows, columns and depth of one cooperative matrix.
    rows, columns : int
        Results of a workgroup.
    own : tuple of int
        Rows and columns of a subgroup.
    subgroup : int
        Size of a subgroup.
    fp16_sums : bool
        If true, products are added in float16, and these sums in float32 every 128 steps along k.
        Sums beyond 65,504 are infinite then, so that none is used without a measurement.
    """

    shape: tuple[int, int, int]
    rows: int
    columns: int
    own: tuple[int, int]
    subgroup: int
    fp16_sums: bool = False

    @property
    def name(self) -> str:
        name = coopmat_name(self.shape, self.rows, self.columns, self.subgroup)
        return f"{name}{_FP16_ACC}" if self.fp16_sums else name

    def shader(self, kind: str, splits: bool) -> str:
        """Return the name of the kernel for a format, and for parts of k."""
        return _shader(kind, splits, self.fp16_sums)

    @property
    def subgroups(self) -> tuple[int, int]:
        """Return the subgroups of a workgroup, along rows and along columns."""
        return self.rows // self.own[0], self.columns // self.own[1]

    @property
    def local(self) -> int:
        """Return the number of invocations of a workgroup."""
        return math.prod(self.subgroups) * self.subgroup

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of shared memory, with a gate."""
        rows, columns, _ = self.shape
        stored = 2 * math.prod(self.subgroups) * rows * columns * 4
        return (self.rows + self.columns) * _LINE_BYTES + stored

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        rows, columns, depth = self.shape
        down, across = self.subgroups
        return (
            ("LOCAL_X", self.local),
            *(("MATRIX_M", rows), ("MATRIX_N", columns), ("MATRIX_K", depth)),
            *(("DOWN", self.own[0] // rows), ("ACROSS", self.own[1] // columns)),
            *(("SUBGROUPS_DOWN", down), ("SUBGROUPS_ACROSS", across)),
        )

    def fits(self, limits: Limits) -> bool:
        """Return True if a device supports this tile."""
        rows, columns, depth = self.shape
        whole = self.own[0] % rows == self.own[1] % (2 * columns) == RUN % depth == 0
        aligned = depth % 8 == columns % 4 == 0
        most = min(limits.max_invocations, limits.max_local_size[0])
        return (
            whole
            and aligned
            and self.local <= most
            and self.shared_bytes <= limits.shared_bytes
            and limits.storage_buffers >= BUFFERS
        )


@lru_cache(maxsize=64)
def quant_gemm_tiles(limits: Limits) -> dict[str, QuantGemmTile]:
    """Return the variants that a device supports, by name."""
    tiles = [
        QuantGemmTile(shape, *size, own, subgroup)
        for shape in shapes_of(limits, FP16)
        for subgroup in coopmat_subgroups(limits)
        for size, own in _sizes(limits, subgroup, shape).items()
    ]
    if limits.fp16_sums_faster:
        tiles += [
            QuantGemmTile(shape, *size, own, subgroup, fp16_sums=True)
            for shape in shapes_of(limits, _FP16_SUMS)
            for subgroup in coopmat_subgroups(limits)
            for size, own in _fp16_sums_sizes(limits, subgroup).items()
        ]
    return {tile.name: tile for tile in tiles if tile.fits(limits)}


def _sizes(
    limits: Limits, subgroup: int, shape: tuple[int, int, int]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the tiles of workgroups and of their subgroups."""
    if limits.software:
        return _SOFTWARE_TILES
    if limits.few_registers:
        return {_FEW_REGISTERS_TILE: (shape[0], 2 * shape[1])}
    return _SUBGROUP_TILES.get(subgroup, {})


def _fp16_sums_sizes(limits: Limits, subgroup: int) -> dict[tuple[int, int], tuple[int, int]]:
    if limits.software:
        return _SOFTWARE_TILES
    return _FP16_SUMS_TILES if subgroup == 32 else {}


def quant_gemm_tile(call: Call) -> QuantGemmTile | None:
    """Return the tile of a call's variant, or None if the variant is another kernel."""
    return quant_gemm_tiles(call.limits).get(without_split(call.variant))


def quant_gemm_scratch(call: Call, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the words of the partial sums of a variant that splits k. sizes: rows of each
    weight.
    """
    tile, parts = quant_gemm_tile(call), parts_of(call.variant)
    return (parts * _tile_words(call, tile, sizes),) if tile and parts > 1 else ()


def quant_gemm_counters(call: Call, sizes: tuple[int, ...]) -> int:
    """Return the number of counters of a variant that splits k: one for each tile."""
    tile, parts = quant_gemm_tile(call), parts_of(call.variant)
    return groups_of(tile, rows_of(call), sizes, False) if tile and parts > 1 else 0


def quant_gemm_takes_fp16(call: Call) -> tuple[int, ...]:
    """Return the float16 operands that these variants access directly: x, and a gated result."""
    taken = (0, OUTPUT) if quant_gemm_tile(call) else ()
    return tuple(operand for operand in fp16_operands(call) if operand in taken)


def with_quant_gemm(
    call: Call,
    plain: tuple[str, ...],
    sizes: tuple[int, ...],
    gated: bool = False,
    splits: bool = True,
) -> tuple[str, ...]:
    """Return all variants of a product, the best guess first.

    Parameters
    ----------
    plain
        The variants of other kernels.
    sizes
        Rows of each weight.
    gated
        If true, the products of two weights are combined.
    splits
        If true, k may be split.
    """
    limits, rows, tiles = call.limits, rows_of(call), quant_gemm_tiles(call.limits)
    names = _by_estimate(call, sizes, gated, splits)

    def is_guessed(name: str) -> bool:
        if parts_of(name) > 1 and not limits.memory_model_checked:
            return False
        tile = tiles[without_split(name)]
        whole = groups_of(tile, rows, sizes, gated) * tile.rows * tile.columns
        checked = (tile.shape, tile.subgroup) == guessed_shape(limits)
        return checked and not tile.fp16_sums and coopmat_pays(limits, rows * sum(sizes), whole)

    return by_guess(plain, names, next(filter(is_guessed, names), ""))


def _by_estimate(call: Call, sizes: tuple[int, ...], gated: bool, splits: bool) -> tuple[str, ...]:
    """Return the variants for a call by their estimated times."""
    rows, runs = rows_of(call), call.inputs[0].shape[-1] // RUN
    may_round = call.limits.float16 and allows_half(call.attrs)
    if not may_round or min(rows, *sizes) < MIN_SIDE:
        return ()
    tiles = quant_gemm_tiles(call.limits)

    def time(tile: QuantGemmTile, parts: int) -> float:
        waves = -(-parts * groups_of(tile, rows, sizes, gated) // _cores(call.limits))
        share = _SHARE_OF_PEAK.get((tile.rows, tile.columns), 1.0)
        steps = waves * (runs / parts + _FIXED_RUNS)
        if parts > 1:
            steps = _MARGIN * (steps + _REDUCE_RUNS)
        return steps * tile.rows * tile.columns / share

    def order(name: str) -> tuple[float, int, int]:
        tile = tiles[without_split(name)]
        return time(tile, parts_of(name)), -math.prod(tile.shape), -tile.subgroup

    split = [_split(call, tile, sizes) for tile in tiles.values()] if splits and not gated else []
    return tuple(sorted((*tiles, *filter(None, split)), key=order))


def _split(call: Call, tile: QuantGemmTile, sizes: tuple[int, ...]) -> str:
    """Return the variant that splits k into as many parts as idle cores allow; "" if that would
    not pay, or if the device does not report its cores or lacks the memory model.
    """
    runs, limits = call.inputs[0].shape[-1] // RUN, call.limits
    if not may_split(limits):
        return ""
    groups = groups_of(tile, rows_of(call), sizes, False)
    most = limits.max_buffer_bytes // 4 // max(1, _tile_words(call, tile, sizes))
    fitting = [parts for parts in PARTS if groups * parts <= limits.cores and parts <= most]
    if not fitting or MIN_GAIN * (runs / fitting[-1] + _REDUCE_RUNS) > runs:
        return ""
    return split_name(tile.name, fitting[-1])


def may_split(limits: Limits) -> bool:
    """Return True if the last workgroup of a tile may add the parts of k."""
    return limits.memory_model and limits.storage_buffers >= SPLIT_BUFFERS


def _cores(limits: Limits) -> int:
    return limits.cores or _USUAL_CORES


def _tile_words(call: Call, tile: QuantGemmTile, sizes: tuple[int, ...]) -> int:
    """Return the words of the sums of all tiles."""
    return groups_of(tile, rows_of(call), sizes, False) * tile.rows * tile.columns


QUANT_GEMM_SHADERS = tuple(
    _shader(name, splits, fp16_sums)
    for name in FORMATS
    for splits in (False, True)
    for fp16_sums in (False, True)
)

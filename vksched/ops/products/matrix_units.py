"""Products by matrix units: which of a device's cooperative matrices compute a call, in what tiles.

    one subgroup: 64 x 64 results or fewer, as cooperative matrices of one of the device's shapes
    one group:    2 x 2 subgroups, which share both factors as float16 in shared memory

The factors are float16, or are rounded to that as a tile is loaded; the sums are float32. Some
drivers emulate such units slowly or get them wrong: these variants come last, so that none is used
before the tuner has measured it and compared its result with another kernel's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ...machine.limits import Limits
from ...types import FLOAT16, FLOAT32
from ..core.op import Call
from ..core.precision import may_round

_SHAPE = re.compile(r"float16\*float16\+float32 (\d+)x(\d+)x(\d+)", re.ASCII)
_SIDES = {False: (64, 32), True: (16,)}
"""Rows and columns that one subgroup computes, by whether the device is a CPU driver: llvmpipe
takes a minute to compile 32.
"""
_SUBGROUPS = 2
"""Of a group, down and across."""
_STEPS = 32
"""Along k that shared memory holds: TILE_K of shaders/products/matmul_matrices.comp."""
_MOST_SUMS = 128
"""Values of a result that one lane holds."""
LEAST_SIDE = 16
"""Rows and columns of a result from which matrix units are worth a measurement."""


@dataclass(frozen=True, slots=True)
class MatrixTile:
    """A variant of `matmul_matrices`. shape: rows, columns and depth of one cooperative matrix.
    side: rows and columns of a subgroup. subgroup: its lanes.
    """

    shape: tuple[int, int, int]
    side: int
    subgroup: int

    @property
    def size(self) -> int:
        """Rows and columns that one group computes."""
        return _SUBGROUPS * self.side

    @property
    def name(self) -> str:
        return f"matrices {'x'.join(map(str, self.shape))} {self.size}x{self.size}"

    @property
    def local(self) -> int:
        """The invocations of a group."""
        return _SUBGROUPS * _SUBGROUPS * self.subgroup

    @property
    def shared_bytes(self) -> int:
        rows, columns, _ = self.shape
        return 2 * self.size * (_STEPS + 8) * 2 + _SUBGROUPS * _SUBGROUPS * rows * columns * 4

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        rows, columns, depth = self.shape
        return (
            ("LOCAL_X", self.local),
            *(("MATRIX_M", rows), ("MATRIX_N", columns), ("MATRIX_K", depth)),
            *(("DOWN", self.side // rows), ("ACROSS", self.side // columns)),
        )

    def fits(self, limits: Limits) -> bool:
        """Whether a device can run it."""
        rows, columns, depth = self.shape
        tiles = self.side % rows == self.side % columns == _STEPS % depth == 0
        whole = tiles and depth % 8 == columns % 4 == 0
        sums = self.side * self.side // self.subgroup
        most = min(limits.max_invocations, limits.max_local_size[0])
        fits = self.local <= most and self.shared_bytes <= limits.shared_bytes
        reads = self.size * _STEPS // 8  # of eight values along k, by all invocations
        return whole and fits and sums <= _MOST_SUMS and reads % self.local == 0


@lru_cache(maxsize=64)
def _tiles(limits: Limits) -> dict[str, MatrixTile]:
    if not (limits.float16 and limits.subgroup_sizes):
        return {}
    # Drivers that offer several sizes have units for the smallest one, and Intel's for no other.
    subgroup = min(limits.subgroup_sizes)
    shapes = [tuple(map(int, m.groups())) for m in map(_SHAPE.fullmatch, limits.matrices) if m]
    tiles = [
        MatrixTile((rows, columns, depth), side, subgroup)
        for rows, columns, depth in shapes
        for side in _SIDES[limits.software]
    ]
    return {tile.name: tile for tile in tiles if tile.fits(limits)}


def matrix_tile(call: Call) -> MatrixTile | None:
    """Returns the tile of a call's variant, None where that is another kernel."""
    return _tiles(call.limits).get(call.variant) if call.variant.startswith("matrices ") else None


def matrix_variants(call: Call, rows: int) -> tuple[str, ...]:
    """Returns the variants that can multiply the factors of a call, of so many rows, as float16."""
    if min(rows, call.output.shape[-1]) < LEAST_SIDE or not rounds(call):
        return ()
    return tuple(_tiles(call.limits))


def rounds(call: Call) -> bool:
    """Whether the factors of a call are float16, or may be rounded to that."""
    return call.output.dtype == FLOAT16 or may_round(call)


MATRIX_SHADERS = tuple(f"matmul_matrices_{dtype}" for dtype in (FLOAT32, FLOAT16))

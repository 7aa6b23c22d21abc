"""Subgroup tiles of matrix products on CPU drivers: one subgroup computes one tile.

A value is loaded by one lane and broadcast to the others, so each step along k of a tile takes rows
+ columns loads instead of rows * columns. `matmul_subgroup` computes many rows. `matmul_gemv_cpu`
computes few rows and reads operands without packing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...topology.limits import Limits
from ..lowering.vec4 import has_subgroup_kernels


@dataclass(frozen=True, slots=True)
class SubgroupTile:
    """A variant of `matmul_subgroup` or `matmul_gemv_cpu`: one subgroup computes a tile."""

    rows: int
    columns: int
    lanes: int
    gemv: bool = False

    @property
    def kind(self) -> str:
        return "gemv_cpu" if self.gemv else "subgroup"

    @property
    def fixed(self) -> bool:
        """Return True if each layout of the operands has its own module."""
        return self.lanes in _FIXED

    @property
    def has_whole(self) -> bool:
        """Return True if there is a module that stores whole tiles without bounds checks."""
        return self.fixed and self.rows == 1

    def shader(self, dtype: str, layout: str, whole: bool) -> str:
        """Return the module's name.

        `whole`: tiles are not cut off by the last column, rows start at multiples of four, and all
        of k is summed at once, without a bias per row.
        """
        of = f"_whole_of_{self.lanes}" if whole and self.has_whole else f"_of_{self.lanes}"
        name = f"matmul_{self.kind}_{self.rows}x{self.columns}{of}"
        return f"{name}_{layout}_{dtype}" if self.fixed else f"{name}_{dtype}"

    def suits(self, b_along_k: bool) -> bool:
        """Return True if the tile suits b's layout: wide tiles read whole lines of b along n."""
        return not b_along_k or self.columns == 4 * self.lanes

    def tiles(self, m: int, n: int, batches: int) -> tuple[int, int, int]:
        """Return the numbers of workgroups; each one computes one tile."""
        return -(-m // self.rows), -(-n // self.columns), batches

    def cost(self, m: int, n: int, batches: int) -> float:
        """Return the approximate cost of a step along k, in loads by one lane."""
        tiles = math.prod(self.tiles(m, n, batches))
        return -(-tiles // 2) * self.step  # assume two threads; most machines have more

    @property
    def step(self) -> float:
        """Return the approximate cost of a step along k of one tile, in loads by one lane."""
        products = self.rows * self.columns / self.lanes
        return self.rows + self.columns + products * _PRODUCT_COST[self.lanes]


_PRODUCT_COST = {8: 0.5, 4: 0.7}
"""Cost of a multiply-add of all lanes, relative to a load by one lane: measured on llvmpipe (8
lanes) and SwiftShader (4 lanes).
"""
_ROWS = {8: ((1, 32), (1, 512), (4, 32), (4, 128)), 4: ((1, 16), (4, 16))}
"""Rows and columns of a tile of `matmul_gemv_cpu`, by subgroup size; wide tiles read lines of b
along n.
"""
TILES = {8: ((8, 32), (16, 32), (32, 32), (32, 64)), 4: ((8, 16), (16, 64), (32, 64))}
"""Rows and columns of a tile of `matmul_subgroup`, by subgroup size: the largest ones that fit the
stack and the instruction cache.
"""
_FIXED = (4,)
"""Subgroup sizes of drivers that execute both branches of a condition on a constant (SwiftShader).
They have one module per layout of the operands.
"""
LAYOUTS = ("nn", "nt", "tn", "tt")
"""Layouts of a and b: n is not transposed, t is transposed."""


def subgroup_tiles(limits: Limits) -> dict[str, SubgroupTile]:
    """Return the variants for the subgroups of a CPU driver, by name."""
    if not has_subgroup_kernels(limits, TILES):
        return {}
    lanes = limits.subgroup_size
    gemv = [SubgroupTile(r, c, lanes, gemv=True) for r, c in _ROWS[lanes]]
    many = [SubgroupTile(r, c, lanes) for r, c in TILES[lanes]]
    return {f"{tile.kind} {tile.rows}x{tile.columns}": tile for tile in (*gemv, *many)}

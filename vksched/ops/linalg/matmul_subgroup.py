"""The tiles of products on CPU drivers, each computed by one subgroup.

A value is loaded by one lane and handed to the others, so a tile of rows x columns takes as many
loads a step along k as it has rows and columns, not their product. `matmul_subgroup` has many rows,
`matmul_gemv_cpu` few, which are read as they lie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...topology.limits import Limits
from ..lowering.vec4 import has_subgroup_kernels


@dataclass(frozen=True, slots=True)
class SubgroupTile:
    """A variant of `matmul_subgroup` or `matmul_gemv_cpu`: one subgroup computes a tile of this
    size.
    """

    rows: int
    columns: int
    lanes: int
    gemv: bool = False

    @property
    def kind(self) -> str:
        return "gemv_cpu" if self.gemv else "subgroup"

    @property
    def fixed(self) -> bool:
        """Whether each layout of the operands has a module of its own."""
        return self.lanes in _FIXED

    @property
    def has_whole(self) -> bool:
        """Whether there is a module that stores whole tiles as they are."""
        return self.fixed and self.rows == 1

    def shader(self, dtype: str, layout: str, whole: bool) -> str:
        """Return the module's name. whole: tiles have all their columns, rows start at multiples
        of four, and all of k is summed at once, without a bias for each row.
        """
        of = f"_whole_of_{self.lanes}" if whole and self.has_whole else f"_of_{self.lanes}"
        name = f"matmul_{self.kind}_{self.rows}x{self.columns}{of}"
        return f"{name}_{layout}_{dtype}" if self.fixed else f"{name}_{dtype}"

    def suits(self, b_along_k: bool) -> bool:
        """Whether few rows are read as they lie: wide tiles read whole lines of b along n."""
        return not b_along_k or self.columns == 4 * self.lanes

    def tiles(self, m: int, n: int, batches: int) -> tuple[int, int, int]:
        """Return the groups, each of which computes one tile."""
        return -(-m // self.rows), -(-n // self.columns), batches

    def cost(self, m: int, n: int, batches: int) -> float:
        """Return about how long a step along k takes, in loads of a value by a lane."""
        tiles = math.prod(self.tiles(m, n, batches))
        return -(-tiles // 2) * self.step  # of two threads, as most machines have more

    @property
    def step(self) -> float:
        """About how long a step along k of one tile takes, in loads of a value by a lane."""
        products = self.rows * self.columns / self.lanes
        return self.rows + self.columns + products * _PRODUCT_COST[self.lanes]


_PRODUCT_COST = {8: 0.5, 4: 0.7}
"""A multiplication and addition of all lanes, as a share of a load by one: seen on llvmpipe (8
lanes) and SwiftShader (4).
"""
_ROWS = {8: ((1, 32), (1, 512), (4, 32), (4, 128)), 4: ((1, 16), (4, 16))}
"""Rows and columns of a tile of `matmul_gemv_cpu`, by lanes: wide ones for lines of b along n."""
TILES = {8: ((8, 32), (16, 32), (32, 32), (32, 64)), 4: ((8, 16), (16, 64), (32, 64))}
"""Rows and columns of a tile of `matmul_subgroup`, by lanes: as many as fit the stack and the
instruction cache.
"""
_FIXED = (4,)
"""Lanes of drivers that go through both sides of a branch over a constant (SwiftShader), which have
a module for each layout of the operands.
"""
LAYOUTS = ("nn", "nt", "tn", "tt")
"""Of a and b: n as they are multiplied, t transposed."""


def subgroup_tiles(limits: Limits) -> dict[str, SubgroupTile]:
    """Return the variants for the subgroups of a CPU driver, by name."""
    if not has_subgroup_kernels(limits, TILES):
        return {}
    lanes = limits.subgroup_size
    gemv = [SubgroupTile(r, c, lanes, gemv=True) for r, c in _ROWS[lanes]]
    many = [SubgroupTile(r, c, lanes) for r, c in TILES[lanes]]
    return {f"{tile.kind} {tile.rows}x{tile.columns}": tile for tile in (*gemv, *many)}

"""Tiles of products of many rows by quantized weights.

A workgroup computes a tile of one weight, or with a gate half a tile of both.
"""

from __future__ import annotations

from typing import Protocol


class GemmTile(Protocol):
    """A tile of a workgroup, with the constants and the required subgroup size of its kernel."""

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def subgroup(self) -> int:
        """0: any."""

    @property
    def constants(self) -> tuple[tuple[str, int], ...]: ...

    def shader(self, kind: str, splits: bool) -> str:
        """Return the name of the kernel for a format, and for parts of k."""


def column_tiles(tile: GemmTile, sizes: tuple[int, ...], gated: bool) -> int:
    """Return the tiles along columns. sizes: rows of each weight."""
    if gated:
        return -(-2 * sizes[0] // tile.columns)
    return sum(-(-size // tile.columns) for size in sizes)


def groups_of(tile: GemmTile, rows: int, sizes: tuple[int, ...], gated: bool) -> int:
    """Return the workgroups of a product of this many rows."""
    return -(-rows // tile.rows) * column_tiles(tile, sizes, gated)

"""Products of many float rows by quantized weights without cooperative matrices, in one dispatch.

    x float32 --round to float16--------> shared memory --+
    words ----dequantize to float16-----> shared memory --+--> registers --> + bias

Each workgroup dequantizes the rows of the weight that its tile needs, so that the weight is never
stored as floats. As with cooperative matrices (quant_gemm.py), one dispatch multiplies by several
weights, applies a gate, or rotates its results (quant_gemm_dispatches.py).

Products and sums are float32; AMD's GPUs convert float16 within a multiply-add. With "dot", two
products and a sum of float32 are one instruction (`Limits.mixed_dot`); with "fp16acc", the products
of a step of 32 along k are added in float16, two at once.

Examples: tests/ops/test_quant_gemm_tiled.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...ir.op import Call
from ...ir.precision import may_round
from ...topology.limits import Limits
from .gemv_rows import rows_of
from .gguf_formats import FORMATS
from .quant_gemm_tile import groups_of

PREFIX = "gemm"
MIN_ROWS = 33
"""Minimum rows of x, and columns: fewer leave most of a tile empty."""
BUFFERS = 7
"""Buffers of the kernel: x, the weights, a bias, the result and a residual."""
_LINE_BYTES = 80
"""Bytes of a run of float16 values in shared memory, with the padding between two runs."""


@dataclass(frozen=True, slots=True)
class TiledQuantGemm:
    """A variant of `quant_gemm`.

    Attributes
    ----------
    rows, columns : int
        Results of a workgroup.
    own : tuple of int
        Rows and columns of an invocation.
    way : str
        "", "dot" or "fp16acc": how products are added.
    """

    rows: int
    columns: int
    own: tuple[int, int]
    way: str = ""

    @property
    def name(self) -> str:
        return f"{PREFIX} {self.rows}x{self.columns} {self.way}".strip()

    @property
    def local(self) -> int:
        """Return the number of invocations of a workgroup."""
        return self.rows * self.columns // math.prod(self.own)

    @property
    def shared_bytes(self) -> int:
        return (self.rows + self.columns) * _LINE_BYTES

    @property
    def subgroup(self) -> int:
        return 0

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        return (
            *(("LOCAL_X", self.local), ("TILE_M", self.rows), ("TILE_N", self.columns)),
            *(("DOWN", self.own[0]), ("ACROSS", self.own[1])),
        )

    def shader(self, kind: str, splits: bool = False) -> str:
        """Return the name of the kernel for a format; none splits k."""
        return _SHADERS[self.way].format(kind.lower())

    def fits(self, limits: Limits) -> bool:
        """Return True if a device supports this tile."""
        most = min(limits.max_invocations, limits.max_local_size[0])
        return (
            self.local <= most
            and self.shared_bytes <= limits.shared_bytes
            and limits.storage_buffers >= BUFFERS
        )


_SHADERS = {"": "quant_gemm_{}", "dot": "quant_gemm_dot2_{}", "fp16acc": "quant_gemm_{}_fp16acc"}
_TILES = {(64, 64): (8, 4), (128, 64): (8, 8), (256, 64): (8, 8)}
"""Rows and columns of an invocation, by the tile of its workgroup."""
_FP16_SUMS_TILES = {(64, 64): (4, 4), (128, 64): (4, 4)}
"""The same with float16 sums in addition to those of float32."""
_FEW_REGISTERS_TILES = {"": (4, 4), "dot": (4, 4), "fp16acc": (2, 4)}
"""Rows and columns of an invocation on Intel's GPUs, by the way, in tiles of 64 x 64."""
_USUAL_CORES = 32
"""Assumed number of cores of a GPU whose driver does not report it."""
_SHARE_OF_PEAK = {64: 0.9, 128: 0.97, 256: 1.0}
"""Estimated share of the peak, by rows: with more of them, workgroups dequantize less."""


def tiled_quant_gemms(limits: Limits) -> dict[str, TiledQuantGemm]:
    """Return the variants that a device supports, by name."""
    if not limits.float16:
        return {}
    ways = {"": _TILES, "dot": _TILES if limits.mixed_dot else {}, "fp16acc": _FP16_SUMS_TILES}
    if limits.few_registers:
        few = _FEW_REGISTERS_TILES
        ways = {way: tiles and {(64, 64): few[way]} for way, tiles in ways.items()}
    every = [
        TiledQuantGemm(*size, own, way)
        for way, tiles in ways.items()
        for size, own in tiles.items()
    ]
    return {tile.name: tile for tile in every if tile.fits(limits)}


def variants(call: Call, sizes: tuple[int, ...], gated: bool = False) -> tuple[str, ...]:
    """Return the variants for a call on a GPU, the best guess first. Dot products and float16 sums
    are no guess: the latter are infinite beyond 65,504.

    Parameters
    ----------
    sizes
        Rows of each weight.
    gated
        If true, the products of two weights are combined.
    """
    limits, tiles, rows = call.limits, tiled_quant_gemms(call.limits), rows_of(call)
    if limits.software or not may_round(call) or min(rows, *sizes) < MIN_ROWS:
        return ()

    def order(name: str) -> tuple[bool, float]:
        tile = tiles[name]
        groups = groups_of(tile, rows, sizes, gated)
        waves = -(-groups // (limits.cores or _USUAL_CORES))
        return bool(tile.way), waves * tile.rows * tile.columns / _SHARE_OF_PEAK[tile.rows]

    return tuple(sorted(tiles, key=order))


TILED_SHADERS = tuple(way.format(kind.lower()) for way in _SHADERS.values() for kind in FORMATS)

"""Products of many float rows by quantized weights without cooperative matrices, in one dispatch.

    x float32 --round to float16--------> shared memory --+
    words ----dequantize to float16-----> shared memory --+--> registers --> + bias

Each workgroup dequantizes the rows of the weight that its tile needs, so that the weight is never
stored as floats. Products and sums are float32; AMD's GPUs convert float16 within a multiply-add.
With "dot", two products and a sum of float32 are one instruction (`Limits.mixed_dot`); with
"fp16acc", the products of a step of 32 along k are added in float16, two at once.

Examples: tests/ops/test_quant_gemm_tiled.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...ir.op import OUTPUT, Call, Dispatch
from ...ir.precision import may_round
from ...topology.limits import Limits
from ..linalg.matmul_kernels import BIAS_PER_COLUMN
from ..lowering.strides import DISPATCH_FLOPS
from .gguf_formats import FORMATS, format_of

PREFIX = "gemm"
MIN_ROWS = 33
"""Minimum rows of x, and columns: fewer leave most of a tile empty."""
BUFFERS = 5
"""Buffers of the kernel: x, the weight, a bias, the result and a residual."""
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

    def shader(self, kind: str) -> str:
        """Return the name of the kernel for a format."""
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
_FEW_REGISTERS_TILES = {(64, 64): (4, 4)}
"""The same on Intel's GPUs."""
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
        ways = {way: tiles and _FEW_REGISTERS_TILES for way, tiles in ways.items()}
    every = [
        TiledQuantGemm(*size, own, way)
        for way, tiles in ways.items()
        for size, own in tiles.items()
    ]
    return {tile.name: tile for tile in every if tile.fits(limits)}


def variants(call: Call) -> tuple[str, ...]:
    """Return the variants for a call on a GPU, the best guess first. Dot products and float16 sums
    are no guess: the latter are infinite beyond 65,504.
    """
    rows, columns = math.prod(call.output.shape[:-1]), call.output.shape[-1]
    limits, tiles = call.limits, tiled_quant_gemms(call.limits)
    if limits.software or not may_round(call) or min(rows, columns) < MIN_ROWS:
        return ()

    def order(name: str) -> tuple[bool, float]:
        tile = tiles[name]
        groups = -(-rows // tile.rows) * -(-columns // tile.columns)
        waves = -(-groups // (limits.cores or _USUAL_CORES))
        return bool(tile.way), waves * tile.rows * tile.columns / _SHARE_OF_PEAK[tile.rows]

    return tuple(sorted(tiles, key=order))


def tiled_quant_gemm(call: Call) -> tuple[Dispatch, ...]:
    """Return the dispatches of a call of `quantized_linear` with one of these variants."""
    limits, bias = call.limits, len(call.inputs) > 2
    tile, kind = tiled_quant_gemms(limits)[call.variant], format_of(call.attrs["format"])
    m, n, k = math.prod(call.output.shape[:-1]), call.output.shape[-1], call.inputs[0].shape[-1]
    rows = max(1, int(DISPATCH_FLOPS / (2.0 * n * k) / tile.rows)) * tile.rows
    constants = (
        *(("LOCAL_X", tile.local), ("TILE_M", tile.rows), ("TILE_N", tile.columns)),
        *(("DOWN", tile.own[0]), ("ACROSS", tile.own[1])),
    )

    def tiles_of(row: int, count: int) -> Dispatch:
        push = (
            *(("m", count), ("n", n), ("k", k), ("b_column", kind.row_words(k))),
            ("has_bias", BIAS_PER_COLUMN * bias),
        )
        across = -(-n // tile.columns)
        return Dispatch(
            tile.shader(kind.name),
            (0, 1, 2 if bias else 0, OUTPUT),
            (min(-(-count // tile.rows), limits.max_groups[0]), across, 1),
            push,
            constants,
            shifts=(row * k, 0, 0, row * n),
        )

    return tuple(tiles_of(row, min(rows, m - row)) for row in range(0, m, rows))


TILED_SHADERS = tuple(way.format(kind.lower()) for way in _SHADERS.values() for kind in FORMATS)

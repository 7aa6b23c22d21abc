"""Products by cooperative matrices: which of a device's cooperative matrices compute a call, in
what tiles. Convolutions take the same tiles.

    one subgroup: 64 x 64 results or fewer, as cooperative matrices of one of the device's shapes
    one group:    2 x 2 subgroups, which share both factors in shared memory
    untransposed: a factor of float16 that lies across k stays so there

The factors are float16, or are rounded to that as a tile is loaded; the sums are float32. Codes of
8 bits (int8_matmul_kernels.py) are factors of int8, with exact sums in int32. Some drivers emulate
such units slowly or get them wrong: these variants come last, so that none is used before the tuner
has measured it, there or at smaller sizes, and compared its result with another kernel's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ...common.dtypes import FLOAT16, FLOAT32
from ...ir.op import Call
from ...ir.precision import may_round
from ...topology.limits import Limits
from ..lowering.variants import COOPMAT

_SHAPE = re.compile(r"(\S+) (\d+)x(\d+)x(\d+)", re.ASCII)
FP16, INT8 = "float16*float16+float32", "int8*int8+int32"
"""Types of factors and sums. Whatever sign quantized values have, words hold them with one."""
_STEPS = {FP16: 32, INT8: 64}
"""Along k that shared memory holds: TILE_K of shaders/include/coopmat.glsl."""
MATMUL, CONV, INT8_MATMUL = "matmul", "conv", "int8_matmul"
_TYPES = {MATMUL: FP16, CONV: FP16, INT8_MATMUL: INT8}
_TILES = {
    MATMUL: {False: ((64, 64), (32, 32)), True: ((16, 16),)},
    CONV: {False: ((64, 32), (32, 32)), True: ((16, 16),)},
    INT8_MATMUL: {False: ((64, 64), (32, 32)), True: ((8, 8),)},
}
"""Rows and columns that one subgroup computes, by whether the device is a CPU driver: llvmpipe
takes a minute to compile 32. Convolutions hold more registers beside the sums, and gather windows
once for all rows of a tile.
"""
_SUBGROUPS = 2
"""Of a group, down and across."""
_LINE_BYTES, _GAP_BYTES = 64, 16
"""Of a line in shared memory, and between two."""
_ASIDE_BYTES = 512
"""Of shared memory beside tiles and sums: taps of windows, or sums of rows."""
_MAX_SUMS = 128
"""Values of a result that one lane holds."""
_USUAL_SUBGROUP = 32
_UNTRANSPOSED = " untransposed"
MIN_SIDE = 16
"""Rows and columns of a result from which cooperative matrices are worth a measurement."""


@dataclass(frozen=True, slots=True)
class CoopmatTile:
    """A variant of `matmul_coopmat`, `conv_coopmat` or `int8_gemm_coopmat`. types: FP16 or
    INT8. shape: rows, columns and depth of one cooperative matrix. rows, columns: that one group
    computes. subgroup: its lanes. untransposed: a factor that lies across k is not transposed
    on its way to shared memory. The device transposes it as it loads matrices: free on some
    devices, many loads on others.
    """

    types: str
    shape: tuple[int, int, int]
    rows: int
    columns: int
    subgroup: int
    untransposed: bool = False

    @property
    def name(self) -> str:
        name = coopmat_name(self.shape, self.rows, self.columns, self.subgroup)
        return f"{name}{_UNTRANSPOSED}" if self.untransposed else name

    @property
    def local(self) -> int:
        """The invocations of a group."""
        return _SUBGROUPS * _SUBGROUPS * self.subgroup

    @property
    def shared_bytes(self) -> int:
        rows, columns, _ = self.shape
        tiles = (self.rows + self.columns) * (_LINE_BYTES + _GAP_BYTES) + _ASIDE_BYTES
        return tiles + _SUBGROUPS * _SUBGROUPS * rows * columns * 4

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        rows, columns, depth = self.shape
        return (
            ("LOCAL_X", self.local),
            *(("MATRIX_M", rows), ("MATRIX_N", columns), ("MATRIX_K", depth)),
            ("DOWN", self.rows // _SUBGROUPS // rows),
            ("ACROSS", self.columns // _SUBGROUPS // columns),
            *((("UNTRANSPOSED", 1),) if self.untransposed else ()),
        )

    def fits(self, limits: Limits) -> bool:
        """Whether a device can run it."""
        rows, columns, depth = self.shape
        across = self.columns % (_SUBGROUPS * columns) == 0
        tiles = across and self.rows % (_SUBGROUPS * rows) == _STEPS[self.types] % depth == 0
        eights = not self.untransposed or rows % 8 == columns % 8 == 0
        whole = tiles and depth % 8 == columns % 4 == 0 and eights
        most = min(limits.max_invocations, limits.max_local_size[0])
        fits = self.local <= most and self.shared_bytes <= limits.shared_bytes
        reads = {side * _LINE_BYTES // 16 for side in (self.rows, self.columns)}
        # all invocations read as many eights of a line
        even = all(read % self.local == 0 for read in reads)
        return whole and fits and even and self.rows * self.columns // self.local <= _MAX_SUMS


def shapes_of(limits: Limits, types: str = FP16) -> list[tuple[int, int, int]]:
    """Return rows, columns and depth of a device's matrices of such types."""
    if not (limits.int8 if types == INT8 else limits.float16):
        return []
    found = [m.groups() for m in map(_SHAPE.fullmatch, limits.matrices) if m and m[1] == types]
    return [(int(m), int(n), int(k)) for _, m, n, k in found]


def coopmat_subgroups(limits: Limits) -> tuple[int, ...]:
    """Return the lanes that subgroups may have which compute by cooperative matrices.

    Drivers that offer several sizes have units for the smallest one, and Intel's for no other;
    AMD's, which offer 32 and 64, for both: one of 64 reads and holds half as much in each lane.
    """
    if not limits.subgroup_sizes:
        return ()
    amd = set(limits.subgroup_sizes) == {_USUAL_SUBGROUP, 2 * _USUAL_SUBGROUP}
    least = min(limits.subgroup_sizes)
    return (least, 2 * least) if amd else (least,)


def coopmat_name(shape: tuple[int, int, int], rows: int, columns: int, subgroup: int) -> str:
    """Return the name of a variant: the matrices, a group's tile, and the lanes where many."""
    lanes = f" of {subgroup}" if subgroup > _USUAL_SUBGROUP else ""
    return f"{COOPMAT}{'x'.join(map(str, shape))} {rows}x{columns}{lanes}"


@lru_cache(maxsize=64)
def _tiles(limits: Limits, of: str) -> dict[str, CoopmatTile]:
    types = _TYPES[of]
    tiles = [
        CoopmatTile(types, shape, _SUBGROUPS * rows, _SUBGROUPS * columns, subgroup, untransposed)
        for untransposed in ((True, False) if of == MATMUL else (False,))
        for shape in shapes_of(limits, types)
        for rows, columns in _TILES[of][limits.software]
        for subgroup in coopmat_subgroups(limits)
    ]
    return {tile.name: tile for tile in tiles if tile.fits(limits)}


def coopmat_tile(call: Call, of: str = MATMUL) -> CoopmatTile | None:
    """Return the tile of a call's variant, None where that is another kernel. of: MATMUL,
    CONV or INT8_MATMUL.
    """
    named = call.variant.startswith(COOPMAT)
    return _tiles(call.limits, of).get(call.variant) if named else None


def coopmat_variants(
    call: Call, rows: int, columns: int, of: str = MATMUL, across: bool = False
) -> tuple[str, ...]:
    """Return the variants that can compute a call as a product with such a result: of quantized
    values, or of float16. across: whether the factors are float16 and one lies across k, in memory.
    """
    if min(rows, columns) < MIN_SIDE or not (of == INT8_MATMUL or rounds(call)):
        return ()
    return tuple(
        name for name, tile in _tiles(call.limits, of).items() if across or not tile.untransposed
    )


def rounds(call: Call) -> bool:
    """Whether the factors of a call are float16, or may be rounded to that."""
    return call.output.dtype == FLOAT16 or may_round(call)


COOPMAT_SHADERS = tuple(
    f"matmul_coopmat_{kind}" for kind in (FLOAT32, FLOAT16, f"aligned_{FLOAT16}")
)

"""Cooperative-matrix tiles (VK_KHR_cooperative_matrix) of matrix products and convolutions.

    subgroup:     at most 64 x 64 results, in cooperative matrices of one of the device's shapes
    workgroup:    2 x 2 subgroups, which share both operands in shared memory
    untransposed: a float16 operand that is not contiguous along k is not transposed on load

Operands are float16 or are rounded to float16 when a tile is loaded; accumulators are float32. The
int8 products of int8_matmul_kernels.py use int8 operands and exact int32 accumulators.

Some drivers emulate cooperative matrices slowly or compute wrong results. There these variants come
last: none is used before the tuner has measured it (for this size or a smaller one) and has
compared its result with the result of another kernel. On a driver that is known to be good and
whose results were checked on the device (Limits.coopmat_checked), `guess_tile` selects the variant
of a float16 product that was not measured, by counts:

    useful share of all multiply-adds >= 1 / MAX_PADDING    else another kernel
    the largest tile that fills the GPU                     it reads the fewest operands
    no tile does: the tile with the most workgroups         it occupies the most cores
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...common.dtypes import FLOAT16, FLOAT32
from ...ir.op import Call
from ...ir.precision import may_round
from ...topology.limits import Limits
from ..lowering.variants import COOPMAT
from .split_k import MIN_GAIN, PARTS, split_name, without_split

_SHAPE = re.compile(r"(\S+) (\d+)x(\d+)x(\d+)", re.ASCII)
FP16, INT8 = "float16*float16+float32", "int8*int8+int32"
"""Types of the operands and the accumulator. The int8 type serves unsigned values too, because the
packed words are always signed.
"""
_STEPS = {FP16: 32, INT8: 64}
"""Elements along k that shared memory holds: TILE_K of shaders/include/coopmat.glsl."""
MATMUL, CONV, INT8_MATMUL = "matmul", "conv", "int8_matmul"
_TYPES = {MATMUL: FP16, CONV: FP16, INT8_MATMUL: INT8}
_TILES = {
    MATMUL: {False: ((64, 64), (32, 32)), True: ((16, 16),)},
    CONV: {False: ((64, 32), (32, 32)), True: ((16, 16),)},
    INT8_MATMUL: {False: ((64, 64), (32, 32)), True: ((8, 8),)},
}
"""Rows and columns that one subgroup computes. The inner key is True for CPU drivers: llvmpipe
takes a minute to compile 32 x 32. Convolutions need more registers besides the accumulators, and
gather each window once for all rows of a tile.
"""
_SUBGROUPS = 2, 2
"""Subgroups of a workgroup, along rows and along columns."""
_FEW_COLUMNS, _FEW_DOWN = 64, 4
"""Columns, and subgroups along rows, of a workgroup with few registers: those of Intel's GPUs,
whose compiler keeps each sum three times.
"""
_WIDE_SUBGROUP = 16
"""Smallest subgroup that with few registers holds two matrices of a product: on Xe2."""
_LINE_BYTES, _GAP_BYTES = 64, 16
"""Bytes of a line in shared memory, and of the padding between two lines."""
_OTHER_BYTES = 512
"""Bytes of shared memory besides tiles and accumulators: window taps, or sums of rows."""
_MAX_SUMS = 128
"""Maximum number of results that one invocation accumulates."""
_USUAL_SUBGROUP = 32
_UNTRANSPOSED = " untransposed"
_REDUCE_STEPS = 512
"""Steps along k that take as long as the dispatch that adds partial sums."""
MIN_SIDE = 16
"""Minimum number of rows and columns of a result for which cooperative matrices are measured."""
MAX_PADDING = 2
"""Maximum ratio of the multiply-adds of whole tiles to the useful ones in a static choice: the
matrix units of all listed GPUs multiply at least twice as fast as their float32 units.
"""
FULL_SHARE, FULL_GROUPS = 3, 32
"""A GPU counts as full if at least one in FULL_SHARE of its cores has a workgroup; with an unknown
number of cores, if there are FULL_GROUPS workgroups. On an H100 with 132 cores, 64 tiles of
128 x 128 were faster than 256 of 64 x 64: 241 and 157 TFLOP/s
(docs/performance/negative-results.md).
"""


@dataclass(frozen=True, slots=True)
class CoopmatTile:
    """A variant of `matmul_coopmat`, `conv_coopmat` or `int8_gemm_coopmat`.

    Attributes
    ----------
    types : str
        FP16 or INT8.
    shape : tuple of int
        Rows, columns and depth of one cooperative matrix.
    rows, columns : int
        Results that one workgroup computes.
    subgroup : int
        Size of a subgroup.
    untransposed : bool
        If true, an operand that is not contiguous along k is copied to shared memory as it is, and
        the device transposes it when it loads the matrices. This is free on some devices and takes
        many loads on others.
    subgroups : tuple of int
        Subgroups of a workgroup, along rows and along columns.
    """

    types: str
    shape: tuple[int, int, int]
    rows: int
    columns: int
    subgroup: int
    untransposed: bool = False
    subgroups: tuple[int, int] = _SUBGROUPS

    @property
    def name(self) -> str:
        name = coopmat_name(self.shape, self.rows, self.columns, self.subgroup)
        return f"{name}{_UNTRANSPOSED}" if self.untransposed else name

    @property
    def local(self) -> int:
        """Return the number of invocations of a workgroup."""
        return math.prod(self.subgroups) * self.subgroup

    @property
    def shared_bytes(self) -> int:
        rows, columns, _ = self.shape
        tiles = (self.rows + self.columns) * (_LINE_BYTES + _GAP_BYTES) + _OTHER_BYTES
        return tiles + math.prod(self.subgroups) * rows * columns * 4

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        rows, columns, depth = self.shape
        return (
            ("LOCAL_X", self.local),
            *(("MATRIX_M", rows), ("MATRIX_N", columns), ("MATRIX_K", depth)),
            ("DOWN", self.rows // self.subgroups[0] // rows),
            ("ACROSS", self.columns // self.subgroups[1] // columns),
            *(("SUBGROUPS_DOWN", self.subgroups[0]), ("SUBGROUPS_ACROSS", self.subgroups[1])),
            *((("UNTRANSPOSED", 1),) if self.untransposed else ()),
        )

    def fits(self, limits: Limits) -> bool:
        """Return True if a device supports this tile."""
        rows, columns, depth = self.shape
        across = self.columns % (self.subgroups[1] * columns) == 0
        tiles = across and self.rows % (self.subgroups[0] * rows) == _STEPS[self.types] % depth == 0
        eights = not self.untransposed or rows % 8 == columns % 8 == 0
        whole = tiles and depth % 8 == columns % 4 == 0 and eights
        most = min(limits.max_invocations, limits.max_local_size[0])
        fits = self.local <= most and self.shared_bytes <= limits.shared_bytes
        reads = {side * _LINE_BYTES // 16 for side in (self.rows, self.columns)}
        # all invocations read the same number of 8-element vectors of a line, or some read one
        few = limits.few_registers
        even = all(read % self.local == 0 or few and self.local % read == 0 for read in reads)
        return whole and fits and even and self.rows * self.columns // self.local <= _MAX_SUMS


def shapes_of(limits: Limits, types: str = FP16) -> list[tuple[int, int, int]]:
    """Return the (rows, columns, depth) of a device's cooperative matrices of these types."""
    if not (limits.int8 if types == INT8 else limits.float16):
        return []
    found = [m.groups() for m in map(_SHAPE.fullmatch, limits.matrices) if m and m[1] == types]
    return [(int(m), int(n), int(k)) for _, m, n, k in found]


def coopmat_subgroups(limits: Limits) -> tuple[int, ...]:
    """Return the subgroup sizes with which a device computes cooperative matrices.

    Drivers with several subgroup sizes support cooperative matrices at the smallest one, and
    Intel's only there. AMD's drivers, with sizes 32 and 64, support both: with 64, each lane loads
    and holds half as much.
    """
    if not limits.subgroup_sizes:
        return ()
    amd = set(limits.subgroup_sizes) == {_USUAL_SUBGROUP, 2 * _USUAL_SUBGROUP}
    least = min(limits.subgroup_sizes)
    return (least, 2 * least) if amd else (least,)


def coopmat_name(shape: tuple[int, int, int], rows: int, columns: int, subgroup: int) -> str:
    """Return the name of a variant: matrix shape, workgroup tile, and a subgroup size above 32."""
    lanes = f" of {subgroup}" if subgroup > _USUAL_SUBGROUP else ""
    return f"{COOPMAT}{'x'.join(map(str, shape))} {rows}x{columns}{lanes}"


def _sides(
    limits: Limits, of: str, shape: tuple[int, int, int]
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield rows and columns of a workgroup, and its subgroups along both."""
    if limits.few_registers:
        wide = min(coopmat_subgroups(limits), default=0) >= _WIDE_SUBGROUP
        matrices = 2 if of != CONV and wide else 1
        rows = _FEW_DOWN * matrices * shape[0]
        yield (rows, _FEW_COLUMNS), (_FEW_DOWN, _FEW_COLUMNS // shape[1])
        return
    for rows, columns in _TILES[of][limits.software]:
        yield (_SUBGROUPS[0] * rows, _SUBGROUPS[1] * columns), _SUBGROUPS


@lru_cache(maxsize=64)
def _tiles(limits: Limits, of: str) -> dict[str, CoopmatTile]:
    types = _TYPES[of]
    tiles = [
        CoopmatTile(types, shape, *sides, subgroup, untransposed, subgroups)
        for untransposed in ((True, False) if of == MATMUL else (False,))
        for shape in shapes_of(limits, types)
        for sides, subgroups in _sides(limits, of, shape)
        for subgroup in coopmat_subgroups(limits)
    ]
    return {tile.name: tile for tile in tiles if tile.fits(limits)}


def coopmat_tile(call: Call, of: str = MATMUL) -> CoopmatTile | None:
    """Return the tile of a call's variant, or None if the variant is another kernel.

    `of` is MATMUL, CONV or INT8_MATMUL.
    """
    named = call.variant.startswith(COOPMAT)
    return _tiles(call.limits, of).get(without_split(call.variant)) if named else None


def coopmat_split(name: str, sizes: tuple[int, int, int], batches: int, limits: Limits) -> str:
    """Return the variant that splits the sums of a variant, or "" if this does not pay on a GPU
    with this many cores. sizes: rows, columns and steps along k.
    """
    tile, (rows, columns, k) = _tiles(limits, MATMUL)[name], sizes
    groups = -(-rows // tile.rows) * -(-columns // tile.columns) * batches
    fitting = [parts for parts in PARTS if groups * parts <= limits.cores]
    if not fitting or MIN_GAIN * (k / fitting[-1] + _REDUCE_STEPS) > k:
        return ""
    return split_name(name, fitting[-1])


def coopmat_variants(
    call: Call, rows: int, columns: int, of: str = MATMUL, along_k: bool = True, fp16: bool = False
) -> tuple[str, ...]:
    """Return the cooperative-matrix variants for a call with a (rows, columns) result.

    `of` is MATMUL, CONV or INT8_MATMUL. `along_k` is True if both operands are contiguous along k,
    `fp16` if they are float16. With few registers a tile does not transpose operands.
    """
    if min(rows, columns) < MIN_SIDE or not (of == INT8_MATMUL or rounds(call)):
        return ()
    across, transposes = fp16 and not along_k, not call.limits.few_registers
    return tuple(
        name
        for name, tile in _tiles(call.limits, of).items()
        if (across if tile.untransposed else along_k or transposes)
    )


def coopmat_pays(limits: Limits, useful: int, whole: int) -> bool:
    """Return True if a call without a measurement uses cooperative matrices.

    Parameters
    ----------
    useful, whole
        The multiply-adds of the call, and of the tiles that cover it.
    """
    return limits.coopmat_checked and not limits.software and whole <= MAX_PADDING * useful


def guess_tile(
    tiles: Sequence[CoopmatTile], limits: Limits, sizes: tuple[int, int, int], batches: int = 1
) -> CoopmatTile | None:
    """Return the tile that a product without a measurement uses; None if it uses another kernel.

    Parameters
    ----------
    tiles
        The tiles that support the product.
    sizes
        Rows, columns and depth of each of the `batches` products.
    """
    rows, columns, depth = sizes
    step = _STEPS[FP16]

    def groups(tile: CoopmatTile) -> int:
        return batches * -(-rows // tile.rows) * -(-columns // tile.columns)

    def area(tile: CoopmatTile) -> int:
        return tile.rows * tile.columns

    def pays(tile: CoopmatTile) -> bool:
        whole = groups(tile) * area(tile) * -(-depth // step) * step
        return coopmat_pays(limits, batches * rows * columns * depth, whole)

    useful = [tile for tile in tiles if pays(tile)]
    least = -(-limits.cores // FULL_SHARE) or FULL_GROUPS
    full = [tile for tile in useful if groups(tile) >= least]
    return max(full, key=area) if full else max(useful, key=groups, default=None)


@lru_cache(maxsize=64)
def guessed_shape(limits: Limits) -> tuple[tuple[int, int, int], int] | None:
    """Return the matrix shape and the subgroup size of static choices: the largest shape, and the
    larger subgroup size of AMD's GPUs, where a lane loads and holds half as much.
    """
    tiles = [(tile.shape, tile.subgroup) for tile in _tiles(limits, MATMUL).values()]
    return max(tiles, key=lambda each: (math.prod(each[0]), each[1]), default=None)


def guessed_tiles(
    limits: Limits, of: str = MATMUL, names: Collection[str] | None = None
) -> list[CoopmatTile]:
    """Return the tiles from which static choices select: those that transpose, if there are any.

    Parameters
    ----------
    names
        The variants that support a call; by default all.
    """
    shape, known = guessed_shape(limits), _tiles(limits, of)
    tiles = [known[name] for name in known if names is None or name in names]
    tiles = [tile for tile in tiles if (tile.shape, tile.subgroup) == shape]
    return [tile for tile in tiles if not tile.untransposed] or tiles


def with_coopmats(
    call: Call,
    plain: tuple[str, ...],
    sizes: tuple[int, int, int],
    batches: int = 1,
    of: str = MATMUL,
    along_k: bool = True,
    fp16: bool = False,
) -> tuple[str, ...]:
    """Return all variants of a product, the best guess first.

    Parameters
    ----------
    plain
        The variants without cooperative matrices.
    sizes
        Rows, columns and depth of each of the `batches` products.
    of, along_k, fp16
        See `coopmat_variants`.
    """
    rows, columns, _ = sizes
    coopmats = coopmat_variants(call, rows, columns, of, along_k, fp16)
    limits = call.limits
    if not (coopmats and limits.coopmat_checked):
        return (*plain, *coopmats)
    tile = guess_tile(guessed_tiles(limits, of, coopmats), limits, sizes, batches)
    return by_guess(plain, coopmats, tile.name if tile is not None else "")


def by_guess(plain: tuple[str, ...], coopmats: tuple[str, ...], guess: str) -> tuple[str, ...]:
    """Return all variants of a call, the best guess first.

    Parameters
    ----------
    plain, coopmats
        The variants without and with cooperative matrices.
    guess
        The cooperative-matrix variant of calls without a measurement; "" if there is none.
    """
    if guess not in coopmats:
        return (*plain, *coopmats)
    return (guess, *plain, *(name for name in coopmats if name != guess))


def rounds(call: Call) -> bool:
    """Return True if the operands of a call are float16 or may be rounded to float16."""
    return call.output.dtype == FLOAT16 or may_round(call)


COOPMAT_SHADERS = tuple(
    f"matmul_coopmat_{kind}" for kind in (FLOAT32, FLOAT16, f"aligned_{FLOAT16}")
)

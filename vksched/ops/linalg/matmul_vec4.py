"""Matrix products on GPUs in tiles of shared memory, read as vec4.

    invocation: 4 x 4 results, or 2 x 2 blocks of 4 x 4, which read half as much shared memory
    workgroup:  128 or 256 invocations, which share both operands of some steps along k

The next tile is loaded into the other half of shared memory while a tile is multiplied. Operands
whose lines are not multiples of four are packed first (operands.py). The kind of a tile specifies
its rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ...ir.op import Call
from ...ir.precision import MIXED, may_round, precision_of
from ...topology.limits import Limits
from .operands import BF16_B, fp16_weights
from .split_k import (
    MIN_GAIN,
    occupying_invocations,
    reduce_cost,
    split_name,
    split_of,
    useful_parts,
    without_split,
)

SINGLE, FP16_OPERANDS, FP16_ACC, UNALIGNED = "tiled", "mixed", "fp16acc", "unaligned"
"""Kinds of tiles: float32 throughout; operands rounded to float16 with float32 sums; float16
operands and sums, two sums at a time; float32 throughout for operands whose lines are no vec4s,
which are read value by value and not packed.
"""
_PREFIXES = {"vec4": SINGLE, **{kind: kind for kind in (FP16_OPERANDS, FP16_ACC, UNALIGNED)}}
"""Prefixes of variant names, and their kinds."""
_DEPTH, _PADDING = 8, 8
"""Steps along k in a tile, and its padding in vec4s: TILE_K and both gaps of matmul_vec4.comp."""


@dataclass(frozen=True, slots=True)
class Vec4Tile:
    """A variant of `matmul_vec4`.

    Attributes
    ----------
    rows, columns : int
        Results that one workgroup computes.
    down, across : int
        Blocks of 4 x 4 results of an invocation.
    cost : float
        Approximate cost of a multiply-add, relative to the largest tile.
    """

    kind: str
    rows: int
    columns: int
    down: int
    across: int
    cost: float

    @property
    def local(self) -> int:
        """Return the number of invocations of a workgroup."""
        return self.rows * self.columns // (16 * self.down * self.across)

    @property
    def shared_bytes(self) -> int:
        four = 16 if self.kind in (SINGLE, UNALIGNED) else 8
        return 2 * four * ((self.rows + self.columns) * _DEPTH // 4 + _PADDING)

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        return (
            *(("LOCAL_X", self.local), ("TILE_M", self.rows), ("TILE_N", self.columns)),
            *(("DOWN", self.down), ("ACROSS", self.across)),
        )

    def shader(self, dtype: str) -> str:
        """Return the module's name."""
        return f"matmul_vec4_{'' if self.kind == SINGLE else f'{self.kind}_'}{dtype}"

    @property
    def registers(self) -> int:
        """Return about how many registers of 32 bits an invocation needs."""
        return _REGISTERS[self.down * self.across] + (
            _FP16_ACC_REGISTERS if self.kind == FP16_ACC else 0
        )

    def fits(self, limits: Limits) -> bool:
        """Return True if a device supports this tile without spilling registers."""
        most = min(limits.max_invocations, limits.max_local_size[0])
        fits = self.local <= most and self.shared_bytes <= limits.shared_bytes
        return fits and self.registers <= limits.registers

    def fills(self, m: int, n: int) -> bool:
        """Return True if a tile is more than half full along both axes, or is the smallest."""
        return self.rows < 2 * max(m, _SMALL[0]) and self.columns < 2 * max(n, _SMALL[1])

    def groups(self, m: int, n: int, batches: int) -> int:
        """Return the number of workgroups of a product."""
        return -(-m // self.rows) * -(-n // self.columns) * batches

    def time(self, groups: int, limits: Limits) -> float:
        """Return the approximate cost of a step along k, in multiply-adds of the largest tile."""
        idle = max(1.0, occupying_invocations(limits) / (groups * self.local))
        return groups * self.rows * self.columns * self.cost * idle


_TILES = (
    *((128, 128, 2, 2, 1.0), (128, 64, 2, 2, 1.1)),
    *((64, 64, 1, 2, 1.3), (32, 64, 1, 1, 1.7)),
)
"""Fields of `Vec4Tile`. The second tile suits devices with 128 invocations and 16 KiB of shared
memory, the others suit smaller results. On an NVIDIA H100 the first reaches 47 TFLOP/s, the second
42, the third 37.
"""
_REGISTERS = {4: 195, 2: 118, 1: 80}
"""Registers of an invocation by the number of its blocks, as Intel's compiler needs them."""
_FP16_ACC_REGISTERS = 34
"""Registers that float16 sums need in addition: Intel's compiler unpacks them."""
MAX_SPLITS = 2
"""Variants of a call that split k, each of another tile."""
_SMALL = 32, 64
"""Rows and columns of the smallest tile."""


def tile_kinds(call: Call) -> tuple[str, ...]:
    """Return the kinds of tiles that a GPU may use for a call, the best guess first.

    Two sums per register halve the number of instructions on all GPUs. Rounding only the operands
    to float16 takes more instructions on some GPUs, and less shared memory on all.
    """
    if not may_round(call) or fp16_weights(call) == BF16_B:
        return (SINGLE,)
    kinds = (SINGLE, FP16_OPERANDS)
    return kinds if precision_of(call.attrs) == MIXED else (FP16_ACC, *kinds)


@lru_cache(maxsize=64)
def tiles_of(limits: Limits, kind: str = SINGLE) -> dict[str, Vec4Tile]:
    """Return the variants of a kind that a device supports, by name."""
    tiles = [Vec4Tile(kind, *numbers) for numbers in _TILES]
    (prefix,) = (prefix for prefix, of in _PREFIXES.items() if of == kind)
    return {f"{prefix} {tile.rows}x{tile.columns}": tile for tile in tiles if tile.fits(limits)}


def vec4_tile(call: Call) -> Vec4Tile | None:
    """Return the tile of a call's variant, or None if the variant is another kernel."""
    variant = without_split(call.variant)
    kind = _PREFIXES.get(variant.split(" ")[0])
    return None if kind is None else tiles_of(call.limits, kind).get(variant)


def vec4_variants(
    call: Call, m: int, n: int, batches: int, kinds: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the variants for a call with vec4 or packed operands, the best guess first.

    Tiles that are at least half unused are left out, except the smallest ones.

    Parameters
    ----------
    kinds
        Kinds of tiles; by default those for vec4 or packed operands.
    """
    found: list[str] = []
    for kind in kinds or tile_kinds(call):
        tiles = {
            name: tile for name, tile in tiles_of(call.limits, kind).items() if tile.fills(m, n)
        }
        groups = {name: tile.groups(m, n, batches) for name, tile in tiles.items()}
        found += sorted(tiles, key=lambda name: tiles[name].time(groups[name], call.limits))
    return tuple(found)


def vec4_time(m: int, n: int, k: int, batches: int, limits: Limits) -> float:
    """Return the approximate time of a product by the best tile, in multiply-adds of a GPU."""
    tiles = [tile for tile in tiles_of(limits).values() if tile.fills(m, n)]
    times = (tile.time(tile.groups(m, n, batches), limits) for tile in tiles)
    return k * min(times, default=0.0)


def vec4_splits(
    call: Call, kind: str, sizes: tuple[int, int, int], batches: int
) -> tuple[str, ...]:
    """Return the variants that split k, if they are faster by the model than all others, the best
    guess first: at most MAX_SPLITS tiles of a kind, each with its best number of parts. sizes: m, n
    and k.
    """
    m, n, k = sizes
    if kind == FP16_ACC:
        return ()
    limits, times = call.limits, dict[str, float]()
    tiles = {name: tile for name, tile in tiles_of(limits, kind).items() if tile.fills(m, n)}
    groups = {name: tile.groups(m, n, batches) for name, tile in tiles.items()}
    whole = vec4_time(m, n, k, batches, limits)
    for name, tile in tiles.items():
        options = {}
        for parts in useful_parts(groups[name], limits):
            variant = split_name(name, parts)
            split = split_of(variant, k)
            assert split is not None
            product = tile.time(groups[name] * split.parts, limits) * split.part
            added = reduce_cost(m * n * batches, split.parts, limits)
            options[variant] = MIN_GAIN * (product + added)
        times.update(sorted(options.items(), key=lambda option: option[1])[:1])
    gains = (name for name in sorted(times, key=times.__getitem__) if times[name] < whole)
    return tuple(gains)[:MAX_SPLITS]

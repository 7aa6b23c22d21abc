"""Launch geometry of attention: variants, rows of a workgroup, and partition of the keys."""

from __future__ import annotations

from dataclasses import dataclass

from ...common.dtypes import INT32, INT64
from ...common.errors import UnsupportedOp
from ...ir.op import Call
from ...topology.limits import Limits
from ..linalg.coopmat import by_guess
from ..linalg.matmul_vec4 import tile_kinds
from ..lowering.strides import DISPATCH_FLOPS, LOOP_STEPS
from ..lowering.vec4 import has_subgroup_kernels
from .attention_coopmat import (
    AttentionCoopmat,
    attention_coopmat_tile,
    attention_coopmat_variants,
    guessed_attention_coopmat,
    most_columns,
)
from .attention_decode import decode_variants
from .attention_sizes import Sizes, has_slots, sizes_of

UNBOUNDED = 1 << 30
"""Distance beyond any visible key."""
LANES_ACROSS = 32
"""Lanes of a workgroup along columns, in shaders/attention/attention_tiled.glsl."""
KEYS_AT_ONCE = 64
"""Keys that a workgroup of that shader processes at a time."""
MAX_COLUMNS = 8 * LANES_ACROSS
"""Maximum columns of v of one dispatch on a GPU; more columns take several dispatches."""
LANES_ON_CPU, KEYS_IN_ROWS = 8, 8
"""Invocations of a workgroup of `rows`, and keys that an invocation processes at a time."""
TILES = {8: ((32, 64), (32, 32), (4, 64), (1, 64)), 4: ((8, 64), (16, 32), (4, 64), (1, 64))}
"""Rows and columns of v of a workgroup of `attention_subgroup`, by subgroup size."""
ROWS = "rows"
"""The variant for CPU drivers that supports any size: one row per invocation."""
TALL, MIDDLE, FLAT = 32, 16, 4
TILED = {
    f"{kind} {rows}": (kind, rows)
    for kind in ("tiled", "mixed", "fp16acc")
    for rows in (TALL, MIDDLE, FLAT)
}
"""Variants in shared memory: the kind of their tiles, as in matmul_kernels.py, and the rows of a
workgroup.
"""
TALL_BYTES, TALL_COLUMNS, TALL_GROUPS = 22 << 10, 128, 512
"""Requirements of the tallest tile: shared memory of a workgroup, above the 16 KiB that every
device has; columns up to which an invocation's sums stay in registers; workgroups that occupy a
GPU, so that reading keys and values half as often pays.
"""
TILED_LANES = 128
"""Invocations of a workgroup in shared memory, if their sums stay in registers."""
_OWN_ROWS = {"tiled": 4, "mixed": 4, "fp16acc": 2}
_OWN_SUMS = {"tiled": 20, "mixed": 16, "fp16acc": 8}
"""Maximum rows, and results, of an invocation with few registers, by kind of tiles: Intel's
compiler spills beyond them.
"""
_NARROW_ROWS = 2
"""Maximum rows of an invocation in mixed if it has one column: 4 spilled 1 to 8 registers (lnl)."""
_FETCHED = {"tiled": 2, "mixed": 0, "fp16acc": 0}
"""Results that take as many registers as what is fetched ahead, for each row of an invocation."""
MASKED_BUFFERS, CACHED_BUFFERS = 5, 7
"""Buffers that attention with a mask binds: q, k, v, the mask and the result; and with a KV cache:
q, the cached keys and values, the key count, the new keys and values, and the result.
"""
GROUPS_WANTED, MIN_PART = 256, 128
"""A GPU with fewer workgroups than this splits the keys into parts of at least this length."""
CPU_GROUPS_WANTED, MIN_CPU_PART = 8, 256
"""These limits for a CPU driver, whose workgroups are expensive."""
_LOADS = {8: 16, 4: 5}
"""Cost of the loads of a tile, in rows of products, by subgroup size: measured on llvmpipe (8
lanes) and SwiftShader (4 lanes).
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch geometry of a call.

    Attributes
    ----------
    tile : int
        Rows of a workgroup.
    tiles : int
        Tiles of all batches.
    each : int
        Tiles of one dispatch.
    parts, part_keys : int
        Number of parts of the keys, and keys of a part.
    columns : int
        Columns of v of one dispatch.
    """

    tile: int
    tiles: int
    each: int
    parts: int
    part_keys: int
    columns: int


def variants(call: Call) -> tuple[str, ...]:
    """Return the variants, the best guess first: shared memory on GPUs, subgroups on CPU drivers,
    and cooperative matrices.
    """
    if call.output.size == 0:
        return ()
    s = sizes_of(call)
    few = _has_few_buffers(call)
    sizes = s.rows, s.keys, s.depth, s.columns
    coopmats = () if few else attention_coopmat_variants(call, *sizes)
    guess = guessed_attention_coopmat(call, *sizes)
    return by_guess(_plain_variants(call, s), coopmats, guess)


def cached_variants(call: Call) -> tuple[str, ...]:
    """Return the variants of a call with a KV cache: for few queries one dispatch comes first, on
    checked devices. With slots there is only the first one, as the choice among several may depend
    on the number of examples.
    """
    if call.output.size == 0:
        return ()
    decode, others = decode_variants(call, sizes_of(call)), variants(call)
    found = (*decode, *others) if call.limits.memory_model_checked else (*others, *decode)
    return found[:1] if has_slots(call) else found


def _has_few_buffers(call: Call) -> bool:
    """Return True if a device does not bind the buffers of a mask or of a KV cache."""
    if len(call.inputs) <= 3:
        return False
    is_cached = call.inputs[3].dtype in (INT32, INT64)
    return call.limits.storage_buffers < (CACHED_BUFFERS if is_cached else MASKED_BUFFERS)


def coopmat_of(call: Call, s: Sizes) -> AttentionCoopmat | None:
    """Return the cooperative-matrix tile of a call's variant, or None if it is another kernel."""
    return attention_coopmat_tile(call, s.depth, s.columns)


def _plain_variants(call: Call, s: Sizes) -> tuple[str, ...]:
    few = _has_few_buffers(call)
    if few or not call.limits.software:
        kinds = ("tiled",) if call.limits.software else tile_kinds(call)
        return tuple(
            f"{kind} {rows}"
            for kind in kinds
            for rows in _heights(s, call.limits)
            if not _spills(kind, rows, s.columns, call.limits)
        )
    is_vec4_aligned = s.depth % 4 == 0 and s.columns % 4 == 0
    tiles = subgroup_tiles(call.limits) if is_vec4_aligned else {}
    lanes = call.limits.subgroup_size
    return (*sorted(tiles, key=lambda name: _cost(s, *tiles[name], lanes)), ROWS)


def subgroup_tiles(limits: Limits) -> dict[str, tuple[int, int]]:
    """Return the tiles for the subgroups of a CPU driver, by variant."""
    tiles = TILES[limits.subgroup_size] if has_subgroup_kernels(limits, TILES) else ()
    return {f"subgroup {tile[0]}x{tile[1]}": tile for tile in tiles}


def _cost(s: Sizes, rows: int, columns: int, lanes: int) -> int:
    """Return the approximate cost of a call per key, in products of a row."""
    tiles = -(-s.rows // rows) * -(-s.columns // columns)
    return tiles * (_LOADS[lanes] + rows) * (s.depth + columns)


def _heights(s: Sizes, limits: Limits) -> tuple[int, ...]:
    """Return the possible tile heights in shared memory, the best guess first."""
    if s.rows <= 2 * FLAT:
        return FLAT, MIDDLE
    small = limits.shared_bytes < TALL_BYTES or s.columns > TALL_COLUMNS
    if small or s.rows <= MIDDLE:
        return MIDDLE, FLAT
    fills = -(-s.rows // TALL) * s.planned >= TALL_GROUPS
    return (TALL, MIDDLE, FLAT) if fills else (MIDDLE, TALL, FLAT)


def columns_of_lane(kind: str, columns: int) -> int:
    """Return the columns of a lane in shared memory: 1, 2, 4 or 8, to limit pipelines.

    fp16acc sums two columns at a time.
    """
    wanted = max(2 if kind == "fp16acc" else 1, -(-columns // LANES_ACROSS))
    return 1 << (wanted - 1).bit_length()


def tiled_lanes(kind: str, rows: int, columns: int, limits: Limits) -> int:
    """Return the invocations of a workgroup in shared memory: more where registers are few."""
    lanes = TILED_LANES
    if limits.few_registers:
        most = min(limits.max_invocations, limits.max_local_size[0])
        while not _fits_registers(kind, rows, columns, lanes) and 2 * lanes <= most:
            lanes *= 2
    return lanes


def _spills(kind: str, rows: int, columns: int, limits: Limits) -> bool:
    """Return True if sums do not fit into registers, even in the largest workgroup."""
    columns = columns_of_lane(kind, min(columns, MAX_COLUMNS))
    lanes = tiled_lanes(kind, rows, columns, limits)
    return limits.few_registers and not _fits_registers(kind, rows, columns, lanes)


def _fits_registers(kind: str, rows: int, columns: int, lanes: int) -> bool:
    own, is_narrow = rows * LANES_ACROSS // lanes, kind == "mixed" and columns == 1
    return (
        own <= (_NARROW_ROWS if is_narrow else _OWN_ROWS[kind])
        and own * (columns + _FETCHED[kind]) <= _OWN_SUMS[kind]
    )


def launch(call: Call, s: Sizes) -> Launch:
    """Return the launch geometry of a call or of a segment of its keys."""
    if call.variant in TILED:
        return _on_gpu(call, s)
    coopmat = coopmat_of(call, s)
    if coopmat is not None:
        return _by_coopmat(call, s, coopmat)
    return _by_rows(call, s) if call.variant == ROWS else _by_subgroup(call, s)


def _by_coopmat(call: Call, s: Sizes, coopmat: AttentionCoopmat) -> Launch:
    """Return the geometry of a cooperative-matrix variant, which repeats rows as `rows` does."""
    of_batch, limits = -(-s.rows // coopmat.rows), call.limits
    tiles, planned = of_batch * s.batches, of_batch * s.planned
    groups = CPU_GROUPS_WANTED if limits.software else GROUPS_WANTED
    wanted = max(1, min(groups // planned, s.keys // MIN_PART))
    if limits.software:
        wanted = max(wanted, -(-s.keys // _longest_part(s)))
    parts, part_keys = _equal_parts(s, wanted)
    columns = min(s.columns, most_columns(limits))
    each = _tiles_of_dispatch(coopmat.rows, s, columns)
    return Launch(coopmat.rows, tiles, min(tiles, each), parts, part_keys, columns)


def _tiles_of_dispatch(rows: int, s: Sizes, columns: int) -> int:
    """Return the maximum number of tiles with this many rows of one GPU dispatch."""
    flops = 2.0 * rows * max(1, s.keys) * (s.depth + columns)
    return max(1, int(DISPATCH_FLOPS / flops))


def _by_subgroup(call: Call, s: Sizes) -> Launch:
    rows, columns = subgroup_tiles(call.limits)[call.variant]
    lanes = call.limits.subgroup_size
    tiles, planned = -(-s.rows // rows) * s.batches, -(-s.rows // rows) * s.planned
    # the fallback uses the same parts
    rounds = 1 + s.depth // 4 + lanes + (rows if call.attrs.as_float("softcap") else 0)
    longest = min(_longest_part(s), (LOOP_STEPS - 16 * rows) // rounds * 4 * lanes)
    parts = max(-(-s.keys // longest), min(CPU_GROUPS_WANTED // planned, s.keys // MIN_CPU_PART), 1)
    parts, part_keys = _equal_parts(s, parts)
    most = call.limits.max_groups
    if parts > most[1]:
        raise UnsupportedOp(f"[attention] {s.keys} keys are too many for this CPU driver")
    return Launch(rows, tiles, min(tiles, most[0]), parts, part_keys, min(s.columns, columns))


def _equal_parts(s: Sizes, wanted: int) -> tuple[int, int]:
    """Return the number of parts, at most `wanted`, and the keys of a part."""
    part_keys = max(1, -(-s.keys // wanted))
    return max(1, -(-s.keys // part_keys)), part_keys


def _iterations(s: Sizes) -> tuple[int, int]:
    """Return the loop iterations of an invocation of `rows`, per block of keys and in total
    outside.
    """
    rounds = 1 + s.depth // 4 + s.depth % 4 + s.columns // 4 + s.columns % 4
    return rounds, 3 * s.columns + 2


def _longest_part(s: Sizes) -> int:
    """Return the maximum number of keys of an invocation of `rows`."""
    rounds, around = _iterations(s)
    part_keys = (LOOP_STEPS - around) // rounds * KEYS_IN_ROWS
    if part_keys <= 0:
        raise UnsupportedOp(
            f"[attention] heads of size {s.depth} and {s.columns} are too long for a CPU driver: "
            "such drivers end long loops early"
        )
    return part_keys


def _by_rows(call: Call, s: Sizes) -> Launch:
    """Return the geometry of `rows`, whose loop limit bounds the length of a part."""
    parts = max(1, -(-s.keys // _longest_part(s)))
    return rows_of_parts(call, s, parts)


def rows_of_parts(call: Call, s: Sizes, parts: int) -> Launch:
    """Return the geometry of `rows` for this number of parts."""
    parts, part_keys = _equal_parts(s, parts)
    tiles = -(-s.rows // LANES_ON_CPU) * s.batches
    most = call.limits.max_groups
    if not call.limits.software:
        each = min(tiles, _tiles_of_dispatch(LANES_ON_CPU, s, s.columns))
        return Launch(LANES_ON_CPU, tiles, each, parts, part_keys, s.columns)
    rounds, around = _iterations(s)
    runs = LOOP_STEPS // (-(-part_keys // KEYS_IN_ROWS) * rounds + around)
    each = runs // -(-parts // most[1])
    if each == 0:
        raise UnsupportedOp(f"[attention] {s.keys} keys are too many for this CPU driver")
    return Launch(LANES_ON_CPU, tiles, min(tiles, each * most[0]), parts, part_keys, s.columns)


def _on_gpu(call: Call, s: Sizes) -> Launch:
    _, tile = TILED[call.variant]
    tiles, planned = -(-s.rows // tile) * s.batches, -(-s.rows // tile) * s.planned
    wanted = max(1, min(GROUPS_WANTED // planned, s.keys // MIN_PART))
    part_keys = max(1, -(-s.keys // (wanted * KEYS_AT_ONCE))) * KEYS_AT_ONCE
    parts = max(1, -(-s.keys // part_keys))
    columns = min(s.columns, MAX_COLUMNS)
    each = min(tiles, _tiles_of_dispatch(tile, s, columns))
    return Launch(tile, tiles, each, parts, part_keys, columns)

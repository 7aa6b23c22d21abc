"""How attention runs on a device: variants, launches, and where operands lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...errors import UnsupportedOp
from ...machine.limits import Limits
from ...types import FLOAT32, TensorType
from ..core.attrs import Attrs
from ..core.op import OUTPUT, SCRATCH, Call, Dispatch, Kernel
from ..core.quads import has_lanes
from ..core.strides import LOCAL_SIZE, LOOP_STEPS, MAX_DISPATCHES, broadcast_strides

UNBOUNDED = 1 << 30
"""Further than any query sees."""
LANES_ACROSS = 32
"""Columns of the lanes of a group in shaders/products/attention_tiled.glsl."""
KEYS_AT_ONCE = 64
"""Keys that such a group works on at a time."""
MOST_COLUMNS = 8 * LANES_ACROSS
"""Columns of v that one dispatch for GPUs works on; more are several."""
LANES_ON_CPU, KEYS_IN_ROWS = 8, 8
"""Lanes of a group of `rows`; keys that an invocation works on at a time."""
TILES = {8: ((32, 64), (32, 32), (4, 64), (1, 64)), 4: ((8, 64), (16, 32), (4, 64), (1, 64))}
"""Rows, and columns of v, of a group of `attention_lanes`, which is one subgroup, by its lanes."""
ROWS = "rows"
"""The variant for CPU drivers that takes any size: an invocation has one row."""
TILED = {"tiled 32": 32, "tiled 16": 16, "tiled 4": 4}
"""Variants in shared memory by the rows of a group; the rows of each."""
TALL_BYTES, TALL_COLUMNS, TALL_GROUPS = 18 << 10, 128, 512
"""Of the tallest: shared memory of a group, over the 16 KiB that every device has; columns up to
which an invocation's sums stay in registers; groups from which they keep a GPU busy, and reading
keys and values half as often pays.
"""
STATE_WORDS = 4
"""Behind the sums of a part."""
GROUPS_WANTED, LEAST_PART = 256, 128
"""A GPU with fewer groups than this gets the keys in parts, of this length at least."""
CPU_GROUPS_WANTED, LEAST_CPU_PART = 8, 256
"""The same of a CPU driver, whose groups are dear."""
_LOADS = {8: 16, 4: 5}
"""What the loads of a tile take, in the products of so many rows: seen on llvmpipe (8 lanes) and
SwiftShader (4).
"""
DISPATCH_FLOPS = 1e11
"""Of one dispatch on a GPU, as drivers kill what takes seconds."""


def by_heads(inputs: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Returns the types of q, k and v as they are with the heads before the length."""
    return tuple(
        TensorType((t.shape[0], t.shape[2], t.shape[1], t.shape[3]), t.dtype) if turned else t
        for t, turned in zip(inputs[:3], attrs.as_ints("by_length")[:3], strict=True)
    )


def seen_keys(attrs: Attrs) -> tuple[int, int]:
    """Returns a, b: query i sees the keys i + a .. i + b."""
    past, left, right = (attrs.as_int(name) for name in ("past", "left", "right"))
    return (
        past - left if left >= 0 else -UNBOUNDED,
        past + right if right >= 0 else UNBOUNDED,
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """batches: with heads of k. rows: of q in each, of all heads that share keys."""

    batches: int
    heads: int
    rows: int
    queries: int
    keys: int
    depth: int
    columns: int


def _sizes(call: Call) -> _Sizes:
    q, k, v = (t.shape for t in by_heads(call.inputs, call.attrs))
    return _Sizes(k[0] * k[1], k[1], q[1] // max(1, k[1]) * q[2], q[2], k[2], q[3], v[3])


@dataclass(frozen=True, slots=True)
class _Launch:
    """How a call is cut.

    tile: rows of a group. tiles: of all batches. each: tiles of one dispatch. parts: of the keys,
    with part_keys each. columns: of v, of one dispatch.
    """

    tile: int
    tiles: int
    each: int
    parts: int
    part_keys: int
    columns: int


def variants(call: Call) -> tuple[str, ...]:
    """Shared memory on GPUs; on CPU drivers blocks in registers, as tall as the rows fill."""
    if call.output.size == 0:
        return ()
    s = _sizes(call)
    if not call.limits.software:
        return _tiled(s, call.limits)
    in_fours = s.depth % 4 == 0 and s.columns % 4 == 0
    tiles = _lanes(call.limits) if in_fours else {}
    lanes = call.limits.subgroup_size
    return (*sorted(tiles, key=lambda name: _cost(s, *tiles[name], lanes)), ROWS)


def _lanes(limits: Limits) -> dict[str, tuple[int, int]]:
    """Returns the variants for the subgroups of a CPU driver, by name: the tile of a group."""
    tiles = TILES[limits.subgroup_size] if has_lanes(limits, TILES) else ()
    return {f"lanes {tile[0]}x{tile[1]}": tile for tile in tiles}


def _cost(s: _Sizes, rows: int, columns: int, lanes: int) -> int:
    """Returns about how long a call takes for each key, in products of a row."""
    tiles = -(-s.rows // rows) * -(-s.columns // columns)
    return tiles * (_LOADS[lanes] + rows) * (s.depth + columns)


def _tiled(s: _Sizes, limits: Limits) -> tuple[str, ...]:
    tall, middle, flat = TILED
    if s.rows <= 2 * TILED[flat]:
        return flat, middle
    small = limits.shared_bytes < TALL_BYTES or s.columns > TALL_COLUMNS
    if small or s.rows <= TILED[middle]:
        return middle, flat
    fills = -(-s.rows // TILED[tall]) * s.batches >= TALL_GROUPS
    return (tall, middle, flat) if fills else (middle, tall, flat)


def _launch(call: Call) -> _Launch:
    if call.variant in TILED:
        return _on_gpu(call)
    return _by_rows(call) if call.variant == ROWS else _by_lanes(call)


def _by_lanes(call: Call) -> _Launch:
    s = _sizes(call)
    rows, columns = _lanes(call.limits)[call.variant]
    lanes = call.limits.subgroup_size
    tiles = -(-s.rows // rows) * s.batches
    # repairs have the same parts
    rounds = 1 + s.depth // 4 + lanes + (rows if call.attrs.as_float("softcap") else 0)
    longest = min(_longest_part(s), (LOOP_STEPS - 16 * rows) // rounds * 4 * lanes)
    parts = max(-(-s.keys // longest), min(CPU_GROUPS_WANTED // tiles, s.keys // LEAST_CPU_PART), 1)
    part_keys = max(1, -(-s.keys // parts))
    most = call.limits.max_groups
    if parts > most[1]:
        raise UnsupportedOp(f"[attention] {s.keys} keys are too many for this CPU driver")
    return _Launch(rows, tiles, min(tiles, most[0]), parts, part_keys, min(s.columns, columns))


def _rounds(s: _Sizes) -> tuple[int, int]:
    """Returns how often an invocation of `rows` goes round its loops: at each block of keys, and
    beside that.
    """
    rounds = 1 + s.depth // 4 + s.depth % 4 + s.columns // 4 + s.columns % 4
    return rounds, 3 * s.columns + 2


def _longest_part(s: _Sizes) -> int:
    """Returns how many keys an invocation of `rows` may work on."""
    rounds, around = _rounds(s)
    part_keys = (LOOP_STEPS - around) // rounds * KEYS_IN_ROWS
    if part_keys <= 0:
        raise UnsupportedOp(
            f"[attention] heads of size {s.depth} and {s.columns} are too long for a CPU driver: "
            "such drivers end long loops early"
        )
    return part_keys


def _by_rows(call: Call) -> _Launch:
    """A part of the keys is as long as an invocation may go round its loops."""
    s = _sizes(call)
    parts = max(1, -(-s.keys // _longest_part(s)))
    return _rows_of_parts(call, s, parts)


def _rows_of_parts(call: Call, s: _Sizes, parts: int) -> _Launch:
    part_keys = max(1, -(-s.keys // parts))
    tiles = -(-s.rows // LANES_ON_CPU) * s.batches
    most = call.limits.max_groups
    rounds, around = _rounds(s)
    runs = LOOP_STEPS // (-(-part_keys // KEYS_IN_ROWS) * rounds + around)
    each = runs // -(-parts // most[1])
    if each == 0:
        raise UnsupportedOp(f"[attention] {s.keys} keys are too many for this CPU driver")
    return _Launch(LANES_ON_CPU, tiles, min(tiles, each * most[0]), parts, part_keys, s.columns)


def _on_gpu(call: Call) -> _Launch:
    s, tile = _sizes(call), TILED[call.variant]
    tiles = -(-s.rows // tile) * s.batches
    wanted = max(1, min(GROUPS_WANTED // tiles, s.keys // LEAST_PART))
    part_keys = max(1, -(-s.keys // (wanted * KEYS_AT_ONCE))) * KEYS_AT_ONCE
    parts = max(1, -(-s.keys // part_keys))
    flops = 2.0 * tile * max(1, s.keys) * (s.depth + min(s.columns, MOST_COLUMNS))
    each = max(1, min(tiles, int(DISPATCH_FLOPS / flops)))
    return _Launch(tile, tiles, each, parts, part_keys, min(s.columns, MOST_COLUMNS))


def _strides(shape: tuple[int, ...], by_length: int) -> tuple[int, int]:
    """Returns the words from one position to the next, and from one head to the next."""
    _, one, other, size = shape
    return (other * size, size) if by_length else (size, other * size)


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    s, cut = _sizes(call), _launch(call)
    whole, masked = cut.parts == 1, len(call.inputs) > 3
    mask_strides = (0, 0, 0, 0)
    if masked:
        scores = (s.batches // s.heads, s.heads * s.rows // s.queries, s.queries, s.keys)
        mask_strides = broadcast_strides(call.inputs[3].shape, scores)  # type: ignore[assignment]
    strides = [
        ("q", call.inputs[0].shape),
        ("k", call.inputs[1].shape),
        ("v", call.inputs[2].shape),
        ("result", call.output.shape),
    ]
    low, high = seen_keys(call.attrs)
    push: list[tuple[str, int | float | tuple[int, ...]]] = [
        *(("rows", s.rows), ("queries", s.queries), ("keys", s.keys), ("depth", s.depth)),
        *(("heads", s.heads), ("mask_strides", mask_strides), ("parts", cut.parts)),
        *(("part_keys", cut.part_keys), ("first_seen", low), ("last_seen", high)),
        *((name, call.attrs.as_float(name)) for name in ("scale", "softcap")),
    ]
    for (name, shape), turned in zip(strides, call.attrs.as_ints("by_length"), strict=True):
        row, head = _strides(shape, turned)
        if name == "result" and not whole:
            row, head = s.columns + STATE_WORDS, 0
        push += [(f"{name}_row", row), (f"{name}_head", head)]
    constants = (
        ("SOFTCAP", int(call.attrs.as_float("softcap") != 0)),
        ("IS_BIAS", int(masked and call.inputs[3].dtype == FLOAT32)),
        ("WHOLE", int(whole)),
        _none_seen(call),
    )
    operands = (0, 1, 2, *((3,) if masked else ()), OUTPUT if whole else SCRATCH)

    def steps(shader: str, cut: _Launch) -> Iterator[Dispatch]:
        most, parts = call.limits.max_groups[0], min(cut.parts, call.limits.max_groups[1])
        for block in range(0, s.columns, cut.columns):
            columns = min(cut.columns, s.columns - block)
            for start in range(0, cut.tiles, cut.each):
                end = min(start + cut.each, cut.tiles)
                yield Dispatch(
                    shader,
                    operands,
                    (min(end - start, most), parts, 1),
                    (
                        *push,
                        *(("first_tile", start), ("end_tile", end)),
                        *(("first_column", block), ("columns", columns)),
                    ),
                    (*constants, *_more_constants(call, shader, cut.tile, columns)),
                    barrier=True,
                )

    dispatches = list(steps(_shader(call), cut))
    if call.variant in _lanes(call.limits):
        dispatches += steps(
            f"attention_repair{'_masked' * masked}", _rows_of_parts(call, s, cut.parts)
        )
    if len(dispatches) >= MAX_DISPATCHES:
        raise UnsupportedOp(
            f"[attention] {call.inputs[0].shape} queries on {s.keys} keys need "
            f"{len(dispatches)} dispatches, over {MAX_DISPATCHES}"
        )
    dispatches[0] = replace(dispatches[0], barrier=False)
    return (*dispatches, *(() if whole else _combine(call, s, cut)))


def _shader(call: Call) -> str:
    masked = "_masked" * (len(call.inputs) > 3)
    if call.variant in TILED:
        return f"attention_tiled{masked}"
    if call.variant == ROWS:
        return f"attention_rows{masked}"
    sees_all = call.attrs.as_float("softcap") == 0 and all(
        call.attrs.as_int(side) < 0 for side in ("left", "right")
    )
    shaped = masked or "_shaped" * (not sees_all)
    return f"attention_{call.variant.replace(' ', '_')}_of_{call.limits.subgroup_size}{shaped}"


def _more_constants(
    call: Call, shader: str, tile: int, columns: int
) -> tuple[tuple[str, int], ...]:
    if call.variant in TILED:
        # 1, 2, 4 or 8: fewer pipelines than one for each number
        wanted = -(-columns // LANES_ACROSS)
        return ("ROWS", tile), ("COLUMNS", 1 << (wanted - 1).bit_length())
    return (("LOCAL_X", call.limits.subgroup_size),) if "_lanes_" in shader else ()


def _none_seen(call: Call) -> tuple[str, int]:
    """The bits of the result of a query that sees no key: 0, or NaN."""
    return "NONE_SEEN", 0x7FC00000 if call.attrs.as_bool("none_seen_is_nan") else 0


def _combine(call: Call, s: _Sizes, cut: _Launch) -> tuple[Dispatch, ...]:
    count = call.output.size
    each = max(1, LOOP_STEPS // (2 * cut.parts + 1)) if call.limits.software else 4
    groups = min(-(-count // (LOCAL_SIZE * each)), call.limits.max_groups[0])
    if call.limits.software and groups * LOCAL_SIZE * each < count:
        raise UnsupportedOp(f"[attention] {cut.parts} parts are too many for this CPU driver")
    row, head = _strides(call.output.shape, call.attrs.as_ints("by_length")[3])
    push = (
        *(("count", count), ("row", s.columns), ("parts", cut.parts), ("queries", s.queries)),
        *(("heads", s.heads * s.rows // s.queries), ("result_row", row), ("result_head", head)),
    )
    return (
        Dispatch(
            "attention_combine",
            (SCRATCH, OUTPUT),
            (groups, 1, 1),
            push,
            (_none_seen(call),),
            barrier=True,
        ),
    )


def _scratch(call: Call) -> tuple[int, ...]:
    if call.output.size == 0:
        return ()
    cut, s = _launch(call), _sizes(call)
    return () if cut.parts == 1 else (cut.parts * s.batches * s.rows * (s.columns + STATE_WORDS),)


SHADERS = (
    "attention_combine",
    *(
        f"attention_{kind}{masked}"
        for kind in ("rows", "repair", "tiled")
        for masked in ("", "_masked")
    ),
    *(
        f"attention_lanes_{rows}x{columns}_of_{lanes}{shaped}"
        for lanes, tiles in TILES.items()
        for rows, columns in tiles
        for shaped in ("", "_shaped", "_masked")
    ),
)
KERNEL = Kernel(SHADERS, _lower, _scratch, variants=variants)

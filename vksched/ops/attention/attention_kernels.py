"""Dispatches of attention on devices.

Keys are cut into parts, which are combined at the end. The cached keys in use, whose number is
known only when the graph runs, and the new keys are one text for GPUs. Kernels of CPU drivers, and
devices that bind few buffers, process them in two segments, each with parts of its own. Pending
rows are written into the cache first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ...common.dtypes import FLOAT16, FLOAT32, Shape
from ...common.errors import UnsupportedOp
from ...ir.attrs import Attrs
from ...ir.op import OUTPUT, SCRATCH, Call, Dispatch, Kernel, fp16_operands
from ..layout.dynamic_update_slice import WRITE_SHADERS, write_dispatch
from ..layout.strided_copy import WHOLE_COPIES, copy_run
from ..lowering.strides import LOCAL_SIZE, LOOP_STEPS, MAX_DISPATCHES, broadcast_strides
from .attention_decode import (
    DECODE,
    DECODE_SHADERS,
    KV_SUFFIX,
    STATE_WORDS,
    decode_counters,
    decode_scratch,
    lower_decode,
)
from .attention_launch import (
    CACHED_BUFFERS,
    MIN_CPU_PART,
    MIN_PART,
    ROWS,
    TILED,
    TILES,
    UNBOUNDED,
    Launch,
    cached_variants,
    columns_of_lane,
    coopmat_of,
    launch,
    rows_of_parts,
    subgroup_tiles,
    tiled_lanes,
    variants,
)
from .attention_sizes import Sizes, chunk_of, has_positions, has_slots, kv_len_stride, sizes_of

__all__ = ["CACHED_KERNEL", "KERNEL", "UNBOUNDED", "visible_range"]

COOPMAT, FP16_ROWS = "attention_coopmat", "_rows"
COMBINE, COMBINE_FP16 = "attention_combine", "attention_combine_fp16"
MASKED, KVCACHE, KVCACHE_GEMV = "_masked", "_kvcache", "_kvcache_gemv"
"""Suffixes of shader names: with a mask; with a key count; with a key count that is stored behind
the queries, for devices that bind few buffers.
"""
TILED_SHADERS = {"tiled": "tiled", "mixed": "tiled_mixed", "fp16acc": "tiled_fp16acc"}
"""Names of the shared-memory shaders, by the kind of their tiles."""
Push = tuple[tuple[str, int | float | tuple[int, ...]], ...]


def visible_range(attrs: Attrs) -> tuple[int, int]:
    """Return (a, b): query i sees keys i + a .. i + b."""
    past, left, right = (attrs.as_int(name) for name in ("past_len", "left", "right"))
    return (
        past - left if left >= 0 else -UNBOUNDED,
        past + right if right >= 0 else UNBOUNDED,
    )


@dataclass(frozen=True, slots=True)
class _Segment:
    """Keys that are processed by the same shader.

    Attributes
    ----------
    kind : str
        Suffix of the shaders.
    operands : tuple of int
        Operand indices, q first.
    bshd : tuple of int
        Whether keys, and values, have the length axis before the heads.
    first_part : int
        Index of the segment's first part among the parts of all segments.
    kv_len_after_q : int
        Word of the q buffer at which the key counts start; 0 if they have their own buffer.
    are_new : bool
        Whether these are the new keys, which follow the cached ones.
    with_new : bool
        Whether the new keys belong to the segment; then operands 4 and 5 are bound too.
    """

    kind: str
    operands: tuple[int, ...]
    bshd: tuple[int, ...]
    sizes: Sizes
    cut: Launch
    first_part: int = 0
    kv_len_after_q: int = 0
    are_new: bool = False
    with_new: bool = False


def _whole(call: Call) -> tuple[_Segment, ...]:
    s, bshd = sizes_of(call), call.attrs.as_ints("is_bshd")
    masked = len(call.inputs) > 3
    operands = tuple(range(len(call.inputs)))
    return (_Segment(MASKED * masked, operands, bshd[1:3], s, launch(call, s)),)


def _cached(call: Call) -> tuple[_Segment, ...]:
    s, bshd = sizes_of(call), call.attrs.as_ints("is_bshd")
    keys = call.inputs[4].shape[2] if len(call.inputs) > 4 else 0
    suffix = KV_SUFFIX[call.inputs[1].dtype]
    few = call.limits.storage_buffers < CACHED_BUFFERS
    if not few and (call.variant in TILED or coopmat_of(call, s)):
        cut = launch(call, replace(s, keys=s.keys + keys))
        new = (4, 5) if len(call.inputs) > 4 else (0, 0)
        operands = (0, 1, 2, 3, *new)
        return (_Segment(KVCACHE + suffix, operands, bshd[1:3], s, cut, with_new=True),)
    cached = _Segment(KVCACHE, (0, 1, 2, 3), bshd[1:3], s, launch(call, s))
    if few:
        buffer = SCRATCH - bool(keys or cached.cut.parts > 1)
        behind = max(1, call.inputs[0].size)
        cached = replace(cached, kind=KVCACHE_GEMV, operands=(buffer, 1, 2), kv_len_after_q=behind)
    cached = replace(cached, kind=cached.kind + suffix)
    return (cached, _new_keys(call, cached, keys)) if keys else (cached,)


def _new_keys(call: Call, cached: _Segment, keys: int) -> _Segment:
    """Return the segment of the new keys.

    It uses the shaders of the cached keys if these are floats, so that drivers compile no others,
    or if the position of the first query is known only when the graph runs.
    """
    sizes = replace(cached.sizes, keys=keys)
    cut, first = launch(call, sizes), cached.cut.parts
    suffix = KV_SUFFIX[call.inputs[1].dtype]
    if suffix and not has_positions(call.attrs):
        return _Segment("", (0, 4, 5), (0, 0), sizes, cut, first)
    q, _, _, *used = cached.operands
    return replace(
        cached,
        kind=cached.kind.removesuffix(suffix),
        operands=(q, 4, 5, *used),
        bshd=(0, 0),
        sizes=sizes,
        cut=cut,
        first_part=first,
        are_new=True,
    )


def _parts(segments: tuple[_Segment, ...]) -> int:
    """Return the number of parts of all segments; each segment has at least one."""
    return sum(segment.cut.parts for segment in segments)


def _append_kv_len(call: Call, cached: _Segment) -> tuple[Dispatch, ...]:
    """Copy queries and key counts into one buffer."""
    if not cached.kv_len_after_q:
        return ()
    q, used, buffer = call.inputs[0], call.inputs[3], cached.operands[0]
    return (
        copy_run(0, buffer, q.size, call.limits),
        copy_run(3, buffer, used.size, call.limits, cached.kv_len_after_q),
    )


def _strides(shape: Shape, is_bshd: int) -> tuple[int, int]:
    """Return the words between two positions, and between two heads."""
    _, one, other, size = shape
    return (other * size, size) if is_bshd else (size, other * size)


def _lower(call: Call, segments: tuple[_Segment, ...]) -> tuple[Dispatch, ...]:
    parts = _parts(segments)
    dispatches = list(_independent(_main(call, segment, parts) for segment in segments))
    if before := _append_kv_len(call, segments[0]):
        dispatches = [*before, replace(dispatches[0], barrier=True), *dispatches[1:]]
    if call.variant in subgroup_tiles(call.limits):
        fallbacks = (_fallback(call, segment, parts) for segment in segments)
        first, *others = _independent(fallbacks)
        dispatches += [replace(first, barrier=True), *others]
    if len(dispatches) >= MAX_DISPATCHES:
        raise UnsupportedOp(
            f"[attention] {call.inputs[0].shape} queries on {segments[0].sizes.keys} keys need "
            f"{len(dispatches)} dispatches, over {MAX_DISPATCHES}"
        )
    return (*dispatches, *(() if parts == 1 else _combine(call, segments[0].sizes, parts)))


def _independent(runs: Iterable[Iterator[Dispatch]]) -> Iterator[Dispatch]:
    """Yield independent runs of dispatches; the first dispatch of a run has no barrier."""
    for run in runs:
        yield replace(next(run), barrier=False)
        yield from run


def _main(call: Call, segment: _Segment, parts: int) -> Iterator[Dispatch]:
    return _dispatches(call, _shader(call, segment), segment, segment.cut, parts)


def _fallback(call: Call, segment: _Segment, parts: int) -> Iterator[Dispatch]:
    cut = rows_of_parts(call, segment.sizes, segment.cut.parts)
    return _dispatches(call, f"attention_fallback{segment.kind}", segment, cut, parts)


def _dispatches(
    call: Call, shader: str, segment: _Segment, cut: Launch, parts: int
) -> Iterator[Dispatch]:
    """Yield dispatches of some tiles of rows and columns each.

    `parts` is the number of parts of all segments.
    """
    s, whole = segment.sizes, parts == 1
    row = s.columns + STATE_WORDS
    push = (*_push(call, segment, cut), ("parts", parts), *_layout_push(call, segment, whole))
    constants = (
        ("SOFTCAP", int(call.attrs.as_float("softcap") != 0)),
        ("IS_BIAS", int(segment.kind == MASKED and call.inputs[3].dtype == FLOAT32)),
        ("WHOLE", int(whole)),
        _fully_masked(call),
        *(_kvcache_constants(call, shader) if segment.kind.startswith(KVCACHE) else ()),
        *_new_constants(segment),
    )
    operands = (*segment.operands, OUTPUT if whole else SCRATCH)
    shifts = (*(0 for _ in segment.operands), segment.first_part * row)
    coopmat = coopmat_of(call, s) if shader.startswith(COOPMAT) else None
    most, own_parts = call.limits.max_groups[0], min(cut.parts, call.limits.max_groups[1])
    for block in range(0, s.columns, cut.columns):
        columns = min(cut.columns, s.columns - block)
        for start in range(0, cut.tiles, cut.each):
            end = min(start + cut.each, cut.tiles)
            yield Dispatch(
                shader,
                operands,
                (min(end - start, most), own_parts, 1),
                (
                    *push,
                    *(("first_tile", start), ("end_tile", end)),
                    *(("first_column", block), ("columns", columns)),
                ),
                (
                    *constants,
                    *_more_constants(call, shader, cut.tile, columns),
                    *(coopmat.constants(s.depth, columns, s.columns) if coopmat else ()),
                ),
                shifts,
                barrier=True,
                subgroup=coopmat.subgroup if coopmat else 0,
            )


def _kvcache_constants(call: Call, shader: str) -> Iterator[tuple[str, int]]:
    """Yield the constants of kernels with a key count."""
    yield "CHUNK", chunk_of(call.attrs)
    if not shader.startswith(("attention_tiled", COOPMAT)):  # those of CPU drivers
        yield "POSITIONS", int(has_positions(call.attrs))


def _push(call: Call, segment: _Segment, cut: Launch) -> Push:
    s, (low, high) = segment.sizes, visible_range(call.attrs)
    push: Push = (
        *(("rows", s.rows), ("queries", s.queries), ("keys", s.keys)),
        *(("first_visible", low), ("last_visible", high)),
        *((name, call.attrs.as_float(name)) for name in ("scale", "softcap")),
    )
    if not segment.with_new:
        push = (*push, ("depth", s.depth), ("heads", s.heads))
    if segment.kind.startswith(KVCACHE):
        least = MIN_CPU_PART if call.limits.software else MIN_PART
        part_keys = cut.part_keys if segment.are_new else min(least, cut.part_keys)
        own: Push = (
            ("kv_len_stride", kv_len_stride(call.inputs[3])),
            ("slots", has_slots(call) * call.inputs[1].shape[0]),
            *_new_push(call, segment, cut),
        )
        behind = (("kv_len_after_q", segment.kv_len_after_q),) if segment.kv_len_after_q else ()
        return (*push, ("part_keys", part_keys), *own, *behind)
    push = (*push, ("part_keys", cut.part_keys))
    if segment.kind != MASKED:
        return push
    scores = (s.batches // s.heads, s.heads * s.rows // s.queries, s.queries, s.keys)
    return (*push, ("mask_strides", broadcast_strides(call.inputs[3].shape, scores)))


def _new_push(call: Call, segment: _Segment, cut: Launch) -> Push:
    """Return the push constants for new keys."""
    if not segment.with_new:
        return ("own_parts", cut.parts), ("are_new", int(segment.are_new))
    keys = call.inputs[4].shape[2] if len(call.inputs) > 4 else 0
    return (("new_keys", keys),)


def _new_constants(segment: _Segment) -> tuple[tuple[str, int], ...]:
    """Return the constants that replace push constants where there are new keys."""
    s = segment.sizes
    if not segment.with_new:
        return ()
    return ("DEPTH", s.depth), ("HEADS", s.heads), ("V_SIZE", s.columns)


def _lower_cached(call: Call) -> tuple[Dispatch, ...]:
    if not call.output.size:
        return ()
    writes, (first, *others) = tuple(_pending_writes(call)), _attend_to_cache(call)
    return (*writes, replace(first, barrier=True) if writes else first, *others)


def _pending_writes(call: Call) -> Iterator[Dispatch]:
    """Yield the dispatches that write pending rows into the cache."""
    for cached, pending in ((1, 6), (2, 7)) if len(call.inputs) > 6 else ():
        types = call.inputs[cached], call.inputs[pending], call.inputs[3]
        write = write_dispatch(*types, axis=2, limits=call.limits)
        if write is not None:
            places = {1: pending, 2: 3, OUTPUT: cached}
            operands = tuple(places[operand] for operand in write.operands)
            yield replace(write, operands=operands, barrier=False)


def _attend_to_cache(call: Call) -> tuple[Dispatch, ...]:
    if call.variant != DECODE:
        return _lower(call, _cached(call))
    types = zip("qkv", call.inputs, strict=False)
    shapes = {**{name: t.shape for name, t in types}, "result": call.output.shape}
    bshd = call.attrs.as_ints("is_bshd")
    strides = {n: _strides(s, own) for (n, s), own in zip(shapes.items(), bshd, strict=True)}
    return (lower_decode(call, sizes_of(call), visible_range(call.attrs), strides),)


def _scratch_cached(call: Call) -> tuple[int, ...]:
    if not call.output.size:
        return ()
    if call.variant == DECODE:
        return decode_scratch(call, sizes_of(call))
    return _scratch(call, _cached(call))


def _counters(call: Call) -> int:
    if call.variant != DECODE or not call.output.size:
        return 0
    return decode_counters(call, sizes_of(call))


def _layout_push(call: Call, segment: _Segment, whole: bool) -> Iterator[tuple[str, int]]:
    """Yield the push constants for the rows and heads of a segment's operands and result."""
    q_bshd, _, _, result_bshd = call.attrs.as_ints("is_bshd")
    q, k, v = (call.inputs[i].shape for i in (0, *segment.operands[1:3]))
    result = _strides(call.output.shape, result_bshd)
    places = {
        "q": _strides(q, q_bshd),
        "k": _strides(k, segment.bshd[0]),
        "v": _strides(v, segment.bshd[1]),
        "result": result if whole else (segment.sizes.columns + STATE_WORDS, 0),
    }
    for name, (row, head) in places.items():
        yield f"{name}_row", row
        yield f"{name}_head", head


def _shader(call: Call, segment: _Segment) -> str:
    if call.variant in TILED:
        kind, _ = TILED[call.variant]
        return f"attention_{TILED_SHADERS[kind]}{segment.kind}"
    if call.variant == ROWS:
        return f"attention_rows{segment.kind}"
    if coopmat_of(call, segment.sizes):
        rows = FP16_ROWS if call.inputs[0].dtype == FLOAT16 else ""
        return f"{COOPMAT}{segment.kind}{rows}"
    low, high = visible_range(call.attrs)
    s = segment.sizes
    sees_all = low <= 1 - s.queries and high >= s.keys - 1 and not call.attrs.as_float("softcap")
    shaped = segment.kind or "_shaped" * (not sees_all)
    return f"attention_{call.variant.replace(' ', '_')}_of_{call.limits.subgroup_size}{shaped}"


def _more_constants(
    call: Call, shader: str, tile: int, columns: int
) -> tuple[tuple[str, int], ...]:
    if call.variant in TILED:
        kind, own = TILED[call.variant][0], columns_of_lane(TILED[call.variant][0], columns)
        lanes = tiled_lanes(kind, tile, own, call.limits)
        return ("LOCAL_X", lanes), ("ROWS", tile), ("COLUMNS", own)
    return (("LOCAL_X", call.limits.subgroup_size),) if "_subgroup_" in shader else ()


def _fully_masked(call: Call) -> tuple[str, int]:
    """Return the push constant with the bits of a result without visible keys: 0 or NaN."""
    return "FULLY_MASKED", 0x7FC00000 if call.attrs.as_bool("fully_masked_is_nan") else 0


def _combine(call: Call, s: Sizes, parts: int) -> tuple[Dispatch, ...]:
    count = call.output.size
    each = max(1, LOOP_STEPS // (2 * parts + 1)) if call.limits.software else 4
    groups = min(-(-count // (LOCAL_SIZE * each)), call.limits.max_groups[0])
    if call.limits.software and groups * LOCAL_SIZE * each < count:
        raise UnsupportedOp(f"[attention] {parts} parts are too many for this CPU driver")
    row, head = _strides(call.output.shape, call.attrs.as_ints("is_bshd")[3])
    push = (
        *(("count", count), ("row", s.columns), ("parts", parts), ("queries", s.queries)),
        *(("heads", s.heads * s.rows // s.queries), ("result_row", row), ("result_head", head)),
    )
    is_fp16 = call.output.dtype == FLOAT16
    return (
        Dispatch(
            COMBINE_FP16 if is_fp16 else COMBINE,
            (SCRATCH, OUTPUT),
            (groups, 1, 1),
            push,
            (_fully_masked(call),),
            barrier=True,
        ),
    )


def _scratch(call: Call, segments: tuple[_Segment, ...]) -> tuple[int, ...]:
    s, parts = segments[0].sizes, _parts(segments)
    sums = () if parts == 1 else (parts * s.batches * s.rows * (s.columns + STATE_WORDS),)
    behind = segments[0].kv_len_after_q
    return (*sums, behind + call.inputs[3].size) if behind else sums


def _shaders(*kinds: str) -> tuple[str, ...]:
    """Return the names of the shaders of all segments for these kinds."""
    of_rows = (
        f"attention_{way}{kind}"
        for way in ("rows", "fallback", *TILED_SHADERS.values(), "coopmat")
        for kind in kinds
    )
    of_lanes = (
        f"attention_subgroup_{rows}x{columns}_of_{lanes}{kind}"
        for lanes, tiles in TILES.items()
        for rows, columns in tiles
        for kind in (*kinds, "_shaped")
    )
    return (COMBINE, *of_rows, *of_lanes)


_KVCACHE_KINDS = tuple(KVCACHE + suffix for suffix in KV_SUFFIX.values())
_GEMV_SHADERS = tuple(
    f"attention_{way}{KVCACHE_GEMV}{suffix}"
    for way in TILED_SHADERS.values()
    for suffix in KV_SUFFIX.values()
)


def _fp16_kvcache(call: Call) -> tuple[int, ...]:
    """Return the operands that need no conversion: a float16 KV cache, and with cooperative
    matrices also q, new keys and values, and the result, if all of them are float16.
    """
    found = fp16_operands(call)
    if call.output.size and set(found) == {0, 1, 2, 4, 5, OUTPUT}:
        s = sizes_of(call)
        if s.depth % 2 == s.columns % 2 == 0 and coopmat_of(call, s):
            return found
    return tuple(operand for operand in found if operand in (1, 2, 6, 7))


KERNEL = Kernel(
    _shaders("", MASKED),
    lambda call: _lower(call, _whole(call)) if call.output.size else (),
    lambda call: _scratch(call, _whole(call)) if call.output.size else (),
    variants=variants,
)
CACHED_KERNEL = Kernel(
    (
        *_shaders("", *_KVCACHE_KINDS),
        *_GEMV_SHADERS,
        *DECODE_SHADERS,
        *WRITE_SHADERS,
        *WHOLE_COPIES,
        *(f"{COOPMAT}{KVCACHE}{KV_SUFFIX[FLOAT16]}{FP16_ROWS}", COMBINE_FP16),
    ),
    _lower_cached,
    _scratch_cached,
    variants=cached_variants,
    takes_fp16=_fp16_kvcache,
    counters=_counters,
)

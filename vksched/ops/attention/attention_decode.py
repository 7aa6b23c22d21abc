"""Attention of few queries to a KV cache and to new keys, in one dispatch.

    cached keys in use | new keys   ->   part 0 | part 1 | ...   a workgroup for each part
                                         the last one that arrives combines all parts

A decode step has one query in each head. Up to 256 keys one workgroup reads the keys of a head;
more keys are cut into parts, so that the workgroups fill the device. A workgroup that has written
its part adds 1 to the counter of its rows (release and acquire at device scope), and the last one
reads all parts. So there is no second dispatch, and no barrier. Devices without the Vulkan memory
model use the other kernels, and `attention_combine`. Source of the method: Dao et al.,
Flash-Decoding for long-context inference, 2023.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...common.dtypes import FLOAT16, FLOAT32, UINT32
from ...ir.op import COUNTERS, OUTPUT, SCRATCH, Call, Dispatch
from ...topology.limits import Limits
from .attention_sizes import Sizes, chunk_of, has_slots, kv_len_stride

KV_SUFFIX = {FLOAT32: "", FLOAT16: "_fp16", UINT32: "_q8_0"}
"""Suffixes of shader names by the type of the KV cache; uint32 words are q8_0 (kv_q8_0.py)."""
DECODE = "decode"
"""The variant."""
LOCAL = 128
"""Invocations of a workgroup, in shaders/attention/attention_decode.comp."""
DECODE_BUFFERS = 9
"""Buffers that the kernel binds: q, the cached and the new keys and values, the key count, parts,
counters and the result.
"""
TILES = (8, 4, 2, 1)
"""Rows of q of a workgroup, which read each key once."""
MAX_TILES = 2
"""Maximum tiles of rows that share keys: each tile reads all of them."""
MAX_PARTS, LEAST = 128, 64
"""Maximum parts of the keys, and the least keys of a part."""
GROUPS_PER_CORE, GROUPS_WANTED = 2, 256
"""Workgroups that fill a device: by core, or if their number is unknown."""
STATE_WORDS = 4
"""Words behind the sums of a part: its largest score, the total of its weights, and padding."""
DECODE_SHADERS = tuple(f"attention_decode{suffix}" for suffix in KV_SUFFIX.values())


def _shared_bytes(rows: int, depth: int) -> int:
    return 4 * (rows * depth + 4 * -(-rows // 2) * LOCAL + LOCAL + rows + 4)


def decode_rows(limits: Limits, rows: int, depth: int, columns: int) -> int:
    """Return the rows of q of a workgroup, or 0 if a device does not support such a call.

    rows: the queries of all heads that share keys.
    """
    if limits.software or not limits.memory_model or limits.storage_buffers < DECODE_BUFFERS:
        return 0
    if depth % 8 or columns % 8 or not 0 < columns <= 4 * LOCAL or not depth:
        return 0
    fitting = [tile for tile in TILES if _shared_bytes(tile, depth) <= limits.shared_bytes]
    wanted = min((tile for tile in fitting if tile >= rows), default=max(fitting, default=0))
    return wanted if rows <= MAX_TILES * wanted else 0


def decode_parts(limits: Limits, tiles: int, keys: int) -> int:
    """Return the maximum number of parts of the keys. tiles: the number of tiles of rows, of
    one example if examples have slots.
    """
    wanted = GROUPS_PER_CORE * limits.cores or GROUPS_WANTED
    return max(1, min(-(-wanted // tiles), keys // LEAST, MAX_PARTS, limits.max_groups[1]))


def decode_variants(call: Call, sizes: Sizes) -> tuple[str, ...]:
    """Return the variant of a call with a KV cache, if the device supports it."""
    rows = decode_rows(call.limits, sizes.rows, sizes.depth, sizes.columns)
    return (DECODE,) if rows else ()


def decode_counters(call: Call, sizes: Sizes) -> int:
    """Return the number of counters: one for each tile of rows."""
    return _tiles(call, sizes)


def decode_scratch(call: Call, sizes: Sizes) -> tuple[int, ...]:
    """Return the words of the parts of all rows."""
    parts = decode_parts(call.limits, _planned(call, sizes), _keys(call, sizes))
    return (sizes.batches * sizes.rows * parts * (sizes.columns + STATE_WORDS),)


def lower_decode(
    call: Call, sizes: Sizes, visible: tuple[int, int], strides: Mapping[str, tuple[int, int]]
) -> Dispatch:
    """Return the dispatch of a call.

    Parameters
    ----------
    visible
        (a, b): query i sees keys i + a .. i + b, further by the number of keys in use.
    strides
        Words between two positions, and between two heads, of "q", "k", "v" and "result".
    """
    tiles, used = _tiles(call, sizes), call.inputs[3]
    has_new = len(call.inputs) > 4
    parts = decode_parts(call.limits, _planned(call, sizes), _keys(call, sizes))
    push = (
        *(("tiles", tiles), ("rows", sizes.rows), ("queries", sizes.queries)),
        *(("keys", sizes.keys), ("new_keys", call.inputs[4].shape[2] if has_new else 0)),
        *(("heads", sizes.heads), ("kv_len_stride", kv_len_stride(used))),
        *(("slots", has_slots(call) * call.inputs[1].shape[0]), ("parts", parts)),
        *((f"{name}_row", row) for name, (row, _) in strides.items()),
        *((f"{name}_head", head) for name, (_, head) in strides.items()),
        *(("first_visible", visible[0]), ("last_visible", visible[1])),
        *((name, call.attrs.as_float(name)) for name in ("scale", "softcap")),
    )
    constants = (
        ("ROWS", decode_rows(call.limits, sizes.rows, sizes.depth, sizes.columns)),
        *(("DEPTH", sizes.depth // 8), ("COLUMNS", sizes.columns // 4)),
        ("SOFTCAP", int(call.attrs.as_float("softcap") != 0)),
        ("FULLY_MASKED", 0x7FC00000 if call.attrs.as_bool("fully_masked_is_nan") else 0),
        ("CHUNK", chunk_of(call.attrs)),
    )
    return Dispatch(
        f"attention_decode{KV_SUFFIX[call.inputs[1].dtype]}",
        (0, 1, 2, 3, *((4, 5) if has_new else (0, 0)), SCRATCH, COUNTERS, OUTPUT),
        (min(tiles, call.limits.max_groups[0]), parts, 1),
        push,
        constants,
    )


def _tiles(call: Call, sizes: Sizes) -> int:
    rows = decode_rows(call.limits, sizes.rows, sizes.depth, sizes.columns)
    return -(-sizes.rows // rows) * sizes.batches


def _planned(call: Call, sizes: Sizes) -> int:
    """Return the number of tiles by which the keys are cut into parts."""
    return _tiles(call, sizes) // max(1, sizes.batches) * sizes.planned


def _keys(call: Call, sizes: Sizes) -> int:
    return sizes.keys + (call.inputs[4].shape[2] if len(call.inputs) > 4 else 0)

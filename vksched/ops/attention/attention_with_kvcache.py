"""Attention to a KV cache and to the new keys of a decode step.

    k, v   used used used free free free        kv_len 3: only the first keys are read
    new    new new                              keys of this step, in a separate buffer

    k, v   slot 0: used used used used          kv_len ((1, 2), (2, 0)): example 0 reads the first
           slot 1: used free free free          key of slot 1, example 1 two keys of slot 0
           slot 2: used used free free

Operand 3, `kv_len`, is the number of cached keys in use: one number, or one for each example, (b,);
or (b, 2): the number and the slot of each example, where the cache has any number of slots. An
example whose slot is outside of the cache has no cached keys. A result does not depend on the other
examples then, to the bit.

With the attribute has_positions a further number of each example is the position of its first query
behind the keys in use, in addition to the attribute `past_len`: (b, 2), or (b, 3) with slots. The
last layer of a prompt has one query, that of its last token:

    new      new new new pad                    kv_len ((3, 2),): the query sees 3 new keys

With the attribute `chunk` the cached keys are visible from the last multiple of `chunk` up to
kv_len on: a token sees the keys of its own chunk.

The cache holds floats, also of 16 bits, or q8_0 rows (kv_q8_0.py), and is read without conversion.
The attribute `columns` is the number of values of a q8_0 row of v; rows of k have as many values as
rows of q. The new keys need not be in the cache, so the cache can be written at the end of the run
(`dynamic_update_slice`). The number of keys in use is known only when the graph runs. Time grows
with this number, not with the size of the cache.

Pending rows, operands 6 and 7, make several examples of one slot possible: consecutive tokens of a
text. They are rows of the cache that are not written yet. Those of example i belong to its slot,
behind its keys in use:

    k, v     slot 0: used used free free        kv_len ((2, 0), (3, 0)): example 1 reads the used
    pending  example 0: row 2, example 1: row 3   keys of slot 0 and row 2, not its own row 3

Their element type is that of the cache, so an example has the result, to the bit, that it has after
the rows are written. Kernels of Vulkan devices write them into the cache first, behind all keys in
use, where the update at the end of the run writes the same rows. The cache must be a state with
this update, and all its readers must have these pending rows: ir/early_writes.py checks it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate, chain

import numpy as np

from ...common.dtypes import (
    FLOAT16,
    FLOAT32,
    FLOATS,
    INT32,
    INT64,
    UINT32,
    NDArray,
    TensorType,
)
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Flag, Int, Optional
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import SHARES, CpuKernel, Piece
from ...ir.native_program import Loop, NativeProgram
from ...ir.op import Count, EarlyWrite, Op, Work, register
from ...ir.vjp import no_gradient
from ..layout.dynamic_update_slice import write_slices
from ..lowering import native_kernels
from .attention import ATTENTION, infer_attention
from .attention_cpu import REFERENCE_SCORES, attend, cut_heads, masked_keys, to_weights
from .attention_kernels import CACHED_KERNEL, UNBOUNDED, visible_range
from .attention_native import head_steps
from .attention_sizes import are_slots, by_heads, chunk_of, has_positions, kv_len_stride
from .kv_q8_0 import check_words, unpack_q8_0

NAME = "attention_with_kvcache"
MAX_PAST = UNBOUNDED // 2
"""Maximum distance of the first query from the keys in use; larger ones are as far."""
NARROWER = (FLOAT16, FLOAT32)
"""Types of keys and values for queries of any float type."""


def _columns(q: tuple[int, ...], attrs: Attrs) -> tuple[int, int]:
    """Return the number of values of a q8_0 row of k and of v."""
    return q[-1], attrs.as_int("columns")


def _as_floats(inputs: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Return the types of q, k and v, with q8_0 words replaced by the floats that they encode."""
    q, *cached = inputs[:3]
    if q.rank and all(t.dtype == UINT32 for t in cached):
        if "columns" not in attrs:
            raise ShapeError("[attention] expected an attribute `columns` for q8_0 rows, got none")
        columns = _columns(q.shape, attrs)
        for words, count in zip(cached, columns, strict=True):
            check_words("attention", words, count)
        cached = [
            TensorType((*words.shape[:-1], count), FLOAT16)
            for words, count in zip(cached, columns, strict=True)
        ]
    return q, *cached


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    if len(inputs) % 2:
        raise ShapeError("[attention] expected keys and values, got one of the two")
    floats, used, new = _as_floats(inputs, attrs), inputs[3], inputs[4:6]
    q, *cached = floats
    if q.dtype not in FLOATS or any(t.dtype not in (q.dtype, *NARROWER) for t in cached):
        raise DTypeError(
            f"[attention] expected floats, and keys and values of {q.dtype}, float32 or float16, "
            f"got {' and '.join(t.dtype for t in floats)}; try vs.cast"
        )
    if cached[0].dtype != cached[1].dtype:
        raise DTypeError(f"[attention] expected keys of {cached[1].dtype}, got {cached[0].dtype}")
    if are_slots(used.shape, attrs):
        floats = _by_example(floats)
    result = infer_attention(tuple(t.as_dtype(FLOAT32) for t in floats), attrs)
    q, k, v = by_heads(floats, attrs)
    examples = k.shape[0]
    further = has_positions(attrs)
    shapes = ((examples, 2), (examples, 3)) if further else ((), (examples,), (examples, 2))
    if used.dtype not in (INT32, INT64) or used.shape not in shapes:
        raise (ShapeError if used.dtype in (INT32, INT64) else DTypeError)(
            f"[attention] expected the number of keys in use as one int32 or as ({examples},), or "
            f"with slots as ({examples}, 2){', and a position' if further else ''}, got {used}"
        )
    if further and (chunk_of(attrs) or len(inputs) > 6):
        raise ShapeError(
            "[attention] expected past_len as an int with chunk or pending rows, got a tensor"
        )
    for old, added in zip((k, v), new, strict=False):
        fits = added.rank == 4 and added.shape[:2] == old.shape[:2]
        if not fits or added.shape[3] != old.shape[3] or added.shape[2] != new[0].shape[2]:
            raise ShapeError(
                "[attention] expected new keys and values (b, g, r, d) and (b, g, r, e) for "
                f"{k.shape} and {v.shape}, got {' and '.join(str(t.shape) for t in new)}"
            )
        if added.dtype != q.dtype:
            raise DTypeError(
                f"[attention] expected new keys and values of {q.dtype}, got {added.dtype}; "
                "try vs.cast"
            )
    if pending := inputs[6:]:
        _check_pending(inputs[1:3], used, pending, attrs)
    return result.as_dtype(q.dtype)


def _check_pending(
    cached: tuple[TensorType, ...],
    used: TensorType,
    pending: tuple[TensorType, ...],
    attrs: Attrs,
) -> None:
    """Raise an error unless pending rows fit a cache with slots."""
    if used.rank != 2:
        raise ShapeError("[attention] expected slots with pending rows, got none")
    if any(attrs.as_ints("is_bshd")[1:3]):
        raise ShapeError("[attention] expected a cache (slots, g, n, d) with pending rows")
    examples, heads = used.shape[0], cached[0].shape[1]
    for rows, held in zip(pending, cached, strict=True):
        count = pending[0].shape[2] if pending[0].rank == 4 else 0
        if rows.shape != (examples, heads, count, held.shape[3]):
            raise ShapeError(
                f"[attention] expected pending rows ({examples}, {heads}, r, "
                f"{cached[0].shape[3]}) and ({examples}, {heads}, r, {cached[1].shape[3]}), got "
                f"{' and '.join(str(t.shape) for t in pending)}"
            )
        if rows.dtype != held.dtype:
            raise DTypeError(
                f"[attention] expected pending rows of {held.dtype} as the cache, got "
                f"{rows.dtype}; try vs.cast"
            )


def _by_example(floats: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Return the types of q, k and v, with k and v of as many examples as q instead of slots."""
    q, k, v = floats
    if not (q.rank == k.rank == v.rank == 4) or k.shape[0] != v.shape[0] or not k.shape[0]:
        return floats
    return q, *(TensorType((q.shape[0], *t.shape[1:]), t.dtype) for t in (k, v))


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    """Estimate the work of a call that uses half of the cache, the average while it fills up."""
    q, k, _ = (t.shape for t in by_heads(inputs, attrs))
    new = inputs[4].shape[2] if len(inputs) > 4 else 0
    flops = 2.0 * math.prod(q[:3]) * (k[2] / 2 + new) * (q[3] + output.shape[3])
    pending = 2.0 * sum(t.device_bytes for t in inputs[6:])  # read and written
    share = (
        inputs[0].shape[0] / max(1, inputs[1].shape[0]) if are_slots(inputs[3].shape, attrs) else 1
    )
    cached = sum(t.device_bytes for t in inputs[1:3]) / 2 * share
    moved = cached + inputs[0].device_bytes + sum(t.device_bytes for t in (*inputs[4:6], output))
    return Work(flops, float(moved + pending))


def _typical_counts(inputs: tuple[TensorType, ...], attrs: Attrs) -> dict[int, tuple[Count, ...]]:
    """Return the number of keys in use: half of the cache, and the whole cache; with slots each
    example has its own.
    """
    keys, (slots, *_) = by_heads(inputs, attrs)[1].shape[2], inputs[1].shape
    if inputs[3].rank < 2:
        return {3: (keys // 2, keys)}
    examples = range(inputs[3].shape[0])
    own, last = are_slots(inputs[3].shape, attrs), (0,) * has_positions(attrs)
    pairs = (((n, *(i % max(1, slots),) * own, *last) for i in examples) for n in (keys // 2, keys))
    return {3: tuple(tuple(chain.from_iterable(each)) for each in pairs)}


# -- numpy -------------------------------------------------------------------------------------

Segments = tuple[tuple[NDArray, NDArray], ...]
"""Keys and values in BHSD layout: the cached ones in use, then the new ones."""


def _by_key_count(
    inputs: tuple[NDArray, ...], attrs: Attrs
) -> Iterator[tuple[slice, int, Segments]]:
    """Yield slices of examples with one key count, the position of their first query, and their
    keys and values.
    """
    _, k_bshd, v_bshd, _ = attrs.as_ints("is_bshd")
    k, v = inputs[1].swapaxes(1, 1 + k_bshd), inputs[2].swapaxes(1, 1 + v_bshd)
    used, new, pending = inputs[3], inputs[4:6], inputs[6:]
    has_slots = are_slots(used.shape, attrs)
    if pending:
        k, v = np.array(k), np.array(v)
        for held, rows in zip((k, v), pending, strict=True):
            write_slices(held, rows, used, axis=2)
    depth, columns = _columns(inputs[0].shape, attrs) if k.dtype == np.uint32 else (0, 0)
    counts, chunk = (used[:, 0] if used.ndim == 2 else used).reshape(-1).tolist(), chunk_of(attrs)
    for number, count in enumerate([min(max(0, count), k.shape[2]) for count in counts]):
        at = slot = slice(None) if used.ndim == 0 else slice(number, number + 1)
        if has_slots:
            own = int(used[number, 1])
            is_slot = 0 <= own < len(k)
            slot, count = slice(own, own + 1) if is_slot else slice(0, 1), count * is_slot
        first = count // chunk * chunk if chunk else 0
        cached = (
            _as_float32(k[slot, :, first:count], depth),
            _as_float32(v[slot, :, first:count], columns),
        )
        past = int(used[number, -1]) if has_positions(attrs) else 0
        yield (
            at,
            count - first + min(max(past, -MAX_PAST), MAX_PAST),
            (cached, (_as_float32(new[0][at]), _as_float32(new[1][at]))) if new else (cached,),
        )


def _as_float32(x: NDArray, columns: int = 0) -> NDArray:
    """Return float16 values or q8_0 rows with this many values as float32."""
    if x.dtype == np.uint32:
        return unpack_q8_0(x, columns)
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    q_bshd, *_, result_bshd = attrs.as_ints("is_bshd")
    q = _as_float32(inputs[0].swapaxes(1, 1 + q_bshd))
    words = inputs[2].dtype == np.uint32
    out = np.empty(
        (*q.shape[:3], attrs.as_int("columns") if words else inputs[2].shape[3]), q.dtype
    )
    for at, count, segments in _by_key_count(inputs, attrs):
        _attend_by_head(q[at], segments, count, attrs, out[at])
    return np.ascontiguousarray(out.swapaxes(1, 1 + result_bshd), inputs[0].dtype)


def _attend_by_head(
    q: NDArray, segments: Segments, shift: int, attrs: Attrs, result: NDArray
) -> None:
    """Compute head by head, some rows at a time. shift: as in `_attend_at_once`."""
    k, v = (np.concatenate(parts, axis=2) for parts in zip(*segments, strict=True))
    result[...] = np.nan if attrs.as_bool("fully_masked_is_nan") else 0
    if not result.size or not k.shape[2]:
        return
    share, rows = q.shape[1] // k.shape[1], max(1, REFERENCE_SCORES // k.shape[2])
    for batch, head in np.ndindex(*result.shape[:2]):
        for start in range(0, q.shape[2], rows):
            here, of_k = (batch, head, slice(start, start + rows)), (batch, head // share)
            result[here] = attend(q[here], k[of_k], v[of_k], None, shift + start, attrs)


def _compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    """Compute all heads at once if they have few scores, without copying keys and values."""
    q_bshd, *_, result_bshd = attrs.as_ints("is_bshd")
    q, result = _as_float32(inputs[0].swapaxes(1, 1 + q_bshd)), out.swapaxes(1, 1 + result_bshd)
    for at, count, segments in _by_key_count(inputs, attrs):
        keys, own = sum([k.shape[2] for k, _ in segments]), np.empty(result[at].shape, q.dtype)
        is_few = 0 < math.prod(q[at].shape[:3]) * keys <= REFERENCE_SCORES
        if is_few:
            _attend_at_once(q[at], segments, count, attrs, own)
        # NaN and infinite values affect their whole column, even with weight 0
        if not is_few or not np.isfinite(own).all():
            _attend_by_head(q[at], segments, count, attrs, own)
        result[at] = own


def _attend_at_once(
    q: NDArray, segments: Segments, shift: int, attrs: Attrs, result: NDArray
) -> None:
    """Compute all heads at once, with queries that share keys as rows of one matrix.

    `shift` is the position of query 0 in the sequence.
    """
    batches, heads, queries, depth = q.shape
    shared = segments[0][0].shape[1]
    ends = [0, *accumulate([k.shape[2] for k, _ in segments])]
    spans = [slice(*span) for span in zip(ends, ends[1:], strict=False)]
    if not ends[-1]:
        result[...] = np.nan if attrs.as_bool("fully_masked_is_nan") else 0
        return
    rows = q.reshape(batches, shared, heads // shared * queries, depth)
    scores = np.empty((*rows.shape[:3], ends[-1]), q.dtype)
    for (k, _), span in zip(segments, spans, strict=True):
        np.matmul(rows, k.swapaxes(2, 3), out=scores[..., span])
    scores *= q.dtype.type(attrs.as_float("scale"))
    if attrs.as_float("softcap"):
        softcap = q.dtype.type(attrs.as_float("softcap"))
        scores /= softcap
        np.tanh(scores, out=scores)
        scores *= softcap
    by_query = scores.reshape(batches, shared, heads // shared, queries, ends[-1])
    hidden = masked_keys(attrs, (), shift, queries, ends[-1])
    to_weights(by_query, hidden, attrs.as_bool("fully_masked_is_nan"))
    parts = [scores[..., span] @ v for (_, v), span in zip(segments, spans, strict=True)]
    for part in parts[1:]:
        parts[0] += part
    result[...] = parts[0].reshape(result.shape)


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split by heads and batch; examples that have pending rows of each other stay together."""
    if len(inputs) > 6:
        yield inputs, out
        return
    used, new = inputs[3], inputs[4:]
    _, k_bshd, *_ = attrs.as_ints("is_bshd")
    counts = used[:, 0] if used.ndim == 2 else used
    cached = min(int(counts.max(initial=0)), inputs[1].shape[1 if k_bshd else 2])
    keys = max(0, cached) + (new[0].shape[2] if new else 0)
    work = (inputs[0].size + out.size) * keys
    has_slots = are_slots(used.shape, attrs)
    for own, (some, _, of_k), part in cut_heads(inputs[:3], attrs, out, work, has_slots):
        counts = used[some] if used.ndim else used
        yield (*own, counts, *(x[some, of_k] for x in new)), part


# -- native loops --------------------------------------------------------------------------------

EARLY_WRITES = EarlyWrite(1, 6, 3, axis=2), EarlyWrite(2, 7, 3, axis=2)
"""The pending rows of keys and of values."""
OPERANDS = 8
"""Maximum number of operands; native loops take operand 0 for those that are absent."""
PIECE_SCORES, MIN_PIECE_ROWS = 1 << 18, 16
"""The scores of a piece of a native loop, which stay in a cache, and its minimum number of rows."""
MAX_KV_ELEMENTS, MAX_WIDE_KV_ELEMENTS = 1 << 19, 1 << 17
"""Maximum elements of keys and values of a head, of narrow heads and of others, for native loops
with many queries; numpy's products are as fast or faster for more.
"""
NARROW, FEW_QUERIES = 128, 8
"""The elements of a key with its value in a narrow head, and the maximum of few queries."""
FEW_PIECES = 8
"""The number of examples times heads of keys below which the heads that share keys are split."""


def _native_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    q, k, v, used, *others = inputs
    new, pending = others[:2], others[2:]
    kinds = {FLOAT32: 0, FLOAT16: 1, UINT32: 2}
    rows, cached = by_heads(inputs, attrs)[:2]
    batches, heads, queries, depth = rows.shape
    slots, shared, keys = cached.shape[:3]
    if any(t.dtype != FLOAT32 for t in (q, output, *new)) or k.dtype not in kinds:
        return None
    if not output.size or not shared or not native_kernels.has_vectors():
        return None
    width = depth + output.shape[-1]
    most = MAX_KV_ELEMENTS if width <= NARROW else MAX_WIDE_KV_ELEMENTS
    if queries > FEW_QUERIES and keys * width > most:
        return None
    # read and dequantize rows once for all heads that share them
    is_split = k.dtype == FLOAT32 and batches * shared < FEW_PIECES
    together = 1 if is_split else heads // shared
    block = _queries_per_piece(queries, keys + queries, together, batches * heads // together)
    low, high = visible_range(attrs)
    bshd = attrs.as_ints("is_bshd")
    *operand_steps, result = (
        head_steps(t.shape, is_bshd) for t, is_bshd in zip((q, k, v, output), bshd, strict=True)
    )
    fresh, later = (
        [head_steps(t.shape, 0) for t in rows] or [(0, 0, 0)] * 2 for rows in (new, pending)
    )
    numbers = (
        *(batches, heads, shared, queries, depth, output.shape[-1], keys),
        *(new[0].shape[2] if new else 0, together, block, kinds[k.dtype]),
        *(int(used.dtype == INT64), kv_len_stride(used), slots, chunk_of(attrs), low, high),
        int(attrs.as_bool("fully_masked_is_nan")),
        pending[0].shape[2] if pending else 0,
        int(has_positions(attrs)),
        *chain.from_iterable((*operand_steps, *fresh, *later, result)),
    )
    loop = Loop(
        "attention_with_kvcache",
        (*range(len(inputs)), *(0,) * (OPERANDS - len(inputs))),
        output.size,
        numbers,
        (attrs.as_float("scale"), attrs.as_float("softcap")),
        batches * heads // together * -(-queries // block),
        2 * batches * heads * queries * keys * depth // 2,
    )
    return NativeProgram((loop,))


def _queries_per_piece(queries: int, keys: int, together: int, groups: int) -> int:
    """Return the queries of a piece: its scores stay in a cache, and all threads have pieces.

    together, groups: the heads of a piece, and the number of their groups in all examples.
    """
    if queries <= FEW_QUERIES:
        return queries
    fitting = max(MIN_PIECE_ROWS, PIECE_SCORES // max(1, keys)) // together
    shared = max(MIN_PIECE_ROWS // together, -(-queries * groups // (2 * SHARES)))
    return min(queries, max(1, min(fitting, shared)))


register(
    Op(
        NAME,
        _infer,
        _reference,
        CACHED_KERNEL,
        attrs={
            **ATTENTION,
            "columns": Optional(Int(1)),
            "chunk": Optional(Int(1)),
            "has_positions": Optional(Flag()),
        },
        operands=(4, OPERANDS),
        work=_work,
        typical_counts=_typical_counts,
        early_writes=lambda inputs: EARLY_WRITES if len(inputs) > 6 else (),
        roundable_operands=(0, 1, 2, 4, 5, 6, 7),
        any_dtype=True,
        cpu=CpuKernel(_compute, _cut),
        native_program=_native_program,
    )
)
no_gradient("reads a KV cache, which is not trained; try a mask", NAME)

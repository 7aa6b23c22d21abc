"""Samples of attention with a partly filled KV cache, and with new keys."""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, GraphError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.precision import MIXED
from ....ir.tensor import Tensor, input
from ....ops.attention.kv_q8_0 import pack_q8_0
from ....ops.creation.state import state
from ..conv.precision import with_precision
from ..op_sample import ErrorSample, OpSample, floats
from .attention import attributes

Used = int | tuple[int, ...]


def cached(
    q: tuple[int, int, int, int],
    k: tuple[int, int],
    columns: int,
    used: Used,
    new: int | None = None,
    name: str = "",
    large: bool = False,
    slots: tuple[int, ...] = (),
    count: int = 0,
    pasts: tuple[int, ...] = (),
    **attrs: AttrValue,
) -> OpSample:
    """Return attention with a KV cache.

    q: (batch, heads, queries, depth), k: (heads, keys) of the cache; new: number of further keys;
    slots: those of the examples, in a cache with `count` slots. pasts: the positions of the first
    query of each.
    """
    batch, _, _, depth = q
    heads, keys = k
    held = count if slots else batch
    counts = np.asarray(used, np.int32)
    if slots or pasts:
        numbers = [np.asarray(each, np.int32) for each in (used, slots, pasts) if np.size(each)]
        counts = np.stack(numbers, axis=1)
    if pasts:
        attrs["has_positions"] = True
    inputs = [floats(*q), floats(held, heads, keys, depth, seed=1)]
    inputs += [floats(held, heads, keys, columns, seed=2), counts]
    if new is not None:
        inputs += [floats(batch, heads, new, size, seed=3 + size) for size in (depth, columns)]
    where = f" in slots {slots} of {count}" if slots else ""
    where += f" at {pasts}" if pasts else ""
    what = f"{used} of {keys}{where}{'' if new is None else f' and {new}'} {name}".strip()
    return OpSample(
        "attention_with_kvcache", tuple(inputs), attributes(depth, **attrs), what, large=large
    )


def halved(case: OpSample) -> OpSample:
    """Return a case with a cache in float16."""
    q, k, v, *rest = case.inputs
    inputs: tuple[NDArray, ...] = (q, k.astype(np.float16), v.astype(np.float16), *rest)
    return OpSample(case.op, inputs, case.attrs, f"{case.name} half", large=case.large)


def in_q8_0(case: OpSample) -> OpSample:
    """Return a case with a cache in q8_0."""
    q, k, v, *rest = case.inputs
    inputs: tuple[NDArray, ...] = (q, pack_q8_0(k), pack_q8_0(v), *rest)
    attrs = case.attrs | {"columns": v.shape[-1]}
    return OpSample(case.op, inputs, attrs, f"{case.name} q8_0", large=case.large)


def with_pending(case: OpSample, count: int = 1) -> OpSample:
    """Return a case with `count` pending rows of each example, in the type of its cache. The rows
    of the cache in their place are not finite.
    """
    q, k, v, used, *new = case.inputs
    k, v, pending = k.copy(), v.copy(), []
    for cached, columns in ((k, q.shape[-1]), (v, new[1].shape[-1])):
        rows = floats(len(q), k.shape[1], count, columns, seed=7 + columns)
        pending.append(pack_q8_0(rows) if k.dtype == np.uint32 else rows.astype(k.dtype))
        for first, slot in used.tolist() if k.dtype != np.uint32 else ():
            if 0 <= slot < len(cached):
                cached[slot, :, first : first + count] = np.nan
    inputs: tuple[NDArray, ...] = (q, k, v, used, *new, *pending)
    return OpSample(case.op, inputs, case.attrs, f"{case.name} pending {count}", large=case.large)


def narrow(case: OpSample) -> OpSample:
    """Return a case with queries and new keys and values in float16."""
    q, k, v, used, *new = case.inputs
    new_half = (x.astype(np.float16) for x in new)
    inputs: tuple[NDArray, ...] = (q.astype(np.float16), k, v, used, *new_half)
    return OpSample(case.op, inputs, case.attrs, f"{case.name} narrow", large=case.large)


def wild(case: OpSample) -> OpSample:
    """Return a case with non-finite keys and values in the unused part of the cache."""
    q, k, v, used, *rest = case.inputs
    k, v = k.copy(), v.copy()
    for example, count in enumerate(np.broadcast_to(used, k.shape[:1])):
        k[example, :, count:] = np.nan
        v[example, :, count::2], v[example, :, count + 1 :: 2] = np.inf, np.nan
    inputs: tuple[NDArray, ...] = (q, k, v, used, *rest)
    return OpSample(case.op, inputs, case.attrs, f"{case.name} wild", large=case.large)


def with_layout(case: OpSample, turns: tuple[int, ...]) -> OpSample:
    """Return a case in (batch, length, heads, depth) layout for q, k, v and the result, selected by
    `turns`.
    """
    transposed = (
        np.ascontiguousarray(x.swapaxes(1, 2)) if turn else x
        for x, turn in zip(case.inputs[:3], turns, strict=False)
    )
    inputs: tuple[NDArray, ...] = (*transposed, *case.inputs[3:])
    name = f"{case.name} turned {turns}"
    return OpSample(case.op, inputs, {**case.attrs, "is_bshd": turns}, name, large=case.large)


CASES = [
    cached((1, 1, 1, 1), (1, 1), 1, 1),
    cached((1, 1, 1, 1), (1, 1), 1, 0, 1),
    *(cached((1, 6, 1, 64), (2, 700), 64, used, 1, right=0) for used in (0, 1, 333, 700)),
    *(cached((1, 4, 5, 8), (2, 70), 8, used, 5, right=0) for used in (0, 3, 65, 70, 99, -7)),
    *(cached((2, 4, 3, 7), (2, 71), 5, used, 3, right=0) for used in (17, (0, 71), (40, 3))),
    cached((2, 4, 3, 7), (2, 71), 5, (40, 3)),
    cached((3, 2, 5, 8), (1, 90), 8, (5, 90, 41), None, "the last of them", right=0, past_len=-5),
    cached((1, 2, 20, 8), (2, 70), 8, 33, 20, "window", left=3, right=0),
    cached((1, 2, 3, 8), (2, 700), 8, 650, 3, "window", left=40, right=0),
    cached((1, 2, 3, 8), (2, 700), 8, 650, 3, "both sides", left=40, right=1),
    cached((1, 2, 3, 8), (2, 700), 8, 650, 3, "soft cap", right=0, softcap=2.0),
    cached((1, 2, 3, 8), (2, 700), 8, 650, 3, "float32 sums", right=0, float32_sums=True),
    cached((1, 2, 3, 8), (2, 70), 8, 30, 3, "far behind", left=2, right=0, past_len=100),
    cached(
        (1, 2, 3, 8),
        (2, 70),
        8,
        30,
        3,
        "NaN",
        left=2,
        right=0,
        past_len=9,
        fully_masked_is_nan=True,
    ),
    cached((1, 2, 9, 16), (1, 1100), 20, 900, 9, "parts", right=0),
    cached((1, 9, 40, 64), (3, 600), 64, 411, 40, "tall", right=0),
    cached((1, 1, 1, 64), (1, 9000), 64, 8191, 1, "parts", large=True, right=0),
    cached((1, 1, 3, 256), (1, 3000), 256, 2500, 3, "parts", large=True, right=0),
    cached((1, 2, 3, 8), (1, 40), 8, 17, 700, "parts of new"),
    cached((1, 2, 3, 8), (1, 40), 8, 17, 700, "parts of new, far behind", right=5, past_len=600),
    cached((1, 2, 3, 8), (1, 40), 8, 17, 700, "parts of new, window", left=90, past_len=650),
    *(
        with_layout(cached((2, 6, 5, 8), (3, 19), 8, (4, 19), 5, right=0), turns)
        for turns in ((1, 1, 1, 1), (1, 0, 0, 0), (0, 1, 0, 1), (0, 0, 1, 0))
    ),
    *(
        keep(cached(q, k, columns, used, q[2], right=0))
        for keep in (halved, in_q8_0)
        for q, k, columns, used in (
            ((1, 6, 1, 64), (2, 700), 64, 333),
            ((2, 4, 5, 8), (2, 71), 12, (40, 71)),
            ((1, 9, 40, 64), (3, 600), 64, 411),
            ((1, 2, 3, 6), (1, 40), 10, 17),
            ((1, 2, 3, 7), (1, 41), 5, 17),
        )
    ),
    *(
        in_q8_0(cached(q, k, columns, used, q[2], right=0))
        for q, k, columns, used in (
            ((2, 4, 3, 96), (2, 90), 100, (90, 31)),
            ((1, 4, 2, 128), (1, 300), 256, 211),
            ((1, 1, 5, 1), (1, 9), 1, 9),
        )
    ),
    *(
        narrow(keep(cached(q, (2, 90), columns, 61, q[2], right=0)))
        for keep in (lambda case: case, halved, in_q8_0)
        for q, columns in (((1, 4, 3, 64), 64), ((1, 2, 2, 7), 5))
    ),
    *(
        with_layout(narrow(halved(cached(q, keys, columns, 211, q[2], right=0))), turns)
        for q, keys, columns, turns in (
            ((1, 4, 40, 16), (2, 300), 16, (0, 0, 0, 1)),
            ((2, 2, 20, 6), (1, 240), 10, (0, 0, 0, 0)),
        )
    ),
    *(
        change(wild(cached(q, (2, 300), columns, used, q[2], right=0)))
        for change in (lambda case: case, halved, in_q8_0)
        for q, columns, used in (
            ((1, 6, 1, 64), 64, 131),
            ((2, 4, 5, 6), 10, (0, 257)),
            ((1, 4, 40, 8), 8, 0),
        )
    ),
    *(
        with_layout(keep(cached((2, 6, 5, 8), (3, 19), 8, (4, 19), 5, right=0)), (1, 1, 1, 1))
        for keep in (halved, in_q8_0)
    ),
    *(
        cached(q, k, columns, used, new, slots=slots, count=count, right=0)
        for q, k, columns, used, new, slots, count in (
            ((2, 6, 1, 64), (2, 700), 64, (333, 700), 1, (4, 1), 5),
            ((1, 4, 1, 8), (2, 70), 8, (65,), 1, (2,), 3),
            ((3, 4, 5, 8), (2, 71), 12, (0, 71, 40), 5, (0, 2, 2), 3),
            ((4, 4, 1, 16), (4, 300), 16, (7, 99, 280, 300), None, (3, 0, -1, 9), 4),
            ((2, 2, 3, 7), (1, 41), 5, (17, 41), 3, (1, 0), 2),
            ((8, 6, 1, 32), (3, 90), 32, tuple(range(9, 89, 10)), 1, (7, 6, 5, 4, 3, 2, 1, 0), 8),
            ((2, 9, 40, 64), (3, 600), 64, (411, 555), 40, (1, 0), 2),
        )
    ),
    *(
        keep(cached(q, k, columns, used, q[2], slots=slots, count=3, right=0, left=33))
        for keep in (halved, in_q8_0)
        for q, k, columns, used, slots in (
            ((2, 6, 1, 64), (2, 700), 64, (333, 70), (2, 0)),
            ((2, 4, 5, 8), (2, 71), 12, (40, 71), (1, 7)),
            ((1, 2, 3, 7), (1, 41), 5, (17,), (2,)),
        )
    ),
    with_layout(
        cached((2, 6, 5, 8), (3, 19), 8, (4, 19), 5, slots=(2, 0), count=3, right=0), (1, 1, 1, 1)
    ),
    *(
        keep(cached(q, k, 8, used, q[2], "chunks", chunk=chunk, right=0))
        for keep in (lambda case: case, halved, in_q8_0)
        for q, k, used, chunk in (
            ((1, 2, 1, 8), (2, 70), 41, 16),
            ((2, 2, 3, 8), (2, 700), (650, 512), 256),
            ((1, 4, 5, 8), (2, 70), 64, 32),
            ((2, 2, 1, 8), (1, 300), (70, 299), 1000),
        )
    ),
    cached((2, 4, 1, 8), (2, 300), 8, (290, 130), 1, slots=(1, 0), count=2, chunk=128, right=0),
    cached((1, 2, 3, 8), (2, 90), 8, 80, 3, "chunks, window", left=30, chunk=64, right=0),
    *(
        with_pending(keep(cached(q, k, 8, used, new, slots=slots, count=3, right=0, left=left)), n)
        for keep in (lambda case: case, halved, in_q8_0)
        for q, k, used, new, slots, n, left in (
            ((4, 6, 1, 64), (2, 700), (297, 298, 299, 300), 1, (1, 1, 1, 1), 1, -1),
            ((4, 4, 1, 8), (2, 70), (7, 64, 8, 65), 1, (0, 2, 0, 2), 1, -1),
            ((3, 2, 3, 7), (1, 41), (17, 0, 19), 3, (1, -1, 1), 2, 9),
            ((2, 2, 1, 8), (1, 40), (39, 40), 2, (2, 2), 1, -1),
        )
    ),
    *(
        keep(cached(q, k, 8, used, new, slots=slots, count=3, pasts=pasts, right=0, left=left))
        for keep in (lambda case: case, halved, in_q8_0, narrow)
        for q, k, used, new, slots, pasts, left in (
            ((1, 6, 1, 64), (2, 700), (333,), 40, (2,), (17,), -1),
            ((3, 4, 1, 8), (2, 70), (0, 41, 70), 9, (0, 2, 1), (0, 3, 8), -1),
            ((2, 2, 3, 7), (1, 41), (17, 41), 12, (1, 0), (5, -20), 9),
            ((2, 2, 2, 8), (1, 300), (280, 300), None, (1, 7), (-30, 5), -1),
            ((3, 2, 1, 8), (1, 40), (30, 30, 7), 3, (0, 1, 2), (2**31 - 1, -(2**31), 2), -1),
            ((1, 6, 1, 64), (2, 700), (333,), 40, (), (17,), -1),
            ((2, 2, 3, 7), (1, 41), (17, 41), 12, (), (5, -20), 9),
        )
    ),
    with_layout(
        cached((2, 6, 1, 8), (3, 19), 8, (4, 19), 5, slots=(2, 0), count=3, pasts=(3, 0), right=0),
        (1, 1, 1, 1),
    ),
    with_pending(
        cached((2, 4, 1, 8), (2, 300), 8, (127, 128), 1, slots=(1, 1), count=2, chunk=128, right=0)
    ),
    cached((0, 2, 3, 4), (1, 5), 4, 2, 3, "no batch"),
    cached((2, 2, 0, 4), (1, 5), 4, 2, 0, "no query"),
    cached((2, 2, 3, 4), (1, 0), 4, 2, 3, "no key"),
    cached((2, 2, 3, 4), (1, 0), 4, 2, None, "no key"),
    cached((2, 2, 3, 4), (1, 5), 0, 2, 3, "no column"),
]

OF_PROMPTS = [
    case for case in CASES if case.name.startswith("411") and not case.name.endswith("tall")
]
"""Many queries with quantized keys."""
ROUNDED = [with_precision(cached((1, 6, 40, 64), (3, 150), 48, 97, 40, right=0), MIXED)]
"""Many queries that may be rounded, with a cache in float32."""

_Q, _K, _NEW = (2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 3, 8)


def _build(
    used: tuple[tuple[int, ...], str] = ((), "int32"),
    new: tuple[tuple[int, ...], ...] | None = (_NEW, _NEW),
    **keywords: object,
) -> Tensor:
    new_inputs = {
        name: input(name, s) for name, s in zip(("k_new", "v_new"), new or (), strict=False)
    }
    q, k, v = input("q", _Q), input("k", _K), input("v", _K)
    return ops.attention(q, k, v, kv_len=input("used", *used), **new_inputs, **keywords)  # type: ignore[arg-type]


def _build_pending(
    rows: tuple[int, ...] = (2, 2, 1, 8),
    dtype: str = "float32",
    held: tuple[str, ...] = ("state", "state"),
    **keywords: object,
) -> Tensor:
    cache = np.zeros(_K, np.float32)
    k, v = (state(cache) if kind == "state" else input("k", _K) for kind in held)
    own, used = (input(name, (2,), "int32") for name in ("slot", "used"))
    options: dict[str, object] = {"k_new": input("k_new", _NEW), "v_new": input("v_new", _NEW)}
    options |= {name: input(name, rows, dtype) for name in ("k_pending", "v_pending")}
    options |= {"slots": own} | keywords
    return ops.attention(input("q", _Q), k, v, kv_len=used, **options)  # type: ignore[arg-type]


ERRORS = [
    ErrorSample(lambda: _build_pending((2, 2, 1, 9)), ShapeError, r"pending rows \(2, 2, r, 8\)"),
    ErrorSample(lambda: _build_pending((2, 8)), ShapeError, "expected pending rows"),
    ErrorSample(lambda: _build_pending(dtype="float16"), DTypeError, "pending rows of float32"),
    ErrorSample(lambda: _build_pending(slots=None), ShapeError, "slots with pending rows"),
    ErrorSample(lambda: _build_pending(layout="BSHD"), ShapeError, "expected"),
    ErrorSample(lambda: _build_pending(v_pending=None), ShapeError, "k_pending and v_pending, got"),
    ErrorSample(
        lambda: _build_pending(k_new=None, v_new=None), ShapeError, "k_new and v_new with pending"
    ),
    ErrorSample(lambda: _build_pending(held=("state", "input")), GraphError, "expected states"),
    ErrorSample(lambda: _build(((3,), "int32")), ShapeError, r"one int32 or as \(2,\)"),
    ErrorSample(lambda: _build(((), "float32")), DTypeError, "one int32"),
    ErrorSample(lambda: _build(((2,), "int32"), slots=0), ShapeError, "a slot for each example"),
    ErrorSample(lambda: _build(slots=input("slots", (2,), "int32")), ShapeError, "a slot for each"),
    ErrorSample(
        lambda: _build(((2,), "int32"), slots=input("slots", (2,), "int64")), DTypeError, "slots of"
    ),
    ErrorSample(
        lambda: _build(((2,), "int32"), slots=input("slots", (2,))), DTypeError, "int32 or int64"
    ),
    ErrorSample(lambda: _build(past_len=input("past", (3,), "int32")), ShapeError, "positions of"),
    ErrorSample(lambda: _build(past_len=input("past", (), "int64")), DTypeError, "positions of"),
    ErrorSample(
        lambda: _build(((3,), "int32"), past_len=input("past", (), "int32")),
        ShapeError,
        r"as one integer or \(2,\)",
    ),
    ErrorSample(
        lambda: _build(past_len=input("past", (), "int32"), chunk=4),
        ShapeError,
        "an int with chunk",
    ),
    ErrorSample(
        lambda: _build_pending(past_len=input("past", (), "int32")), ShapeError, "an int with chunk"
    ),
    ErrorSample(
        lambda: ops.attention(
            *(input(name, _Q) for name in "qkv"), past_len=input("past", (), "int32")
        ),
        ShapeError,
        "require `kv_len`",
    ),
    ErrorSample(lambda: _build(chunk=0), ShapeError, "1 or more as chunk"),
    ErrorSample(
        lambda: ops.attention(*(input(name, _Q) for name in "qkv"), chunk=4),
        ShapeError,
        "require `kv_len`",
    ),
    ErrorSample(lambda: _build(new=(_NEW, (2, 2, 4, 8))), ShapeError, "new keys and values"),
    ErrorSample(lambda: _build(new=((2, 1, 3, 8), _NEW)), ShapeError, "new keys and values"),
    ErrorSample(lambda: _build(new=(_NEW,)), ShapeError, "k_new and v_new, got one"),
    ErrorSample(lambda: _build(layout="SBHD"), ShapeError, "BHSD or BSHD"),
    ErrorSample(
        lambda: ops.attention(*(input(name, _Q) for name in "qkv"), kv_len=2**31),
        DTypeError,
        "fit int32",
    ),
    ErrorSample(lambda: _build(mask=np.ones((3, 5), bool)), ShapeError, "a mask or"),
    ErrorSample(
        lambda: ops.attention(
            *(input(name, s) for name, s in zip("qkv", (_Q, _K, _K), strict=True)),
            k_new=input("k_new", _NEW),
            v_new=input("v_new", _NEW),
        ),
        ShapeError,
        "require `kv_len`",
    ),
]

"""Attention without its score matrix: a tile of queries meets the keys a tile at a time.

q: rows of all heads that share keys   x   k, v: keys, in parts
each (rows, part): sums, largest score, total weight -> one result, or parts that are combined
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..errors import DTypeError, ShapeError, UnsupportedOp
from ..types import BOOL, FLOAT32, NDArray, TensorType, as_float, as_int, broadcast_shapes
from .host import HostKernel
from .layout import reshape, transpose
from .op import (
    OUTPUT,
    SCRATCH,
    Attrs,
    AttrValue,
    Call,
    Dispatch,
    Kernel,
    Limits,
    Op,
    Work,
    register,
)
from .softmax import as_mask
from .strides import LOCAL_SIZE, LOOP_STEPS, MAX_DISPATCHES, broadcast_strides
from .tensor import Tensor, TensorLike, apply, as_tensor

UNBOUNDED = 1 << 30
"""Further than any query sees."""
LANES_ACROSS, LANES_DOWN = 32, 4
"""Columns and rows of the lanes of a group in shaders/include/attention_tiled.glsl."""
MOST_COLUMNS = 8 * LANES_ACROSS
"""Columns of v that one dispatch for GPUs works on; more are several."""
LANES_ON_CPU, ROWS_IN_VEC4, KEYS_ON_CPU = 8, 4, 8
"""Lanes of a group, rows of one in shaders/include/attention_vec4.glsl, keys at a time."""
STATE_WORDS = 4
"""Behind the sums of a part."""
GROUPS_WANTED, LEAST_PART = 128, 512
"""A GPU with fewer groups than this gets the keys in parts, of this length at least."""
DISPATCH_FLOPS = 1e11
"""Of one dispatch on a GPU, as drivers kill what takes seconds."""


# -- types and values --------------------------------------------------------------------------


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    q, k, v = inputs[:3]
    if any(t.dtype != FLOAT32 for t in (q, k, v)):
        got = " and ".join(t.dtype for t in (q, k, v))
        raise DTypeError(f"[attention] expected float32, got {got}; try vs.cast")
    if any(t.rank != 4 for t in (q, k, v)):
        raise ShapeError(
            "[attention] expected (batch, heads, length, size) three times, got "
            f"{q.shape}, {k.shape} and {v.shape}; try heads= for (batch, length, heads * size)"
        )
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ShapeError(
            "[attention] expected q (b, h, m, d), k (b, g, n, d) and v (b, g, n, e), "
            f"got {q.shape}, {k.shape} and {v.shape}"
        )
    heads, shared = q.shape[1], k.shape[1]
    if heads != shared and (shared == 0 or heads % shared):
        raise ShapeError(
            f"[attention] expected heads of q that are a multiple of those of k, got {heads} "
            f"and {shared}"
        )
    if len(inputs) > 3:
        mask, scores = inputs[3], (*q.shape[:3], k.shape[2])
        if mask.dtype not in (BOOL, FLOAT32):
            raise DTypeError(
                f"[attention] expected a mask of bool or float32, got {mask.dtype}; try vs.cast"
            )
        if mask.rank > 4 or broadcast_shapes("attention", mask.shape, scores) != scores:
            raise ShapeError(
                f"[attention] expected a mask that broadcasts to {scores}, got {mask.shape}"
            )
    return TensorType((*q.shape[:3], v.shape[3]), q.dtype)


def _seen(attrs: Attrs) -> tuple[int, int]:
    """Returns a, b: query i sees the keys i + a .. i + b."""
    past, left, right = (attrs.as_int(name) for name in ("past", "left", "right"))
    return (
        past - left if left >= 0 else -UNBOUNDED,
        past + right if right >= 0 else UNBOUNDED,
    )


_REFERENCE_SCORES = 1 << 22
"""Scores that the reference holds at a time."""


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    q, k, v = inputs[:3]
    shape = (*q.shape[:3], v.shape[3])
    out = np.zeros(shape, q.dtype)
    if out.size == 0 or k.shape[2] == 0:
        return out
    keys, share = k.shape[2], q.shape[1] // k.shape[1]
    mask = np.broadcast_to(inputs[3], (*q.shape[:3], keys)) if len(inputs) > 3 else None
    rows = max(1, _REFERENCE_SCORES // keys)
    for batch, head in np.ndindex(*q.shape[:2]):
        for start in range(0, q.shape[2], rows):
            at = (batch, head, slice(start, start + rows))
            of_k = (batch, head // share)
            out[at] = _attend(
                q[at], k[of_k], v[of_k], None if mask is None else mask[at], start, attrs
            )
    return out


def _attend(
    q: NDArray, k: NDArray, v: NDArray, mask: NDArray | None, start: int, attrs: Attrs
) -> NDArray:
    """One head: rows of q from a query on, all keys."""
    scores = (q @ k.T) * q.dtype.type(attrs.as_float("scale"))
    if attrs.as_float("softcap"):
        softcap = q.dtype.type(attrs.as_float("softcap"))
        scores = softcap * np.tanh(scores / softcap)
    low, high = _seen(attrs)
    ahead = np.arange(len(k)) - np.arange(start, start + len(q))[:, None]
    hidden = (ahead < low) | (ahead > high)
    if mask is not None and mask.dtype == bool:
        hidden |= ~mask
    elif mask is not None:
        hidden |= np.isneginf(mask)
        scores = scores + mask
    scores[hidden] = -np.inf
    # a score that is NaN makes the whole row NaN by its own weight
    largest = np.fmax.reduce(scores, axis=1, keepdims=True)
    largest[~(largest > -np.inf)] = 0
    weights = np.exp(scores - largest)
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray(_mix(weights, v) / np.where(total == 0, 1, total), q.dtype)


def _mix(weights: NDArray, v: NDArray) -> NDArray:
    """weights @ v, where what has weight 0 is not there, even if it is NaN or infinite."""
    odd = np.flatnonzero(~np.isfinite(v).all(axis=1))
    if not odd.size:
        return np.asarray(weights @ v)
    plain = v.copy()
    plain[odd] = 0
    out = np.asarray(weights @ plain)
    for key in odd:
        weight = weights[:, key : key + 1]
        out += np.where(weight == 0, 0, weight * v[key])
    return out


def _host(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    """All heads at once where their scores are few and no key is hidden by its place."""
    q, k, v = inputs[:3]
    scores_size = math.prod(q.shape[:3]) * k.shape[2]
    plain = attrs.as_int("left") < 0 and attrs.as_int("right") < 0
    if not plain or not 0 < scores_size <= _REFERENCE_SCORES or not np.isfinite(v).all():
        out[...] = _reference(inputs, attrs)
        return
    share = q.shape[1] // k.shape[1]
    if share > 1:
        k, v = np.repeat(k, share, axis=1), np.repeat(v, share, axis=1)
    scores = np.matmul(q, k.swapaxes(2, 3))
    scores *= q.dtype.type(attrs.as_float("scale"))
    if attrs.as_float("softcap"):
        softcap = q.dtype.type(attrs.as_float("softcap"))
        scores /= softcap
        np.tanh(scores, out=scores)
        scores *= softcap
    if len(inputs) > 3 and inputs[3].dtype == bool:
        np.copyto(scores, -np.inf, where=~inputs[3])
    elif len(inputs) > 3:
        scores += inputs[3]
        np.copyto(scores, -np.inf, where=np.isneginf(inputs[3]))
    largest = np.fmax.reduce(scores, axis=3, keepdims=True)
    largest[~(largest > -np.inf)] = 0
    scores -= largest
    np.exp(scores, out=scores)
    total = np.add.reduce(scores, axis=3, keepdims=True)
    total[total == 0] = 1
    np.matmul(scores, v, out=out)
    out /= total


# -- kernels -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Launch:
    """How a call is cut.

    kind: of shader. tile: rows of a group. tiles: of all batches. each: tiles of one dispatch.
    parts: of the keys, with part_keys each. columns: of v, of one dispatch.
    """

    kind: str
    tile: int
    tiles: int
    each: int
    parts: int
    part_keys: int
    columns: int


def _sizes(call: Call) -> tuple[int, int, int, int, int]:
    """Returns batches (with heads of k), rows of q in each, keys, depth and columns."""
    q, k, v = (t.shape for t in call.inputs[:3])
    return k[0] * k[1], q[1] // k[1] * q[2], k[2], q[3], v[3]


def _launch(call: Call) -> _Launch:
    return _on_cpu_driver(call) if call.limits.software else _on_gpu(call)


def _on_cpu_driver(call: Call) -> _Launch:
    batches, rows, keys, depth, columns = _sizes(call)
    rounds = 1 + depth // 4 + depth % 4 + columns // 4 + columns % 4
    part_keys = (LOOP_STEPS - 2 * columns - 2) // rounds * KEYS_ON_CPU
    if part_keys <= 0:
        raise UnsupportedOp(
            f"[attention] heads of size {depth} and {columns} are too long for a CPU driver: "
            "such drivers end long loops early"
        )
    parts = max(1, -(-keys // part_keys))
    part_keys = max(1, -(-keys // parts))
    in_fours = depth % 4 == 0 and columns % 4 == 0 and rows > LANES_ON_CPU
    tile = LANES_ON_CPU * (ROWS_IN_VEC4 if in_fours else 1)
    tiles = -(-rows // tile) * batches
    most = call.limits.max_groups
    runs = LOOP_STEPS // (-(-part_keys // KEYS_ON_CPU) * rounds + 2 * columns + 2)
    each = runs // -(-parts // most[1])
    if each == 0:
        raise UnsupportedOp(f"[attention] {keys} keys are too many for this CPU driver")
    each = min(tiles, each * most[0])
    kind = "vec4" if in_fours else "rows"
    return _Launch(kind, tile, tiles, each, parts, part_keys, columns)


def _on_gpu(call: Call) -> _Launch:
    batches, rows, keys, depth, columns = _sizes(call)
    tile = LANES_DOWN if rows <= 2 * LANES_DOWN else 4 * LANES_DOWN
    tiles = -(-rows // tile) * batches
    parts = max(1, min(GROUPS_WANTED // tiles, keys // LEAST_PART))
    part_keys = max(1, -(-keys // parts))
    flops = 2.0 * tile * max(1, keys) * (depth + min(columns, MOST_COLUMNS))
    each = max(1, min(tiles, int(DISPATCH_FLOPS / flops)))
    return _Launch("tiled", tile, tiles, each, parts, part_keys, min(columns, MOST_COLUMNS))


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    _, rows, keys, depth, columns = _sizes(call)
    cut, whole = _launch(call), _launch(call).parts == 1
    q, k = call.inputs[0].shape, call.inputs[1].shape
    masked = len(call.inputs) > 3
    strides = (0, 0, 0, 0)
    if masked:
        strides = broadcast_strides(call.inputs[3].shape, (*q[:3], keys))  # type: ignore[assignment]
    low, high = _seen(call.attrs)
    push: tuple[tuple[str, int | float | tuple[int, ...]], ...] = (
        *(("tiles", -(-rows // cut.tile)), ("rows", rows), ("queries", q[2]), ("keys", keys)),
        *(("depth", depth), ("v_row", columns), ("heads", k[1]), ("mask_strides", strides)),
        *(("result_row", columns + (0 if whole else STATE_WORDS)), ("parts", cut.parts)),
        *(("part_keys", cut.part_keys), ("first_seen", low), ("last_seen", high)),
        *((name, call.attrs.as_float(name)) for name in ("scale", "softcap")),
    )
    constants = (
        ("SOFTCAP", int(call.attrs.as_float("softcap") != 0)),
        ("IS_BIAS", int(masked and call.inputs[3].dtype == FLOAT32)),
        ("WHOLE", int(whole)),
    )
    blocks = range(0, columns, cut.columns)
    starts = range(0, cut.tiles, cut.each)
    if len(starts) * len(blocks) >= MAX_DISPATCHES:
        raise UnsupportedOp(
            f"[attention] {q} queries on {k} keys need {len(starts) * len(blocks)} dispatches, "
            f"over {MAX_DISPATCHES}"
        )
    dispatches = [
        Dispatch(
            f"attention_{cut.kind}{'_masked' * masked}",
            (0, 1, 2, *((3,) if masked else ()), OUTPUT if whole else SCRATCH),
            (
                min(cut.each, call.limits.max_groups[0]),
                min(cut.parts, call.limits.max_groups[1]),
                1,
            ),
            (
                *push,
                *(("first_tile", start), ("end_tile", min(start + cut.each, cut.tiles))),
                *(("first_column", block), ("columns", min(cut.columns, columns - block))),
            ),
            (*constants, *_tile_constants(cut, min(cut.columns, columns - block), call.limits)),
            barrier=number > 0,
        )
        for number, (block, start) in enumerate(product(blocks, starts))
    ]
    return (*dispatches, *(() if whole else _combine(call, cut)))


def _tile_constants(cut: _Launch, columns: int, limits: Limits) -> tuple[tuple[str, int], ...]:
    if limits.software:
        return ()
    # 1, 2, 4 or 8: fewer pipelines than one for each number
    wanted = -(-columns // LANES_ACROSS)
    return ("ROWS", cut.tile), ("COLUMNS", 1 << (wanted - 1).bit_length())


def _combine(call: Call, cut: _Launch) -> tuple[Dispatch, ...]:
    count = call.output.size
    each = max(1, LOOP_STEPS // (2 * cut.parts + 1)) if call.limits.software else 4
    groups = min(-(-count // (LOCAL_SIZE * each)), call.limits.max_groups[0])
    if call.limits.software and groups * LOCAL_SIZE * each < count:
        raise UnsupportedOp(f"[attention] {cut.parts} parts are too many for this CPU driver")
    push = (("count", count), ("row", call.output.shape[3]), ("parts", cut.parts))
    return (
        Dispatch("attention_combine", (SCRATCH, OUTPUT), (groups, 1, 1), push, (), barrier=True),
    )


def _scratch(call: Call) -> tuple[int, ...]:
    if call.output.size == 0:
        return ()
    cut, (batches, rows, _, _, columns) = _launch(call), _sizes(call)
    return () if cut.parts == 1 else (cut.parts * batches * rows * (columns + STATE_WORDS),)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    q, k, v = (t.shape for t in inputs[:3])
    flops = 2.0 * math.prod(q[:3]) * k[2] * (q[3] + v[3])
    return Work(flops, float(sum(t.device_bytes for t in inputs) + output.device_bytes))


SHADERS = (
    "attention_combine",
    *(
        f"attention_{kind}{masked}"
        for kind in ("rows", "tiled", "vec4")
        for masked in ("", "_masked")
    ),
)
register(
    Op(
        "attention",
        _infer,
        _reference,
        Kernel(SHADERS, _lower, _scratch),
        work=_work,
        host=HostKernel(_host),
    )
)


# -- builder -----------------------------------------------------------------------------------


def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    mask: TensorLike | None = None,
    *,
    causal: bool = False,
    past: int = 0,
    window: tuple[int | None, int | None] = (None, None),
    scale: float | None = None,
    softcap: float = 0.0,
    heads: int | None = None,
    kv_heads: int | None = None,
    name: str | None = None,
) -> Tensor:
    """softmax(q k^T * scale) v for every head, as ONNX Attention; the scores are never stored.

    q: (b, h, m, d), k: (b, g, n, d), v: (b, g, n, e) -> (b, h, m, e); h is a multiple of g, and
    h / g heads of q in a row share a head of k and v. With `heads` (and `kv_heads`, by default the
    same) operands and result are (b, length, heads * size) instead.
    mask: broadcasts to (b, h, m, n); bool, true where a key is seen, or float32, added to the
    scores after the soft cap softcap * tanh(score / softcap).
    causal: query i sees the keys up to i + past; window: and no more than so many to the left and
    right of i + past. scale: by default 1 / sqrt(d).
    A hidden key, or one of weight 0, counts as not there, whatever k and v hold; the result of a
    query that sees no key is 0.
    """
    operands = [as_tensor(q)]
    operands += [as_tensor(t, like=operands[0]) for t in (k, v)]
    if heads is not None or kv_heads is not None:
        return _joined(operands, heads, kv_heads, mask, causal, past, window, scale, softcap, name)
    if not isinstance(window, Sequence) or len(window) != 2 or isinstance(window, str):
        raise ShapeError(f"[attention] expected a window (left, right), got {window!r}")
    left, right = (_bound(side) for side in window)
    past = as_int("attention", "past", past)
    if not 0 <= abs(past) < UNBOUNDED // 2:
        raise ShapeError(f"[attention] expected a past under 2**29, got {past}")
    depth = operands[0].shape[-1] if operands[0].rank else 1
    if scale is None:
        scale = 1 / math.sqrt(max(1, depth))
    scale, softcap = (
        as_float("attention", what, value)
        for what, value in (("scale", scale), ("softcap", softcap))
    )
    if not (abs(scale) <= 3e38 and 0 <= softcap <= 3e38):
        raise DTypeError(
            f"[attention] expected a float32 scale and a softcap of 0 or more, got {scale!r} and "
            f"{softcap!r}"
        )
    attrs: dict[str, AttrValue] = {
        "scale": float(scale),
        "softcap": float(softcap),
        "past": past,
        "left": left,
        "right": 0 if causal else right,
    }
    if mask is not None:
        operands.append(as_mask(mask, operands[0]))
    return apply("attention", operands, attrs, name)


def _bound(side: int | None) -> int:
    if side is None:
        return -1
    keys = as_int("attention", "window", side)
    if not 0 <= keys < UNBOUNDED // 2:
        raise ShapeError(f"[attention] expected a window of 0 or more keys or None, got {side}")
    return keys


def _joined(
    operands: list[Tensor],
    heads: int | None,
    kv_heads: int | None,
    mask: TensorLike | None,
    causal: bool,
    past: int,
    window: tuple[int | None, int | None],
    scale: float | None,
    softcap: float,
    name: str | None,
) -> Tensor:
    """Attention on (batch, length, heads * size)."""
    heads, kv_heads = (
        None if count is None else as_int("attention", what, count)
        for what, count in (("heads", heads), ("kv_heads", kv_heads))
    )
    counts = (heads or kv_heads or 0, kv_heads or heads or 0, kv_heads or heads or 0)
    apart = []
    for tensor, count in zip(operands, counts, strict=True):
        if tensor.rank != 3 or count <= 0 or tensor.shape[2] % count:
            raise ShapeError(
                f"[attention] expected (batch, length, {count} heads * size), got {tensor.shape}"
            )
        size = tensor.shape[2] // count
        split = reshape(tensor, (*tensor.shape[:2], count, size))
        apart.append(transpose(split, (0, 2, 1, 3)))
    q, k, v = apart
    out = attention(
        *(q, k, v, mask), causal=causal, past=past, window=window, scale=scale, softcap=softcap
    )
    b, h, m, e = out.shape
    return reshape(transpose(out, (0, 2, 1, 3)), (b, m, h * e), name=name)

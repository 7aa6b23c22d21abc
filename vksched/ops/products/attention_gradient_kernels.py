"""How the gradients of attention run on a device: variants and launches.

dots = sum(g o)                               once, for each row of q
scores = q k^T, slopes = g v^T                a chunk of the rows
weights and slopes in place of these          attention_slopes.comp
dq = slopes k, dk += slopes^T q, dv += weights^T g
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...errors import UnsupportedOp
from ...types import FLOAT32, Shape, TensorType
from ..core.attrs import Attrs
from ..core.op import OUTPUT, SCRATCH, Call, Dispatch, Kernel
from ..core.quads import GROUP, launch_rows, row_variants
from ..core.strides import LOCAL_SIZE, LOOP_STEPS, MAX_DISPATCHES, broadcast_strides
from ..moves.copies import fill_words
from ..rows.norm import check_row
from .attention_gradient_host import shapes_of_parts
from .attention_kernels import seen_keys
from .matmul import product

Q, K, V, G, RESULT, MASK = range(6)
"""The operands."""
SCORES, SLOPES, DOTS = (SCRATCH - i for i in range(3))
PASSES = 2
"""Of attention_slopes over each row."""
CHUNK_WORDS = 1 << 19
"""Scores that are held at a time."""
LEAST_ROWS = 64
"""Of a chunk that holds no whole head."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """heads: of k, of all examples. rows: of q for each."""

    heads: int
    rows: int
    keys: int
    depth: int
    columns: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows of some heads of k: all of them, or those of one head from one on."""

    head: int
    heads: int
    row: int
    rows: int


def _shapes(call: Call) -> tuple[Shape, Shape, Shape]:
    return shapes_of_parts(*(t.shape for t in call.inputs[:3]))


def _sizes(call: Call) -> _Sizes:
    (batch, shared, rows, depth), _, (*_, keys, columns) = _shapes(call)
    return _Sizes(batch * shared, rows, keys, depth, columns)


def _chunk_of(s: _Sizes) -> tuple[int, int]:
    """Returns the heads and rows of a chunk."""
    if s.rows * s.keys <= CHUNK_WORDS:
        return min(s.heads, CHUNK_WORDS // (s.rows * s.keys)), s.rows
    return 1, min(s.rows, max(LEAST_ROWS, CHUNK_WORDS // s.keys // 4 * 4))


def _chunks(s: _Sizes) -> Iterator[_Chunk]:
    heads, rows = _chunk_of(s)
    for head in range(0, s.heads, heads):
        for row in range(0, s.rows, rows):
            yield _Chunk(head, min(heads, s.heads - head), row, min(rows, s.rows - row))


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    s, size = _sizes(call), call.output.shape[3]
    zeros = fill_words(OUTPUT, call.output.size, 0, call.limits)
    if s.rows * s.keys == 0:
        return (zeros,)
    filled = all(math.prod(shape[2:]) == size for shape in _shapes(call))
    out = [_dots(call, s), *(() if filled else (zeros,))]
    for chunk in _chunks(s):
        for first, *others in filter(None, _of_chunk(call, s, chunk)):
            out += (replace(first, barrier=True), *others)
    if len(out) > MAX_DISPATCHES:
        raise UnsupportedOp(
            f"[attention_gradient] {call.inputs[0].shape} queries on {s.keys} keys need "
            f"{len(out)} dispatches, over {MAX_DISPATCHES}"
        )
    return tuple(out)


def _dots(call: Call, s: _Sizes) -> Dispatch:
    rows, most = s.heads * s.rows, call.limits.max_groups[0]
    groups = min(-(-rows // LOCAL_SIZE), most)
    rounds = -(-rows // (groups * LOCAL_SIZE)) * (s.columns + 1)
    if call.limits.software and rounds > LOOP_STEPS:
        raise UnsupportedOp(
            f"[attention_gradient] {rows} rows of {s.columns} are too many for this CPU driver"
        )
    push = (("rows", rows), ("columns", s.columns))
    return Dispatch("attention_dots", (G, RESULT, DOTS), (groups, 1, 1), push)


def _of_chunk(call: Call, s: _Sizes, c: _Chunk) -> Iterator[tuple[Dispatch, ...]]:
    """Yields dispatches that need not wait for each other, but for those before."""
    of_rows, of_keys = c.head * s.rows + c.row, c.head * s.keys
    q, g = (_Matrices(i, c.heads, c.rows, n, of_rows * n) for i, n in _of(s, Q, G))
    k, v = (_Matrices(i, c.heads, s.keys, n, of_keys * n) for i, n in _of(s, K, V))
    scores, slopes = (_Matrices(i, c.heads, c.rows, s.keys) for i in (SCORES, SLOPES))
    yield (
        *_multiply(call, q, k, scores, turn_b=True),
        *_multiply(call, g, v, slopes, turn_b=True),
    )
    yield (_slopes(call, s, c),)
    size = call.output.shape[3]
    part = s.heads * size
    first = c.head * size
    of_q, of_k, of_v = (
        _Matrices(OUTPUT, c.heads, rows, n, first + i * part + start * n, size)
        for i, (rows, n, start) in enumerate(
            ((c.rows, s.depth, c.row), (s.keys, s.depth, 0), (s.keys, s.columns, 0))
        )
    )
    yield (
        *_multiply(call, slopes, k, of_q),
        *_multiply(call, slopes, q, of_k, turn_a=True, adds=c.row > 0),
        *_multiply(call, scores, g, of_v, turn_a=True, adds=c.row > 0),
    )


def _of(s: _Sizes, *operands: int) -> tuple[tuple[int, int], ...]:
    """Returns operands with their columns."""
    return tuple(zip(operands, (s.depth, s.columns), strict=True))


@dataclass(frozen=True, slots=True)
class _Matrices:
    """Matrices in an operand from a word on. step: words from one to the next; 0: as they fill."""

    operand: int
    count: int
    rows: int
    columns: int
    word: int = 0
    step: int = 0

    @property
    def type(self) -> TensorType:
        return TensorType((self.count, self.rows, self.columns), FLOAT32)

    @property
    def apart(self) -> int:
        return self.step or self.rows * self.columns

    def one(self, number: int) -> _Matrices:
        """Returns one of them."""
        return replace(self, count=1, word=self.word + number * self.apart)


def _multiply(
    call: Call,
    a: _Matrices,
    b: _Matrices,
    to: _Matrices,
    turn_a: bool = False,
    turn_b: bool = False,
    adds: bool = False,
) -> Iterator[Dispatch]:
    if to.count > 1 and to.apart != to.rows * to.columns:
        for i in range(to.count):
            yield from _multiply(call, a.one(i), b.one(i), to.one(i), turn_a, turn_b, adds)
        return
    attrs = Attrs({"transpose_a": turn_a, "transpose_b": turn_b})
    places = (a, b, a, to)
    for step in product(Call((a.type, b.type), to.type, attrs, call.limits), adds=adds):
        shifts = (x + p.word for x, p in zip(step.shifts, places, strict=True))
        operands = tuple(p.operand for p in places)
        yield replace(step, operands=operands, shifts=tuple(shifts))


def _slopes(call: Call, s: _Sizes, c: _Chunk) -> Dispatch:
    _, heads, queries, _ = call.inputs[Q].shape
    mask = call.inputs[MASK] if len(call.inputs) > MASK else None
    shape = (call.inputs[Q].shape[0], heads, queries, s.keys)
    rows, low_high = c.heads * c.rows, seen_keys(call.attrs)
    check_row("attention_gradient", s.keys, PASSES, call)
    (way,) = row_variants(s.keys, rows, False, PASSES, call.limits)
    groups, constants = launch_rows(s.keys, rows, False, way, call.limits)
    push: tuple[tuple[str, int | float | tuple[int, ...]], ...] = (
        *(("first_row", c.head * s.rows + c.row), ("rows", rows), ("queries", queries)),
        *(("keys", s.keys), ("heads", heads)),
        ("mask_strides", (0,) * 4 if mask is None else broadcast_strides(mask.shape, shape)),
        *zip(("first_seen", "last_seen"), low_high, strict=True),
        *((name, call.attrs.as_float(name)) for name in ("scale", "softcap")),
    )
    softcap = call.attrs.as_float("softcap") != 0
    shaped = softcap or mask is not None
    if shaped:
        masked = 0 if mask is None else 2 if mask.dtype == FLOAT32 else 1
        constants += (("SOFTCAP", int(softcap)), ("MASKED", masked))
    shader = "attention_slopes" + "_shaped" * shaped + f"_{GROUP}" * (way == GROUP)
    operands = (SCORES, SLOPES, DOTS, DOTS if mask is None else MASK)
    return Dispatch(shader, operands, groups, push, constants)


def _scratch(call: Call) -> tuple[int, ...]:
    s = _sizes(call)
    if call.output.size * s.rows * s.keys == 0:
        return ()
    scores = math.prod(_chunk_of(s)) * s.keys
    return scores, scores, s.heads * s.rows


KERNEL = Kernel(
    (
        "attention_dots",
        *(f"attention_slopes{s}{g}" for s in ("", "_shaped") for g in ("", f"_{GROUP}")),
    ),
    _lower,
    _scratch,
)

"""Device kernels of the attention gradient: variants and dispatches.

Tiled, for GPUs: scores stay in shared memory and are recomputed for each result.

    softmax state of the queries -> dq, dk, dv    attention_bwd.glsl

By matrix products, with the fastest kernels and a chunk of the scores in scratch memory:

    scores = q k^T, ds = g v^T                    a chunk of the rows
    weights and ds, in place                      attention_bwd_softmax.comp
    dq = ds k, dk += ds^T q, dv += weights^T g
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...common.dtypes import FLOAT32, Shape, TensorType
from ...common.errors import UnsupportedOp
from ...ir.attrs import Attrs
from ...ir.op import OUTPUT, SCRATCH, Call, Dispatch, Kernel
from ...topology.limits import Limits
from ..layout.strided_copy import FILLS, fill_words
from ..linalg.matmul_kernels import product
from ..linalg.matmul_shaders import SHADERS as MATMUL_SHADERS
from ..lowering.strides import DISPATCH_FLOPS, MAX_DISPATCHES, broadcast_strides
from ..lowering.vec4 import WORKGROUP, launch_rows, row_variants
from ..reduction.layer_norm import check_row
from .attention_kernels import visible_range
from .backward_cpu import shapes_of_parts

Q, K, V, G, MASK = range(5)
"""Operand indices."""
SCORES, SLOPES = SCRATCH, SCRATCH - 1
PASSES = 2
"""Passes of attention_bwd_softmax over each row."""
CHUNK_WORDS, GPU_CHUNK_WORDS = 1 << 19, 1 << 22
"""Maximum scores in scratch memory: on a CPU driver they fit into a cache."""
MIN_ROWS = 64
"""Minimum rows of a chunk that is smaller than one head."""


TILED, MATMUL = "tiled", "matmul"
"""The variants."""
STATE_WORDS = 4
"""Words of the softmax state of a query."""
TILE_ROWS, ACROSS, MAX_COLUMNS = 16, 32, 128
"""A workgroup of the tiled kernel: its rows, its lanes along columns, and its maximum columns."""
OF_STATE, OF_Q, OF_K, OF_V = range(4)
"""The targets of the tiled kernel."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of a call: `heads` counts key heads of all examples, `rows` queries of each."""

    heads: int
    rows: int
    keys: int
    depth: int
    columns: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk of the score rows: several whole key heads, or some rows of one head."""

    head: int
    heads: int
    row: int
    rows: int


def _shapes(call: Call) -> tuple[Shape, Shape, Shape]:
    return shapes_of_parts(*(t.shape for t in call.inputs[:3]))


def _sizes(call: Call) -> _Sizes:
    (batch, shared, rows, depth), _, (*_, keys, columns) = _shapes(call)
    return _Sizes(batch * shared, rows, keys, depth, columns)


def variants(call: Call) -> tuple[str, ...]:
    """Return the variants: the tiled kernel requires a GPU that binds enough buffers."""
    if call.output.size == 0:
        return ()
    binds = 6 + (len(call.inputs) > MASK)
    if call.limits.software or call.limits.storage_buffers < binds:
        return (MATMUL,)
    return TILED, MATMUL


# -- matrix products ---------------------------------------------------------------------------


def _chunk_of(s: _Sizes, limits: Limits) -> tuple[int, int]:
    """Return the heads and rows of a chunk."""
    words = CHUNK_WORDS if limits.software else GPU_CHUNK_WORDS
    if s.rows * s.keys <= words:
        return min(s.heads, words // (s.rows * s.keys)), s.rows
    return 1, min(s.rows, max(MIN_ROWS, words // s.keys // 4 * 4))


def _chunks(s: _Sizes, limits: Limits) -> Iterator[_Chunk]:
    heads, rows = _chunk_of(s, limits)
    for head in range(0, s.heads, heads):
        for row in range(0, s.rows, rows):
            yield _Chunk(head, min(heads, s.heads - head), row, min(rows, s.rows - row))


def _by_products(call: Call, s: _Sizes) -> Iterator[tuple[Dispatch, ...]]:
    """Yield groups of independent dispatches; each group depends on the earlier ones."""
    for chunk in _chunks(s, call.limits):
        yield from _of_chunk(call, s, chunk)


def _of_chunk(call: Call, s: _Sizes, c: _Chunk) -> Iterator[tuple[Dispatch, ...]]:
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
    """Return operands with their numbers of columns."""
    return tuple(zip(operands, (s.depth, s.columns), strict=True))


@dataclass(frozen=True, slots=True)
class _Matrices:
    """Matrices in an operand, from a word offset on.

    `step` is the number of words between two matrices; 0 if they are contiguous.
    """

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
        """Return a single matrix."""
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
    masks, rows = call.inputs[MASK:], c.heads * c.rows
    check_row("attention_backward", s.keys, PASSES, call)
    (way,) = row_variants(s.keys, rows, False, PASSES, call.limits)
    groups, constants = launch_rows(s.keys, rows, False, way, call.limits)
    about = _score_push(call, s, call.inputs[Q].shape[1])
    push = (("first_row", c.head * s.rows + c.row), ("rows", rows), *about)
    softcap = call.attrs.as_float("softcap") != 0
    shaped = softcap or bool(masks)
    if shaped:
        masked = sum(2 if mask.dtype == FLOAT32 else 1 for mask in masks)
        constants += (("SOFTCAP", int(softcap)), ("MASKED", masked))
    shader = "attention_bwd_softmax" + "_shaped" * shaped + f"_{WORKGROUP}" * (way == WORKGROUP)
    operands = (SCORES, SLOPES, MASK if masks else SLOPES)
    return Dispatch(shader, operands, groups, push, constants)


# -- tiled -------------------------------------------------------------------------------------


def _tiled(call: Call, s: _Sizes) -> Iterator[tuple[Dispatch, ...]]:
    """Yield groups of independent dispatches; each group depends on the earlier ones."""
    yield tuple(_target(call, s, OF_STATE, 1))
    sizes = ((OF_Q, s.depth), (OF_K, s.depth), (OF_V, s.columns))
    yield tuple(d for target, columns in sizes for d in _target(call, s, target, columns))


def _target(call: Call, s: _Sizes, target: int, columns: int) -> Iterator[Dispatch]:
    """Yield the dispatches that compute one gradient with this many columns."""
    masks, size = call.inputs[MASK:], call.output.shape[3]
    pairs = ((Q, G), (K, V)) if target in (OF_STATE, OF_Q) else ((K, V), (Q, G))
    own_rows, others = (s.rows, s.keys) if pairs[0] == (Q, G) else (s.keys, s.rows)
    tiles = -(-own_rows // TILE_ROWS) * s.heads
    result = SCRATCH if target == OF_STATE else OUTPUT
    operands = (*pairs[0], *pairs[1], SCRATCH, result, *(MASK for _ in masks))
    shift = (target - OF_Q) * s.heads * size if result == OUTPUT else 0
    shader = "attention_bwd_tiled" + "_masked" * len(masks)
    for block in range(0, columns, MAX_COLUMNS):
        width = min(MAX_COLUMNS, columns - block)
        flops = 2.0 * TILE_ROWS * others * (s.depth + s.columns + width)
        each = max(1, min(tiles, int(DISPATCH_FLOPS / flops)))
        constants = (
            ("COLUMNS", 1 << (-(-width // ACROSS) - 1).bit_length()),
            ("SOFTCAP", int(call.attrs.as_float("softcap") != 0)),
            *(("IS_BIAS", int(mask.dtype == FLOAT32)) for mask in masks),
            ("TARGET", target),
        )
        for start in range(0, tiles, each):
            end = min(start + each, tiles)
            push = (
                *(("first_tile", start), ("end_tile", end), ("rows", s.rows)),
                *(("depth", s.depth), ("columns", s.columns)),
                *(("first_column", block), ("width", width), ("result_step", size)),
                *_score_push(call, s, call.inputs[K].shape[1]),
            )
            groups = (min(end - start, call.limits.max_groups[0]), 1, 1)
            shifts = tuple((shift + block) * (i == 5) for i in range(len(operands)))
            yield Dispatch(shader, operands, groups, push, constants, shifts)


# -- push constants ----------------------------------------------------------------------------


def _score_push(
    call: Call, s: _Sizes, heads: int
) -> tuple[tuple[str, int | float | tuple[int, ...]], ...]:
    """Return the push constants of both variants for scores.

    `heads` is the number of heads over which the rows are counted.
    """
    batch, of_q, queries, _ = call.inputs[Q].shape
    masks, shape = call.inputs[MASK:], (batch, of_q, queries, s.keys)
    strides = broadcast_strides(masks[0].shape, shape) if masks else (0,) * 4
    return (
        *(("queries", queries), ("keys", s.keys), ("heads", heads), ("mask_strides", strides)),
        *zip(("first_visible", "last_visible"), visible_range(call.attrs), strict=True),
        *((name, call.attrs.as_float(name)) for name in ("scale", "softcap")),
    )


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    s, size = _sizes(call), call.output.shape[3]
    zeros = fill_words(OUTPUT, call.output.size, 0, call.limits)
    if s.rows * s.keys == 0:
        return (zeros,)
    filled = all(math.prod(shape[2:]) == size for shape in _shapes(call))
    out = [] if filled else [zeros]
    for first, *others in filter(
        None, (_tiled if call.variant == TILED else _by_products)(call, s)
    ):
        out += (replace(first, barrier=bool(out)), *others)
    if len(out) > MAX_DISPATCHES:
        raise UnsupportedOp(
            f"[attention_backward] {call.inputs[Q].shape} queries on {s.keys} keys need "
            f"{len(out)} dispatches, over {MAX_DISPATCHES}"
        )
    return tuple(out)


def _scratch(call: Call) -> tuple[int, ...]:
    s = _sizes(call)
    if call.output.size * s.rows * s.keys == 0:
        return ()
    if call.variant == TILED:
        return (s.heads * s.rows * STATE_WORDS,)
    scores = math.prod(_chunk_of(s, call.limits)) * s.keys
    return scores, scores


SHADERS = (
    *(f"attention_bwd_softmax{s}{g}" for s in ("", "_shaped") for g in ("", f"_{WORKGROUP}")),
    *("attention_bwd_tiled", "attention_bwd_tiled_masked"),
    *FILLS,
    *MATMUL_SHADERS,
)
KERNEL = Kernel(SHADERS, _lower, _scratch, variants=variants)

"""Kernel selection and dispatches of mixture-of-experts products.

Rows are sorted by expert, so that each matrix is read only for its own rows:

    ids --moe_count, moe_sort_rows--> plan: the matrix of each tile of rows, the sources of rows
    x -----gather-----> tiles ---product, tile by tile---> products -----gather-----> result

The rows of an expert may end with a partial tile, so there is space for one partial tile per
matrix. Unused tiles are multiplied by nothing. If there are few rows, each row is a tile
(moe_scatter_ids) and stays in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...common.dtypes import TensorType
from ...common.errors import UnsupportedOp
from ...ir.attrs import Attrs
from ...ir.op import OUTPUT, SCRATCH, STATUS, Call, Dispatch
from ..layout.index import pick_lines
from ..linalg.matmul_kernels import (
    MAX_GEMV_ROWS,
    NUMBERS,
    Tiling,
    in_place_variants,
    product,
    tilings,
)
from ..lowering.strides import DISPATCH_FLOPS, LOOP_STEPS, spread
from .dequantize import dequantize_rows
from .gemv_rows import GEMV, ROWS, has_rows, rows_at_a_time
from .quantized_linear import quant_gemv

PLAN, PICKED, PRODUCTS, VALUES = (SCRATCH - i for i in range(4))
"""Scratch buffers: the plan, rows in tiles, their products, and dequantized weights."""
DEQUANTIZE = "dequantize "
"""Prefix of the variants that dequantize weights for an ordinary product."""
VALUE_BYTES, MIN_COLUMNS = 64 << 20, 32
"""Maximum bytes of dequantized values at a time, and minimum columns of each matrix."""
ROWS_PER_MATRIX = 1
"""Maximum rows per matrix for which each row is a tile of a quantized product."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a call.

    Attributes
    ----------
    rows : int
        Rows of x, each of which uses `used` matrices.
    shared : bool
        Whether these matrices share one row of x, instead of one row each.
    """

    rows: int
    used: int
    shared: bool
    matrices: int
    n: int
    k: int

    @property
    def count(self) -> int:
        """Return the number of rows of the result."""
        return self.rows * self.used

    def tiles(self, height: int) -> int:
        """Return the maximum number of tiles of this height."""
        groups = min(self.matrices, self.count)
        return self.count if height == 1 else (self.count + groups * (height - 1)) // height

    def expected_tiles(self, height: int) -> int:
        """Return the approximate number of tiles if experts are equally likely."""
        groups = self.matrices * (1 - math.exp(-self.count / self.matrices))
        halves = self.count / height + groups * (height - 1) / (2 * height)
        return round(self.count if height == 1 else max(groups, halves))


def sizes_of(call: Call) -> Sizes:
    x, weight, expert_ids = call.inputs
    rows, used = expert_ids.shape
    matrices, n = weight.shape[:2]
    return Sizes(rows, used, x.rank == 2, matrices, n, x.shape[-1])


# -- variant selection ---------------------------------------------------------------------------


def variants(call: Call) -> tuple[str, ...]:
    """Return the variants of all tile heights, in the order of their estimated cost."""
    sizes = sizes_of(call)
    if not call.output.size or not sizes.k:
        return ()
    found = _fitting(call, sizes)
    return tuple(sorted(found, key=lambda name: _cost(found[name], sizes)))


def _cost(tiling: Tiling, sizes: Sizes) -> float:
    return tiling.cost(sizes.n, sizes.expected_tiles(tiling.rows))


def _fitting(call: Call, sizes: Sizes) -> dict[str, Tiling]:
    found = tilings(sizes.n, sizes.k, call.limits)
    fitting = {name: tiling for name, tiling in found.items() if _has_groups(call, sizes, tiling)}
    return fitting or tilings(sizes.n, 0, call.limits)


def _has_groups(call: Call, sizes: Sizes, tiling: Tiling) -> bool:
    """Return True if a dispatch has enough workgroups for all tiles."""
    return not call.limits.software or sizes.tiles(tiling.rows) <= call.limits.max_groups[2]


def packed_variants(call: Call) -> tuple[str, ...]:
    """Return the variants for quantized weights, which are read directly for few rows."""
    sizes, limits = sizes_of(call), call.limits
    if not call.output.size:
        return ()
    wide = [
        name for name in variants(call) if _height(call, sizes, DEQUANTIZE + name) > MAX_GEMV_ROWS
    ]
    unpacked = [DEQUANTIZE + name for name in wide]
    gemv: list[str] = []
    if not limits.software or has_rows(call):
        several = 4 if limits.software else rows_at_a_time(4, str(call.attrs["format"]), limits)
        family = ROWS if limits.software else GEMV
        own = {name: rows for name, rows in family.items() if rows in (1, several)}
        gemv = [
            name
            for name, height in own.items()
            if not limits.software or sizes.tiles(height) <= min(limits.max_groups)
        ]
    if sizes.count > ROWS_PER_MATRIX * sizes.matrices:
        gemv.reverse()
    if sizes.count > MAX_GEMV_ROWS * sizes.matrices:
        return (*unpacked, *gemv)
    return (*gemv, *unpacked)


def _height(call: Call, sizes: Sizes, variant: str) -> int:
    """Return the rows of a tile."""
    gemv = (GEMV | ROWS).get(variant)
    if gemv is not None and "format" in call.attrs:
        return gemv
    return _fitting(call, sizes)[variant.removeprefix(DEQUANTIZE)].rows


# -- scratch memory ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """Word offsets of the parts of a plan: see shaders/quantized/moe_sort_rows.comp."""

    numbers: int
    sources: int
    places: int
    words: int


def _plan(sizes: Sizes, height: int) -> _Plan:
    if height == 1:
        return _Plan(0, 0, 0, sizes.count)
    tiles = sizes.tiles(height)
    sources = sizes.matrices + tiles
    places = sources + tiles * height
    return _Plan(sizes.matrices, sources, places, places + sizes.count)


def _value_columns(call: Call, sizes: Sizes) -> int:
    """Return the columns of each matrix that are dequantized at a time: a multiple of four."""
    room = min(VALUE_BYTES, call.limits.max_buffer_bytes) // (4 * sizes.matrices * sizes.k)
    return min(sizes.n, max(room, MIN_COLUMNS) // 4 * 4)


def scratch(call: Call) -> tuple[int, ...]:
    """Return the words of each scratch buffer."""
    if not call.variant:
        return ()
    sizes = sizes_of(call)
    height = _height(call, sizes, call.variant)
    lines = sizes.tiles(height) * height
    moved = (lines * sizes.k, lines * sizes.n) if height > 1 else (1, 1)
    unpacked = call.variant.startswith(DEQUANTIZE)
    values = sizes.matrices * _value_columns(call, sizes) * sizes.k if unpacked else 1
    return _plan(sizes, height).words, *moved, values


# -- dispatches ----------------------------------------------------------------------------------


def lower(call: Call) -> tuple[Dispatch, ...]:
    """Return the dispatches of a call; none for an empty result."""
    if not call.variant:
        return ()
    sizes = sizes_of(call)
    height = _height(call, sizes, call.variant)
    grouped = _by_row if height == 1 else _by_tile
    return tuple(replace(d, barrier=d.barrier or i > 0) for i, d in enumerate(grouped(call, sizes)))


def _by_row(call: Call, sizes: Sizes) -> Iterator[Dispatch]:
    """Yield dispatches with one tile per row."""
    push = (("count", sizes.count), ("matrices", sizes.matrices))
    groups = spread(sizes.count, call.limits)
    yield Dispatch("moe_scatter_ids", (2, PLAN, STATUS), groups, push)
    yield from _products(call, sizes, 1, 0, OUTPUT)


def _by_tile(call: Call, sizes: Sizes) -> Iterator[Dispatch]:
    """Yield dispatches that gather the rows of each matrix into tiles, and scatter the results."""
    if call.limits.software and max(sizes.count, sizes.matrices) > LOOP_STEPS:
        raise UnsupportedOp(
            f"[{call.variant}] rows are counted one by one, at most {LOOP_STEPS} of them on a CPU "
            f"driver, got {sizes.count}; try fewer tokens at a time"
        )
    height = _height(call, sizes, call.variant)
    tiles, plan, limits = sizes.tiles(height), _plan(sizes, height), call.limits
    push = (("count", sizes.count), ("matrices", sizes.matrices))
    yield Dispatch("moe_count", (2, PLAN), spread(sizes.matrices, limits), push)
    yield Dispatch(
        "moe_sort_rows",
        (2, PLAN, STATUS),
        spread(max(sizes.matrices + 1, sizes.count), limits),
        (
            *push,
            *(("tiles", tiles), ("height", height)),
            ("share", sizes.used if sizes.shared else 1),
            *(("numbers", plan.numbers), ("sources", plan.sources), ("places", plan.places)),
        ),
    )
    lines = tiles * height
    rows = sizes.rows if sizes.shared else sizes.count
    picked = pick_lines((0, PLAN, PICKED), lines, rows, lines, sizes.k, limits)
    yield replace(picked, shifts=(0, plan.sources, 0, 0))
    yield from _products(call, sizes, height, PICKED, PRODUCTS)
    dispatch = pick_lines(
        (PRODUCTS, PLAN, OUTPUT), sizes.count, lines, sizes.count, sizes.n, limits
    )
    yield replace(dispatch, shifts=(0, plan.places, 0, 0))


@dataclass(frozen=True, slots=True)
class _Part:
    """Tiles of one dispatch: `across` times `each` tiles of `height` rows, from index `first` on.

    source, target: operands of rows and of results. first_row, first_number: word offsets in the
    source and in the plan. shared: `each` tiles share one row of x.
    """

    across: int
    each: int
    height: int
    first: int
    source: int
    target: int
    first_row: int
    first_number: int
    shared: bool

    def place(self, dispatch: Dispatch, weight: int, n: int) -> Dispatch:
        """Return the product of x, a weight, ids and the result, with the operands of this part."""
        a, b, _, out = dispatch.shifts or (0,) * 4
        return replace(
            dispatch,
            operands=(self.source, weight, PLAN, self.target),
            shifts=(a + self.first_row, b, self.first_number, out + self.first * self.height * n),
            push=tuple((dict(dispatch.push) | {"has_bias": NUMBERS}).items()),
        )


def _products(
    call: Call, sizes: Sizes, height: int, source: int, target: int
) -> Iterator[Dispatch]:
    """Yield the products of tiles, in several dispatches if one would take a GPU too long."""
    each = sizes.used if height == 1 else 1
    across = sizes.tiles(height) // each
    flops = 2.0 * each * height * sizes.n * sizes.k
    most = across if call.limits.software else max(1, int(DISPATCH_FLOPS / flops))
    shared = height == 1 and sizes.shared
    row_step = height * sizes.k * (1 if shared else each)
    numbers = _plan(sizes, height).numbers
    for start in range(0, across, most):
        first = start * each
        places = source, target, start * row_step, numbers + first
        part = _Part(min(most, across - start), each, height, first, *places, shared)
        if "format" not in call.attrs:
            yield from _by_floats(call, sizes, part, 1, sizes.n)
        elif call.variant.startswith(DEQUANTIZE):
            yield from _by_dequantized(call, sizes, part)
        else:
            yield _by_gemv(call, sizes, part)


def _by_floats(
    call: Call, sizes: Sizes, part: _Part, weight: int, columns: int
) -> Iterator[Dispatch]:
    """Yield the products of tiles and float matrices with this many columns."""
    inner = 1 if part.shared else part.each
    tiles = part.across, part.each
    ordinary = Call(
        (
            TensorType((part.across, inner, part.height, sizes.k)),
            TensorType((*tiles, columns, sizes.k)),
        ),
        TensorType((*tiles, part.height, columns)),
        Attrs({"transpose_a": False, "transpose_b": True}),
        call.limits,
    )
    variant = call.variant.removeprefix(DEQUANTIZE)
    if variant in in_place_variants(ordinary):  # the last columns may be too few for the variant
        ordinary = replace(ordinary, variant=variant)
    matrix = ("b_batch", (columns * sizes.k, 0, 0, 0))
    for dispatch in product(ordinary, result_row=sizes.n):
        push = tuple(
            matrix if name == matrix[0] else (name, value) for name, value in dispatch.push
        )
        yield part.place(replace(dispatch, push=push), weight, sizes.n)


def _by_gemv(call: Call, sizes: Sizes, part: _Part) -> Dispatch:
    """Return the product by the GEMV kernels for quantized weights."""
    k, m = sizes.k, part.across * part.each * part.height
    if part.height > 1:
        dispatch = quant_gemv(call, m, part.across, (0, part.height * k), k)
    elif part.shared:
        dispatch = quant_gemv(call, m, part.each, (k, 0), k)
    else:
        dispatch = quant_gemv(call, m, part.each, (part.each * k, k), k)
    return part.place(dispatch, 1, sizes.n)


def _by_dequantized(call: Call, sizes: Sizes, part: _Part) -> Iterator[Dispatch]:
    """Dequantize some columns of all matrices and multiply by them, until all columns are done."""
    row_words, step = call.inputs[1].shape[-1], _value_columns(call, sizes)
    for start in range(0, sizes.n, step):
        columns, matrices = min(step, sizes.n - start), (sizes.matrices, sizes.n * row_words)
        dispatch = dequantize_rows(call, (1, VALUES), columns, sizes.k, *matrices)
        yield replace(dispatch, shifts=(start * row_words, 0))
        for one in _by_floats(call, sizes, part, VALUES, columns):
            a, b, number, out = one.shifts
            yield replace(one, shifts=(a, b, number, out + start))


MOE_SHADERS = ("moe_scatter_ids", "moe_count", "moe_sort_rows")
"""The shaders."""

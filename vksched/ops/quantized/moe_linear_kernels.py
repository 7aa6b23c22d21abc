"""Which kernels compute products by chosen matrices, and their dispatches.

Rows that chose the same matrix are brought together, so that each matrix is read for its own rows:

    chosen --moe_count, moe_sort_rows--> plan: the matrix of each tile of rows, where rows come from
    x -----gather-----> tiles ---product, tile by tile---> made -----gather-----> result

A group of rows may end with a tile that is not full, so there is room for one such tile of each
matrix. Tiles that are left over are multiplied by nothing. Where rows are few there is a tile for
each (moe_scatter_ids), and they stay where they are.
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
    DISPATCH_FLOPS,
    MAX_GEMV_ROWS,
    NUMBERS,
    Tiling,
    in_place_variants,
    product,
    tilings,
)
from ..lowering.strides import LOOP_STEPS, spread
from .quantized_linear import GEMV, ROWS, dequantize_rows, has_rows, quant_gemv

PLAN, PICKED, PRODUCTS, VALUES = (SCRATCH - i for i in range(4))
"""Scratch buffers: the plan, rows in tiles, their products, and values of quantized weights."""
DEQUANTIZE = "dequantize "
"""How variants begin that unpack quantized weights for an ordinary product."""
VALUE_BYTES, MIN_COLUMNS = 64 << 20, 32
"""Of the values that are unpacked at a time, and columns of each matrix at least."""
ROWS_PER_MATRIX = 1
"""Rows for each matrix up to which each row is a tile of quantized weights."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a call. rows: of x, of which each chose `used` matrices. shared: these have one row of x,
    not one each.
    """

    rows: int
    used: int
    shared: bool
    matrices: int
    n: int
    k: int

    @property
    def count(self) -> int:
        """Rows of the result."""
        return self.rows * self.used

    def tiles(self, height: int) -> int:
        """Return how many tiles there are at most."""
        groups = min(self.matrices, self.count)
        return self.count if height == 1 else (self.count + groups * (height - 1)) // height

    def expected_tiles(self, height: int) -> int:
        """Return about how many there are where all matrices are chosen alike."""
        groups = self.matrices * (1 - math.exp(-self.count / self.matrices))
        halves = self.count / height + groups * (height - 1) / (2 * height)
        return round(self.count if height == 1 else max(groups, halves))


def sizes_of(call: Call) -> Sizes:
    x, weight, expert_ids = call.inputs
    rows, used = expert_ids.shape
    matrices, n = weight.shape[:2]
    return Sizes(rows, used, x.rank == 2, matrices, n, x.shape[-1])


# -- the choice ----------------------------------------------------------------------------------


def variants(call: Call) -> tuple[str, ...]:
    """Those of products of tiles of each height, those that should take least first."""
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
    """Whether there are groups for all tiles, where kernels do not go round."""
    return not call.limits.software or sizes.tiles(tiling.rows) <= call.limits.max_groups[2]


def packed_variants(call: Call) -> tuple[str, ...]:
    """As `variants`; quantized weights are read as they are for few rows of each matrix."""
    sizes, limits = sizes_of(call), call.limits
    if not call.output.size:
        return ()
    wide = [
        name for name in variants(call) if _height(call, sizes, DEQUANTIZE + name) > MAX_GEMV_ROWS
    ]
    unpacked = [DEQUANTIZE + name for name in wide]
    gemv: list[str] = []
    if not limits.software or has_rows(call):
        own = ROWS if limits.software else GEMV
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
    """Where the parts of a plan start, in words: see shaders/quantized/moe_sort_rows.comp."""

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
    """Return how many columns of each matrix are unpacked at a time: a multiple of four."""
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
    """Return the dispatches of a call; none of a result without elements."""
    if not call.variant:
        return ()
    sizes = sizes_of(call)
    height = _height(call, sizes, call.variant)
    grouped = _by_row if height == 1 else _by_tile
    return tuple(replace(d, barrier=d.barrier or i > 0) for i, d in enumerate(grouped(call, sizes)))


def _by_row(call: Call, sizes: Sizes) -> Iterator[Dispatch]:
    """Each row is a tile."""
    push = (("count", sizes.count), ("matrices", sizes.matrices))
    groups = spread(sizes.count, call.limits)
    yield Dispatch("moe_scatter_ids", (2, PLAN, STATUS), groups, push)
    yield from _products(call, sizes, 1, 0, OUTPUT)


def _by_tile(call: Call, sizes: Sizes) -> Iterator[Dispatch]:
    """Rows of each matrix fill tiles, and go back to where they belong."""
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
    """Tiles of one dispatch: `across` times `each` of `height` rows, from number `first` on.

    source, target: operands of rows and of results. first_row, first_number: words of the source
    and of the plan. shared: `each` tiles have one row of x.
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
        """Return the product of x, a weight, numbers and the result, where these are."""
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
    """Return the products of tiles; on a GPU several dispatches where one would take long."""
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
            yield from _by_unpacked(call, sizes, part)
        else:
            yield _by_words(call, sizes, part)


def _by_floats(
    call: Call, sizes: Sizes, part: _Part, weight: int, columns: int
) -> Iterator[Dispatch]:
    """The product of tiles by matrices of floats, of so many columns."""
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
    if variant in in_place_variants(ordinary):  # the last columns may be too few for it
        ordinary = replace(ordinary, variant=variant)
    matrix = ("b_batch", (columns * sizes.k, 0, 0, 0))
    for dispatch in product(ordinary, result_row=sizes.n):
        push = tuple(
            matrix if name == matrix[0] else (name, value) for name, value in dispatch.push
        )
        yield part.place(replace(dispatch, push=push), weight, sizes.n)


def _by_words(call: Call, sizes: Sizes, part: _Part) -> Dispatch:
    """By the kernels for few rows of quantized weights."""
    k, m = sizes.k, part.across * part.each * part.height
    if part.height > 1:
        dispatch = quant_gemv(call, m, part.across, (0, part.height * k), k)
    elif part.shared:
        dispatch = quant_gemv(call, m, part.each, (k, 0), k)
    else:
        dispatch = quant_gemv(call, m, part.each, (part.each * k, k), k)
    return part.place(dispatch, 1, sizes.n)


def _by_unpacked(call: Call, sizes: Sizes, part: _Part) -> Iterator[Dispatch]:
    """Unpack some columns of all matrices, makes their product, and so on."""
    row_words, step = call.inputs[1].shape[-1], _value_columns(call, sizes)
    for start in range(0, sizes.n, step):
        columns, matrices = min(step, sizes.n - start), (sizes.matrices, sizes.n * row_words)
        dispatch = dequantize_rows(call, (1, VALUES), columns, sizes.k, *matrices)
        yield replace(dispatch, shifts=(start * row_words, 0))
        for one in _by_floats(call, sizes, part, VALUES, columns):
            a, b, number, out = one.shifts
            yield replace(one, shifts=(a, b, number, out + start))


MOE_SHADERS = ("moe_scatter_ids", "moe_count", "moe_sort_rows")
"""Shaders."""

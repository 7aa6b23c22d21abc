"""Winograd convolution (minimal filtering) for 3 x 3 windows with stride 1.

    w --winograd_weights--> points (S * S, rows, channels)                       once, S = tile + 2
    x --input--> (S * S, channels, tiles) --S * S products with points--> (S * S, rows, tiles)
      --output--> result + bias --fallback--> result
    x --absmax--> (positions) --overflow_mask--> (tiles), for the fallback

A tile of tile x tile results takes S * S products instead of 9 * tile * tile: 2.25 times fewer for
tile 2, 4 times fewer for tile 4, whose error is about 10 times that of direct convolution. The
points take S * S / 9 times the memory of the weights. The error of a result is relative to the
largest value of its tile, and values that are not finite would spread over the tile. The fallback
therefore recomputes a tile directly if its values are not finite, above 1e20, or more than 64 times
the largest value in the window of one of its results. It uses the weights that the points encode: a
weight below 1e-7 of its window's largest may become 0 or change sign, with an error relative to the
largest weight of a row.

Source: Lavin and Gray, Fast algorithms for convolutional neural networks, 2016.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...common.dtypes import FLOAT32, NDArray, TensorType
from ...common.errors import DTypeError, ShapeError, UnsupportedOp
from ...ir.attr_domains import one_of
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import (
    OUTPUT,
    SCRATCH,
    Call,
    Dispatch,
    Kernel,
    Op,
    Work,
    get_op,
    register,
)
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...topology.limits import Limits
from ..elementwise.epilogue import with_epilogue
from ..linalg import matmul
from ..lowering.strides import LOCAL_SIZE, LOOP_STEPS, MAX_DISPATCHES
from .conv_kernels import SCRATCH_WORDS
from .window import PADDING, Launch, Push, launches

TILES = (2, 4)
_KINDS = ("input", "output", "overflow_mask", "fallback")
"""Shaders that depend on the tile size."""
_VALUES, _SUMS, _ABSMAX, _WILD = SCRATCH, SCRATCH - 1, SCRATCH - 2, SCRATCH - 3
_ROW_WORDS = 4
"""Rows of tiles are padded to this number of words, which products read at a time."""
_SOFTWARE_SCRATCH_WORDS = 1 << 20
"""Maximum words of values and sums at a time on a CPU driver, to fit into a cache."""
_CHUNK_TILES = 64
"""The tiles of a partial pass are a multiple of this number."""

TRANSPOSED_COST_RATIO = 0.9
"""Products are transposed if their cost is below this fraction: the output then has strided tiles.
"""
_FALLBACK_EACH = 16
"""Tiles that an invocation checks together, or a half or quarter if there are many channels; masks
are padded to this number.
"""
_CPU_WINDOWS = 8192
"""Filters that the CPU transforms at a time, to fit into its cache."""

_FROM_WEIGHTS = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
_TO_WEIGHTS = {
    2: ((1, 0, 0, 0), (0, 1, -1, 0), (0, 0, 0, 1)),
    4: ((4, 0, 0, 0, 0, 0), (0, -3, 3, 0, 0, 0), (0, 0, 0, 0, 0, 1)),
}
"""By tile size: the points of one axis from its weights, and the inverse."""


def _both_axes(matrix: object, of: NDArray) -> NDArray:
    """Return matrix @ of @ matrix.T over the last two axes, in float64."""
    by = np.asarray(matrix, np.float64)
    return np.asarray(by @ of.astype(np.float64) @ by.T)


# -- weights -----------------------------------------------------------------------------------


def _weights_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    op, w = "winograd_weights", inputs[0]
    side = attrs.as_int("tile") + 2
    if w.dtype != FLOAT32:
        raise DTypeError(f"[{op}] expected float32, got {w.dtype}; try vs.cast")
    if w.rank != 4 or w.shape[2:] != (3, 3):
        raise ShapeError(f"[{op}] expected w (rows, channels, 3, 3), got {w.shape}")
    return TensorType((side * side, *w.shape[:2]), FLOAT32)


def _weights_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    # transform both axes in one product, written directly to the points
    w, tile = inputs[0], attrs.as_int("tile")
    by = np.asarray(_FROM_WEIGHTS[tile], np.float64)
    both, windows = np.kron(by, by), w.reshape(w.shape[0] * w.shape[1], 9)
    points = np.empty((len(both), len(windows)), w.dtype)
    for start in range(0, len(windows), _CPU_WINDOWS):
        part = slice(start, start + _CPU_WINDOWS)
        points[:, part] = both @ windows[part].T.astype(np.float64)
    return points.reshape(len(both), *w.shape[:2])


def _lower_weights(call: Call) -> tuple[Dispatch, ...]:
    items = math.prod(call.inputs[0].shape[:2])
    tile = call.attrs.as_int("tile")
    return tuple(
        Dispatch(
            f"winograd_weights_{tile}",
            (0, OUTPUT),
            launch.groups,
            (("step", items), *launch.push),
            barrier=launch.barrier,
        )
        for launch in launches("winograd_weights", items, 0, call.limits)
        if items
    )


register(
    Op(
        "winograd_weights",
        _weights_infer,
        _weights_reference,
        Kernel(tuple(f"winograd_weights_{tile}" for tile in TILES), _lower_weights),
        attrs={"tile": one_of(*TILES)},
        operands=(1, 1),
        any_dtype=True,
    )
)


# -- convolution -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of a convolution in tiles."""

    tile: int
    images: int
    channels: int
    rows: int
    sizes: tuple[int, int]
    results: tuple[int, int]
    begin: tuple[int, int]

    @property
    def points(self) -> int:
        return (self.tile + 2) ** 2

    @property
    def across(self) -> tuple[int, int]:
        """Return the number of tiles along each axis of an image."""
        return -(-self.results[0] // self.tile), -(-self.results[1] // self.tile)

    @property
    def tiles(self) -> int:
        return self.images * self.across[0] * self.across[1]


def _shape(call: Call) -> _Shape:
    (images, channels, *sizes), (_, rows, *results) = call.inputs[0].shape, call.output.shape
    begin, tile = call.attrs.as_ints("begin"), call.attrs.as_int("tile")
    return _Shape(
        *(tile, images, channels, rows),
        *((sizes[0], sizes[1]), (results[0], results[1]), (begin[0], begin[1])),
    )


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    op, (x, points) = "winograd_conv", inputs[:2]
    side = attrs.as_int("tile") + 2
    if any(t.dtype != FLOAT32 for t in inputs):
        got = " and ".join(t.dtype for t in inputs)
        raise DTypeError(f"[{op}] expected operands all float32, got {got}; try vs.cast")
    if (
        x.rank != 4
        or points.rank != 3
        or (points.shape[0], points.shape[2])
        != (
            side * side,
            x.shape[1],
        )
    ):
        raise ShapeError(
            f"[{op}] expected x (N, C, height, width) and points ({side * side}, rows, C), "
            f"got {x.shape} and {points.shape}"
        )
    rows = points.shape[1]
    if len(inputs) > 2 and inputs[2].shape != (rows,):
        raise ShapeError(f"[{op}] expected a bias of shape ({rows},), got {inputs[2].shape}")
    begin, end = attrs.as_ints("begin"), attrs.as_ints("end")
    results = tuple(n + b + e - 2 for n, b, e in zip(x.shape[2:], begin, end, strict=True))
    if min(results) < 1 or x.shape[1] == 0:
        raise ShapeError(
            f"[{op}] expected channels and windows within the padded input, got {x.shape}"
        )
    return TensorType((x.shape[0], rows, *results), FLOAT32)


def weights_of(points: NDArray, tile: int) -> NDArray:
    """Return the weights (rows, channels, 3, 3) that points encode, up to rounding."""
    side, by = tile + 2, np.asarray(_TO_WEIGHTS[tile], np.float64)
    down = np.tensordot(by, points.reshape(side, side, *points.shape[1:]), (1, 0))
    both = np.tensordot(by, down, (1, 1)).transpose(2, 3, 1, 0)
    return np.asarray(both, points.dtype)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, points, *bias = inputs
    w = weights_of(points, attrs.as_int("tile"))
    return get_op("conv").reference((x, w, *bias), _direct_attrs(attrs))


def _direct_attrs(attrs: Attrs) -> Attrs:
    """Return the attributes of the equivalent direct convolution."""
    ones: dict[str, AttrValue] = {"stride": (1, 1), "dilation": (1, 1), "groups": 1}
    return Attrs({**ones, "begin": attrs["begin"], "end": attrs["end"]})


def _pass_tiles(call: Call) -> int:
    """Return the number of tiles whose values and sums are in scratch memory at a time."""
    shape = _shape(call)
    room = _SOFTWARE_SCRATCH_WORDS if call.limits.software else SCRATCH_WORDS
    room = min(room, call.limits.max_buffer_bytes // 4)
    most = room // (shape.points * (shape.channels + shape.rows))
    if shape.tiles <= most - _ROW_WORDS:
        return shape.tiles
    if most < _CHUNK_TILES:
        raise UnsupportedOp(
            f"[winograd_conv] expected channels of which {_CHUNK_TILES} tiles fit into a buffer, "
            f"got {shape.channels} and {shape.rows}"
        )
    return most // _CHUNK_TILES * _CHUNK_TILES


def _row(tiles: int) -> int:
    return _round_up(tiles, _ROW_WORDS)


def _scratch(call: Call) -> tuple[int, ...]:
    if call.output.size == 0:
        return ()
    shape, row = _shape(call), _row(_pass_tiles(call))
    return (
        *(shape.points * shape.channels * row, shape.points * shape.rows * row),
        *(
            shape.images * _round_up(math.prod(shape.sizes), 4),
            _round_up(shape.tiles, _FALLBACK_EACH),
        ),
    )


def _round_up(count: int, by: int) -> int:
    """Round `count` up to a multiple of `by`."""
    return -(-count // by) * by


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    shape, tiles = _shape(call), _pass_tiles(call)
    out = list(_absmax(call, shape))
    for first in range(0, shape.tiles, tiles):
        part = list(_pass(call, shape, first, min(tiles, shape.tiles - first)))
        # wait until the previous values have been read, and the next ones written
        out += [replace(part[0], barrier=first > 0), *part[1:]]
        if len(out) > MAX_DISPATCHES:
            raise UnsupportedOp(f"[winograd_conv] it needs more than {MAX_DISPATCHES} dispatches")
    return (*out, *_fallback(call, shape))


def _pass(call: Call, shape: _Shape, first: int, tiles: int) -> Iterator[Dispatch]:
    """Yield the dispatches of some tiles: input transform, products, output transform."""
    row = _row(tiles)
    across: Push = (("tiles", shape.across), ("first_tile", first), ("pass_tiles", tiles))
    for launch in launches("winograd_conv", shape.channels * tiles, 0, call.limits):
        yield Dispatch(
            f"winograd_input_{shape.tile}",
            (0, _VALUES),
            launch.groups,
            (
                ("channels", shape.channels),
                ("sizes", shape.sizes),
                ("begin", shape.begin),
                *(*across, ("row", row), *launch.push),
            ),
            (("IN_VEC4", int(shape.sizes[1] % 4 == 0 and shape.begin[1] == 1)),),
            barrier=launch.barrier,
        )
    # the overflow mask is computed concurrently with the products of the first pass
    between = list(_overflow_mask(call, shape)) if first == 0 else []
    yield from between
    transpose = _is_transposed(shape, row, call.limits)
    for number, step in enumerate(_products(call, shape, row, transpose)):
        yield replace(step, barrier=step.barrier or (number == 0 and not between))
    steps: Push = (
        ("step", shape.rows * row),
        ("row_step", 1 if transpose else row),
        ("tile_step", shape.rows if transpose else 1),
    )
    for launch in launches("winograd_conv", shape.rows * tiles, 0, call.limits):
        yield Dispatch(
            f"winograd_output_{shape.tile}",
            (_SUMS, _bias_of(call), OUTPUT),
            launch.groups,
            (("rows", shape.rows), ("sizes", shape.results), *across, *steps, *launch.push),
            (*_constants(call), ("IN_VEC4", int(shape.results[1] % 4 == 0))),
            barrier=True,
        )


def _products(call: Call, shape: _Shape, row: int, transpose: bool) -> Iterator[Dispatch]:
    points, values = call.inputs[1], TensorType((shape.points, shape.channels, row))
    inputs, operands, lines = (points, values), (1, _VALUES, 1, _SUMS), (shape.rows, row)
    if transpose:
        inputs, operands, lines = (values, points), (_VALUES, 1, 1, _SUMS), (row, shape.rows)
    attrs = Attrs({"transpose_a": transpose, "transpose_b": transpose})
    sums = TensorType((shape.points, *lines))
    for step in matmul.product(Call(inputs, sums, attrs, call.limits)):
        yield replace(step, operands=operands)


def _is_transposed(shape: _Shape, row: int, limits: Limits) -> bool:
    """Return True if tiles should be the rows of the products, because they fill more of them."""
    if shape.channels % 4:  # these use another kernel, whose cost is unknown
        return False
    transposed_cost = matmul.step_cost(row, shape.rows, shape.points, limits)
    return transposed_cost < TRANSPOSED_COST_RATIO * matmul.step_cost(
        shape.rows, row, shape.points, limits
    )


def _bias_of(call: Call) -> int:
    return 2 if len(call.inputs) > 2 else 1


def _constants(call: Call) -> tuple[tuple[str, int], ...]:
    return (("HAS_BIAS", int(len(call.inputs) > 2)),)


def _one_item_launches(items: int, rounds: int, limits: Limits) -> Iterator[Launch]:
    """Yield dispatches with one item per invocation, for few items."""
    for launch in launches("winograd_conv", items, rounds, limits):
        groups = -(-(launch.last - launch.first) // LOCAL_SIZE)
        yield replace(launch, groups=(min(groups, limits.max_groups[0]), 1, 1))


def _absmax(call: Call, shape: _Shape) -> Iterator[Dispatch]:
    area = math.prod(shape.sizes)
    for launch in _one_item_launches(shape.images * -(-area // 4), shape.channels, call.limits):
        yield Dispatch(
            "winograd_absmax",
            (0, _ABSMAX),
            launch.groups,
            (("channels", shape.channels), ("area", area), *launch.push),
            (("IN_VEC4", int(area % 4 == 0)),),
        )


def _overflow_mask(call: Call, shape: _Shape) -> Iterator[Dispatch]:
    for launch in _one_item_launches(_round_up(shape.tiles, _FALLBACK_EACH), 0, call.limits):
        yield Dispatch(
            f"winograd_overflow_mask_{shape.tile}",
            (_ABSMAX, _WILD),
            launch.groups,
            (
                *(("sizes", shape.sizes), ("result_sizes", shape.results), ("begin", shape.begin)),
                ("tiles", shape.across),
                *(("count", shape.tiles), *launch.push),
            ),
            barrier=True,
        )


def _fallback(call: Call, shape: _Shape) -> Iterator[Dispatch]:
    rounds = shape.channels + 2 + shape.tile
    each = next((n for n in (_FALLBACK_EACH, 8) if n * rounds <= LOOP_STEPS), 4)
    items = -(-shape.tiles // each) * shape.tile * shape.rows
    for launch in _one_item_launches(items, each * rounds, call.limits):
        yield Dispatch(
            f"winograd_fallback_{shape.tile}",
            (0, 1, _bias_of(call), _WILD, OUTPUT),
            launch.groups,
            (
                *(("channels", shape.channels), ("rows", shape.rows), ("sizes", shape.sizes)),
                *(("result_sizes", shape.results), ("begin", shape.begin)),
                ("tiles", shape.across),
                *(("each", each), *launch.push),
            ),
            _constants(call),
            barrier=True,
        )


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    shape = _shape(Call(inputs, output, attrs))
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    passing = 8.0 * shape.points * shape.tiles * (shape.channels + shape.rows)
    products = 2.0 * shape.points * shape.tiles * shape.channels * shape.rows
    return Work(products, moved + passing)


register(
    with_epilogue(
        Op(
            "winograd_conv",
            _infer,
            _reference,
            Kernel(
                (
                    "winograd_absmax",
                    *(f"winograd_{kind}_{tile}" for kind in _KINDS for tile in TILES),
                    *matmul.SHADERS,
                ),
                _lower,
                _scratch,
            ),
            attrs={"tile": one_of(*TILES), "begin": PADDING, "end": PADDING},
            operands=(2, 3),
            work=_work,
            roundable_operands=(0,),
            any_dtype=True,
        )
    )
)


# -- builders ----------------------------------------------------------------------------------


def winograd_weights(w: TensorLike, tile: int, *, name: str | None = None) -> Tensor:
    """Transform weights (rows, channels, 3, 3) to points of `winograd_conv`, for tile 2 or 4."""
    return apply("winograd_weights", (as_tensor(w),), {"tile": int(tile)}, name)


def winograd_conv(
    x: TensorLike,
    points: TensorLike,
    bias: TensorLike | None = None,
    *,
    tile: int,
    begin: tuple[int, int],
    end: tuple[int, int],
    name: str | None = None,
) -> Tensor:
    """Compute `conv` of x with transformed weights, with stride 1.

    x is (N, C, height, width), `points` is ((tile + 2)^2, rows, C) and `bias` is (rows,).
    """
    tensor = as_tensor(x)
    rest = () if bias is None else (as_tensor(bias, like=tensor),)
    attrs: dict[str, AttrValue] = {"tile": int(tile), "begin": tuple(begin), "end": tuple(end)}
    return apply("winograd_conv", (tensor, as_tensor(points, like=tensor), *rest), attrs, name)

"""Samples of Winograd convolution: the transform of weights, full and partial tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....common.dtypes import NDArray, Shape
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import Attrs
from ....ir.evaluate import compute
from ....ir.op import get_op
from ....ir.tensor import input
from ....ops.conv import winograd
from ..op_sample import ErrorSample, OpSample, floats
from .conv import edges


def call(
    x: NDArray,
    w: NDArray,
    name: str,
    tile: int,
    bias: bool = False,
    begin: tuple[int, int] = (1, 1),
    end: tuple[int, int] = (1, 1),
    **more: Any,
) -> OpSample:
    """Return a convolution of x with the weights w."""
    points = compute(get_op("winograd_weights"), (w,), Attrs({"tile": tile}))
    rest = (floats(w.shape[0], seed=2),) if bias else ()
    attrs: dict[str, Any] = {"tile": tile, "begin": begin, "end": end}
    return OpSample("winograd_conv", (x, points, *rest), attrs, f"{name} by {tile}", **more)


def _positive(*shape: int) -> NDArray:
    return np.asarray(np.abs(floats(1, *shape, seed=3)) + np.float32(0.5))


def _large(at: tuple[int | slice, ...]) -> NDArray:
    """Return ones, but 1e6 at some positions."""
    out = np.ones((8, 21, 18), np.float32)
    out[at] = 1e6
    return out


ROWS: list[tuple[str, Shape, int, bool, dict[str, Any]]] = [
    ("one", (1, 1, 1, 1), 1, True, {}),
    ("tiles", (2, 3, 8, 12), 5, True, {}),
    ("odd", (3, 5, 7, 11), 9, False, {}),
    ("many", (2, 17, 13, 9), 19, True, {}),
    ("no padding", (1, 4, 6, 9), 8, False, {"begin": (0, 0), "end": (0, 0)}),
    ("padding", (1, 2, 5, 6), 3, True, {"begin": (3, 0), "end": (2, 5)}),
    ("no rows", (1, 2, 4, 4), 0, False, {}),
    ("no images", (0, 2, 4, 4), 3, False, {}),
]
CASES = [
    # enough channels that an invocation of the repair kernel covers fewer tiles
    call(floats(1, 2304, 8, 8), floats(2, 2304, 3, 3, seed=1), "many channels", 2),
    *(
        OpSample("winograd_weights", (floats(rows, channels, 3, 3),), {"tile": tile}, f"by {tile}")
        for tile in winograd.TILES
        for rows, channels in ((1, 1), (7, 13), (40, 33), (0, 2))
    ),
    *(
        call(floats(*x), floats(rows, x[1], 3, 3, seed=1), name, tile, bias, **more)
        for tile in winograd.TILES
        for name, x, rows, bias, more in ROWS
    ),
    *(
        call(
            edges(floats(2, 3, 9, 10), np.nan, np.inf, -np.inf, 1e38),
            floats(5, 3, 3, 3, seed=1),
            *("nan and infinity", tile, True),
        )
        for tile in winograd.TILES
    ),
    # values next to which their neighbors would be lost; all are positive, so that no sum cancels
    *(
        call(_positive(8, 21, 18) * wild, _positive(40, 8, 3, 3)[0], name, tile, of_largest=1e-12)
        for tile in winograd.TILES
        for name, wild in (
            ("one large value", _large((5, 10, 9))),
            ("corner", _large((7, 20, 17))),
            ("large values", _large((slice(None), slice(3, 9), slice(4, 7)))),
            ("small values", 1 / _large((slice(None), slice(8), slice(8)))),
        )
    ),
    # more tiles than a CPU driver buffers at a time
    *(
        call(floats(8, 8, 58, 59), floats(32, 8, 3, 3, seed=1), "parts", tile, True, large=True)
        for tile in winograd.TILES
    ),
]


def refused(error: type[Exception], match: str, *shapes: Shape, tile: int = 2) -> ErrorSample:
    """Return a refused winograd_conv of these shapes, or winograd_weights of one."""

    def build() -> object:
        inputs = [input(f"x{i}", shape) for i, shape in enumerate(shapes)]
        if len(inputs) == 1:
            return winograd.winograd_weights(inputs[0], tile)
        return winograd.winograd_conv(*inputs, tile=tile, begin=(0, 0), end=(0, 0))

    return ErrorSample(build, error, match)


_X = (1, 2, 4, 4)
ERRORS = [
    refused(ShapeError, "one of 2, 4 as tile", _X, (25, 3, 2), tile=3),
    refused(ShapeError, r"\(rows, channels, 3, 3\)", (2, 2, 3, 2)),
    refused(ShapeError, r"points \(16, rows, C\)", _X, (16, 3, 4)),
    refused(ShapeError, r"points \(36, rows, C\)", _X, (16, 3, 2), tile=4),
    refused(ShapeError, r"bias of shape \(3,\)", _X, (16, 3, 2), (2,)),
    refused(ShapeError, "within the padded", (1, 2, 2, 4), (16, 3, 2)),
    ErrorSample(
        lambda: winograd.winograd_weights(input("w", (2, 2, 3, 3), "int32"), 2),
        DTypeError,
        "expected float32, got int32",
    ),
    ErrorSample(
        lambda: winograd.winograd_conv(
            input("x", _X, "int32"),
            input("points", (16, 3, 2), "int32"),
            tile=2,
            begin=(0, 0),
            end=(0, 0),
        ),
        DTypeError,
        "all float32",
    ),
]

"""Samples of grid_sample in every mode, at and beyond borders, and of affine_grid."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.tensor import Tensor, input
from ....ops.conv.grid_sample import MODES, PADDINGS
from ..function_call import call
from ..op_sample import ErrorSample, OpSample, bools, floats, ints


def grid(*shape: int) -> NDArray:
    """Return coordinates, most of them inside."""
    return floats(*shape, seed=4, scale=0.8)


def special(dims: int) -> NDArray:
    """Return corners, centers, borders, and positions far outside, along each axis."""
    values = np.asarray([-1, 1, 0, -0.5, 0.25, -1.25, 2, -7, 41, 1e6, -1e6], np.float32)
    points = np.zeros((len(values), 1, dims), np.float32)
    points[:, 0] = np.stack([np.roll(values, axis) for axis in range(dims)], -1)
    return points.reshape(1, -1, *(1,) * (dims - 1), dims)


def sample(
    x: NDArray, at: NDArray, mode: str, padding: str, aligned: bool, name: str = ""
) -> OpSample:
    attrs: dict[str, AttrValue] = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    title = f"{x.dtype} {mode} {padding}{' aligned' * aligned} {name}".strip()
    return OpSample("grid_sample", (x, at), attrs, title)


def with_edges(x: NDArray) -> NDArray:
    flat = x.reshape(-1)
    flat[::7], flat[3::11] = np.inf, np.nan
    return x


KINDS = [
    (mode, padding, aligned) for mode in MODES for padding in PADDINGS for aligned in (False, True)
]
VOLUMES = [kind for kind in KINDS if kind[0] != "cubic"]
UNDEFINED = np.asarray(
    [[[[np.nan, 0], [0, np.nan], [np.inf, 0], [0, -np.inf], [0, 0]]]], np.float32
)
NONFINITE = floats(1, 1, 3, 3)
NONFINITE[0, 0, 0], NONFINITE[0, 0, 1, 2] = np.inf, np.nan
CASES = [
    *(sample(floats(2, 3, 5, 7), grid(2, 4, 6, 2), *kind) for kind in KINDS),
    *(sample(floats(1, 2, 4, 5), special(2), *kind, "special") for kind in KINDS),
    *(sample(floats(1, 1, 1, 2), special(2), *kind, "one row") for kind in KINDS),
    *(sample(floats(2, 2, 3, 4, 5), grid(2, 2, 3, 4, 3), *kind) for kind in VOLUMES),
    *(sample(floats(1, 1, 2, 4, 3), special(3), *kind, "special") for kind in VOLUMES),
    *(sample(floats(1, 2, 3, 3), UNDEFINED, *kind, "undefined") for kind in KINDS),
    *(
        sample(with_edges(floats(1, 2, 6, 7)), grid(1, 5, 6, 2), *kind, "edges")
        for kind in KINDS
        if kind[1] != "border"  # where weights are 0, which ONNX multiplies
    ),
    *(
        sample(NONFINITE, np.zeros((1, 1, 3, 2), np.float32), *kind, "beside infinity")
        for kind in KINDS
        if kind[2]
    ),
    sample(floats(1, 3, 31, 37), grid(1, 41, 43, 2), "linear", "zeros", False),
    sample(floats(1, 1, 9, 9), grid(1, 41, 43, 2), "cubic", "reflection", False),
    sample(ints(1, 2, 5, 7), grid(1, 4, 6, 2), "nearest", "zeros", False),
    sample(bools(1, 2, 5, 7), grid(1, 4, 6, 2), "nearest", "border", True),
    sample(ints(1, 2, 3, 3) + 200, UNDEFINED, "nearest", "reflection", True, "undefined"),
    sample(floats(0, 2, 3, 3), grid(0, 2, 2, 2), "linear", "zeros", False),
    sample(floats(2, 0, 3, 3), grid(2, 2, 2, 2), "linear", "zeros", False),
    sample(floats(2, 1, 3, 3), grid(2, 0, 2, 2), "linear", "zeros", False),
]
FUNCTIONS = [
    call("affine_grid", floats(*theta), name=f"{size} {aligned}", size=size, align_corners=aligned)
    for theta, size in (
        ((2, 2, 3), (2, 1, 4, 5)),
        ((1, 2, 3), (1, 3, 31, 17)),
        ((2, 3, 4), (2, 1, 2, 3, 4)),
        ((0, 2, 3), (0, 1, 2, 2)),
    )
    for aligned in (False, True)
]


def refused(x: tuple[int, ...], at: tuple[int, ...], match: str, **attrs: Any) -> ErrorSample:
    def build() -> Tensor:
        return ops.grid_sample(input("x", x), input("grid", at), **attrs)

    return ErrorSample(build, ShapeError, match)


ERRORS = [
    refused((1, 1, 3), (1, 2, 1), "expected .batch, channels, .depth"),
    refused((1, 1, 3, 3, 3), (1, 2, 2, 2, 3), "for cubic", mode="cubic"),
    refused((2, 1, 3, 3), (1, 2, 2, 2), "expected a grid of 2"),
    refused((1, 1, 3, 3), (1, 2, 2, 3), "grid of 2 coordinates"),
    refused((1, 1, 0, 3), (1, 2, 2, 2), "elements to sample"),
    refused((1, 1, 3, 3), (1, 2, 2, 2), "a mode of", mode="area"),
    refused((1, 1, 3, 3), (1, 2, 2, 2), "a padding_mode of", padding_mode="wrap"),
    ErrorSample(
        lambda: ops.grid_sample(input("i", (1, 1, 3, 3), "int32"), grid(1, 2, 2, 2)),
        DTypeError,
        "float32 operands",
    ),
    ErrorSample(lambda: ops.affine_grid(floats(2, 2, 3), (1, 1, 4, 4)), ShapeError, "maps"),
    ErrorSample(lambda: ops.affine_grid(floats(1, 2, 3), (1, 1, 4)), ShapeError, "one with depth"),
    ErrorSample(
        lambda: ops.affine_grid(ints(1, 2, 3), (1, 1, 4, 4)), DTypeError, "affine_grid. expected"
    ),
]

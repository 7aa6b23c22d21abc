"""Samples of resize in every mode, of resample, its underlying op, and of depth and space."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import ops
from ....common.dtypes import NDArray, TensorType
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import Attrs
from ....ir.op import get_op
from ....ir.tensor import Tensor, input
from ....ops.conv.resize import COORDINATES, NEAREST
from ..function_call import FunctionCall, call
from ..op_sample import ErrorSample, OpSample, bools, floats, ints


def resample(x: NDArray, axis: int, outs: int, taps: int, name: str = "") -> OpSample:
    indices = ints(outs, taps, seed=1, low=0, high=x.shape[axis])
    weights = floats(outs, taps, seed=2)
    weights[:, -1] *= floats(outs, seed=3) > 0  # some results skip a tap
    title = f"axis {axis} {name}".strip()
    return OpSample("resample", (x, indices, weights), {"axis": axis}, title)


def with_edges(x: NDArray) -> NDArray:
    flat = x.reshape(-1)
    flat[:: max(1, x.size // 5)] = np.inf
    flat[1 :: max(1, x.size // 3)] = np.nan
    return x


CASES = [
    resample(floats(1), 0, 1, 1),
    resample(floats(7), 0, 13, 3),
    *(resample(floats(5, 11, 7), axis, 17, 4) for axis in (0, 1, 2)),
    resample(floats(2, 1, 3, 2, 1, 2, 3, 2), 6, 5, 2),
    resample(floats(70, 67), 1, 131, 2),
    resample(floats(3, 400), 1, 5, 300, "many taps"),
    resample(floats(40, 30), 1, 23, 2000, "more taps"),
    resample(with_edges(floats(20, 30)), 0, 11, 2, "edges"),
    resample(floats(0, 4), 1, 3, 2, "no rows"),
    resample(floats(3, 4), 1, 0, 2, "no results"),
    OpSample(
        "resample",
        (floats(4, 3), np.asarray([[-5], [99]], np.int32), np.ones((2, 1), np.float32)),
        {"axis": 0},
        "clamped",
    ),
]


def resize(x: NDArray, **arguments: Any) -> FunctionCall:
    name = " ".join(f"{k}={v}" for k, v in arguments.items())
    return call("resize", x, name=f"{x.dtype} {name}", **arguments)


SQUARE = floats(1, 2, 5, 7)
SIZES: list[dict[str, Any]] = [
    {"sizes": (1, 2, 8, 3)},
    {"scales": (1.0, 1.0, 2.0, 0.5)},
    {"scales": (1.0, 1.0, 0.625, 1.75)},
]
ROI = (0.0, 0.0, 0.25, -0.125, 1.0, 1.0, 0.75, 1.25)


def coordinates(transform: str) -> dict[str, Any]:
    crop = transform == "tf_crop_and_resize"
    return {
        "coordinate_transformation_mode": transform,
        **({"roi": ROI, "extrapolation_value": 7.5} if crop else {}),
    }


FUNCTIONS = [
    *(
        resize(SQUARE, mode=mode, **coordinates(transform), **size)
        for mode in ("nearest", "linear", "cubic")
        for transform in COORDINATES
        for size in SIZES
        if transform != "half_pixel_symmetric" or size != SIZES[1]
    ),
    # for coordinates that are integers up to rounding, the ONNX reference is one element off
    *(
        resize(
            floats(1, 2, 6, 8),
            mode=mode,
            scales=(1, 1, 2.25, 0.4375),
            **coordinates("half_pixel_symmetric"),
        )
        for mode in ("nearest", "linear", "cubic")
    ),
    *(
        resize(SQUARE, nearest_mode=nearest, **coordinates(transform), **SIZES[1])
        for nearest in NEAREST
        for transform in ("half_pixel", "asymmetric", "align_corners")
    ),
    *(
        resize(SQUARE, mode=mode, **coordinates(transform), sizes=(1, 2, 1, 1))
        for mode in ("nearest", "linear")
        for transform in COORDINATES
    ),
    *(
        resize(floats(2, 9, 8), mode=mode, antialias=True, exclude_outside=outside, scales=scales)
        for mode in ("linear", "cubic")
        for outside in (False, True)
        for scales in ((1.0, 0.375, 0.5), (1.0, 2.0, 0.21875))
    ),
    *(
        resize(SQUARE, mode="cubic", cubic_coeff_a=a, exclude_outside=True, **SIZES[0])
        for a in (-0.75, -0.5)
    ),
    *(
        resize(
            floats(6, 4, 3),
            mode=mode,
            sizes=(7, 9),
            axes=(-1, 0),
            keep_aspect_ratio_policy=policy,
        )
        for mode in ("nearest", "linear")
        for policy in ("stretch", "not_larger", "not_smaller")
    ),
    resize(floats(3, 4, 5), mode="linear", scales=(2.0,), axes=(1,)),
    resize(floats(3, 4), mode="linear", sizes=(3, 4)),
    resize(floats(7), mode="cubic", sizes=(13,)),
    resize(floats(1), mode="linear", sizes=(3,)),
    resize(floats(), sizes=()),
    resize(floats(2, 3, 4, 5), mode="linear", sizes=(3, 2, 5, 4)),
    resize(floats(1, 1, 2, 3, 2, 1, 2, 2), sizes=(1, 1, 3, 3, 2, 2, 2, 3)),
    resize(floats(1, 3, 65, 33), mode="linear", sizes=(1, 3, 31, 90)),
    resize(ints(5, 6), sizes=(7, 4)),
    resize(bools(5, 6), sizes=(7, 4)),
    *(
        resize(
            make(5, 6),
            sizes=(7, 4),
            coordinate_transformation_mode="tf_crop_and_resize",
            roi=(-0.5, 0.0, 1.25, 1.0),
            extrapolation_value=1,
        )
        for make in (ints, bools)
    ),
    resize(floats(0, 6), mode="linear", sizes=(0, 4)),
    resize(floats(3, 6), mode="linear", sizes=(3, 0)),
    *(
        call("depth_to_space", make(*shape), name=f"{mode} {make.__name__}", block=block, mode=mode)
        for mode in ("DCR", "CRD")
        for make, shape, block in (
            (floats, (2, 12, 3, 5), 2),
            (ints, (1, 18, 2, 3), 3),
            (bools, (1, 4, 2, 3), 2),
            (floats, (1, 3, 2, 2), 1),
            (floats, (0, 4, 2, 2), 2),
        )
    ),
    *(
        call("space_to_depth", make(*shape), name=make.__name__, block=block)
        for make, shape, block in (
            (floats, (2, 3, 6, 10), 2),
            (ints, (1, 2, 6, 9), 3),
            (bools, (1, 1, 4, 6), 2),
            (floats, (1, 3, 2, 2), 1),
            (floats, (0, 1, 2, 2), 2),
        )
    ),
]


def x() -> Tensor:
    return input("x", (4, 6))


def refused_taps(dtype: str, weights: tuple[int, ...], size: int) -> TensorType:
    inputs = (TensorType((size,)), TensorType((3, 2), dtype), TensorType(weights))
    return get_op("resample").infer(inputs, Attrs({"axis": 0}))


ERRORS = [
    ErrorSample(lambda: refused_taps("float32", (3, 2), 4), DTypeError, "int32 and float32"),
    ErrorSample(lambda: refused_taps("int32", (3, 1), 4), ShapeError, "weights of one shape"),
    ErrorSample(lambda: refused_taps("int32", (3, 2), 0), ShapeError, "elements along axis"),
    ErrorSample(lambda: ops.resize(x()), ShapeError, "sizes or scales"),
    ErrorSample(lambda: ops.resize(x(), (1, 2), (1, 2)), ShapeError, "both or neither"),
    ErrorSample(lambda: ops.resize(x(), (1, 2, 3)), ShapeError, "expected 2 sizes"),
    ErrorSample(lambda: ops.resize(x(), (1, -2)), ShapeError, "sizes of 0 or more"),
    ErrorSample(lambda: ops.resize(x(), scales=(1.0, 0.0)), ShapeError, "scales above 0"),
    ErrorSample(lambda: ops.resize(x(), scales=(1.0,)), ShapeError, "expected 2 scales"),
    ErrorSample(lambda: ops.resize(x(), (1, 2), axes=(0, -2)), ShapeError, "distinct axes"),
    ErrorSample(lambda: ops.resize(x(), (1, 2), mode="area"), ShapeError, "a mode of nearest"),
    ErrorSample(lambda: ops.resize(x(), (1, 2), nearest_mode="up"), ShapeError, "a nearest_mode"),
    ErrorSample(
        lambda: ops.resize(x(), (1, 2), coordinate_transformation_mode="pixel"),
        ShapeError,
        "a coordinate mode",
    ),
    ErrorSample(
        lambda: ops.resize(x(), (1, 2), keep_aspect_ratio_policy="keep"), ShapeError, "a policy"
    ),
    ErrorSample(lambda: ops.resize(x(), (1, 2), antialias=True), ShapeError, "with antialias"),
    ErrorSample(
        lambda: ops.resize(x(), (1, 2), coordinate_transformation_mode="tf_crop_and_resize"),
        ShapeError,
        "expected a roi",
    ),
    ErrorSample(
        lambda: ops.resize(
            x(), (1, 2), coordinate_transformation_mode="tf_crop_and_resize", roi=(0, 0, 1)
        ),
        ShapeError,
        "as many ends",
    ),
    ErrorSample(lambda: ops.resize(input("e", (0,)), (2,)), ShapeError, "of none"),
    ErrorSample(
        lambda: ops.resize(input("i", (3,), "int32"), (2,), mode="linear"),
        DTypeError,
        "float32 for linear",
    ),
    ErrorSample(lambda: ops.depth_to_space(x(), 2), ShapeError, "to_space. expected .batch"),
    ErrorSample(lambda: ops.space_to_depth(x(), 2), ShapeError, "to_depth. expected .batch"),
    ErrorSample(
        lambda: ops.depth_to_space(input("x", (1, 6, 2, 2)), 2), ShapeError, "multiple of 4"
    ),
    ErrorSample(
        lambda: ops.depth_to_space(input("x", (1, 4, 2, 2)), 2, "RCD"), ShapeError, "DCR or"
    ),
    ErrorSample(
        lambda: ops.space_to_depth(input("x", (1, 6, 2, 3)), 2), ShapeError, "multiples of 2"
    ),
    ErrorSample(lambda: ops.space_to_depth(input("x", (1, 6, 2, 3)), 0), ShapeError, "block of 1"),
]

"""Samples of convolutions: each algorithm, any axes, padding, stride, dilation, groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import ops
from ....common.dtypes import NDArray, Shape
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import input
from ....ops.conv.depthwise_conv_weight_grad import depthwise_conv_weight_grad
from ....ops.conv.flip_filters import flip_filters
from ....ops.conv.window import Window
from ..op_sample import ErrorSample, OpSample, floats, ints


def call(
    op: str, arrays: tuple[NDArray, ...], name: str, large: bool = False, **more: Any
) -> OpSample:
    """Return a call of an op with the attributes of its builder's keywords."""
    inputs = [input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    return OpSample(op, arrays, dict(getattr(ops, op)(*inputs, **more).attrs), name, large=large)


def operands(x: Shape, w: Shape, channels: int | None = None) -> tuple[NDArray, ...]:
    """Return x, w and, if `channels` is set, a bias."""
    bias = () if channels is None else (floats(channels, seed=2),)
    return (floats(*x), floats(*w, seed=1), *bias)


def edges(x: NDArray, *values: float) -> NDArray:
    """Return arrays with special values at spread positions."""
    flat = x.reshape(-1).copy()
    flat[:: max(1, flat.size // len(values))][: len(values)] = values
    return np.asarray(flat.reshape(x.shape))


Row = tuple[str, Shape, Shape, bool, dict[str, Any]]
CONV: list[Row] = [
    ("one", (1, 1, 1), (1, 1, 1), True, {}),
    ("1d", (2, 3, 17), (5, 3, 4), True, {}),
    ("1d", (1, 2, 300), (3, 2, 7), False, {"stride": 3, "padding": 4, "dilation": 2}),
    ("2d", (2, 3, 7, 11), (5, 3, 3, 3), True, {"padding": 1}),
    ("2d", (1, 3, 13, 9), (7, 3, 5, 2), False, {"stride": (2, 3), "padding": (1, 0, 2, 3)}),
    ("2d", (1, 2, 15, 14), (4, 2, 3, 2), True, {"dilation": (2, 5), "padding": (3, 4)}),
    ("3d", (2, 2, 5, 6, 7), (3, 2, 2, 3, 2), True, {"stride": (1, 2, 3), "padding": 1}),
    ("many", (1, 1, 47, 61), (5, 1, 3, 3), False, {}),
    ("whole window", (2, 3, 5, 4), (6, 3, 5, 4), True, {}),
    *(
        (
            f"{rule} by {stride}",
            (1, 2, 8, 7),
            (3, 2, 4, 3),
            False,
            {"padding": rule, "stride": stride},
        )
        for rule in ("same_upper", "same_lower", "valid")
        for stride in (1, (2, 3))
    ),
    ("groups", (2, 6, 7, 5), (9, 2, 3, 3), True, {"groups": 3}),
    ("groups of one row", (2, 6, 5, 5), (3, 2, 3, 3), True, {"groups": 3}),
    ("groups share x", (2, 2, 5, 5), (10, 1, 3, 3), True, {"groups": 2}),
    ("only padding", (1, 2, 0), (3, 2, 2), True, {"padding": 1}),
    ("no channels", (2, 0, 5), (3, 0, 2), True, {}),
    ("no channels pointwise", (2, 0, 5), (9, 0, 1), False, {}),
    ("no rows", (2, 3, 5), (0, 3, 2), False, {}),
    ("no images", (0, 3, 5), (4, 3, 2), True, {}),
    # depthwise
    ("depthwise", (2, 5, 11, 13), (5, 1, 3, 3), True, {"groups": 5, "padding": 1}),
    ("depthwise", (1, 3, 9, 21), (3, 1, 3, 4), False, {"groups": 3, "stride": 2, "padding": 2}),
    ("depthwise", (1, 3, 9, 22), (6, 1, 3, 3), True, {"groups": 3, "stride": 2, "padding": 1}),
    ("depthwise", (2, 2, 8, 15), (2, 1, 3, 3), False, {"groups": 2, "stride": 2}),
    ("depthwise dilated", (1, 3, 9, 21), (3, 1, 3, 3), True, {"groups": 3, "dilation": (1, 3)}),
    (
        *("depthwise both", (1, 3, 12, 21), (3, 1, 3, 3), False),
        {"groups": 3, "dilation": 2, "stride": 2, "padding": 2},
    ),
    ("depthwise times 3", (2, 2, 5, 6), (6, 1, 2, 2), True, {"groups": 2}),
    ("depthwise 1d", (2, 3, 301), (3, 1, 7), True, {"groups": 3, "padding": "same_upper"}),
    ("depthwise 3d", (1, 2, 4, 5, 6), (2, 1, 2, 3, 3), False, {"groups": 2, "padding": 1}),
    # im2col
    ("im2col", (2, 4, 9, 11), (16, 4, 3, 3), True, {"padding": 1}),
    ("im2col", (1, 5, 9, 10), (17, 5, 3, 3), False, {"stride": 2, "padding": (0, 1, 2, 0)}),
    ("im2col groups", (3, 8, 7, 8), (16, 4, 3, 3), True, {"groups": 2, "dilation": 2}),
    ("im2col 1d", (3, 16, 40), (8, 16, 5), True, {"stride": 3, "padding": "same_lower"}),
    ("im2col 3d", (1, 4, 4, 5, 6), (8, 4, 2, 3, 2), True, {"padding": 1}),
    ("im2col strided", (2, 33, 7, 5), (9, 33, 1, 1), True, {"stride": 2}),
    ("im2col odd", (3, 3, 13, 11), (32, 3, 7, 7), True, {"stride": 2, "padding": 3}),
    ("im2col odd", (2, 5, 7, 7), (24, 5, 3, 3), False, {"padding": 1}),
    ("im2col odd groups", (2, 6, 7, 7), (64, 3, 3, 3), True, {"padding": 1, "groups": 2}),
    ("im2col whole window", (2, 8, 3, 4), (12, 8, 3, 4), True, {}),
    ("im2col across images", (5, 5, 5, 7), (37, 5, 3, 3), True, {"padding": 1, "stride": 2}),
    ("im2col 3d groups", (2, 6, 5, 4, 5), (34, 3, 2, 2, 3), False, {"padding": 1, "groups": 2}),
    # implicit GEMM
    ("pointwise", (2, 8, 5, 7), (16, 8, 1, 1), True, {}),
    ("pointwise", (1, 12, 8, 8), (8, 12, 1, 1), False, {}),
    ("pointwise groups", (2, 6, 5, 3), (24, 2, 1, 1), True, {"groups": 3}),
    ("pointwise 1d", (1, 7, 65), (33, 7, 1), True, {"dilation": 4}),
    ("pointwise 3d", (3, 4, 2, 3, 5), (9, 4, 1, 1, 1), False, {}),
    # each result sums a whole image
    ("linear", (2, 484, 1, 1), (33, 484, 1, 1), True, {}),
    ("linear odd", (3, 63, 1, 1), (20, 63, 1, 1), False, {"stride": 2}),
    ("linear of windows", (5, 3, 3, 4), (12, 3, 3, 4), True, {}),
]
INT: list[Row] = [
    ("int", (2, 3, 7, 6), (5, 3, 3, 2), True, {"padding": 1, "stride": 2}),
    ("int depthwise", (2, 3, 7, 9), (3, 1, 3, 3), True, {"padding": 1, "groups": 3}),
    ("int im2col", (2, 4, 5, 6), (8, 4, 3, 3), True, {"padding": 1}),
    ("int pointwise", (2, 3, 5, 6), (8, 3, 1, 1), False, {}),
    ("int linear", (2, 12, 1, 1), (8, 12, 1, 1), True, {}),
]
FULL = {"low": -(2**31), "high": 2**31 - 1}

CASES = [
    *(
        call("conv", operands(x, w, w[0] if bias else None), name, **more)
        for name, x, w, bias, more in CONV
    ),
    *(
        call(
            "conv",
            (ints(*x), ints(*w, seed=1), *((ints(w[0], seed=2),) if bias else ())),
            name,
            **more,
        )
        for name, x, w, bias, more in INT
    ),
    call("conv", (ints(1, 2, 9, **FULL), ints(3, 2, 3, **FULL)), "wraps"),
    *(
        call(
            "conv",
            (edges(floats(1, *x), np.nan, np.inf, -np.inf), edges(floats(*w, seed=1), np.inf)),
            "nan and infinity",
            padding=1,
            groups=groups,
        )
        for x, w, groups in (
            ((2, 9, 10), (3, 2, 3, 3), 1),
            ((2, 9, 10), (2, 1, 3, 3), 2),
            ((4, 9, 10), (8, 4, 3, 3), 1),
        )
    ),
    # exceeds the im2col buffer of a CPU driver: parts of an image, some of the images
    call("conv", operands((1, 16, 64, 64), (8, 16, 3, 3), 8), "parts", large=True, padding=1),
    call("conv", operands((2, 9, 61, 60), (9, 9, 5, 5)), "parts", large=True, padding=2),
    call("conv", operands((1, 13, 67, 63), (48, 13, 3, 3), 48), "odd parts", large=True, padding=1),
    call("conv", operands((14, 8, 24, 24), (8, 8, 3, 3), 8), "parts", large=True, padding=1),
    # more results than the few workgroups of a CPU driver may sum
    call("conv", operands((1, 64, 39, 55), (4, 64, 8, 8), 4), "cut"),
    # more iterations than llvmpipe's loop limit
    call("conv", operands((1, 40000, 3), (2, 40000, 2), 2), "long", large=True),
    call("conv", operands((1, 20, 3000), (4, 20, 2000), 4), "long", large=True, stride=9),
]

TRANSPOSE: list[Row] = [
    ("one", (1, 1, 1), (1, 1, 1), True, {}),
    ("1d", (2, 3, 17), (3, 5, 4), True, {}),
    ("1d", (1, 2, 50), (2, 3, 7), False, {"stride": 3, "padding": 4, "output_padding": 2}),
    ("2d", (2, 3, 5, 6), (3, 5, 3, 3), True, {"stride": 2, "padding": 1, "output_padding": 1}),
    ("2d", (1, 3, 6, 4), (3, 7, 2, 5), False, {"stride": (3, 1), "padding": (1, 0, 0, 3)}),
    ("dilated", (1, 2, 7, 6), (2, 4, 3, 2), True, {"dilation": (2, 3), "stride": (1, 2)}),
    ("extra by dilation", (1, 2, 4, 3), (2, 1, 3, 2), True, {"dilation": 3, "output_padding": 2}),
    ("3d", (2, 2, 3, 4, 3), (2, 3, 2, 3, 2), True, {"stride": (1, 2, 3), "padding": (0, 1, 1)}),
    *(
        (
            f"{rule} by {stride}",
            (1, 2, 4, 5),
            (2, 3, 3, 4),
            False,
            {"padding": rule, "stride": stride},
        )
        for rule in ("same_upper", "same_lower", "valid")
        for stride in ((1, 2), 5)
    ),
    ("groups", (2, 6, 4, 5), (6, 3, 3, 3), True, {"groups": 3, "stride": 2}),
    ("depthwise", (2, 5, 4, 5), (5, 1, 4, 4), True, {"groups": 5, "stride": 2, "padding": 1}),
    (
        *("depthwise times 3", (2, 2, 3, 9), (2, 3, 3, 4), False),
        {"groups": 2, "stride": (1, 3), "dilation": (2, 2), "padding": 1, "output_padding": (0, 2)},
    ),
    (
        *("depthwise both", (1, 3, 5, 13), (3, 1, 3, 3), True),
        {"groups": 3, "stride": 4, "dilation": (1, 6)},
    ),
    ("depthwise 1d", (2, 3, 41), (3, 1, 5), False, {"groups": 3, "padding": 2}),
    ("depthwise 3d", (1, 2, 3, 4, 5), (2, 1, 2, 2, 3), True, {"groups": 2, "stride": (1, 2, 3)}),
    ("many", (1, 2, 31, 33), (2, 9, 2, 2), False, {"stride": 2}),
    ("product", (2, 16, 5, 7), (16, 8, 4, 4), True, {"stride": 2, "padding": 1}),
    ("product groups", (3, 32, 9), (32, 8, 3), True, {"groups": 2, "stride": 3, "dilation": 2}),
    ("no channels", (2, 0, 5), (0, 3, 2), True, {}),
    ("no rows", (2, 3, 5), (3, 0, 2), False, {}),
    ("no images", (0, 3, 5), (3, 4, 2), True, {}),
    ("nothing left", (1, 2, 2), (2, 3, 2), True, {"padding": (1, 2)}),
]
CASES += [
    *(
        call(
            "conv_transpose",
            operands(x, w, w[1] * more.get("groups", 1) if bias else None),
            name,
            **more,
        )
        for name, x, w, bias, more in TRANSPOSE
    ),
    call("conv_transpose", (ints(2, 3, 5), ints(3, 4, 3), ints(4)), "int", stride=2),
    call("conv_transpose", (ints(1, 16, 9), ints(16, 8, 5)), "int product", stride=2),
    call("conv_transpose", (ints(1, 4, 5, 6), ints(4, 1, 3, 3)), "int depthwise", groups=4),
    call("conv_transpose", (ints(1, 2, 9, **FULL), ints(2, 3, 3, **FULL)), "wraps"),
    *(
        call(
            "conv_transpose",
            (edges(floats(*x), np.nan, np.inf, -np.inf), edges(floats(*w, seed=1), np.inf)),
            "nan and infinity",
            stride=2,
        )
        for x, w in (((1, 2, 9, 10), (2, 3, 3, 3)), ((1, 16, 5, 6), (16, 8, 3, 3)))
    ),
    call("conv_transpose", operands((1, 40000, 3), (40000, 2, 2), 2), "long", large=True),
    call(
        *("conv_transpose", operands((2, 16, 50, 50), (16, 16, 4, 4), 16), "parts"),
        large=True,
        stride=2,
    ),
]

CASES += [
    OpSample("flip_filters", (values(*shape),), {"groups": groups}, f"of {groups}")
    for shape, groups, values in (
        ((1, 1, 1), 1, floats),
        ((5, 3, 7), 1, floats),
        ((6, 5, 3, 2), 2, ints),
        ((9, 1, 3, 3), 9, floats),
        ((17, 70, 2, 1, 3), 1, floats),
        ((80, 9, 3, 3), 5, floats),
        ((0, 3, 2), 1, floats),
    )
]


def refused(
    op: str,
    error: type[Exception],
    match: str,
    shapes: tuple[Shape, ...],
    dtypes: str = "fff",
    **keywords: Any,
) -> ErrorSample:
    """Return a refused call of ops.<op> on inputs of these shapes; dtypes: f or i for each."""
    names = {"f": "float32", "i": "int32"}

    def build() -> object:
        pairs = zip(shapes, dtypes, strict=False)
        inputs = [input(f"x{i}", shape, names[d]) for i, (shape, d) in enumerate(pairs)]
        return getattr(ops, op)(*inputs, **keywords)

    return ErrorSample(build, error, match)


def sums(x: Shape, rows: int, kernel: Shape, name: str, **more: Any) -> OpSample:
    """Return the gradient of a depthwise convolution's weights, of `rows` per channel."""
    w = input("w", (x[1] * rows, 1, *kernel))
    result = ops.conv(input("x", x), w, groups=x[1], **more)
    attrs = {k: v for k, v in result.attrs.items() if k != "groups"} | {"kernel": kernel}
    return OpSample(
        "depthwise_conv_weight_grad", (floats(*x), floats(*result.shape, seed=1)), attrs, name
    )


CASES += [
    sums((1, 1, 1), 1, (1,), "one"),
    sums((2, 3, 17), 1, (4,), "1d", stride=2),
    sums((2, 5, 11, 13), 1, (3, 3), "2d", padding=1),
    sums((3, 2, 12, 9), 3, (2, 5), "2d", stride=(2, 1), dilation=(1, 2), padding=(0, 1, 3, 4)),
    sums((1, 3, 9, 12), 2, (3, 2), "strides as dilations", stride=2, dilation=2, padding=2),
    sums((2, 2, 4, 5, 6), 1, (2, 3, 3), "3d", padding=1),
    sums((2, 70, 30, 31), 1, (3, 3), "many", padding=1),
    sums((0, 2, 5), 1, (2,), "no images"),
]


def _no_multiple() -> object:
    w = Window((5,), (2,), (1,), (1,), (0,), (0,))
    return depthwise_conv_weight_grad(input("x", (2, 3, 5)), input("g", (2, 4, 4)), w, (0, 0))


def _integers() -> object:
    w = Window((5,), (2,), (1,), (1,), (0,), (0,))
    x, g = input("x", (2, 3, 5), "int32"), input("g", (2, 3, 4), "int32")
    return depthwise_conv_weight_grad(x, g, w, (0, 0))


def _odd_groups() -> object:
    return flip_filters(input("w", (3, 2, 3)), 2)


BOTH = ("conv", "conv_transpose")
_X, _W = (1, 2, 5), (2, 2, 3)
ERRORS = [
    ErrorSample(_no_multiple, ShapeError, "a multiple of 3, 4"),
    ErrorSample(_integers, DTypeError, "expected float32, got int32"),
    ErrorSample(_odd_groups, ShapeError, "2 groups divide"),
    *(
        refused(op, ShapeError, match, (x, w), **more)
        for op in BOTH
        for match, x, w, more in (
            ("1 to 3 spatial axes", (2, 3), (2, 3), {}),
            ("1 to 3 spatial axes", (1,) * 6, (1,) * 6, {}),
            ("of the rank of x", _X, (2, 2, 3, 3), {}),
            ("channels of x", _X, (3, 3, 3), {}),
            ("groups of 1 or more", _X, _W, {"groups": 0}),
            ("at least one step", _X, (2, 2, 0), {}),
            ("stride of 1 or more", _X, _W, {"stride": 0}),
            ("one for each of 1", _X, _W, {"dilation": (1, 2)}),
            ("padding of 0 or more", _X, _W, {"padding": (-1, 0)}),
            ("integers as stride", _X, _W, {"stride": 1.5}),
            ("dilation below", _X, _W, {"dilation": 2**40, "padding": 2**40}),
            ("window below", _X, _W, {"dilation": 2**30 - 1, "padding": 2**30}),
            ("same_lower, got", _X, _W, {"padding": "same"}),
        )
    ),
    *(refused(op, ShapeError, r"shape \(2,\)", (_X, _W, (3,))) for op in BOTH),
    *(refused(op, DTypeError, "all float32 or all int32", (_X, _W), "fi") for op in BOTH),
    refused("conv", ShapeError, "divide w's", ((1, 4, 5), (3, 2, 3)), groups=2),
    refused("conv", ShapeError, "padded size below", (_X, _W), padding=2**29),
    refused("conv_transpose", ShapeError, "stride below", (_X, _W), stride=2**30),
    refused("conv_transpose", ShapeError, "padded size below", (_X, _W), stride=2**29),
    refused("conv", ShapeError, "within the padded", (_X, (3, 2, 6))),
    refused("conv_transpose", ShapeError, "padding less than", (_X, _W), output_padding=1),
    refused("conv_transpose", ShapeError, "leaves a result", ((1, 2, 1), _W), padding=4),
]

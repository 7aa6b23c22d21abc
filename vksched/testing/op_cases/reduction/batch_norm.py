"""Samples of the norms of convolutional networks: any rank, with and without scale and shift."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import Tensor, input
from ..function_call import FunctionCall, call
from ..op_sample import ErrorSample, OpSample, floats, fp16_array, ints


def positive(*shape: int, seed: int = 0) -> NDArray:
    return np.asarray(np.abs(floats(*shape, seed=seed)) + 0.1, np.float32)


def affine(channels: int) -> tuple[NDArray, NDArray]:
    return floats(channels, seed=5), floats(channels, seed=6)


def of_batch(function: str, *shape: int, **arguments: Any) -> FunctionCall:
    channels = shape[1]
    operands = (*affine(channels), floats(channels, seed=7), positive(channels, seed=8))
    name = " ".join(f"{k}={v}" for k, v in arguments.items())
    x = np.asarray(floats(*shape) * 3 + 1, np.float32)
    return call(function, x, *operands, name=name, nmse=1e-9, **arguments)


def group_norm(*operands: NDArray, name: str = "", **arguments: Any) -> FunctionCall:
    def build(x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None) -> Tensor:
        return ops.group_norm(x, gamma=gamma, beta=beta, **arguments)

    title = f"{arguments['groups']} {name}".strip()
    return FunctionCall("group_norm", build, operands, title, arguments=arguments)


def mostly_zero() -> NDArray:
    x = floats(4, 5)
    x[1], x[2, 1:], x[3, 2] = 0, 0, np.nan
    return x


def infinite() -> NDArray:
    x = floats(3, 5)
    x[1, 2], x[2, 0] = np.inf, -np.inf
    return x


def halved(*arrays: NDArray) -> tuple[NDArray, ...]:
    return tuple(a.astype(np.float16) for a in arrays)


def of_scale(channels: int, scale: float) -> tuple[NDArray, ...]:
    """Return a mean and a variance of values of a scale, as far as float16 represents it."""
    variance = np.minimum(positive(channels, seed=8) * scale**2, 6e4)
    return halved(floats(channels, seed=7, scale=scale), variance)


HALF_SCALES = (300.0, 1e-4)
"""Scales of values whose squares are infinite, or 0, in float16."""
SHAPES = [(1, 1), (3, 6), (2, 6, 5), (2, 6, 7, 3), (1, 12, 2, 3, 4), (1, 4, 65, 67), (0, 4, 3)]
FUNCTIONS = [
    *(
        group_norm(floats(*shape) * 2 + 1, *affine(shape[1]), groups=n)
        for shape in SHAPES
        for n in {1, min(2, shape[1]), shape[1]}
        if shape[1] % n == 0
    ),
    group_norm(floats(2, 6, 5), name="plain", groups=3),
    group_norm(floats(2, 6, 5), floats(6, seed=1), name="scaled", groups=3, eps=0.1),
    *(call("instance_norm", floats(*s) * 2 + 1, *affine(s[1])) for s in SHAPES if len(s) > 2),
    call("instance_norm", floats(2, 6, 5), name="plain", eps=0.1),
    *(of_batch("batch_norm", *shape) for shape in SHAPES),
    of_batch("batch_norm", 2, 3, 4, eps=0.1),
    *(of_batch("batch_norm_training", *shape) for shape in SHAPES[1:-1]),
    of_batch("batch_norm_training", 2, 3, 4, eps=0.1, momentum=0.25),
    *(
        call("lp_normalize", x, name=f"{axis} {p} {title}".strip(), axis=axis, p=p)
        for p in (1, 2)
        for x, axis, title in (
            (floats(7), 0, ""),
            (floats(3, 50, 7), 1, ""),
            (floats(3, 50, 7), -1, ""),
            (mostly_zero(), 1, "zeros"),
            (floats(0, 3), 1, ""),
        )
    ),
    *(
        call("mean_variance_normalize", floats(*shape) * 2 + 1, name=str(axes), axes=axes)
        for shape, axes in (
            ((2, 3, 5, 7), (0, 2, 3)),
            ((2, 3, 5, 7), (1,)),
            ((31, 17), (0, 1)),
            ((31, 17), (-1,)),
        )
    ),
    call("mean_variance_normalize", floats(3, 2, 4, 5), name="as ONNX has it"),
    *(
        call("local_response_norm", floats(*shape) * 3, name=f"of {size}", size=size)
        for shape in ((2, 7, 3, 5), (1, 4), (1, 1, 2), (2, 9, 31))
        for size in (1, 2, 3, 5)
    ),
    call("local_response_norm", floats(2, 3, 4), name="of more than there are", size=11),
    call("local_response_norm", floats(2, 0, 4), name="of none", size=3),
    call(
        "local_response_norm", floats(2, 8, 5), name="other", size=3, alpha=0.5, beta=1.5, bias=2.0
    ),
]
FUNCTIONS += [
    case
    for scale in HALF_SCALES
    for title, x in ((f"float16 of {scale:g}", fp16_array(2, 4, 6, 5, scale=scale)),)
    for case in (
        group_norm(x, *halved(*affine(4)), name=title, groups=2),
        call("instance_norm", x, *halved(*affine(4)), name=title),
        call("batch_norm", x, *halved(*affine(4)), *of_scale(4, scale), name=title, eps=1e-9),
        call(
            *("batch_norm_training", x, *halved(*affine(4)), *fp16_array(2, 4, scale=scale)),
            name=title,
            eps=1e-9,
        ),
        *(call("lp_normalize", x, name=f"{title} by {p}", axis=1, p=p) for p in (1, 2)),
        call("mean_variance_normalize", x, name=title),
        call("local_response_norm", x, name=title, size=3, bias=1e-9 if scale < 1 else 1.0),
    )
]
FUNCTIONS += [
    call("lp_normalize", floats(3, 50, scale=scale), name=f"{scale:g} {p}", axis=1, p=p)
    for scale in (1e-25, 1e20, 5e37)
    for p in (1, 2)
]
FUNCTIONS += [call("lp_normalize", infinite(), name=f"infinite {p}", axis=1, p=p) for p in (1, 2)]
CASES: list[OpSample] = []


def x() -> Tensor:
    return input("x", (2, 4, 3))


ones = np.ones(4, np.float32)
whole = ints(2, 4, 3)
ERRORS = [
    ErrorSample(lambda: ops.group_norm(x(), 3), ShapeError, "multiples of 3 groups"),
    ErrorSample(lambda: ops.group_norm(x(), 0), ShapeError, "1 group or more"),
    ErrorSample(lambda: ops.group_norm(x(), 2, np.ones(2, np.float32)), ShapeError, "gamma of"),
    ErrorSample(lambda: ops.group_norm(x(), 2, eps=-1), DTypeError, "group_norm. expected eps"),
    ErrorSample(lambda: ops.instance_norm(x(), eps=1e-39), DTypeError, "or of 1.2e-38 or more"),
    ErrorSample(
        lambda: ops.batch_norm(x(), ones, ones, ones, ones, True), DTypeError, "number as eps"
    ),
    ErrorSample(lambda: ops.group_norm(whole, 2), DTypeError, "group_norm. expected float32"),
    ErrorSample(lambda: ops.instance_norm(ones), ShapeError, "instance_norm. expected .batch"),
    ErrorSample(
        lambda: ops.instance_norm(x(), ones, np.ones(3, np.float32)), ShapeError, "beta of"
    ),
    ErrorSample(
        lambda: ops.batch_norm(x(), ones, ones, ones[:1], ones), ShapeError, "expected mean of"
    ),
    ErrorSample(lambda: ops.batch_norm(x(), ones, ones, ones, ones[:1]), ShapeError, "variance of"),
    ErrorSample(
        lambda: ops.batch_norm_training(x(), ones, ones, ones, ones, momentum=2),
        DTypeError,
        "a momentum in",
    ),
    ErrorSample(lambda: ops.lp_normalize(x(), p=3), ShapeError, "p of 1 or 2"),
    ErrorSample(lambda: ops.lp_normalize(x(), 3), ShapeError, "lp_normalize. expected an axis"),
    ErrorSample(lambda: ops.lp_normalize(whole), DTypeError, "lp_normalize. expected float32"),
    ErrorSample(lambda: ops.mean_variance_normalize(x()), ShapeError, "normalize. expected an ax"),
    ErrorSample(lambda: ops.mean_variance_normalize(whole), DTypeError, "variance_normalize"),
    ErrorSample(lambda: ops.local_response_norm(x(), 0), ShapeError, "a size of 1"),
    ErrorSample(lambda: ops.local_response_norm(ones, 1), ShapeError, "response_norm. expected"),
]

"""Samples of gemm, linear, outer, dot, vecdot and tensordot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import Tensor, input
from ..op_sample import ErrorSample, FunctionSample, bools, floats, fp16_array, ints

CASES: list[Any] = []


def gemm(name: str, *inputs: NDArray, **keywords: Any) -> FunctionSample:
    """Return a sample with its keywords in the name, which the oracle reads."""
    return FunctionSample("gemm", lambda *x: ops.gemm(*x, **keywords), inputs, name)


GEMM: dict[str, dict[str, Any]] = {
    "plain": {},
    "alpha": {"alpha": 0.5},
    "beta": {"beta": -2.0},
    "both": {"alpha": 0.25, "beta": 0.35},
    "t10": {"transpose_a": True},
    "t01": {"transpose_b": True, "alpha": 2.0},
    "t11": {"transpose_a": True, "transpose_b": True},
    "half 300": {"alpha": 1e-3, "beta": 1e-3},
    "half 0.0001": {"alpha": 1e5, "beta": 1e5},
    "half shift": {"beta": 3e-6},
}
"""Attributes by the name of the sample."""


def sides(keywords: dict[str, Any], m: int, k: int, n: int) -> tuple[NDArray, NDArray]:
    a = (k, m) if keywords.get("transpose_a") else (m, k)
    b = (n, k) if keywords.get("transpose_b") else (k, n)
    return floats(*a), floats(*b, seed=1)


TENSORDOT: dict[str, tuple[tuple[int, ...], tuple[int, ...], Any]] = {
    "two": ((2, 3, 4), (3, 4, 5), 2),
    "one": ((2, 3), (3, 4), 1),
    "none": ((2, 3), (4,), 0),
    "all": ((2, 3), (2, 3), 2),
    "crossed": ((2, 3, 4), (4, 5, 3), ((1, 2), (2, 0))),
    "as it lies": ((2, 3, 4), (5, 3, 4), ((1, 2), (1, 2))),
    "numbers": ((2, 3, 4), (5, 4, 3), (-1, 1)),
    "no inner": ((2, 0), (0, 3), 1),
    "no axes": ((2, 3), (4, 5), ((), ())),
}
FUNCTIONS = [
    *(
        gemm(name, *sides(keywords, 5, 7, 6), *c, **keywords)
        for name, keywords in GEMM.items()
        if "half" not in name
        for c in ((), (floats(6, seed=2),), (floats(5, 1, seed=2),), (floats(seed=2),))
    ),
    *(
        gemm(
            f"half {scale:g}",
            *(fp16_array(*s, scale=scale) for s in shapes),
            **GEMM[f"half {scale:g}"],
        )
        for scale in (300.0, 1e-4)
        for shapes in (((5, 7), (7, 6)), ((5, 7), (7, 6), (6,)), ((5, 7), (7, 6), (5, 1)))
    ),
    gemm(
        "half shift",
        fp16_array(5, 7),
        fp16_array(7, 6),
        fp16_array(6, scale=1e4),
        **GEMM["half shift"],
    ),
    gemm("plain", ints(3, 4), ints(4, 5, seed=1), ints(3, 5, seed=2)),
    *(
        FunctionSample("linear", ops.linear, (floats(*x), floats(5, 4, seed=1), *bias))
        for x in ((4,), (3, 4), (2, 3, 4), (0, 4))
        for bias in ((), (floats(5, seed=2),))
    ),
    *(
        FunctionSample("linear", ops.linear, (floats(3, 4), fp16_array(5, 4, seed=1), *bias), mode)
        for mode, bias in (
            ("mixed", ()),
            ("mixed", (floats(5, seed=2),)),
            ("mixed, half bias", (fp16_array(5, seed=2),)),
        )
    ),
    *(
        FunctionSample("outer", ops.outer, (floats(*a), floats(*b, seed=1)))
        for a, b in (((3,), (4,)), ((2, 3), (4,)), ((), (3,)), ((0,), (3,)))
    ),
    FunctionSample("outer", ops.outer, (ints(3), ints(4, seed=1)), "int"),
    *(
        FunctionSample("dot", ops.dot, (floats(*a), floats(*b, seed=1)))
        for a, b in (
            *(((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((), (2, 3))),
            *(((2, 3, 4), (5, 4, 6)), ((4,), (2, 4, 3)), ((2, 3), ()), ((0,), (0,))),
        )
    ),
    *(
        FunctionSample("vecdot", ops.vecdot, (floats(*a), floats(*b, seed=1)))
        for a, b in (((3,), (3,)), ((2, 5, 3), (5, 3)), ((4, 1, 3), (2, 3)), ((2, 0), (2, 0)))
    ),
    FunctionSample(
        "vecdot",
        lambda a, b: ops.vecdot(a, b, 0),
        (floats(3, 4), floats(3, 4, seed=1)),
        "first axis",
    ),
    FunctionSample("vecdot", ops.vecdot, (ints(5, 3), ints(5, 3, seed=1)), "int"),
    *(
        FunctionSample(
            "tensordot",
            lambda a, b, axes=axes: ops.tensordot(a, b, axes),
            (floats(*left), floats(*right, seed=1)),
            name,
        )
        for name, (left, right, axes) in TENSORDOT.items()
    ),
]


def call(function: Callable[..., Tensor], *shapes: tuple[int, ...], **keywords: Any) -> Tensor:
    return function(*(input(f"x{i}", s) for i, s in enumerate(shapes)), **keywords)


ERRORS = [
    ErrorSample(lambda: call(ops.gemm, (2, 3, 4), (4, 5)), ShapeError, "two matrices"),
    ErrorSample(lambda: call(ops.gemm, (2, 3), (3, 5), (3, 5)), ShapeError, "broadcast"),
    ErrorSample(lambda: call(ops.gemm, (2, 3), (3, 5), (1, 2, 5)), ShapeError, "c that"),
    ErrorSample(lambda: call(ops.gemm, (2, 3), (4, 5)), ShapeError, "inner sizes"),
    ErrorSample(lambda: call(ops.linear, (2, 3), (3, 4)), ShapeError, "inner sizes"),
    ErrorSample(lambda: call(ops.linear, (), (3, 4)), ShapeError, r"weight \(n, k\)"),
    ErrorSample(lambda: ops.outer(input("b", (2,), "bool"), bools(2)), DTypeError, "operands"),
    ErrorSample(lambda: call(ops.dot, (2, 3), (4, 5)), ShapeError, "of equal sizes"),
    ErrorSample(lambda: call(ops.vecdot, (3,), (4,)), ShapeError, "the same length"),
    ErrorSample(lambda: call(ops.vecdot, (), (4,)), ShapeError, "expected vectors"),
    ErrorSample(lambda: call(ops.vecdot, (4,), (4,), axis=1), ShapeError, "axis in"),
    ErrorSample(lambda: call(ops.tensordot, (2, 3), (3, 2)), ShapeError, "equal sizes"),
    ErrorSample(lambda: call(ops.tensordot, (3,), (3,), axes=2), ShapeError, "0 to 1 axes"),
    ErrorSample(
        lambda: call(ops.tensordot, (3, 3), (3, 3), axes=((0, 0), (0, 1))),
        ShapeError,
        "distinct",
    ),
    ErrorSample(
        lambda: call(ops.tensordot, (3,), (3,), axes=(0,)),
        ShapeError,
        "two lists",
    ),
]

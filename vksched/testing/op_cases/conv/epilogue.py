"""Samples of epilogues of matmuls and convolutions: every function, every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ....common.dtypes import FLOAT32, NDArray, Shape
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.tensor import apply, as_tensor
from ....ops.conv.winograd import TILES
from ....ops.elementwise.epilogue import epilogue_attrs
from ....ops.elementwise.fused_elementwise import Instr
from ....ops.elementwise.pointwise import word
from ..elementwise.fused_elementwise import step
from ..linalg.matmul import attrs as matmul_attrs
from ..linalg.matmul import swapped
from ..op_sample import ErrorSample, OpSample, floats, ints
from ..sample_values import EDGES, tolerance
from . import winograd
from .conv import call, edges, operands

RELU = (step("relu", 0),)
ADDED = (step("add", 0, 1), step("relu", 2))
"""A residual, which is operand 1, then relu."""
SMOOTH = (step("mul", 0, 1), step("gelu", 2), step("leaky_relu", 3, alpha=0.25))
"""With a constant instead of the residual."""


def behind(
    case: OpSample,
    steps: Sequence[Instr],
    constants: Sequence[float] = (),
    residual: bool = False,
    nmse: float = 1e-10,
) -> OpSample:
    """Return a call with an epilogue. residual: add a random residual operand."""
    result, inputs = case.result_type(), case.inputs
    if residual:
        inputs += (floats(*result.shape, seed=7).astype(inputs[0].dtype),)
    words = tuple((FLOAT32, word(value, FLOAT32)) for value in constants)
    more = epilogue_attrs(1 + residual, tuple(steps), words)
    name = f"{case.name} then {' '.join(op for op, _, _ in steps)}"
    return replace(case, inputs=inputs, attrs={**case.attrs, **more}, name=name, nmse=nmse)


def each(case: OpSample) -> list[OpSample]:
    """Yield a call followed by one step, by several with a constant, and by a residual if rows are
    whole vec4s.
    """
    out = [behind(case, RELU), behind(case, SMOOTH, (0.5,))]
    shape = case.result_type().shape
    row = shape[-1] if case.op == "matmul" else int(np.prod(shape[2:]))
    return out if row % 4 else [*out, behind(case, ADDED, residual=True)]


def product(a: Shape, b: Shape, name: str, bias: bool = True, **more: Any) -> OpSample:
    """Return a matmul with a bias."""
    flips = more.pop("transpose_a", False), more.pop("transpose_b", False)
    inputs = swapped(floats(*a), flips[0]), swapped(floats(*b, seed=1), flips[1])
    row = (floats(b[-1], seed=2),) if bias else ()
    return OpSample("matmul", (*inputs, *row), matmul_attrs(*flips), name, **more)


ONES: dict[str, dict[str, AttrValue]] = {
    "relu": {},
    "clip": {"low": -0.5, "high": 0.75},
    "tanh": {},
    "sigmoid": {},
    "silu": {},
    "gelu": {},
    "gelu_tanh": {},
    "leaky_relu": {"alpha": 0.125},
    "hard_sigmoid": {"alpha": 0.25, "beta": 0.5},
    "hard_swish": {},
}
PRODUCTS = [
    *(
        product((m, 24), (24, 36), f"in fours {m}", transpose_a=ta, transpose_b=tb)
        for m, ta, tb in (
            *((1, False, False), (3, False, True), (40, False, False), (40, False, True)),
            *((40, True, False), (40, True, True)),
        )
    ),
    product((70, 44), (44, 300), "several tiles"),
    product((2, 700), (700, 520), "wide rows"),
    product((33, 17), (17, 65), "odd"),
    product((3, 17, 18), (3, 18, 20), "batch", bias=False),
    product((3, 0), (0, 8), "only bias"),
    product((0, 3), (3, 4), "no rows"),
    product((2, 70001), (70001, 8), "parts", large=True),
    product((1, 24), (24, 48), "whole tiles"),
]
CONVOLUTIONS = [
    call("conv", operands(x, w, w[0] if bias else None), name, **more)
    for name, x, w, bias, more in (
        ("direct", (2, 3, 7, 12), (5, 3, 3, 3), True, {"padding": 1}),
        ("direct odd", (1, 2, 15, 13), (4, 2, 3, 2), False, {"dilation": 2}),
        ("direct 1d", (1, 3, 9), (1, 3, 2), True, {}),
        ("depthwise", (2, 3, 8, 9), (3, 1, 3, 4), True, {"groups": 3, "padding": 1}),
        ("depthwise odd", (1, 3, 7, 9), (3, 1, 2, 2), False, {"groups": 3, "padding": 1}),
        ("depthwise 3x3", (2, 5, 11, 12), (5, 1, 3, 3), True, {"groups": 5, "padding": 1}),
        ("depthwise 3x3", (1, 3, 9, 22), (6, 1, 3, 3), True, {"groups": 3, "stride": 2}),
        ("depthwise 3x3 odd", (1, 3, 9, 21), (3, 1, 3, 3), False, {"groups": 3, "padding": 1}),
        ("im2col", (2, 4, 9, 12), (16, 4, 3, 3), True, {"padding": 1}),
        ("im2col odd", (3, 3, 13, 11), (32, 3, 5, 5), True, {"stride": 2, "padding": 3}),
        ("im2col groups", (3, 8, 6, 8), (16, 4, 3, 3), True, {"groups": 2, "padding": 1}),
        ("im2col parts", (1, 13, 66, 64), (48, 13, 3, 3), True, {"padding": 1, "large": True}),
        ("pointwise", (2, 8, 5, 8), (16, 8, 1, 1), True, {}),
        ("pointwise groups", (2, 6, 5, 3), (24, 2, 1, 1), True, {"groups": 3}),
        ("linear", (3, 24, 1, 1), (18, 24, 1, 1), True, {}),
        ("long", (1, 40000, 5), (2, 40000, 2), True, {"large": True}),
    )
]
WINOGRAD = [
    winograd.call(x, floats(rows, x.shape[1], 3, 3, seed=1), name, tile, True)
    for tile in TILES
    for name, x, rows in (
        ("tiles", floats(2, 3, 8, 12), 5),
        ("odd", floats(1, 5, 7, 11), 9),
        ("nan and infinity", edges(floats(2, 3, 9, 12), np.nan, np.inf, -np.inf, 1e38), 5),
    )
]
SQUARE = product((8, 8), (8, 8), "square", bias=False)
SPECIAL = OpSample(
    "matmul",
    (EDGES[FLOAT32].reshape(-1, 1), np.ones((1, 8), np.float32)),
    matmul_attrs(),
    "special values",
)
CASES = [
    *(
        behind(SQUARE, (step(op, 0, **attrs),), nmse=max(1e-10, tolerance(op)))
        for op, attrs in ONES.items()
    ),
    *(behind(SPECIAL, (step(op, 0, **attrs),), nmse=tolerance(op)) for op, attrs in ONES.items()),
    *(behind(SQUARE, (step(op, 0, 1),), residual=True) for op in ("add", "mul")),
    behind(SQUARE, (step("add", 1, 0), step("mul", 2, 1), step("silu", 3)), residual=True),
    behind(SQUARE, (step("mul", 0, 0), step("add", 1, 0), step("clip", 2, low=-1.0, high=1.0))),
    *(sample for case in (*PRODUCTS, *CONVOLUTIONS, *WINOGRAD) for sample in each(case)),
]
FP16 = [
    sample.as_dtypes({"float32": "float16"})
    for case in (PRODUCTS[0], PRODUCTS[3], PRODUCTS[4], PRODUCTS[8], PRODUCTS[9], CONVOLUTIONS[0])
    for sample in each(case)
]


def _apply(steps: Sequence[Instr], operands: int, *inputs: NDArray) -> None:
    attrs = {**matmul_attrs(), **epilogue_attrs(operands, tuple(steps), ())}
    apply("matmul", [as_tensor(x) for x in inputs], attrs)


ERRORS = [
    ErrorSample(lambda: _apply(RELU, 1, ints(3, 4), ints(4, 8)), DTypeError, "steps on"),
    ErrorSample(
        lambda: _apply(ADDED, 2, floats(3, 4), floats(4, 8), floats(8)), DTypeError, "alone"
    ),
    ErrorSample(
        lambda: _apply(ADDED, 2, floats(3, 4), floats(4, 6), floats(3, 6)),
        ShapeError,
        "rows of fours",
    ),
]

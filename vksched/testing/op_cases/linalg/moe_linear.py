"""Samples of mixture-of-experts matmuls: unused experts, one expert for all tokens, negative ids,
few and many tokens per expert, partial tiles, float and quantized weights.
"""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import Tensor, input
from ....ops.quantized.gguf_formats import FORMATS
from ..op_sample import ErrorSample, OpSample, floats, ints
from .quantized_linear import FIRST, words


def choice(rows: int, used: int, low: int, high: int, seed: int = 0) -> NDArray:
    """Return expert ids in low..high-1; a row may repeat an id."""
    return ints(rows, used, low=low, high=high, seed=seed)


def grouped(
    x: tuple[int, ...], weight: tuple[int, int, int], expert_ids: NDArray, what: str = ""
) -> OpSample:
    """Return a matmul with float experts."""
    return OpSample("moe_linear", (floats(*x), floats(*weight, seed=1), expert_ids), {}, what)


def packed(
    name: str, x: tuple[int, ...], matrices: int, n: int, expert_ids: NDArray, what: str = ""
) -> OpSample:
    """Return a matmul with quantized experts."""
    held = words(name, matrices * n, x[-1]).reshape(matrices, n, -1)
    return OpSample(
        "quantized_moe_linear", (floats(*x), held, expert_ids), {"format": name}, f"{name} {what}"
    )


ALL_ONE = np.full((29, 2), 3, np.int32)
"""All rows select one expert."""
CASES: list[OpSample] = [
    grouped((1, 1), (1, 1, 1), choice(1, 1, 0, 1)),
    grouped((1, 64), (8, 32, 64), choice(1, 2, 0, 8), "one row"),
    grouped((1, 2, 64), (8, 36, 64), choice(1, 2, 0, 8), "one row, each its own"),
    grouped((3, 4, 40), (5, 8, 40), choice(3, 4, -5, 5), "from the end"),
    grouped((13, 7), (5, 11, 7), choice(13, 3, 0, 5), "odd sizes"),
    grouped((13, 3, 7), (5, 11, 7), choice(13, 3, 0, 5), "odd sizes, each its own"),
    grouped((31, 36), (4, 37, 36), choice(31, 2, 0, 4), "odd columns"),
    grouped((29, 64), (7, 33, 64), ALL_ONE, "one takes all"),
    grouped((29, 2, 64), (7, 64, 64), ALL_ONE - 7, "one takes all, each its own"),
    grouped((50, 32), (40, 32, 32), choice(50, 2, 5, 9), "most take none"),
    grouped((257, 96), (16, 128, 96), choice(257, 2, 0, 16), "many rows"),
    grouped((130, 3, 128), (3, 72, 128), choice(130, 3, 0, 3), "many rows, each its own"),
    grouped((0, 8), (3, 4, 8), choice(0, 2, 0, 3), "no rows"),
    grouped((4, 8), (3, 4, 8), choice(4, 0, 0, 3), "nothing chosen"),
    grouped((4, 0), (3, 4, 0), choice(4, 2, 0, 3), "sums of nothing"),
    *(
        packed(name, x, 6, n, expert_ids)
        for name, kind in FORMATS.items()
        for rows, used, own, n in ((1, 2, False, 36), (9, 2, True, 13))
        for x in [(rows, used, kind.step) if own else (rows, kind.step)]
        for expert_ids in [choice(rows, used, 0, 6)]
    ),
    *(
        packed(name, x, matrices, n, expert_ids, what)
        for name in FIRST
        for x, matrices, n, expert_ids, what in (
            ((3, 512), 5, 40, choice(3, 2, -5, 5), "few rows"),
            ((29, 256), 7, 33, ALL_ONE, "one takes all"),
            ((150, 256), 4, 68, choice(150, 2, 0, 4), "many rows"),
            ((140, 2, 256), 5, 8, choice(140, 2, 1, 4), "many rows, each its own"),
        )
    ),
    packed("q4_K", (0, 256), 2, 8, choice(0, 2, 0, 2), "no rows"),
]


def _linear(x: tuple[int, ...], weight: tuple[int, ...], expert_ids: tuple[int, ...]) -> Tensor:
    operands = input("x", x), input("w", weight), input("chosen", expert_ids, "int32")
    return ops.moe_linear(*operands)


ERRORS = [
    ErrorSample(lambda: _linear((4, 8), (4, 8), (4, 2)), ShapeError, "expected a weight of"),
    ErrorSample(lambda: _linear((4, 8), (3, 5, 7), (4, 2)), ShapeError, "expected matrices"),
    ErrorSample(lambda: _linear((4, 8), (3, 5, 8), (3, 2)), ShapeError, "expected expert_ids"),
    ErrorSample(lambda: _linear((4, 3, 8), (3, 5, 8), (4, 2)), ShapeError, "expected expert_ids"),
    ErrorSample(lambda: _linear((4, 8), (3, 5, 8), (4,)), ShapeError, "expected expert_ids"),
    ErrorSample(
        lambda: ops.moe_linear(
            input("x", (4, 8), "int32"), input("w", (3, 5, 8)), np.ones((4, 2), np.int32)
        ),
        DTypeError,
        "got int32 and float32",
    ),
    ErrorSample(
        lambda: ops.moe_linear(
            input("x", (4, 8)), input("w", (3, 5, 8), "int32"), np.ones((4, 2), np.int32)
        ),
        DTypeError,
        "got float32 and int32",
    ),
    ErrorSample(
        lambda: ops.moe_linear(
            np.ones((4, 8), np.float32), np.ones((3, 5, 8), np.float32), np.ones((4, 2), np.float32)
        ),
        DTypeError,
        "int32 or int64",
    ),
    ErrorSample(
        lambda: (
            packed("q4_0", (2, 64), 2, 3, choice(2, 1, 0, 2))
            .as_dtypes({"uint32": "int32"})
            .result_type()
        ),
        DTypeError,
        "words of uint32",
    ),
]

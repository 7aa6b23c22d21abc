"""Samples of rows in q8_0: full and partial tiles; values that are NaN, large, small or 0."""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import Tensor, input
from ....ops.attention.kv_q8_0 import pack_q8_0, row_words
from ..op_sample import ErrorSample, OpSample, floats

SHAPES = ((1, 1), (7,), (13, 32), (1, 3, 71, 64), (2, 65), (5, 96), (3, 5, 80), (9, 256), (40, 193))


def _steep(*shape: int) -> NDArray:
    """Return rows of very different magnitudes."""
    powers = np.linspace(-14, 5, shape[0], dtype=np.float32)
    return np.asarray(floats(*shape) * 10 ** powers[:, None], np.float32)


def _odd() -> NDArray:
    """Return rows with a block that has a NaN, or a value too large for a float16 scale."""
    x = floats(7, 100)
    x[:, 40] = np.nan, np.inf, -np.inf, 3e8, -3e38, 0.0, 1e-30
    x[5:, :64] = 0
    return x


def dequantize_q8_0(words: NDArray, columns: int, name: str = "", exact: bool = True) -> OpSample:
    return OpSample("dequantize_q8_0", (words,), {"columns": columns}, name, exact=exact)


CASES = [
    *(OpSample("quantize_q8_0", (floats(*shape),), exact=True) for shape in SHAPES),
    OpSample("quantize_q8_0", (np.round(floats(37, 64) * 4) / 4,), name="ties", exact=True),
    OpSample("quantize_q8_0", (_steep(150, 64),), name="steep", exact=True),
    OpSample("quantize_q8_0", (_odd(),), name="odd", exact=True),
    OpSample("quantize_q8_0", (floats(0, 64),), name="no row"),
    OpSample("quantize_q8_0", (floats(3, 0),), name="no column"),
    *(dequantize_q8_0(pack_q8_0(floats(*shape)), shape[-1]) for shape in SHAPES),
    dequantize_q8_0(pack_q8_0(_steep(150, 64)), 64, "steep"),
    dequantize_q8_0(pack_q8_0(_odd()), 100, "odd", exact=False),
    dequantize_q8_0(np.zeros((0, row_words(64)), np.uint32), 64, "no row"),
    dequantize_q8_0(np.zeros((3, 0), np.uint32), 0, "no column"),
]


def _words(*shape: int, dtype: str = "uint32") -> Tensor:
    return input("words", shape, dtype)


ERRORS = [
    ErrorSample(lambda: ops.quantize_q8_0(input("x", (2, 3), "int32")), DTypeError, "try ops.cast"),
    ErrorSample(lambda: ops.quantize_q8_0(input("x", ())), ShapeError, "got a scalar"),
    ErrorSample(
        lambda: ops.dequantize_q8_0(_words(2, 17, dtype="int32"), 64), DTypeError, "quantize_q8_0"
    ),
    ErrorSample(
        lambda: ops.dequantize_q8_0(_words(2, 16), 64), ShapeError, "17 words for 64 values"
    ),
    ErrorSample(lambda: ops.dequantize_q8_0(_words(), 64), ShapeError, "17 words"),
    ErrorSample(lambda: ops.dequantize_q8_0(_words(2, 0), -1), ShapeError, "as columns"),
]

"""Rounded: what a product by quantized weights reads of its other operand, at the precision int8.

    x (..., 32 values)  ->  scale = largest magnitude / 127,  codes = round(x / scale) of 8 bits

Products of codes are integers, which processors and devices multiply four at once; sums of a run
are exact. Each run of 32 values has a scale. A run whose largest magnitude is under 1e-36 becomes
0, and one with a value that is not finite becomes NaN. Examples:
tests/ops/native/test_q8_native.py.
"""

from __future__ import annotations

import numpy as np

from ...common.dtypes import NDArray
from ...ir.attrs import Attrs
from ...ir.precision import BYTES, precision_of
from .gguf_formats import FORMATS
from .quant_layout import RUN, BlockFormat

MOST_CODE = np.float32(127)
LEAST_LARGEST = np.float32(1e-36)
"""Of a run: the codes of smaller values cannot be told in float32."""


def takes_codes(format: object) -> bool:
    """Whether weights of a format are codes, and no floats of 16 bits."""
    return isinstance(format, str) and isinstance(FORMATS.get(format), BlockFormat)


def rounds_codes(attrs: Attrs) -> bool:
    """Whether a product by quantized weights rounds its other operand to 8 bits."""
    return precision_of(attrs) == BYTES and takes_codes(attrs["format"])


def codes_of(x: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the codes of runs, int8 (..., runs, 32), and their scales, float32 (..., runs, 1).

    x: float32 (..., columns), of whole runs.
    """
    runs = x.reshape(*x.shape[:-1], x.shape[-1] // RUN, RUN)
    with np.errstate(all="ignore"):
        largest = np.abs(runs).max(-1, keepdims=True, initial=0)
        inverse = MOST_CODE / largest
        counts = (largest >= LEAST_LARGEST) & np.isfinite(largest)
        codes = np.where(counts, np.rint(runs * inverse), np.float32(0)).astype(np.int8)
        scale = np.where(counts, largest / MOST_CODE, np.float32(0))
        scale = np.where(np.isfinite(largest), scale, np.float32(np.nan))
    return codes, scale


def rounded(x: NDArray) -> NDArray:
    """Returns the values that products have in place of x, float32 (..., columns)."""
    codes, scale = codes_of(np.asarray(x, np.float32))
    made: NDArray = np.multiply(codes, scale, dtype=np.float32).reshape(x.shape)
    return made

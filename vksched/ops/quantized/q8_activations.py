"""Rounded: what a product by quantized weights reads of its other operand, at the precision int8.

    x (..., 32 values)  ->  scale = largest magnitude / 127,  quantized values = round(x / scale) of
    8 bits

Products of int8 values are integers, which processors and devices multiply four at once; sums of a
run are exact. Each run of 32 values has a scale. A run whose largest magnitude is under 1e-36
becomes 0, and one with a value that is not finite becomes NaN. Examples:
tests/ops/native/test_q8_native.py.
"""

from __future__ import annotations

import numpy as np

from ...common.dtypes import NDArray
from ...ir.attrs import Attrs
from ...ir.precision import BYTES, precision_of
from .gguf_formats import FORMATS
from .quant_layout import RUN, BlockFormat

MAX_INT8 = np.float32(127)
MIN_ABSMAX = np.float32(1e-36)
"""Of a run: the quantized values of smaller values cannot be told in float32."""


def has_int8_activations(format: object) -> bool:
    """Whether weights of a format are quantized values, and no floats of 16 bits."""
    return isinstance(format, str) and isinstance(FORMATS.get(format), BlockFormat)


def quantizes_x(attrs: Attrs) -> bool:
    """Whether a product by quantized weights rounds its other operand to 8 bits."""
    return precision_of(attrs) == BYTES and has_int8_activations(attrs["format"])


def quantize_q8(x: NDArray) -> tuple[NDArray, NDArray]:
    """Return the quantized values of runs, int8 (..., runs, 32), and their scales, float32 (...,
    runs, 1).

    x: float32 (..., columns), of whole runs.
    """
    runs = x.reshape(*x.shape[:-1], x.shape[-1] // RUN, RUN)
    with np.errstate(all="ignore"):
        largest = np.abs(runs).max(-1, keepdims=True, initial=0)
        inverse = MAX_INT8 / largest
        counts = (largest >= MIN_ABSMAX) & np.isfinite(largest)
        quants = np.where(counts, np.rint(runs * inverse), np.float32(0)).astype(np.int8)
        scale = np.where(counts, largest / MAX_INT8, np.float32(0))
        scale = np.where(np.isfinite(largest), scale, np.float32(np.nan))
    return quants, scale


def fake_quantize_q8(x: NDArray) -> NDArray:
    """Return the values that products have in place of x, float32 (..., columns)."""
    quants, scale = quantize_q8(np.asarray(x, np.float32))
    rounded: NDArray = np.multiply(quants, scale, dtype=np.float32).reshape(x.shape)
    return rounded

"""Activations quantized to 8 bits for products with quantized weights, at precision int8.

    x (..., 32 values)  ->  scale = largest magnitude / 127,  quantized values = round(x / scale)

Processors and devices multiply four int8 values per instruction, with exact sums in a run. Each run
of 32 values has a scale. A run whose largest magnitude is below 1e-36 becomes 0; a run with a value
that is not finite becomes NaN. Examples: tests/ops/native/test_q8_native.py.
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
"""Minimum largest magnitude of a run: float32 cannot represent the reciprocal scale of smaller
ones.
"""


def has_int8_activations(format: object) -> bool:
    """Return True if weights of a format are integers, not 16-bit floats."""
    return isinstance(format, str) and isinstance(FORMATS.get(format), BlockFormat)


def quantizes_x(attrs: Attrs) -> bool:
    """Return True if a product with quantized weights quantizes its other operand to 8 bits."""
    return precision_of(attrs) == BYTES and has_int8_activations(attrs["format"])


def quantize_q8(x: NDArray) -> tuple[NDArray, NDArray]:
    """Quantize whole runs of x: float32 (..., columns).

    Returns
    -------
    tuple of ndarray
        Values, int8 (..., runs, 32), and scales, float32 (..., runs, 1).
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
    """Quantize and dequantize x, float32 (..., columns), as products do."""
    quants, scale = quantize_q8(np.asarray(x, np.float32))
    rounded: NDArray = np.multiply(quants, scale, dtype=np.float32).reshape(x.shape)
    return rounded

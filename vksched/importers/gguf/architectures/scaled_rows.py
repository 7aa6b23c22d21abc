"""Scaled rows: scales the rows of a product's input by powers of two into float16's range.

    x (rows, k)  --largest magnitude of each row-->  x * 2^-e, 2^e (rows, 1)
    x @ w.T      =  ((x * 2^-e) @ w.T) * 2^e

Powers of two are exact, and so is the result in float32. Rows within the range are unchanged. The
inputs of attention's output projection and of the down projection need this, and the inputs of a
block without a norm before it, which OLMo 2 and EXAONE 4 have. All others are results of a norm
over k elements, whose magnitude is at most sqrt(k) times that of its weights.
Examples: tests/generation/test_scaled_rows.py.
"""

from __future__ import annotations

from ....ir.tensor import Tensor
from ....ops import abs, reduce_max, where

MAX_FLOAT16 = 65504.0
STEP = 16
"""The exponent of a step: a scaled row's largest magnitude is at least 1."""


def scaled_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x with rows in float16's range, and the factors that undo it.

    x: (..., k) -> (..., k) and (..., 1). Rows of up to 2^47 come into the range; rows with NaN or
    infinity keep them.
    """
    largest = reduce_max(abs(x), axis=-1, keepdims=True)
    fits, fits_scaled = largest <= MAX_FLOAT16, largest < 2.0 ** (15 + STEP)
    scale = where(fits, 1.0, where(fits_scaled, 2.0**-STEP, 2.0 ** (-2 * STEP)))
    unscale = where(fits, 1.0, where(fits_scaled, 2.0**STEP, 2.0 ** (2 * STEP)))
    return x * scale, unscale

"""ALiBi: attention scores that fall linearly with the distance of tokens, by a slope per head.

Source: https://arxiv.org/abs/2108.12409
"""

from __future__ import annotations

import numpy as np

from ....ir.tensor import Tensor, constant
from ....ops import abs, arange, cast, reshape

MAX_BIAS = 8.0
"""The exponent of the smallest slope: 2 ** -8."""


def slopes(heads: int) -> list[float]:
    """Return the slope of each head. Slopes are a geometric sequence; if the number of heads is no
    power of 2, the rest has every other slope of twice as many heads.
    """
    power = 1 << (heads.bit_length() - 1)
    regular = [2 ** (-MAX_BIAS * (head + 1) / power) for head in range(power)]
    rest = [2 ** (-MAX_BIAS * (head + 0.5) / power) for head in range(heads - power)]
    return regular + rest


def alibi(heads: int, length: int) -> Tensor:
    """Return the bias of the scores, (1, heads, length, length)."""
    at = cast(arange(length), "float32")
    distances = abs(reshape(at, (length, 1)) - at)
    return constant(-np.array(slopes(heads), np.float32).reshape(1, heads, 1, 1)) * distances

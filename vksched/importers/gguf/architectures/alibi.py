"""ALiBi: attention scores that fall linearly with the distance of tokens, by a slope per head.

In an encoder the bias is a mask. In a decoder keys have elements that are digits of their position,
and queries have the slopes as factors of them:

    score = scale * (q . k + slope / scale * (DIGIT * high + low)),  position = DIGIT * high + low

Scores of a query differ by slope * distance as with the mask, because the softmax does not change
if all scores of a query grow. Digits are exact in each element type of the KV cache: they are at
most 127, and begin at a block of Q8_0, in which one element is 127, so that its scale is 1.

Source: https://arxiv.org/abs/2108.12409
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....common.errors import ModelFormatError
from ....ir.tensor import Tensor, constant
from ....ops import abs, arange, cast, clip, concat, expand, reshape, zeros

DIGIT = 128
MAX_FACTOR = 65504.0
"""The maximum factor of a digit: that of float16, to which queries may be rounded."""
BLOCK = 32
"""The number of elements of a block of Q8_0."""
ALIGNMENT = 8
"""The number of added elements is a multiple of that, as the kernel of single queries needs."""


def slopes(heads: int, max_bias: float) -> list[float]:
    """Return the slope of each head, the smallest of which is 2 ** -max_bias. Slopes are a
    geometric sequence; if the number of heads is no power of 2, the rest has every other slope of
    twice as many heads.
    """
    power = 1 << (heads.bit_length() - 1)
    regular = [2 ** (-max_bias * (head + 1) / power) for head in range(power)]
    rest = [2 ** (-max_bias * (head + 0.5) / power) for head in range(heads - power)]
    return regular + rest


def alibi(heads: int, length: int, max_bias: float) -> Tensor:
    """Return the bias of the scores, (1, heads, length, length)."""
    at = cast(arange(length), "float32")
    distances = abs(reshape(at, (length, 1)) - at)
    factors = -np.array(slopes(heads, max_bias), np.float32).reshape(1, heads, 1, 1)
    return constant(factors) * distances


@dataclass(frozen=True)
class PositionDigits:
    """The digits of the positions of the tokens of one text, and their factors.

    max_bias: as in `slopes`. length: the maximum length of the text. positions: those of the
    tokens, (n,), or (b, n) for several rows.
    """

    max_bias: float
    length: int
    positions: Tensor

    @property
    def highs(self) -> int:
        """The number of elements whose sum is the high digit, each at most 127."""
        return -(-self.length // (DIGIT * (DIGIT - 1)))

    def widened(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Return queries and keys with more elements. q: (b, heads, n, d), k: (b, kv_heads, n, d),
        scale: the scale of attention scores.
        """
        b, heads, n, size = q.shape
        gap, used = -size % BLOCK, 2 + self.highs
        rest = -(gap + used) % ALIGNMENT
        factors = np.zeros((heads, gap + used + rest), np.float32)
        own = np.array(slopes(heads, self.max_bias))
        least = DIGIT * own.max() / MAX_FACTOR
        if not scale >= least:
            raise ModelFormatError(
                f"[gguf] key 'attention.scale': expected at least {least:.3g} with ALiBi, got "
                f"{scale:.3g}"
            )
        own /= scale
        factors[:, gap + 1] = own
        factors[:, gap + 2 : gap + used] = DIGIT * own[:, None]
        row = constant(factors.reshape(1, heads, 1, -1))
        digits = expand(self._digits, (b, k.shape[1], n, used))
        return (
            concat([q, expand(row, (b, heads, n, factors.shape[1]))], axis=3),
            concat(_between(k, gap, digits, rest), axis=3),
        )

    @cached_property
    def _digits(self) -> Tensor:
        """The element 127 and the digits of the keys, (1 or b, 1, n, 2 + highs)."""
        high = self.positions // DIGIT
        parts = [self.positions - high * DIGIT]
        most = DIGIT - 1
        parts += [clip(high - most * at, 0, most) for at in range(self.highs)]
        shape = (-1, 1, self.positions.shape[-1], 1)
        columns = [reshape(cast(each, "float32"), shape) for each in parts]
        mark = constant(np.full((1, 1, 1, 1), most, np.float32))
        return concat([expand(mark, columns[0].shape), *columns], axis=3)


def _between(k: Tensor, gap: int, digits: Tensor, rest: int) -> Sequence[Tensor]:
    """Return keys and digits, with zeros before and after these."""
    before, after = (zeros((*k.shape[:3], count)) for count in (gap or 1, rest or 1))
    return [k, *[before] * (gap > 0), digits, *[after] * (rest > 0)]

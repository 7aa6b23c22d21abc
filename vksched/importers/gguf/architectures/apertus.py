"""Apertus: QK-norm, and a feed-forward without gate whose activation has learned parameters in each
layer (xIELU).

Sources: https://arxiv.org/abs/2509.14233, https://arxiv.org/abs/2411.13010
"""

from __future__ import annotations

from ....ir.tensor import Tensor
from ....ops import expm1, minimum, square, where
from ..hparams.xielu import XIELU
from .family import Family

APERTUS = Family(head_norms="each", gated=False)


def xielu(x: Tensor, by: XIELU) -> Tensor:
    """Return beta x + positive x^2 for x over 0, else beta x + negative (exp(x) - 1 - x)."""
    below = (expm1(minimum(x, by.limit)) - x) * by.negative
    return where(x > 0, square(x) * by.positive, below) + x * by.beta

"""Grouped linear: a linear layer with one matrix for each group of a token, as for each head."""

from __future__ import annotations

import numpy as np

from ....ir.tensor import Tensor, constant
from ....ops import moe_linear, reshape


def grouped_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return the products of each group with its matrix.

    x: (b, n, groups, k), weight: (groups, m, k) -> (b, n, groups, m).
    """
    b, n, groups, k = x.shape
    group_ids = np.broadcast_to(np.arange(groups, dtype=np.int32), (b * n, groups))
    y = moe_linear(reshape(x, (b * n, groups, k)), weight, constant(group_ids))
    return reshape(y, (b, n, groups, weight.shape[1]))

"""Layers of experts: each token is read by a few feed-forward parts of many, chosen by a product.

x -> router -> the best of all experts, and their weights
      |            '-- few tokens: the experts' matrices are picked, and read by no other token
      '--------------- many: all experts read all tokens; the weight of what was not chosen is 0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....ops import (
    gather,
    matmul,
    reduce_sum,
    reshape,
    scatter_elements,
    sigmoid,
    softmax,
    topk,
    zeros,
)
from ....ops.core.tensor import Tensor

PICKED_COSTS = 2
"""So many times what one of all costs, as a picked matrix is written and read again."""


@dataclass(frozen=True)
class Experts:
    """The matrices of a layer.

    gate, up: (experts, inner, width). down: (experts, width, inner). used: experts of a token.
    renormed: their weights are divided by their sum. between: what gate and up make together.
    gated: weights are sigmoids, and factors of what an expert reads. shifts: biases of the three
    products, (experts, inner) twice and (experts, width); () where they have none.
    """

    gate: Tensor
    up: Tensor
    down: Tensor
    used: int
    renormed: bool
    between: Callable[[Tensor, Tensor], Tensor]
    gated: bool = False
    shifts: Sequence[Tensor] = ()

    def mix(self, x: Tensor, scores: Tensor) -> Tensor:
        """Returns the weighted sum of what the chosen experts make of each token.

        x: (b, n, width), scores: (b, n, experts) -> (b, n, width).
        """
        experts, _, width = self.gate.shape
        rows = x.shape[0] * x.shape[1]
        flat = reshape(x, (rows, width))
        opened = sigmoid if self.gated else softmax
        chances = reshape(opened(scores), (rows, experts))
        weights, chosen = topk(chances, self.used)
        if self.renormed and not self.gated:
            weights = weights / reduce_sum(weights, -1, keepdims=True)
        few = PICKED_COSTS * rows * self.used <= experts
        mixed = self._picked(flat, weights, chosen) if few else self._all(flat, weights, chosen)
        return reshape(mixed, x.shape)

    def _picked(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Each token is a row, times matrices of its own. (rows, width) -> (rows, width)."""
        rows, width = x.shape
        row = reshape(x, (rows, 1, 1, width))
        gate, up = (
            matmul(row, gather(table, chosen), transpose_b=True) for table in (self.gate, self.up)
        )
        shifts = [gather(each, chosen)[:, :, None] for each in self.shifts]
        if self.gated:
            gate, up = (each * weights[:, :, None, None] for each in (gate, up))
        between = self._between(gate, up, shifts)
        made = matmul(between, gather(self.down, chosen), transpose_b=True)
        made = made + shifts[2] if shifts else made
        made = reshape(made, (rows, self.used, width))
        return reduce_sum(made if self.gated else made * weights[:, :, None], 1)

    def _all(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """All tokens are a matrix, times that of each expert. (rows, width) -> (rows, width)."""
        rows, experts = x.shape[0], self.gate.shape[0]
        shares = scatter_elements(zeros((rows, experts)), chosen, weights, axis=-1)
        gate, up = (matmul(x[None], table, transpose_b=True) for table in (self.gate, self.up))
        factors = shares.T[:, :, None]
        if self.gated:
            gate, up = gate * factors, up * factors
        shifts = [each[:, None] for each in self.shifts]
        made = matmul(self._between(gate, up, shifts), self.down, transpose_b=True)
        made = made + shifts[2] if shifts else made
        return reduce_sum(made if self.gated else made * factors, 0)

    def _between(self, gate: Tensor, up: Tensor, shifts: Sequence[Tensor]) -> Tensor:
        if shifts:
            gate, up = gate + shifts[0], up + shifts[1]
        return self.between(gate, up)

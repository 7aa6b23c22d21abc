"""Layers of experts: each token is read by a few feed-forward parts of many, chosen by a product.

x -> router -> the best of all experts, and their weights
     '------------> each expert reads the tokens that chose it -> sums by these weights
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....ir.tensor import Tensor
from ....ops import (
    gather,
    moe_linear,
    reduce_sum,
    reshape,
    sigmoid,
    softmax,
    topk,
)


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
        """Return the weighted sum of what the chosen experts make of each token.

        x: (b, n, width), scores: (b, n, experts) -> (b, n, width).
        """
        experts, _, width = self.gate.shape
        rows = x.shape[0] * x.shape[1]
        flat = reshape(x, (rows, width))
        opened = sigmoid if self.gated else softmax
        weights, expert_ids = topk(reshape(opened(scores), (rows, experts)), self.used)
        if self.renormed and not self.gated:
            weights = weights / reduce_sum(weights, -1, keepdims=True)
        shares = reshape(weights, (rows, self.used, 1))
        shifts = [gather(each, expert_ids) for each in self.shifts]
        gate, up = (moe_linear(flat, table, expert_ids) for table in (self.gate, self.up))
        if self.gated:
            gate, up = gate * shares, up * shares
        if shifts:
            gate, up = gate + shifts[0], up + shifts[1]
        y = moe_linear(self.between(gate, up), self.down, expert_ids)
        y = y + shifts[2] if shifts else y
        return reshape(reduce_sum(y if self.gated else y * shares, 1), x.shape)

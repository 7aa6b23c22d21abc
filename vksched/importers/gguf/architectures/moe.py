"""Mixture of experts: a router selects a few of many feed-forward experts for each token.

x -> router -> top-k experts and their weights
     '------------> each expert processes its tokens -> weighted sums
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....ir.tensor import Tensor
from ....ops import gather, moe_linear, reduce_sum, reshape, split
from .routing import Router
from .scaled_rows import scaled_rows


@dataclass(frozen=True)
class Experts:
    """The weights of a mixture-of-experts layer.

    gate_up: gate and up, each (experts, inner, width), or one tensor of both, the gate first; up
    alone if there is no gate and `between` is an activation. down: (experts, width, inner). router:
    chooses the experts of each token. between: combines gate and up. gated: expert weights scale
    the experts' input. shifts: the biases of the linear layers of gate_up and down, (experts, rows
    of a weight); () if absent. scales: the factors of the experts' outputs, (experts,). scale_rows:
    as in `LinearLayers`.
    """

    gate_up: Sequence[Tensor]
    down: Tensor
    router: Router
    between: Callable[..., Tensor]
    gated: bool = False
    shifts: Sequence[Tensor] = ()
    scales: Tensor | None = None
    scale_rows: bool = False

    def mix(self, x: Tensor, scores: Tensor) -> Tensor:
        """Return the weighted sum of the selected experts' outputs for each token.

        x: (b, n, width), scores: (b, n, experts) -> (b, n, width).
        """
        experts, width, size = self.down.shape
        rows = x.shape[0] * x.shape[1]
        flat = reshape(x, (rows, width))
        weights, expert_ids = self.router(reshape(scores, (rows, experts)))
        if self.scales is not None:
            weights = weights * gather(self.scales, expert_ids)
        shares = reshape(weights, (*weights.shape, 1))
        shifts = [gather(each, expert_ids) for each in self.shifts]
        inner = [moe_linear(flat, table, expert_ids) for table in self.gate_up]
        if self.gated:
            inner = [each * shares for each in inner]
        if shifts:
            inner = [each + shift for each, shift in zip(inner, shifts, strict=False)]
        if inner[0].shape[-1] == 2 * size:
            inner = [*split(inner[0], 2, -1)]
        y = self._down(self.between(*inner), expert_ids)
        y = y + shifts[-1] if shifts else y
        return reshape(reduce_sum(y if self.gated else y * shares, 1), x.shape)

    def _down(self, x: Tensor, expert_ids: Tensor) -> Tensor:
        if not self.scale_rows:
            return moe_linear(x, self.down, expert_ids)
        x, unscale = scaled_rows(x)
        return moe_linear(x, self.down, expert_ids) * unscale

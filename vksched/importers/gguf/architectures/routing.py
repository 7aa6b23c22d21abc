"""Routing: the experts of each token and their weights, from the scores of the router.

    scores -> softmax or sigmoid --------------------> weights of the chosen experts -> sum 1
                    '-> + bias -> best groups -> top k ----'

The bias balances the load of the experts: it takes part in their choice, not in their weights.
Examples: tests/importers/test_gguf_routing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....common.dtypes import INT32
from ....ir.tensor import Tensor
from ....ops import (
    arange,
    cast,
    equal,
    maximum,
    reduce_max,
    reduce_sum,
    reshape,
    sigmoid,
    softmax,
    take_along_axis,
    topk,
    where,
)

Router = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Scores (rows, experts) -> the weights and numbers of the chosen experts, each (rows, used)."""
LEAST_SUM = 1e-20
"""The least sum by which weights are divided: sigmoids may all be 0."""
GROUP_BEST = {"softmax": 1, "sigmoid": 2}
"""The number of experts whose scores make the score of their group, by gating: DeepSeek V2 and V3
differ in both.
"""


@dataclass(frozen=True)
class Routing:
    """A router. used: the number of experts per token. gating: "softmax" or "sigmoid". renormed:
    weights are normalized to sum 1. bias: (experts,), added for the choice only. Experts are chosen
    from the best `groups_used` of `groups` groups.

    Source: https://arxiv.org/abs/2412.19437, section 2.1.2
    """

    used: int
    gating: str = "softmax"
    renormed: bool = True
    bias: Tensor | None = None
    groups: int = 1
    groups_used: int = 1

    def __call__(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        shares = sigmoid(scores) if self.gating == "sigmoid" else softmax(scores)
        if self.bias is None and self.groups == 1:
            weights, expert_ids = topk(shares, self.used)
        else:
            choice = shares if self.bias is None else shares + self.bias
            _, expert_ids = topk(self._in_groups(choice), self.used)
            weights = take_along_axis(shares, expert_ids)
        if self.renormed:
            total = reduce_sum(weights, -1, keepdims=True)
            never_0 = self.gating == "softmax" and self.bias is None
            weights = weights / (total if never_0 else maximum(total, LEAST_SUM))
        return weights, expert_ids

    def _in_groups(self, choice: Tensor) -> Tensor:
        """Return the scores of choice, with -inf outside the best groups."""
        if self.groups == 1:
            return choice
        rows, experts = choice.shape
        grouped = reshape(choice, (rows, self.groups, experts // self.groups))
        best, _ = topk(grouped, min(GROUP_BEST[self.gating], experts // self.groups))
        _, group_ids = topk(reduce_sum(best, -1), self.groups_used)
        chosen = equal(cast(reshape(group_ids, (rows, -1, 1)), INT32), arange(self.groups))
        is_chosen = reduce_max(where(chosen, 1.0, 0.0), 1)
        masked = where(reshape(is_chosen, (rows, self.groups, 1)) > 0, grouped, -float("inf"))
        return reshape(masked, (rows, experts))

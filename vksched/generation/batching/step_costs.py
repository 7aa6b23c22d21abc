"""StepCosts: the measured times of prefill and decode steps."""

from __future__ import annotations

from typing import Literal

Kind = Literal["prefill", "prompt logprobs", "decode", "verify", "draft"]
"""Chunks whose log-probabilities are computed have times of their own. "draft": a chunk of a text
that a draft model reads.
"""
WEIGHT = 0.1
"""The weight of a slower measurement in the average."""


class StepCosts:
    """The typical time of each kind of step by its number of tokens.

    A faster measurement replaces the average at once, because the first step of a size includes its
    compilation.
    """

    def __init__(self) -> None:
        self._costs: dict[tuple[Kind, int], float] = {}

    def observe(self, kind: Kind, tokens: int, seconds: float) -> None:
        key = kind, tokens
        known = self._costs.get(key, seconds)
        self._costs[key] = min(seconds, known + WEIGHT * (seconds - known))

    def seconds(self, kind: Kind, tokens: int) -> float | None:
        """Return the time of a step; None if it is unknown."""
        return self._costs.get((kind, tokens))

    def largest(self, kind: Kind) -> float | None:
        """Return the time of the slowest step of a kind; None if none is known."""
        return max((s for (k, _), s in self._costs.items() if k == kind), default=None)

    def by_tokens(self, kind: Kind) -> dict[int, float]:
        """Return the times of a kind by the number of tokens. Any thread may call it."""
        return {tokens: s for (k, tokens), s in list(self._costs.items()) if k == kind}

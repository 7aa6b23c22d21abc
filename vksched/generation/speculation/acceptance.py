"""Acceptance: how often the guesses of a drafter are right for one request, and whether they pay.

With probability a that a guess is right, a step that verifies k guesses appends

    E(k) = 1 + a + a^2 + ... + a^k    tokens

in the time of the guesses and of the step. It pays if a token costs less than one of a decode step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

RETRY_TOKENS = 64
"""The number of tokens after which a request that stopped speculating tries again."""


class Acceptance:
    """The measured acceptance of one request. It begins with a probability of one half."""

    def __init__(self) -> None:
        self._accepted, self._tested = 1.0, 2.0
        self._unused = 0

    @property
    def rate(self) -> float:
        """The estimated probability that a guess is right."""
        return self._accepted / self._tested

    def observe(self, offered: int, accepted: int) -> None:
        """Note how many guesses of a step were right; those after a wrong one were not tested."""
        self._accepted += accepted
        self._tested += min(accepted + 1, offered)

    def expected_tokens(self, guesses: int) -> float:
        """Return the mean number of tokens of a step that verifies some guesses."""
        rate = self.rate
        return guesses + 1 if rate == 1 else (1 - rate ** (guesses + 1)) / (1 - rate)

    def best_count(
        self, counts: Iterable[int], seconds: Callable[[int], float], token_s: float
    ) -> int:
        """Return the number of guesses with the least time per token; 0 if none pays.

        Parameters
        ----------
        counts
            The possible numbers.
        seconds
            Returns the time to guess and to verify so many tokens.
        token_s
            The time of a token without guesses.
        """
        best, least = 0, token_s
        for count in counts:
            per_token = seconds(count) / self.expected_tokens(count)
            if per_token < least:
                best, least = count, per_token
        if best:
            self._unused = 0
        else:
            self._unused += 1
            if self._unused >= RETRY_TOKENS:
                self._accepted, self._tested, self._unused = 1.0, 2.0, 0
        return best

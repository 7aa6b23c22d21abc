"""Speculator: which requests of an engine speculate, by measured acceptance and cost.

    text --drafters, in order--> guesses --StepRunner.verify--> logits after each token
                                                                   |
    the request draws its tokens from these, as from those of decode steps: a guess that equals the
    drawn token is right, and the next logits are valid; the rest is discarded

The answer does not depend on the guesses, because the logits of a verify step are those of decode
steps to the bit. Examples: tests/generation/speculation/test_speculator.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from ...common.user_warning import warn
from ..batching.decode_pause import DecodePause
from ..batching.request_state import RequestState
from ..batching.step_costs import StepCosts
from ..step_runner import StepRunner
from .acceptance import Acceptance
from .drafter import Drafter


@dataclass(frozen=True)
class Draft:
    """Guesses of the next tokens of a request, and their drafter."""

    tokens: list[int]
    drafter: Drafter


class Speculator:
    """The speculation of an engine.

    Parameters
    ----------
    runner
        The steps of the model.
    drafters
        The methods that guess tokens; the first one that has guesses is used.
    costs
        The measured times of the engine's steps.
    pause
        The time for which running answers have waited.
    clock
        A monotonic clock in seconds.
    """

    def __init__(
        self,
        runner: StepRunner,
        drafters: Sequence[Drafter],
        costs: StepCosts,
        pause: DecodePause,
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._drafters = tuple(drafters)
        self._costs = costs
        self._pause = pause
        self._clock = clock
        self._compiled: set[int] = set()
        """The numbers of guesses whose verify step has run."""
        self._cache_version = runner.cache_version
        """The version of the cache for which they were compiled."""
        self._was_warned = False

    def propose(self, slot: int, state: RequestState, rows: int) -> Draft | None:
        """Return guesses of the next tokens of a request; None if they do not pay.

        rows: the number of requests that get a token in this turn.
        """
        if not self._drafters or state.constraint is not None:
            return None
        if not self._verifies():
            return None
        rest = state.request.max_tokens - state.generated - 1
        most = min(rest, self._runner.length - len(state.text))
        counts = [size - 1 for size in self._runner.verify_sizes if size - 1 <= most]
        token_s = self._token_s(rows)
        if not counts or token_s is None:
            return None
        for drafter in self._drafters:
            acceptance = state.acceptances.setdefault(drafter, Acceptance())
            count = acceptance.best_count(counts, partial(self._seconds, drafter), token_s)
            if count and (tokens := self._guess(drafter, slot, state, count)):
                return Draft(tokens, drafter)
        return None

    def observe(self, state: RequestState, draft: Draft, accepted: int, seconds: float) -> None:
        """Note how many guesses of a draft were right, and the time of the verify step."""
        offered = len(draft.tokens)
        if self._cache_version != self._runner.cache_version:  # the steps are compiled again
            self._compiled.clear()
            self._cache_version = self._runner.cache_version
        state.acceptances[draft.drafter].observe(offered, accepted)
        if offered in self._compiled:
            self._costs.observe("verify", offered + 1, seconds)
        self._compiled.add(offered)  # the first step of a size includes its compilation

    def prepare(self) -> None:
        """Compile verify steps and what drafters need; warn if there are no verify steps."""
        if not self._drafters or not self._verifies():
            return
        self._runner.prepare_verify()
        for drafter in self._drafters:
            drafter.prepare()

    def close(self) -> None:
        """Free what drafters hold."""
        for drafter in self._drafters:
            drafter.close()

    def _verifies(self) -> bool:
        """Return True if the model has verify steps; else warn once."""
        if not self._runner.verify_sizes and not self._was_warned:
            self._was_warned = True
            warn(
                "[engine] no tokens are guessed: a step of several tokens would have other results "
                "than steps of one token, because of large float32 matrices on a CPU, recurrent "
                "states, an attention kernel selected by tuning, or missing native loops"
            )
        return bool(self._runner.verify_sizes)

    def _guess(self, drafter: Drafter, slot: int, state: RequestState, count: int) -> list[int]:
        """Return guesses of a drafter: as many as a verify step has; none before it has read the
        text. One that fails is not used again.
        """
        request = state.request
        try:
            if unread := drafter.unread_chunk(slot, state.text, request.cache_key):
                self._read_chunk(drafter, slot, state, unread)
                return []
            found = drafter.propose(slot, state.text, len(request.prompt), request.sampling, count)
        except Exception as error:
            warn(f"[engine] a draft model failed and is not used again: {error}")
            self._drafters = tuple(each for each in self._drafters if each is not drafter)
            with suppress(Exception):
                drafter.close()
            return []
        valid = list(takewhile(lambda token: token < self._runner.vocabulary, found))
        sizes = [size for size in self._runner.verify_sizes if size - 1 <= len(valid)]
        return valid[: sizes[-1] - 1] if sizes else []

    def _read_chunk(self, drafter: Drafter, slot: int, state: RequestState, tokens: int) -> None:
        """Let a drafter read the next tokens of a text, unless running answers waited long."""
        if self._pause.allows_chunk(self._costs.seconds("draft", tokens)):
            start_s = self._clock()
            drafter.read_chunk(slot, state.text)
            seconds = self._clock() - start_s
            self._costs.observe("draft", tokens, seconds)
            self._pause.add_chunk(seconds)

    def _token_s(self, rows: int) -> float | None:
        """Return the time that a row adds to a decode step; None if it is unknown."""
        whole, fewer = self._costs.seconds("decode", rows), self._costs.seconds("decode", rows - 1)
        if whole is None or rows == 1:
            return whole
        return whole / rows if fewer is None else max(0.0, whole - fewer)

    def _seconds(self, drafter: Drafter, count: int) -> float:
        """Return the time to guess and to verify; an unknown step counts as a decode step."""
        step_s = self._costs.seconds("verify", count + 1)
        if step_s is None:
            step_s = self._costs.seconds("decode", 1) or 0.0
        return drafter.seconds(count) + step_s

"""DraftModel: a small model, maybe on another device, that guesses the next tokens.

    text --what its KV cache lacks: prefill--> logits --sampling of the request--> token 1
         --decode--> token 2 --> ...

The draft model draws with the seed and the position of the request's own draw, so it often takes
the same token as the large model, if the two distributions are similar.

Examples: tests/generation/speculation/test_draft_model.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...common.errors import StateLost
from ..batching.cached_prefix import common_prefix
from ..batching.chunk_grid import chunk_grid
from ..sampling import Sampling
from ..step_runner import Logits, StepRunner

CAUGHT_UP = 8
"""The maximum number of tokens that are prefilled before a draft whose time is measured: those that
the draft model did not guess, not a whole prompt.
"""


class DraftModel:
    """A `Drafter` that runs the steps of a model with the same vocabulary.

    Parameters
    ----------
    runner
        The steps of the draft model, with as many slots as the engine has. It is closed with the
        drafter.
    ends
        The tokens that end an answer; they are not guessed.
    clock
        A monotonic clock in seconds.
    """

    def __init__(
        self,
        runner: StepRunner,
        ends: frozenset[int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = runner
        self._ends = ends
        self._clock = clock
        self._texts: list[list[int]] = [[] for _ in range(runner.slots)]
        """The tokens in each slot of the KV cache."""
        self._token_s = 0.0

    def propose(
        self, slot: int, text: Sequence[int], prompt_tokens: int, sampling: Sampling, count: int
    ) -> list[int]:
        """Return the tokens that the draft model writes; none without room; see `Drafter`."""
        count = min(count, self.runner.length - len(text))
        if count < 1:
            return []
        try:
            return self._propose(slot, list(text), prompt_tokens, sampling, count)
        except StateLost:
            for each in self._texts:
                each.clear()
            return []

    def _propose(
        self, slot: int, text: list[int], prompt_tokens: int, sampling: Sampling, count: int
    ) -> list[int]:
        prompt, known = len(text), self._texts[slot]
        start = min(common_prefix(known, text), prompt - 1)
        del known[start:]
        started_s = self._clock()
        logits = self._prefill(slot, text, start)
        while True:
            token = sampling.choose(logits, text, prompt_tokens=prompt_tokens)
            if token in self._ends:
                break
            text.append(token)
            if len(text) == prompt + count:
                break
            logits = self.runner.decode([slot], [token], [len(text) - 1])[0]
            known.append(token)
        drafted = len(text) - prompt
        if drafted and prompt - start <= CAUGHT_UP:
            self._observe((self._clock() - started_s) / drafted)
        return text[prompt:]

    def _prefill(self, slot: int, text: list[int], start: int) -> Logits:
        """Append the rest of a text to a slot; return the logits after it."""
        sizes = self.runner.chunk_sizes
        for chunk in chunk_grid(start, len(text), self.runner.length, sizes, is_alone=True):
            ids = text[chunk.start : chunk.end]
            logits = self.runner.prefill(slot, ids, chunk.start)
            self._texts[slot] += ids
        return logits

    def _observe(self, seconds: float) -> None:
        """Take the time of a guess into account; the first ones include compilation."""
        old = self._token_s or seconds
        self._token_s = min(seconds, old + 0.1 * (seconds - old))

    def seconds(self, count: int) -> float:
        """Return the time to guess `count` tokens, 0 before the first guess."""
        return self._token_s * count

    def prepare(self) -> None:
        """Compile the steps of the draft model."""
        self.runner.prepare_prompt()

    def close(self) -> None:
        """Free the steps and the KV cache."""
        for each in self._texts:
            each.clear()
        self.runner.close()

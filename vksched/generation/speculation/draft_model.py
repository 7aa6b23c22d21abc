"""DraftModel: a small model, maybe on another device, that guesses the next tokens.

    text --what its KV cache lacks: prefill--> logits --sampling of the request--> token 1
         --decode--> token 2 --> ...

A longer text is read in chunks, one in each turn of the engine, before the first guess.

The draft model draws with the seed and the position of the request's own draw, so it often takes
the same token as the large model, if the two distributions are similar.

Examples: tests/generation/speculation/test_draft_model.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...common.errors import SamplingError, StateLost
from ..batching.cached_prefix import CachedPrefix
from ..batching.chunk_grid import Chunk, chunk_grid
from ..sampling import Sampling
from ..step_runner import Logits, StepRunner

MAX_UNREAD = 8
"""The maximum number of tokens that `propose` reads: those that the draft model did not guess, not
a whole prompt.
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
        self._prefixes = [CachedPrefix() for _ in range(runner.slots)]
        """The tokens in each slot of the KV cache."""
        self._cache_version = runner.cache_version
        """The version of the cache that holds them."""
        self._token_s = 0.0

    def unread_chunk(self, slot: int, text: Sequence[int], cache_key: str) -> int:
        """Return the number of tokens that `read_chunk` must read before `propose`; see `Drafter`.
        It is 0 for a text without room, which gets no guesses.
        """
        if self.runner.cache_version != self._cache_version:
            self._forget()
        prefix = self._prefixes[slot]
        prefix.truncate(prefix.token_match(text, cache_key))
        prefix.cache_key = cache_key
        unread = len(text) - len(prefix.tokens)
        if unread <= MAX_UNREAD or not self._can_read(slot, text):
            return 0
        return self._chunks(slot, text)[0].count

    def read_chunk(self, slot: int, text: Sequence[int]) -> None:
        """Prefill the next tokens of a text."""
        with suppress(StateLost):  # `unread_chunk` sees it
            self._prefill(slot, text, self._chunks(slot, text)[0])

    def propose(
        self, slot: int, text: Sequence[int], prompt_tokens: int, sampling: Sampling, count: int
    ) -> list[int]:
        """Return the tokens that the draft model writes; none without room; see `Drafter`."""
        count = min(count, self.runner.length - len(text))
        if count < 1 or not self._can_read(slot, text):
            return []
        try:
            return self._propose(slot, list(text), prompt_tokens, sampling, count)
        except (StateLost, SamplingError):  # only the small model has no token for the request
            return []

    def _propose(
        self, slot: int, text: list[int], prompt_tokens: int, sampling: Sampling, count: int
    ) -> list[int]:
        known, prompt = self._prefixes[slot].tokens, len(text)
        started_s = self._clock()
        for chunk in self._chunks(slot, text):
            logits = self._prefill(slot, text, chunk)
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
        if drafted:
            self._observe((self._clock() - started_s) / drafted)
        return text[prompt:]

    def _can_read(self, slot: int, text: Sequence[int]) -> bool:
        """Return True if a text has room, and the draft model has all of its tokens."""
        unread = text[len(self._prefixes[slot].tokens) :]
        return len(text) < self.runner.length and max(unread) < self.runner.vocabulary

    def _chunks(self, slot: int, text: Sequence[int]) -> list[Chunk]:
        start, sizes = len(self._prefixes[slot].tokens), self.runner.chunk_sizes
        return chunk_grid(start, len(text), self.runner.length, sizes)

    def _prefill(self, slot: int, text: Sequence[int], chunk: Chunk) -> Logits:
        """Append a chunk of a text to a slot; return the logits after it."""
        ids = list(text[chunk.start : chunk.end])
        logits = self.runner.prefill(slot, ids, chunk.start)
        self._prefixes[slot].tokens += ids
        return logits

    def _forget(self) -> None:
        """Forget all texts, because the KV cache was lost."""
        for prefix in self._prefixes:
            prefix.clear()
        self._cache_version = self.runner.cache_version

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
        self.runner.close()
        self._forget()

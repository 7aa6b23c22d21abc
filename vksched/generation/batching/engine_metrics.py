"""EngineMetrics: counts the work of an engine, and reports durations to an observer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ...common.user_warning import warn
from .engine_counters import EngineCounters
from .request_state import RequestState
from .slot import Slot

Observer = Callable[[str, float], None]
"""A function that gets the name of a duration and its value in seconds.

The names are "queue", "time_to_first_token", "time_between_tokens" and "request".
"""


class EngineMetrics:
    """The counters of an engine. The engine's thread writes them, any thread reads them."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.prefill_s = self.decode_s = 0.0
        self.decode_steps = self.decode_rows = 0
        self.cache_losses = 0
        self.drafts = self.draft_tokens = self.accepted_tokens = 0
        self._finished: Counter[str] = Counter()
        self._answer_tokens = 0

    def observe(self, name: str, seconds: float) -> None:
        """Report a duration. An observer that fails is not called again."""
        if self._observer is None:
            return
        try:
            self._observer(name, seconds)
        except Exception as error:
            self._observer = None
            warn(f"[engine] the observer of durations failed and is not called again: {error!r}")

    def prefilled(self, tokens: int, seconds: float) -> None:
        self.prompt_tokens += tokens
        self.prefill_s += seconds

    def decoded(self, rows: int, seconds: float) -> None:
        self.decode_steps += 1
        self.decode_rows += rows
        self.decode_s += seconds

    def verified(self, offered: int, accepted: int) -> None:
        """Count a draft of which some tokens were right."""
        self.drafts += 1
        self.draft_tokens += offered
        self.accepted_tokens += accepted

    def generated(self, state: RequestState, now_s: float) -> None:
        """Count a token that was appended to a request's text."""
        self.generated_tokens += 1
        is_first = state.generated == 1
        name = "time_to_first_token" if is_first else "time_between_tokens"
        self.observe(name, now_s - state.last_token_s)
        state.last_token_s = now_s

    def finished(self, state: RequestState, reason: str, now_s: float) -> None:
        self._finished[reason] += 1
        self._answer_tokens += state.generated
        self.observe("request", now_s - state.submitted_s)

    @property
    def mean_answer_tokens(self) -> float:
        """The mean number of generated tokens of ended requests; infinite if none has ended."""
        ended = self._finished.total() if self._finished else 0
        return self._answer_tokens / ended if ended else float("inf")

    def snapshot(
        self, slots: Sequence[Slot], length: int, waiting: int, host_bytes: int
    ) -> EngineCounters:
        """Return the counters. length: the capacity of a slot in tokens."""
        running = [slot for slot in slots if slot.state is not None]
        used = sum(len(slot.prefix.tokens) for slot in running)
        return EngineCounters(
            running=len(running),
            waiting=waiting,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            finished=dict(self._finished),
            kv_cache_usage=used / (len(slots) * length),
            host_cache_bytes=host_bytes,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            decode_steps=self.decode_steps,
            decode_rows=self.decode_rows,
            cache_losses=self.cache_losses,
            drafts=self.drafts,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
        )

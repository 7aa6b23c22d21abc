"""ServingEngine: an inference engine with the counters that the server shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..generation.batching.engine_counters import EngineCounters
from ..generation.batching.slot import SlotStatus
from ..generation.completion import InferenceEngine

Observer = Callable[[str, float], None]


class ServingEngine(InferenceEngine, Protocol):
    """An inference engine with counters."""

    @property
    def room(self) -> int:
        """The number of requests that `submit` would accept now."""

    def counters(self) -> EngineCounters:
        """Return a snapshot of the counters."""

    def slots(self) -> Sequence[SlotStatus]:
        """Return the state of each slot."""

"""Slot: a sequence of the KV cache, and the request that uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .cached_prefix import CachedPrefix
from .request_state import RequestState

Phase = Literal["idle", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The state of a slot for monitoring. It holds no text of a user.

    Parameters
    ----------
    cached_tokens
        The number of tokens whose keys and values the slot holds.
    reused_tokens
        The number of prompt tokens that were not computed for the current request.
    engine
        The number of the slot's engine; None if there is only one.
    """

    index: int
    phase: Phase
    cached_tokens: int
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    max_tokens: int = 0
    engine: int | None = None


class Slot:
    """A slot. `state` is the request that runs in it, or None."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.prefix = CachedPrefix()
        self.state: RequestState | None = None
        self.last_use = 0
        """The number of requests that had finished before its last one."""

    def status(self) -> SlotStatus:
        """Return the state of the slot. Any thread may call it."""
        state, cached = self.state, len(self.prefix.tokens)
        if state is None:
            return SlotStatus(self.index, "idle", cached)
        return SlotStatus(
            self.index,
            "prefill" if state.chunks else "decode",
            cached,
            len(state.request.prompt),
            state.cached_tokens,
            state.generated,
            state.request.max_tokens,
        )

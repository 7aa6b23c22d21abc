"""EngineCounters: what an engine did and what it holds, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """A snapshot of an engine's counters.

    Parameters
    ----------
    running, waiting
        The numbers of requests that have a slot, and that wait for one.
    prompt_tokens
        The number of prompt tokens that were computed.
    cached_tokens
        The number of prompt tokens that were taken from the KV cache of earlier requests.
    generated_tokens
        The number of generated tokens.
    finished
        The number of ended requests by finish reason; "error" counts those that failed.
    kv_cache_usage
        The fraction of the KV cache that running requests use, from 0 to 1.
    host_cache_bytes
        The size of idle prefixes, and of checkpoints of recurrent states, in host memory.
    prefill_s, decode_s
        The time in prefill and decode steps, in seconds.
    decode_steps, decode_rows
        The number of decode steps, and of their rows together.
    drafts, draft_tokens, accepted_tokens
        The numbers of verified drafts, of their tokens, and of those that were right.
    cache_losses
        How often the KV cache was lost, as with a device that failed.
    """

    running: int
    waiting: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    finished: Mapping[str, int]
    kv_cache_usage: float
    host_cache_bytes: int
    prefill_s: float
    decode_s: float
    decode_steps: int
    decode_rows: int
    cache_losses: int
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

"""Prefixes are reused among requests, and answers do not change by it."""

from __future__ import annotations

import pytest
from inline_engine import InlineEngine
from lone_answers import Answer, lone_answer, rounded, streamed_answer
from simulated_steps import SimulatedSteps

from vksched.generation.batching.cached_prefix import CachedPrefix, common_prefix
from vksched.generation.batching.token_stream import TokenStream
from vksched.generation.completion import CompletionRequest

SYSTEM = list(range(1, 25))
"""Three chunks of 8 tokens."""


def calls(engine: InlineEngine, name: str) -> list[tuple[int, ...]]:
    return [entry[1:] for entry in engine.steps.log if entry[0] == name]


def alone(stream: TokenStream) -> Answer:
    return rounded(lone_answer(SimulatedSteps(), stream.request))


def check(stream: TokenStream, cached: int) -> None:
    """Check an answer, and the number of prompt tokens from the cache."""
    assert rounded(streamed_answer(stream)) == alone(stream)
    assert stream.cached_tokens == cached


def test_the_same_slot_continues() -> None:
    engine = InlineEngine()
    check(engine.submit([*SYSTEM, 30], logprobs=1), 0)
    check(engine.submit([*SYSTEM, 31, 32], logprobs=1), 24)
    assert calls(engine, "copy_rows") == []
    assert calls(engine, "prefill")[-1] == (0, 24, 2)


def test_the_last_chunk_is_computed_again() -> None:
    engine = InlineEngine()
    check(engine.submit(SYSTEM), 0)
    check(engine.submit(SYSTEM), 16)


def test_a_prefix_within_a_chunk_is_not_reused() -> None:
    engine = InlineEngine()
    check(engine.submit([*SYSTEM, 30]), 0)
    check(engine.submit([*SYSTEM[:20], 40, 41, 42, 43, 44]), 16)


def test_rows_of_decode_steps_are_not_reused() -> None:
    engine = InlineEngine()
    first = engine.submit(SYSTEM, 12)
    answer = [output.token for output in first]
    check(engine.submit([*SYSTEM, *answer, 3]), 24)


def test_rows_of_decode_steps_are_reused_on_demand() -> None:
    engine = InlineEngine(reuse_decoded=True)
    first = engine.submit(SYSTEM, 12)
    answer = [output.token for output in first]
    second = engine.submit([*SYSTEM, *answer, 3])
    assert len(list(second)) == 6
    assert second.cached_tokens == 24 + 11  # the last token was not decoded
    assert calls(engine, "prefill")[-1] == (0, 35, 2)
    third = engine.submit([*SYSTEM[:20], 40])
    assert len(list(third)) == 6
    assert third.cached_tokens == 20


def test_rows_move_from_a_busy_slot() -> None:
    engine = InlineEngine()
    busy = engine.submit([*SYSTEM, 30], 20)
    next(busy)
    check(engine.submit([*SYSTEM, 31, 32]), 24)
    assert calls(engine, "copy_rows") == [(0, 1, 24)]
    assert len(list(busy)) == 19


def test_a_slot_gets_the_rows_that_it_lacks() -> None:
    engine = InlineEngine(SimulatedSteps(slots=2), cache_ram=10**6)
    check(engine.submit([*SYSTEM[:8], 30], 2), 0)
    busy = engine.submit([*SYSTEM, 30], 20, prompt_logprobs=0)  # its rows are not shared
    next(busy)
    check(engine.submit([*SYSTEM[:8], 31], 2), 8)
    assert len(list(busy)) == 19
    busy = engine.submit([*SYSTEM, 32], 20)
    next(busy)
    check(engine.submit([*SYSTEM[:8], 33], 2), 8)
    check(engine.submit([*SYSTEM, 34], 2), 24)
    firsts = [entry[3] for entry in calls(engine, "copy_rows") if entry[3:]]
    assert firsts == [8]
    assert len(list(busy)) == 19


def test_requests_that_arrive_together_compute_their_prefix_once() -> None:
    engine = InlineEngine()
    streams = [engine.submit([*SYSTEM, 30 + i], logprobs=2) for i in range(4)]
    engine.run()
    for stream, cached in zip(streams, (0, 24, 24, 24), strict=True):
        check(stream, cached)
    assert engine.core.counters().cached_tokens == 72
    assert sum(count for *_, count in calls(engine, "prefill")) == 24 + 4


def test_a_long_prefix_is_not_lost_to_a_short_common_one() -> None:
    engine = InlineEngine()
    check(engine.submit([*SYSTEM, *range(30, 46), 9], 2), 0)
    check(engine.submit([*SYSTEM[:8], 2, 3], 2), 8)
    assert calls(engine, "copy_rows") == [(0, 1, 8)]
    check(engine.submit([*SYSTEM, *range(30, 46), 8], 2), 40)


def test_the_least_recently_used_slot_is_overwritten() -> None:
    engine = InlineEngine(SimulatedSteps(slots=2))
    for first in (1, 2, 3):
        check(engine.submit([first] * 9, 2), 0)
    check(engine.submit([2] * 9, 2), 8)
    check(engine.submit([3] * 9, 2), 8)
    check(engine.submit([1] * 9, 2), 0)


def test_prefixes_are_private_to_their_key() -> None:
    engine = InlineEngine(SimulatedSteps(slots=2), cache_ram=10**6)
    check(engine.submit([*SYSTEM, 30], cache_key="a"), 0)
    check(engine.submit([*SYSTEM, 30], cache_key="b"), 0)
    check(engine.submit([*SYSTEM, 30], cache_key="c"), 0)  # "a" moves to the host
    check(engine.submit([*SYSTEM, 30], cache_key="d"), 0)
    check(engine.submit([*SYSTEM, 30], cache_key="a"), 24)
    check(engine.submit([*SYSTEM, 30], cache_key=""), 0)


def test_idle_prefixes_move_to_the_host() -> None:
    engine = InlineEngine(SimulatedSteps(slots=1), cache_ram=10**6)
    for _ in range(2):
        for first in (1, 2, 3):
            cached = 24 if engine.core.counters().finished.get("length", 0) >= 3 else 0
            check(engine.submit([first, *SYSTEM[1:], 9], 2, logprobs=1), cached)
    assert [tokens for _, tokens in calls(engine, "read_rows")] == [24] * 3
    assert len(calls(engine, "write_rows")) == 3
    assert engine.core.counters().host_cache_bytes == 3 * 24 * 8


def test_the_host_drops_the_least_recently_used_prefix() -> None:
    engine = InlineEngine(SimulatedSteps(slots=1), cache_ram=2 * 24 * 8)
    for first in (1, 2, 3):
        check(engine.submit([first, *SYSTEM[1:], 9], 2), 0)
    check(engine.submit([1, *SYSTEM[1:], 9], 2), 24)  # host: 1, 2; then 1, 3
    check(engine.submit([2, *SYSTEM[1:], 9], 2), 0)
    assert engine.core.counters().host_cache_bytes == 2 * 24 * 8


def test_a_prefix_larger_than_the_host_cache() -> None:
    engine = InlineEngine(SimulatedSteps(slots=1), cache_ram=100)
    for first in (1, 2, 1, 2):
        check(engine.submit([first, *SYSTEM[1:], 9], 2), 0)
    assert len(calls(engine, "read_rows")) == 1  # the size of a token is known then
    assert engine.core.counters().host_cache_bytes == 0


def test_a_longer_prefix_replaces_its_part_on_the_host() -> None:
    engine = InlineEngine(SimulatedSteps(slots=1), cache_ram=10**6)
    check(engine.submit([*SYSTEM, 9], 2), 0)
    check(engine.submit([7] * 9, 2), 0)
    check(engine.submit([*SYSTEM, *range(8), 9], 2), 24)
    check(engine.submit([7] * 9, 2), 8)
    assert engine.core.counters().host_cache_bytes == (32 + 8) * 8
    check(engine.submit([*SYSTEM, *range(8), 5], 2), 32)


def test_logprobs_of_a_prompt_need_all_its_logits() -> None:
    engine = InlineEngine()
    check(engine.submit([*SYSTEM, 30]), 0)
    check(engine.submit([*SYSTEM, 30], prompt_logprobs=1), 0)
    check(engine.submit([*SYSTEM, 30]), 24)


def test_chunks_with_all_logits_do_not_move_to_the_host() -> None:
    """No request has these chunks again: logprobs of prompts read no prefixes."""
    engine = InlineEngine(SimulatedSteps(slots=1), cache_ram=2 * 24 * 8)
    check(engine.submit([*SYSTEM, 30], 2), 0)
    for first in (1, 2, 3):
        check(engine.submit([first, *SYSTEM], 2, prompt_logprobs=0), 0)
    assert calls(engine, "read_rows") == [(0, 24)]
    check(engine.submit([*SYSTEM, 31], 2), 24)


def test_a_cancelled_prompt_leaves_its_chunks() -> None:
    engine = InlineEngine()
    stream = engine.submit([*SYSTEM, 30])
    engine.core.step()
    engine.core.step()
    stream.close()
    check(engine.submit([*SYSTEM, 31]), 16)


def test_a_failed_copy_ends_its_request_only() -> None:
    def fail(number: int) -> None:
        if engine.steps.log[-1][0] == "copy_rows":
            raise RuntimeError("no memory")

    engine = InlineEngine()
    engine.steps.before_call = fail
    busy, other = engine.submit([*SYSTEM, 30], 20), engine.submit([*SYSTEM, 31])
    with pytest.raises(RuntimeError, match="no memory"):
        next(other)
    check(busy, 0)


@pytest.mark.parametrize("call", (2, 3, 4))
def test_a_failed_step_leaves_no_prefix(call: int) -> None:
    def fail(number: int) -> None:
        if number == call:
            raise RuntimeError("broken")

    engine = InlineEngine(SimulatedSteps(before_call=fail))
    with pytest.raises(Exception, match="broken"):
        list(engine.submit([*SYSTEM, 30]))
    check(engine.submit([*SYSTEM, 30]), 0)


@pytest.mark.parametrize(
    ("known", "text", "count"),
    (
        ([], [1], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2, 3], [1, 5, 3], 1),
        ([9, 2, 3], [1, 2, 3], 0),
    ),
)
def test_common_prefix(known: list[int], text: list[int], count: int) -> None:
    assert common_prefix(known, tuple(text)) == count


def test_truncation_keeps_whole_chunks() -> None:
    engine = InlineEngine()
    assert len(list(engine.stream(CompletionRequest(tuple(SYSTEM), 3)))) == 3
    prefix = engine.core._scheduler.slots[0].prefix
    assert (len(prefix.tokens), prefix.prompt_tokens) == (26, 24)
    assert prefix.first(23).prompt_tokens == 16
    assert prefix.first(24).is_part_of(prefix)
    assert not CachedPrefix("other").is_part_of(prefix)

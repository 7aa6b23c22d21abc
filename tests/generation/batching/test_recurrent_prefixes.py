"""Prefixes of models with recurrent states are reused up to their end or a checkpoint, and answers
do not change by it.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from inline_engine import InlineEngine
from lone_answers import lone_answer, rounded, streamed_answer
from simulated_steps import SimulatedSteps

from vksched.common.errors import EngineError
from vksched.generation.batching import slot_checkpoints
from vksched.generation.batching.cached_prefix import MAX_CHECKPOINTS, CachedPrefix
from vksched.generation.batching.host_cache import HostCache
from vksched.generation.batching.prefix_cache import PrefixCache
from vksched.generation.batching.request_state import RequestState
from vksched.generation.batching.slot import Slot
from vksched.generation.batching.token_stream import TokenStream
from vksched.generation.completion import CompletionRequest

SYSTEM = list(range(1, 25))
"""Three chunks of 8 tokens."""


def recurrent_engine(**options: object) -> InlineEngine:
    return InlineEngine(SimulatedSteps(is_recurrent=True), **options)


def check(stream: TokenStream, cached: int) -> None:
    """Check an answer, and the number of prompt tokens from the cache."""
    alone = lone_answer(SimulatedSteps(is_recurrent=True), stream.request)
    assert rounded(streamed_answer(stream)) == rounded(alone)
    assert stream.cached_tokens == cached


def calls(engine: InlineEngine, name: str) -> list[tuple[int, ...]]:
    return [entry[1:] for entry in engine.steps.log if entry[0] == name]


def test_the_simulated_state_depends_on_all_tokens() -> None:
    steps = SimulatedSteps(is_recurrent=True)
    first = steps.prefill(0, [1, 2], 0)
    steps.prefill(0, [3], 2)
    assert not np.array_equal(steps.prefill(0, [2], 1), first)  # the state cannot be cut back
    assert np.array_equal(steps.prefill(0, [1, 2], 0), first)


def test_the_checkpoint_of_the_last_shared_chunk_is_reused() -> None:
    engine = recurrent_engine()
    check(engine.submit([*SYSTEM, 30, 31], logprobs=1), 0)
    check(engine.submit([*SYSTEM, 31, 32], logprobs=1), 24)
    assert calls(engine, "write_states") == [(0, 24)]
    assert calls(engine, "prefill")[-1] == (0, 24, 2)


def test_a_shorter_prefix_is_reused_up_to_a_checkpoint() -> None:
    engine = recurrent_engine()
    check(engine.submit([*SYSTEM, *range(30, 46), 9]), 0)  # checkpoints at 40, 16 and 8
    check(engine.submit([*SYSTEM, 7, 8]), 16)
    check(engine.submit([*SYSTEM[:9], 7, 8]), 8)
    check(engine.submit([*SYSTEM[:5], 7, 8]), 0)


def test_states_move_between_slots_and_to_the_host() -> None:
    engine = recurrent_engine(cache_ram=1 << 20)
    busy = engine.submit([*SYSTEM, 30], 20)
    next(busy)
    check(engine.submit([*SYSTEM, 31, 32]), 24)
    assert calls(engine, "copy_rows") == [(0, 1, 24)]
    assert len(list(busy)) == 19
    others = [engine.submit([40 + n, *SYSTEM], 2) for n in range(4)]
    engine.run()
    for stream in others:
        check(stream, 0)
    check(engine.submit([*SYSTEM, 33]), 24)
    assert calls(engine, "write_rows")


def test_an_exact_continuation_needs_no_states_from_the_host() -> None:
    engine = recurrent_engine(reuse_decoded=True)
    answer = [output.token for output in engine.submit(SYSTEM, 12)]
    second = engine.submit([*SYSTEM, *answer, 3])
    assert len(list(second)) == 6
    assert second.cached_tokens == 24 + 11  # the last token was not decoded
    assert not calls(engine, "write_states")
    again = engine.submit([*SYSTEM, 9])  # as if the answer were rendered in another way
    assert len(list(again)) == 6
    assert again.cached_tokens == 24
    assert calls(engine, "write_states") == [(0, 24)]


def test_an_answer_that_is_cut_off_goes_back_to_a_checkpoint() -> None:
    engine = recurrent_engine(reuse_decoded=True)
    assert len(list(engine.submit(SYSTEM, 12))) == 12
    engine.core.truncate(0, 30)
    assert engine.core.slots()[0].cached_tokens == 24
    stream = engine.submit([*SYSTEM, 3])
    assert len(list(stream)) == 6
    assert stream.cached_tokens == 24


def test_answers_do_not_depend_on_what_runs_meanwhile() -> None:
    rng = random.Random(7)
    engine = InlineEngine(
        SimulatedSteps(is_recurrent=True, lost_at=[90]), cache_ram=1 << 12, max_queue=64
    )
    streams = []
    for _ in range(24):
        shared = SYSTEM[: rng.randrange(25)]
        prompt = [*shared, *(rng.randrange(50) for _ in range(rng.randrange(1, 18)))]
        streams.append(engine.submit(prompt, rng.randrange(1, 7)))
        for _ in range(rng.randrange(6)):
            engine.step()
    engine.run()
    assert engine.core.counters().cache_losses == 1
    same = 0
    for stream in streams:
        alone = lone_answer(SimulatedSteps(is_recurrent=True), stream.request)
        same += rounded(streamed_answer(stream)) == rounded(alone)
    assert same >= len(streams) - 4  # only answers during the loss were prefilled again
    assert engine.core.counters().cached_tokens > 100


def test_checkpoints_are_few_and_lie_apart() -> None:
    prefix = CachedPrefix()
    for token in range(1, 101):
        prefix.tokens.append(token)
        prefix.add_checkpoint([np.zeros(1)])
    ends = sorted(prefix.checkpoints)
    assert len(ends) == MAX_CHECKPOINTS and ends[-1] == 100
    assert ends[0] < 50
    assert prefix.states_before(99) == ends[-2]
    assert prefix.first(60).states_before(60) == 60
    prefix.truncate(99)
    assert max(prefix.checkpoints) == ends[-2]


@pytest.mark.parametrize(("allowed", "cached"), [(7, 0), (8, 24), (16, 24)])
def test_checkpoints_of_slots_are_limited(
    monkeypatch: pytest.MonkeyPatch, allowed: int, cached: int
) -> None:
    """A state has 8 bytes; the prompt has checkpoints at 8 and 24."""
    monkeypatch.setattr(slot_checkpoints, "MIN_CHECKPOINT_BYTES", allowed)
    engine = recurrent_engine()
    check(engine.submit([*SYSTEM, 30, 31]), 0)
    assert engine.core.counters().host_cache_bytes == allowed // 8 * 8
    check(engine.submit([*SYSTEM, 31, 32]), cached)
    check(engine.submit([*SYSTEM[:9], 7, 8]), 8 if allowed >= 16 else 0)
    assert engine.core.counters().host_cache_bytes <= allowed
    if not cached:
        assert len(calls(engine, "read_states")) == 1  # the size is known then


def test_checkpoints_displace_idle_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_checkpoints, "MIN_CHECKPOINT_BYTES", 0)
    engine = InlineEngine(SimulatedSteps(slots=1, is_recurrent=True), cache_ram=700)
    for first in range(1, 8):
        check(engine.submit([first, *SYSTEM[1:], 9]), 0)
        assert engine.core.counters().host_cache_bytes <= 700
    host = engine.core._scheduler.prefixes.host
    assert (len(host.entries), host.reserved_bytes) == (3, 2 * 8)
    check(engine.submit([6, *SYSTEM[1:], 10]), 24)


def test_the_time_to_store_states_is_a_part_of_the_pause() -> None:
    class SlowStates(SimulatedSteps):
        def read_states(self, slot: int) -> list[np.ndarray]:  # type: ignore[type-arg]
            self.clock.now_s += 0.3
            return list(super().read_states(slot))

    engine = InlineEngine(SlowStates(is_recurrent=True), max_pause_s=0.2)
    running = engine.submit([9] * 9, 20)
    next(running), next(running)
    begin = len(engine.steps.log)
    list(engine.submit([*SYSTEM, 9], 1))
    order = [entry[0] for entry in engine.steps.log[begin:]]
    at = order.index("read_states")
    assert order[at - 1 : at + 3] == ["prefill", "read_states", "decode", "prefill"]


def test_a_failure_to_restore_states_empties_the_slot() -> None:
    class Broken(SimulatedSteps):
        def write_states(self, *_: object) -> None:
            raise EngineError("[test] no memory")

    engine = InlineEngine(Broken(is_recurrent=True), reuse_decoded=True)
    assert len(list(engine.submit(SYSTEM, 12))) == 12
    engine.core.truncate(0, 30)
    assert engine.core.slots()[0].cached_tokens == 0
    stream = engine.submit([*SYSTEM, 3])
    assert len(list(stream)) == 6 and stream.cached_tokens == 0


def prefix_of(tokens: int, *ends: int) -> CachedPrefix:
    """Return a prefix with checkpoints of 8 bytes."""
    prefix = CachedPrefix()
    for token in range(tokens):
        prefix.tokens.append(token)
        if token + 1 in ends:
            prefix.add_checkpoint([np.zeros(1)])
    return prefix


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_longer_prefix_gets_the_checkpoints_of_its_part(order: tuple[int, int]) -> None:
    both = prefix_of(10, 5, 10), prefix_of(40, 20, 40)
    host = HostCache(1000)
    for each in order:
        host.add(both[each], lambda tokens: [np.zeros(tokens, np.uint8)])
    assert [sorted(entry.prefix.checkpoints) for entry in host.entries] == [[5, 10, 20, 40]]
    assert host.used_bytes == host.entries[0].nbytes == 40 + 4 * 8
    host.reserve(930)
    assert not host.entries and host.used_bytes == 0


def test_another_slot_gets_the_checkpoints_of_its_part() -> None:
    steps, slots = SimulatedSteps(slots=2, is_recurrent=True), [Slot(0), Slot(1)]
    cache = PrefixCache(steps, slots, 0, reuse_decoded=True)
    slots[0].prefix, slots[1].prefix = prefix_of(40, 20), prefix_of(10, 5)
    request = CompletionRequest((7,) * 9, 1)
    cache.assign(slots[1], RequestState(request, frozenset(), 0.0, lambda: None))
    assert sorted(slots[0].prefix.checkpoints) == [5, 20]
    assert not slots[1].prefix.tokens

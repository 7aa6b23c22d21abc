"""Prefixes of models with recurrent states are reused up to their end or a checkpoint, and answers
do not change by it.
"""

from __future__ import annotations

import random

import numpy as np
from inline_engine import InlineEngine
from lone_answers import lone_answer, rounded, streamed_answer
from simulated_steps import SimulatedSteps

from vksched.generation.batching.cached_prefix import MAX_CHECKPOINTS, CachedPrefix
from vksched.generation.batching.token_stream import TokenStream

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

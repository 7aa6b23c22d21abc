"""Answers with guesses are those without, to the bit; guesses that do not pay stop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_engine import InlineEngine
from lone_answers import Answer, lone_answer, streamed_answer
from simulated_steps import SimulatedSteps

import vksched as vs
from vksched.common.errors import OutOfMemory
from vksched.generation.completion import CompletionRequest
from vksched.generation.sampling import Sampling
from vksched.generation.speculation.acceptance import RETRY_TOKENS, Acceptance
from vksched.generation.speculation.ngram_lookup import NgramLookup

GREEDY = Sampling(temperature=0)


class Oracle:
    """A drafter that knows the answers; each guess is wrong with a probability."""

    def __init__(self, answers: Sequence[Sequence[int]], wrong: float = 0.0) -> None:
        self.answers, self.wrong = answers, wrong
        self.rng = np.random.default_rng(0)
        self.calls = 0
        self.is_closed = False

    def unread_chunk(self, slot: int, text: Sequence[int], cache_key: str) -> int:
        return 0

    def read_chunk(self, slot: int, text: Sequence[int]) -> None: ...

    def propose(
        self, slot: int, text: Sequence[int], prompt_tokens: int, sampling: Sampling, count: int
    ) -> list[int]:
        self.calls += 1
        known = [a for a in self.answers if list(a[: len(text)]) == list(text)]
        right = known[0][len(text) : len(text) + count] if known else []
        return [(t + 1) % 50 if self.rng.random() < self.wrong else t for t in right]

    def seconds(self, count: int) -> float:
        return 0.0

    def prepare(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


def simulated(**options: object) -> SimulatedSteps:
    return SimulatedSteps(verify_sizes=(2, 4, 8), **options)  # type: ignore[arg-type]


def wanted_of(requests: Sequence[CompletionRequest], **options: object) -> list[Answer]:
    return [lone_answer(simulated(**options), request) for request in requests]


def texts_of(requests: Sequence[CompletionRequest], answers: Sequence[Answer]) -> list[list[int]]:
    return [[*r.prompt, *a[0]] for r, a in zip(requests, answers, strict=True)]


def requests_of(count: int, tokens: int = 20) -> list[CompletionRequest]:
    return [
        CompletionRequest(
            tuple(range(i, i + 3 + 2 * i)),
            tokens + i,
            GREEDY if i % 2 else Sampling(seed=i, repeat_penalty=1.2, presence_penalty=0.5),
            logprobs=2,
            prompt_logprobs=1 if i == 2 else None,
        )
        for i in range(count)
    ]


@given(st.integers(1, 4), st.floats(0, 1), st.floats(0.001, 0.1), st.sets(st.integers(3, 40)))
@settings(max_examples=40, deadline=None)
def test_answers_are_those_without_guesses(
    count: int, wrong: float, verify_s: float, lost_at: set[int]
) -> None:
    requests = requests_of(count)
    wanted = wanted_of(requests)
    oracle = Oracle(texts_of(requests, wanted), wrong)
    engine = InlineEngine(simulated(verify_s=verify_s, length=64), drafters=[oracle])
    streams = [engine.stream(request) for request in requests]
    assert [streamed_answer(stream) for stream in streams] == wanted
    counters = engine.core.counters()
    assert 0 <= counters.accepted_tokens <= counters.draft_tokens
    assert counters.generated_tokens == sum(len(answer[0]) for answer in wanted)


def test_right_guesses_save_steps() -> None:
    requests = requests_of(1, 40)
    wanted = wanted_of(requests)
    engine = InlineEngine(simulated(), drafters=[Oracle(texts_of(requests, wanted))])
    assert streamed_answer(engine.stream(requests[0])) == wanted[0]
    counters = engine.core.counters()
    assert counters.accepted_tokens == counters.draft_tokens > 30
    assert counters.decode_steps < 10


def test_a_full_context_and_an_end_token_end_answers_as_without_guesses() -> None:
    requests = [CompletionRequest((1, 2, 3), 90, GREEDY)]
    wanted = wanted_of(requests)
    assert wanted[0][3] == "context"
    engine = InlineEngine(simulated(), drafters=[Oracle(texts_of(requests, wanted))])
    assert streamed_answer(engine.stream(requests[0])) == wanted[0]
    end = wanted[0][0][9]
    ended = CompletionRequest((1, 2, 3), 90, GREEDY, ends=frozenset((end,)))
    short = lone_answer(simulated(), ended)
    assert short[3] == "stop"
    oracle = Oracle(texts_of(requests, wanted))
    assert streamed_answer(InlineEngine(simulated(), drafters=[oracle]).stream(ended)) == short


@pytest.mark.parametrize("lost", range(1, 9))
def test_a_cache_that_is_lost_does_not_change_the_tokens(lost: int) -> None:
    (request,) = requests_of(1, 30)
    generated: list[int] = []

    def note(number: int) -> None:
        if number == lost:
            generated.append(stream._state.generated)

    oracle = Oracle(texts_of([request], wanted_of([request])), wrong=0.3)
    steps = simulated(lost_at=[lost], before_call=note)
    engine = InlineEngine(steps, drafters=[oracle])
    stream = engine.stream(request)
    found = streamed_answer(stream)
    assert found == lone_answer(simulated(), request, losses=generated)
    assert engine.core.counters().cache_losses == 1


def test_wrong_guesses_stop_and_are_tried_again() -> None:
    requests = [CompletionRequest((1, 2, 3), 400, GREEDY)]
    wanted = wanted_of(requests, length=512)
    oracle = Oracle(texts_of(requests, wanted), wrong=1.0)
    engine = InlineEngine(simulated(length=512, verify_s=0.025), drafters=[oracle])
    assert streamed_answer(engine.stream(requests[0])) == wanted[0]
    assert 2 <= oracle.calls <= 400 // RETRY_TOKENS * 6
    assert engine.core.counters().accepted_tokens == 0


def test_a_dear_verify_step_is_not_taken() -> None:
    requests = requests_of(1, 60)
    wanted = wanted_of(requests)
    oracle = Oracle(texts_of(requests, wanted))
    engine = InlineEngine(simulated(verify_s=1.0), drafters=[oracle])
    assert streamed_answer(engine.stream(requests[0])) == wanted[0]
    assert engine.core.counters().drafts <= 6, "two of each size show their time"


@pytest.mark.parametrize("error", [OutOfMemory("no memory"), RuntimeError("driver")])
def test_a_drafter_that_fails_is_closed_and_does_not_end_the_request(error: Exception) -> None:
    class Failing(Oracle):
        def propose(self, *about: object) -> list[int]:  # type: ignore[override]
            raise error

        def close(self) -> None:
            super().close()
            raise error

    requests = requests_of(2)
    failing = Failing([])
    engine = InlineEngine(simulated(), drafters=[failing])
    streams = [engine.stream(request) for request in requests]
    with pytest.warns(vs.VkschedWarning, match="a draft model failed and is not used again"):
        assert [streamed_answer(stream) for stream in streams] == wanted_of(requests)
    assert failing.is_closed


def test_guesses_beyond_the_vocabulary_are_not_verified() -> None:
    class Larger(Oracle):
        def propose(self, *about: object) -> list[int]:  # type: ignore[override]
            right = super().propose(*about)  # type: ignore[arg-type]
            return [*right[:3], 50, 51, 52, 53]

    (request,) = requests_of(1)
    wanted = wanted_of([request])
    engine = InlineEngine(simulated(), drafters=[Larger(texts_of([request], wanted))])
    assert streamed_answer(engine.stream(request)) == wanted[0]
    assert engine.core.counters().accepted_tokens > 9


def test_the_compilation_after_a_loss_is_not_measured() -> None:
    """The first verify step of each size compiles; with a new cache, again."""
    request = CompletionRequest((1, 2, 3), 60, Sampling(temperature=0, logit_bias={7: 100}))
    steps = simulated(verify_s=0.001)
    engine = InlineEngine(steps, drafters=[NgramLookup(4)])
    costs = engine.core._scheduler.costs
    verify, compiled = steps.verify, set[int]()

    def slow_at_first(slot: int, ids: Sequence[int], start: int) -> object:
        if len(ids) not in compiled:
            compiled.add(len(ids))
            steps.clock.now_s += 5.0
        return verify(slot, ids, start)

    steps.verify = slow_at_first  # type: ignore[method-assign, assignment]
    stream = engine.stream(request)
    while costs.seconds("verify", 8) is None:
        next(stream)
    compiled.clear()
    steps.lose()
    list(stream)
    assert compiled and max(costs.by_tokens("verify").values()) == pytest.approx(0.001)


def test_a_text_that_repeats_itself_is_guessed_by_lookup() -> None:
    """A bias makes the model repeat one token."""
    request = CompletionRequest((1, 2, 3), 40, Sampling(temperature=0, logit_bias={7: 100}))
    engine = InlineEngine(simulated(), drafters=[NgramLookup(4)])
    assert streamed_answer(engine.stream(request)) == lone_answer(simulated(), request)
    assert engine.core.counters().accepted_tokens > 25


def test_runners_without_verify_steps_get_no_guesses() -> None:
    oracle = Oracle([])
    engine = InlineEngine(SimulatedSteps(), drafters=[oracle])
    with pytest.warns(vs.VkschedWarning, match="no tokens are guessed") as caught:
        list(engine.submit([1, 2, 3]))
        list(engine.submit([1, 2, 3]))
        engine.core.prepare()
    assert oracle.calls == 0 and len(caught) == 1


def test_expected_tokens() -> None:
    acceptance = Acceptance()
    assert acceptance.rate == 0.5 and acceptance.expected_tokens(2) == 1.75
    for _ in range(50):
        acceptance.observe(3, 3)
    assert acceptance.rate > 0.98
    before = acceptance.rate
    acceptance.observe(3, 0)  # the other two were not tested
    assert acceptance.rate == pytest.approx(before * 152 / 153)
    assert Acceptance().best_count([1, 3], lambda n: 1.0, 0.6) == 3
    assert Acceptance().best_count([1, 3], lambda n: 1.0, 0.5) == 0

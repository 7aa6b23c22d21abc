"""Guesses of a small model: what it would write itself, read once."""

from __future__ import annotations

from inline_engine import InlineEngine
from lone_answers import lone_answer, streamed_answer
from simulated_steps import SimulatedSteps

from vksched.generation.completion import CompletionRequest
from vksched.generation.sampling import Sampling
from vksched.generation.speculation.draft_model import DraftModel

DRAWN = Sampling(seed=5)
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def draft_of(steps: SimulatedSteps, ends: frozenset[int] = frozenset()) -> DraftModel:
    return DraftModel(steps, ends, steps.clock)


def test_guesses_are_the_answer_of_the_draft_model() -> None:
    request = CompletionRequest(tuple(TEXT), 4, DRAWN)
    (wanted, *_) = lone_answer(SimulatedSteps(), request)
    draft = draft_of(SimulatedSteps())
    assert draft.propose(1, TEXT, len(TEXT), DRAWN, 4) == wanted
    end = frozenset((wanted[2],))
    assert draft_of(SimulatedSteps(), end).propose(0, TEXT, len(TEXT), DRAWN, 4) == wanted[:2]


def test_only_new_tokens_are_read() -> None:
    steps = SimulatedSteps()
    draft = draft_of(steps)
    first = draft.propose(2, TEXT, len(TEXT), DRAWN, 3)
    assert [entry[:1] for entry in steps.log] == [("prefill",)] * 2 + [("decode",)] * 2
    assert draft.seconds(3) == 0, "a prompt of more than 8 tokens was read"
    steps.log.clear()
    longer = [*TEXT, *first, 7]  # all guesses were right
    draft.propose(2, longer, len(TEXT), DRAWN, 2)
    assert steps.log == [("prefill", 2, len(longer) - 2, 2), ("decode", 2)]
    assert draft.seconds(2) > 0
    steps.log.clear()
    wrong = [*longer, 8, 9]  # the first guess was wrong
    draft.propose(2, wrong, len(TEXT), DRAWN, 1)
    assert steps.log == [("prefill", 2, len(longer), 2)]


def test_a_full_context_and_a_lost_cache_give_no_guesses() -> None:
    draft = draft_of(SimulatedSteps(length=12))
    assert len(draft.propose(0, TEXT, 3, DRAWN, 4)) == 1
    assert draft.propose(0, [*TEXT, 1], 3, DRAWN, 4) == []
    lost = SimulatedSteps(lost_at=[1])
    draft = draft_of(lost)
    assert draft.propose(0, TEXT, 3, DRAWN, 4) == []
    assert len(draft.propose(0, TEXT, 3, DRAWN, 4)) == 4


def test_answers_with_a_draft_model_are_those_without() -> None:
    requests = [CompletionRequest((i, 2, 3), 25, Sampling(seed=i), logprobs=1) for i in range(3)]
    wanted = [lone_answer(SimulatedSteps(), request) for request in requests]
    steps, small = SimulatedSteps(verify_sizes=(2, 4, 8)), SimulatedSteps()
    engine = InlineEngine(steps, drafters=[draft_of(small)])
    assert [streamed_answer(engine.stream(request)) for request in requests] == wanted
    assert engine.core.counters().drafts > 0
    engine.core.prepare()
    engine.core.close()
    assert small.is_prepared and small.is_closed and steps.is_closed

"""Guesses of a small model: what it would write itself, read once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from inline_engine import InlineEngine
from lone_answers import lone_answer, streamed_answer
from simulated_steps import SimulatedSteps

from vksched.generation.completion import CompletionRequest
from vksched.generation.sampling import Sampling
from vksched.generation.speculation.acceptance import Acceptance
from vksched.generation.speculation.draft_model import DraftModel

DRAWN = Sampling(seed=5)
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def draft_of(steps: SimulatedSteps, ends: frozenset[int] = frozenset()) -> DraftModel:
    return DraftModel(steps, ends, steps.clock)


def guesses(draft: DraftModel, slot: int, text: list[int], count: int, key: str = "") -> list[int]:
    """Return guesses after as many chunks as the text needs."""
    while unread := draft.unread_chunk(slot, text, key):
        before = draft._prefixes[slot].tokens[:]
        draft.read_chunk(slot, text)
        read = draft._prefixes[slot].tokens[:]
        assert read == [] or read == [*before, *text[len(before) : len(before) + unread]]
    return draft.propose(slot, text, len(TEXT), DRAWN, count)


def test_guesses_are_the_answer_of_the_draft_model() -> None:
    request = CompletionRequest(tuple(TEXT), 4, DRAWN)
    (wanted, *_) = lone_answer(SimulatedSteps(), request)
    draft = draft_of(SimulatedSteps())
    assert guesses(draft, 1, TEXT, 4) == wanted
    end = frozenset((wanted[2],))
    assert guesses(draft_of(SimulatedSteps(), end), 0, TEXT, 4) == wanted[:2]


def test_only_new_tokens_are_read() -> None:
    steps = SimulatedSteps()
    draft = draft_of(steps)
    first = guesses(draft, 2, TEXT, 3)
    assert [entry[:1] for entry in steps.log] == [("prefill",)] * 2 + [("decode",)] * 2
    assert draft.seconds(3) == pytest.approx(0.04 + 2 * 0.02), "without the first chunk"
    steps.log.clear()
    longer = [*TEXT, *first, 7]  # all guesses were right
    guesses(draft, 2, longer, 2)
    assert steps.log == [("prefill", 2, len(longer) - 2, 2), ("decode", 2)]
    steps.log.clear()
    wrong = [*longer, 8, 9]  # the first guess was wrong
    guesses(draft, 2, wrong, 1)
    assert steps.log == [("prefill", 2, len(longer), 2)]


def test_texts_of_other_keys_are_read_anew() -> None:
    """Else the time of an answer shows whether another client sent the same prompt."""
    steps = SimulatedSteps()
    draft = draft_of(steps)
    logs = []
    for key in ("alice", "bob", "bob"):
        steps.log.clear()
        guesses(draft, 0, TEXT, 1, key)
        logs.append([entry[2:] for entry in steps.log])
    assert logs == [[(0, 8), (8, 3)], [(0, 8), (8, 3)], [(10, 1)]]


def test_a_full_context_and_a_lost_cache_give_no_guesses() -> None:
    draft = draft_of(SimulatedSteps(length=12))
    assert len(guesses(draft, 0, TEXT, 4)) == 1
    assert guesses(draft, 0, [*TEXT, 1], 4) == []
    wanted = guesses(draft_of(SimulatedSteps()), 0, TEXT, 4)
    for at, found in ((0, wanted), (1, []), (2, [])):
        draft = draft_of(SimulatedSteps(lost_at=[at]))
        assert guesses(draft, 0, TEXT, 4) == found
        assert len(guesses(draft, 0, TEXT, 4)) == 4
    steps = SimulatedSteps()
    draft = draft_of(steps)
    assert guesses(draft, 0, TEXT, 4) == wanted
    steps.lose()  # as by a compilation on a full device
    assert guesses(draft, 0, TEXT, 4) == wanted


def test_tokens_that_only_the_large_model_has_give_no_guesses() -> None:
    draft = draft_of(SimulatedSteps(vocabulary=20))
    assert guesses(draft, 0, [*TEXT, 20], 4) == []
    assert guesses(draft, 0, [20, *TEXT], 4) == []
    assert len(guesses(draft, 0, TEXT, 4)) == 4
    biased = Sampling(logit_bias={20: 5.0})
    assert draft.unread_chunk(0, TEXT, "") == 0
    assert draft.propose(0, TEXT, len(TEXT), biased, 4) == []


def test_other_answers_wait_for_one_chunk_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft model that reads long texts does so in chunks, between the steps of all answers."""
    monkeypatch.setattr(Acceptance, "best_count", lambda self, counts, *about: max(counts))
    steps, small = SimulatedSteps(length=256, verify_sizes=(2, 4, 8)), SimulatedSteps(length=256)
    draft, reads = DraftModel(small, frozenset(), steps.clock), []
    read = draft.read_chunk

    def slow(slot: int, text: Sequence[int]) -> None:
        steps.clock.now_s += 0.06
        reads.append(slot)
        read(slot, text)

    draft.read_chunk = slow  # type: ignore[method-assign]
    engine = InlineEngine(steps, drafters=[draft])
    prompts = [[1, 2, 3], *([i % 50 for i in range(n)] for n in (100, 130))]
    streams = [engine.submit(prompt, 80) for prompt in prompts]
    for stream in streams:
        next(stream)
    counts, drafts = [], []
    while engine.core.step():
        counts.append(len(reads))
        drafts.append(engine.core.counters().drafts)
        reads.clear()
    assert sum(counts) >= (100 + 130) // 8 and max(counts) == 1
    assert drafts[-1] > drafts[counts.index(1)]
    for stream, prompt in zip(streams, prompts, strict=True):
        wanted = lone_answer(SimulatedSteps(length=256), CompletionRequest(tuple(prompt), 80))[0]
        assert [output.token for output in stream] == wanted[1:]


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

"""Constraints: masks are computed in a thread, and a slow or broken one harms only its request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from inline_engine import InlineEngine
from monitored import wait_until
from simulated_steps import SimulatedSteps

import vksched as vs
from vksched.common.errors import SamplingError
from vksched.generation.batching import batch_steps
from vksched.generation.batching.batching_engine import BatchingEngine
from vksched.generation.batching.next_token import MASK_WAIT_S
from vksched.generation.completion import CompletionRequest
from vksched.generation.sampling import Sampling

VOCABULARY = 50


class Alternation:
    """Even and odd tokens alternate, `count` of them."""

    def __init__(self, count: int = 99, size: int = VOCABULARY) -> None:
        self.tokens: list[int] = []
        self.count, self.size = count, size
        self.threads: set[int] = set()

    @property
    def is_finished(self) -> bool:
        return len(self.tokens) >= self.count

    def accept(self, token: int) -> None:
        self.tokens.append(token)

    def mask(self) -> Any:
        self.threads.add(threading.get_ident())
        return np.arange(self.size) % 2 == len(self.tokens) % 2


@pytest.mark.parametrize("sampling", (Sampling(temperature=0), Sampling(seed=5)))
def test_an_answer_follows_its_constraint(sampling: Sampling) -> None:
    engine, constraint = InlineEngine(), Alternation()
    streams = [
        engine.submit([1, 2, 3], 9, sampling=sampling, constraint=constraint, logprobs=2),
        engine.submit([1, 2, 3], 9, sampling=sampling, logprobs=2),
    ]
    tokens, free = ([output.token for output in stream] for stream in streams)
    assert [token % 2 for token in tokens] == [0, 1] * 4 + [0]
    assert tokens != free
    assert threading.get_ident() not in constraint.threads
    assert len(constraint.threads) == 1


def test_log_probabilities_are_those_without_the_constraint() -> None:
    constrained = next(InlineEngine().submit([1, 2, 3], logprobs=50, constraint=Alternation()))
    free = next(InlineEngine().submit([1, 2, 3], logprobs=50))
    assert constrained.logprobs is not None
    assert free.logprobs is not None
    assert constrained.logprobs.top == free.logprobs.top


def test_a_finished_constraint_ends_the_answer() -> None:
    constraint = Alternation(count=3)
    stream = InlineEngine().submit([1], 20, constraint=constraint)
    assert [output.token for output in stream] == constraint.tokens
    assert len(constraint.tokens) == 3
    assert stream.finish_reason == "stop"


def test_an_end_token_ends_the_answer() -> None:
    stream = InlineEngine(ends=frozenset(range(1, 50, 2))).submit([1], 20, constraint=Alternation())
    assert len(list(stream)) == 1
    assert stream.finish_reason == "stop"


@pytest.mark.parametrize("size", (40, 60))
def test_masks_of_another_size(size: int) -> None:
    """A model may have more logits than its tokenizer has tokens, or fewer."""
    stream = InlineEngine().submit([1], 20, constraint=Alternation(size=size))
    tokens = [output.token for output in stream]
    assert len(tokens) == 20
    assert max(tokens) < min(size, 50)


def test_an_empty_mask() -> None:
    class Impossible(Alternation):
        def mask(self) -> Any:
            return np.zeros(VOCABULARY, np.bool_)

    engine = InlineEngine()
    good, bad = engine.submit([1], 5), engine.submit([1], 5, constraint=Impossible())
    with pytest.raises(SamplingError, match="a constraint that allows a token, got an empty mask"):
        next(bad)
    assert len(list(good)) == 5


@pytest.mark.parametrize("method", ("mask", "accept"))
def test_an_error_ends_its_request_only(method: str) -> None:
    class Broken(Alternation):
        pass

    def fail(*_: object) -> None:
        raise ValueError("no such state")

    setattr(Broken, method, fail)
    engine = InlineEngine()
    good, bad = engine.submit([1], 5), engine.submit([1], 5, constraint=Broken())
    with pytest.raises(ValueError, match="no such state"):
        list(bad)
    assert bad.finish_reason == "closed"
    assert len(list(good)) == 5
    assert len(list(engine.submit([1], 5))) == 5


class Blocked(Alternation):
    """Masks wait until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def mask(self) -> Any:
        self.released.wait()
        return super().mask()


@contextmanager
def blocked() -> Iterator[Blocked]:
    constraint = Blocked()
    try:
        yield constraint
    finally:
        constraint.released.set()  # else its thread never ends


def test_others_go_on_while_a_mask_is_late() -> None:
    engine = InlineEngine()
    with blocked() as constraint:
        late = engine.submit([1, 2], 4, constraint=constraint)
        other = engine.submit([1], 9)
        assert len(list(other)) == 9
        assert late._state.events.empty()
        constraint.released.set()
        assert [output.token % 2 for output in late] == [0, 1, 0, 1]


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_steps, "MASK_POLL_S", 60.0)


@pytest.mark.usefixtures("no_poll")
def test_the_first_mask_ends_the_wait() -> None:
    """All requests wait for masks, and only one of the masks comes."""

    class Late(Alternation):
        def mask(self) -> Any:
            time.sleep(2 * MASK_WAIT_S)
            return super().mask()

    engine = BatchingEngine(SimulatedSteps())
    with blocked() as constraint:
        blocked_stream = engine.submit(CompletionRequest((1, 2), 4, constraint=constraint))
        began_s = time.monotonic()
        late = engine.submit(CompletionRequest((1, 2), 4, constraint=Late()))
        assert len(list(late)) == 4
        assert time.monotonic() - began_s < 30  # a poll takes 60 s
        blocked_stream.close()
    engine.close()


@pytest.mark.usefixtures("no_poll")
@pytest.mark.parametrize("event", ("submit", "close", "call"))
def test_requests_closes_and_calls_end_the_wait_for_a_mask(event: str) -> None:
    engine = BatchingEngine(SimulatedSteps(slots=2))
    with blocked() as constraint:
        late = engine.submit(CompletionRequest((1, 2), 4, constraint=constraint))
        wait_until(lambda: engine.counters().prompt_tokens == 2)
        time.sleep(0.05)  # the engine waits for the mask
        began_s = time.monotonic()
        if event == "submit":
            assert len(list(engine.submit(CompletionRequest((1,), 3)))) == 3
        elif event == "close":
            late.close()
            wait_until(lambda: engine.counters().running == 0)
        else:
            assert engine.call(lambda: 5) == 5
        assert time.monotonic() - began_s < 15  # a poll takes 60 s
    engine.close()


def test_a_late_mask_does_not_change_the_answer() -> None:
    answers = []
    for blocks in (False, True):
        engine = InlineEngine()
        with blocked() as constraint:
            if not blocks:
                constraint.released.set()
            stream = engine.submit([1, 2], 4, constraint=constraint, logprobs=1)
            other = engine.submit([1], 9)
            assert len(list(other)) == 9
            constraint.released.set()
            answers.append(list(stream))
    assert answers[0] == answers[1]


def test_a_mask_that_takes_too_long() -> None:
    engine = InlineEngine(mask_timeout_s=0.15)
    with blocked() as constraint:
        late, other = engine.submit([1, 2], 4, constraint=constraint), engine.submit([1], 20)
        assert len(list(other)) == 20
        with pytest.raises(vs.VkschedError, match=r"a token mask within 0.15 s, got none; try"):
            next(late)
    assert len(list(engine.submit([1, 2], 3))) == 3


def test_a_request_that_waits_for_its_mask_can_be_closed() -> None:
    engine = InlineEngine(SimulatedSteps(slots=1))
    with blocked() as constraint:
        late, other = engine.submit([1, 2], 4, constraint=constraint), engine.submit([1], 3)
        for _ in range(3):
            engine.core.step()
        late.close()
        assert len(list(other)) == 3


def test_threads_end_with_their_requests() -> None:
    def threads() -> list[threading.Thread]:
        everything = threading.enumerate()
        return [t for t in everything if t.name == "vksched-constraint" and t not in before]

    before, engine = threading.enumerate(), InlineEngine()
    streams = [engine.submit([1], 3, constraint=Alternation()) for _ in range(3)]
    engine.core.step()
    assert len(threads()) == 3
    mine = threads()
    streams.pop().close()
    assert [len(list(stream)) for stream in streams] == [3, 3]
    for thread in mine:
        thread.join(10)
        assert not thread.is_alive()

"""After a lost device, running answers go on with the same tokens."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from inline_engine import InlineEngine
from lone_answers import lone_answer, rounded, streamed_answer
from simulated_steps import SimulatedSteps

from vksched.common.errors import StateLost
from vksched.generation.completion import CompletionRequest

PROMPT = tuple(range(20))


def test_a_loss_while_the_prompt_is_read() -> None:
    """The prompt is read again in the same chunks, so the answer has the same bits."""
    for at in range(3):
        engine = InlineEngine(SimulatedSteps(lost_at=[at]))
        request = CompletionRequest(PROMPT, 5, logprobs=1, prompt_logprobs=1)
        found = streamed_answer(engine.stream(request))
        assert found == streamed_answer(InlineEngine().stream(request))
        assert engine.core.counters().cache_losses == 1


def test_tokens_before_the_loss_stay() -> None:
    request = CompletionRequest(PROMPT, 12, logprobs=1, prompt_logprobs=1)
    engine = InlineEngine(SimulatedSteps(lost_at=[8]))
    found = streamed_answer(engine.stream(request))
    assert rounded(found) == rounded(lone_answer(SimulatedSteps(), request, losses=[6]))
    assert found[0][:6] == streamed_answer(InlineEngine().stream(request))[0][:6]
    assert engine.core.counters().cache_losses == 1


def test_all_running_answers_go_on() -> None:
    engine = InlineEngine(SimulatedSteps(slots=3, lost_at=[9, 12, 20]))
    streams = [engine.submit([i, *PROMPT], 9) for i in range(5)]
    assert [len(list(stream)) for stream in streams] == [9] * 5
    assert engine.core.counters().cache_losses == 3


def test_requests_with_one_prompt_read_it_once() -> None:
    engine = InlineEngine(SimulatedSteps(slots=2, lost_at=[8]))
    streams = [engine.submit([*PROMPT, i], 9) for i in range(2)]
    engine.run()
    after = [entry for entry in engine.steps.log[9:] if entry[0] in ("prefill", "copy_rows")]
    assert ("copy_rows", 0, 1, 16) in after
    assert [len(list(stream)) for stream in streams] == [9, 9]
    assert streams[0].cached_tokens == 0


def test_prefixes_are_forgotten() -> None:
    engine = InlineEngine(SimulatedSteps(slots=1), cache_ram=10**6)
    for i in (1, 2):
        assert len(list(engine.submit([i] * 9, 1))) == 1
    engine.steps.lost_at.add(engine.steps._calls)
    stream = engine.submit([3] * 9, 1)
    assert len(list(stream)) == 1
    assert engine.core.counters().host_cache_bytes == 0
    assert streamed_answer(engine.submit([1] * 9, 3))[0] == [
        output.token for output in InlineEngine().submit([1] * 9, 3)
    ]


class Graph:
    """A graph of the lost device, in a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_freed_graphs_are_collected_before_others_are_compiled() -> None:
    steps = SimulatedSteps(lost_at=[4])
    engine = InlineEngine(steps)
    gc.disable()
    try:
        graph = weakref.ref(Graph())
        assert graph() is not None
        assert len(list(engine.submit(PROMPT, 5))) == 5
        assert engine.core.counters().cache_losses == 1 and graph() is None
    finally:
        gc.enable()


def test_losses_without_progress_end_the_requests() -> None:
    engine = InlineEngine(SimulatedSteps(lost_at=range(9)))
    streams = [engine.submit([i + 1], 5) for i in range(2)]
    for stream in streams:
        with pytest.raises(StateLost, match="the cache was lost"):
            next(stream)
    assert len(list(engine.submit([1], 5))) == 5


def test_a_loss_while_a_mask_is_computed() -> None:
    class Late:
        """Its mask is there after the loss."""

        is_finished = False

        def accept(self, token: int) -> None:
            self.is_finished = True

        def mask(self):  # type: ignore[no-untyped-def]
            return np.arange(50) == 7

    engine = InlineEngine(SimulatedSteps(slots=2, lost_at=[2]))
    other = engine.submit([1], 5)
    stream = engine.submit(PROMPT[:9], 5, constraint=Late())
    assert [output.token for output in stream] == [7]
    assert stream.finish_reason == "stop"
    assert len(list(other)) == 5


def test_a_loss_between_two_steps_is_seen() -> None:
    """As by a compilation on a device that is full."""
    engine = InlineEngine(SimulatedSteps(slots=2), cache_ram=10**6)
    request = CompletionRequest(PROMPT, 12, logprobs=1)
    assert len(streamed_answer(engine.stream(request))[0]) == 12
    engine.steps.lose()
    again = engine.stream(request)
    assert streamed_answer(again) == lone_answer(SimulatedSteps(), request)
    assert again.cached_tokens == 0 and engine.core.counters().cache_losses == 1
    stream = engine.stream(request)
    head = [next(stream).token for _ in range(4)]
    engine.steps.lose()
    wanted = lone_answer(SimulatedSteps(), request, losses=[4])[0]
    assert [*head, *(output.token for output in stream)] == wanted
    assert engine.core.counters().cache_losses == 2


def test_an_interrupt_does_not_hide_a_loss() -> None:
    engine = InlineEngine(SimulatedSteps(slots=1), reuse_decoded=True)
    request = CompletionRequest(PROMPT, 5)
    wanted = streamed_answer(engine.stream(request))

    def lose_and_interrupt(number: int) -> None:
        engine.steps.before_call = None
        engine.steps.lose()
        raise KeyboardInterrupt

    engine.steps.before_call = lose_and_interrupt
    with pytest.raises(KeyboardInterrupt):
        list(engine.submit([*PROMPT, 7], 5))
    engine.core.end_requests("closed")
    assert streamed_answer(engine.stream(request)) == wanted

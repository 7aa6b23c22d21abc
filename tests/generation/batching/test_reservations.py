"""Reserved places of an engine's queue: no other request takes them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
from simulated_steps import SimulatedSteps

from vksched.common.errors import QueueFull, VkschedError
from vksched.generation.batching.batching_engine import BatchingEngine
from vksched.generation.completion import CompletionRequest


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    """An engine with a busy slot, and three places in its queue, whose steps wait."""
    begun, may = threading.Event(), threading.Event()

    def wait(number: int) -> None:
        begun.set()
        assert may.wait(30)

    opened = BatchingEngine(SimulatedSteps(1, before_call=wait), max_queue=3)
    running = opened.submit(request(9))
    assert begun.wait(30)
    yield opened
    running.close()
    may.set()
    opened.close()


def request(*prompt: int) -> CompletionRequest:
    return CompletionRequest(prompt, 2)


def test_a_reserved_place_is_that_of_its_request(engine: BatchingEngine) -> None:
    first, second = engine.reserve(2), engine.reserve(1)
    assert engine.room == 0
    for refused in (lambda: engine.submit(request(9)), lambda: engine.reserve(1)):
        with pytest.raises(QueueFull, match="at most 3 waiting requests"):
            refused()
    streams = [engine.submit(request(1), first), engine.submit(request(2), second)]
    assert (first.count, second.count, engine.room) == (1, 0, 0)
    with pytest.raises(QueueFull):
        engine.submit(request(3), second)
    streams.append(engine.submit(request(3), first))
    assert len(streams) == 3


def test_places_that_nobody_needs_are_free(engine: BatchingEngine) -> None:
    first = engine.reserve(3)
    first.release()
    dropped = engine.reserve(2)
    assert engine.room == 1
    del dropped
    gc.collect()
    assert engine.room == 3
    wrong = engine.reserve(1)
    with pytest.raises(VkschedError):
        engine.submit(request(), wrong)
    assert wrong.count == 1, "the request was not queued"
    streams = [engine.submit(request(at), first) for at in range(2)]
    assert len(streams) == 2 and engine.room == 0

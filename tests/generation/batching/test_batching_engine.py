"""The thread of an engine: submission from many threads, cancellation, and its end."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from lone_answers import lone_answer, rounded, streamed_answer
from simulated_steps import SimulatedSteps

import vksched as vs
from vksched.common.errors import NotPicklable
from vksched.generation.batching.batching_engine import BatchingEngine
from vksched.generation.completion import CompletionRequest, InferenceEngine
from vksched.generation.sampling import Sampling


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    engine = BatchingEngine(SimulatedSteps())
    yield engine
    engine.close()


class Gate:
    """Stops the steps of an engine."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_reached = threading.Event()

    def __call__(self, number: int) -> None:
        self.is_reached.set()
        assert self.is_open.wait(60)


def request(*prompt: int, n: int = 6, **fields: object) -> CompletionRequest:
    return CompletionRequest(prompt, n, **fields)  # type: ignore[arg-type]


def test_it_is_an_inference_engine(engine: BatchingEngine) -> None:
    interface: InferenceEngine = engine
    assert interface.length == 64
    assert len(list(interface.submit(request(1, 2)))) == 6


@pytest.mark.parametrize("clients", (1, 2, 4, 8))
def test_many_clients_get_the_answers_they_get_alone(clients: int) -> None:
    requests = [
        request(*range(i % 3, 20 + i), n=7, sampling=Sampling(seed=i), logprobs=2)
        for i in range(3 * clients)
    ]
    engine = BatchingEngine(SimulatedSteps(slots=3), cache_ram=10**5)
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(lambda r: streamed_answer(engine.submit(r)), requests))
    engine.close()
    for each, answer in zip(requests, found, strict=True):
        assert rounded(answer) == rounded(lone_answer(SimulatedSteps(), each))


def test_closing_wakes_the_reader() -> None:
    gate = Gate()
    engine = BatchingEngine(SimulatedSteps(before_call=gate))
    stream = engine.submit(request(1))
    assert gate.is_reached.wait(60)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(list, stream)
        stream.close()
        assert read.result(60) == []
    assert stream.finish_reason == "closed"
    gate.is_open.set()
    engine.close()


def test_a_full_queue() -> None:
    gate = Gate()
    engine = BatchingEngine(SimulatedSteps(slots=1, before_call=gate), max_queue=1)
    first = engine.submit(request(1))
    assert gate.is_reached.wait(60)
    second = engine.submit(request(1))
    with pytest.raises(vs.QueueFull):
        engine.submit(request(1))
    gate.is_open.set()
    assert len(list(first)) == len(list(second)) == 6
    engine.close()


def test_closing_the_engine_ends_all_streams() -> None:
    gate, steps = Gate(), SimulatedSteps(slots=1)
    steps.before_call = gate
    engine = BatchingEngine(steps)
    streams = [engine.submit(request(1)) for _ in range(3)]
    assert gate.is_reached.wait(60)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(engine.close)
        gate.is_open.set()
        closing.result(60)
    for stream in streams:
        assert len(list(stream)) <= 6
        assert stream.finish_reason in ("closed", "length")
    assert streams[-1].finish_reason == "closed"
    assert steps.is_closed
    for use in (lambda: engine.submit(request(1)), engine.prepare):
        with pytest.raises(vs.VkschedError, match="expected an open engine, got a closed one"):
            use()
    engine.close()


def test_an_error_of_closing_reaches_its_caller() -> None:
    def fail(number: int) -> None:
        raise vs.DeviceError("the scheduler is closed")

    engine = BatchingEngine(SimulatedSteps(before_call=fail))
    with pytest.raises(vs.DeviceError, match="the scheduler is closed"):
        engine.close()
    engine.close()


def test_dropping_the_engine_closes_it() -> None:
    steps = SimulatedSteps()
    engine = BatchingEngine(steps)
    stream = engine.submit(request(1))
    alive = weakref.ref(engine)
    del engine
    gc.collect()
    assert len(list(stream)) == 6  # a stream holds its engine
    del stream
    gc.collect()
    assert alive() is None
    assert steps.is_closed


def test_calls_run_in_the_thread_of_the_engine(engine: BatchingEngine) -> None:
    thread = engine.call(threading.get_ident)
    assert thread != threading.get_ident()
    assert engine.call(threading.get_ident) == thread
    with pytest.raises(ZeroDivisionError):
        engine.call(lambda: 1 // 0)
    assert len(list(engine.submit(request(1)))) == 6


def test_prepare_compiles_all_steps() -> None:
    steps = SimulatedSteps()
    engine = BatchingEngine(steps)
    engine.prepare()
    assert steps.is_prepared
    engine.close()


def test_counters_and_slots(engine: BatchingEngine) -> None:
    assert len(list(engine.submit(request(1)))) == 6
    assert engine.counters().generated_tokens == 6
    assert engine.counters().cache_losses == 0
    assert len(engine.slots()) == 4


def test_an_error_in_a_step_leaves_the_engine_usable() -> None:
    def fail(number: int) -> None:
        if number == 3:
            raise RuntimeError("broken")

    engine = BatchingEngine(SimulatedSteps(before_call=fail))
    with pytest.raises(vs.VkschedError, match="broken"):
        list(engine.submit(request(1)))
    assert len(list(engine.submit(request(1)))) == 6
    engine.close()


def test_it_is_not_picklable(engine: BatchingEngine) -> None:
    with pytest.raises(NotPicklable, match="create an engine in each process"):
        pickle.dumps(engine)

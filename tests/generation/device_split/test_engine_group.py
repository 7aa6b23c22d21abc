"""Several engines behind one interface: routing, counters, and lost devices."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator, Sequence

import pytest
from lone_answers import lone_answer, rounded, streamed_answer
from simulated_steps import SimulatedSteps

from vksched.common.errors import QueueFull, StateLost
from vksched.generation.batching.batching_engine import BatchingEngine
from vksched.generation.batching.engine_load import EngineSpeeds
from vksched.generation.completion import CompletionRequest, InferenceEngine
from vksched.generation.device_split.engine_group import EngineGroup, GroupMember

PROMPT = tuple(range(20))
FAST, SLOW = EngineSpeeds(0.001, {1: 0.01}), EngineSpeeds(0.004, {1: 0.04})


class Card:
    """The own device of an engine."""

    def __init__(self) -> None:
        self.is_working = True
        self.uses_all = False
        self.is_closing = False

    def fail(self) -> None:
        """Raise the error of a lost card, except when the engine is closed."""
        self.is_working = False
        if not (self.is_closing or self.uses_all):
            raise StateLost("[simulated] the card was lost")

    def use_all(self) -> None:
        self.uses_all = True


class Gate:
    """Stops the steps of an engine."""

    def __init__(self) -> None:
        self.is_open = threading.Event()

    def __call__(self, number: int) -> None:
        assert self.is_open.wait(60)


def request(*prompt: int, n: int = 6, **fields: object) -> CompletionRequest:
    return CompletionRequest(prompt, n, **fields)  # type: ignore[arg-type]


def group_of(
    steps: Sequence[SimulatedSteps], *speeds: EngineSpeeds, queue: int = 64
) -> EngineGroup:
    engines = [BatchingEngine(each, max_queue=queue) for each in steps]
    return EngineGroup(
        [GroupMember(e, s, Card()) for e, s in zip(engines, speeds or [FAST] * 9, strict=False)]
    )


def closed(group: EngineGroup) -> None:
    for index in range(len(group.members)):
        card(group, index).is_closing = True
    group.close()


def card(group: EngineGroup, index: int) -> Card:
    found = group.members[index].subset
    assert isinstance(found, Card)
    return found


@pytest.fixture
def gates() -> list[Gate]:
    return [Gate(), Gate()]


@pytest.fixture
def gated(gates: list[Gate]) -> Iterator[EngineGroup]:
    """Two engines whose steps wait for gates."""
    group = group_of([SimulatedSteps(slots=2, before_call=gate) for gate in gates], queue=1)
    yield group
    for gate in gates:
        gate.is_open.set()
    group.close()


def assigned(group: EngineGroup) -> list[int]:
    """Return the number of requests of each engine."""
    counters = [member.engine.counters() for member in group.members]
    return [each.running + each.waiting for each in counters]


def test_it_is_an_inference_engine() -> None:
    interface: InferenceEngine = group_of([SimulatedSteps(), SimulatedSteps()])
    assert interface.length == 64
    streams = [interface.submit(request(i, 2)) for i in range(8)]
    for i, stream in enumerate(streams):
        assert streamed_answer(stream) == lone_answer(SimulatedSteps(), request(i, 2))
    interface.close()


def test_requests_are_divided_among_equal_engines(gated: EngineGroup) -> None:
    streams = [gated.submit(request(i, n=50)) for i in range(4)]
    assert assigned(gated) == [2, 2]
    assert len(streams) == 4


def test_requests_go_to_the_faster_engine_until_it_is_busy(gates: list[Gate]) -> None:
    steps = [SimulatedSteps(slots=2, before_call=gate) for gate in gates]
    group = group_of(steps, SLOW, FAST)
    streams = [group.submit(request(i, n=50)) for i in range(12)]
    slow, fast = assigned(group)
    assert fast > 2 * slow > 0
    for gate in gates:
        gate.is_open.set()
    assert [len(list(stream)) for stream in streams] == [50] * 12
    group.close()


def test_a_request_goes_where_its_prefix_is() -> None:
    group = group_of([SimulatedSteps(), SimulatedSteps()], SLOW, SLOW)
    second = group.members[1].engine
    assert len(list(second.submit(request(*PROMPT, n=1)))) == 1
    stream = group.submit(request(*PROMPT, 7))
    assert len(list(stream)) == 6
    assert stream.cached_tokens == 16
    assert group.members[0].engine.counters().prompt_tokens == 0
    group.close()


def test_full_queues(gated: EngineGroup) -> None:
    """Two engines of two slots, with one place in each queue."""
    assert gated.room == 6
    streams = [gated.submit(request(i)) for i in range(6)]
    assert gated.room == 0
    with pytest.raises(QueueFull) as full:
        gated.submit(request(9))
    assert full.value.retry_after_s >= 1
    assert len(streams) == 6


def test_reserved_places_of_full_queues(gated: EngineGroup) -> None:
    """A request takes its place at any engine, and beyond its queue if that is full."""
    reserved = gated.reserve(2)
    streams = [gated.submit(request(i)) for i in range(4)]
    for refused in (lambda: gated.submit(request(9)), lambda: gated.reserve(1)):
        with pytest.raises(QueueFull):
            refused()
    streams.append(gated.submit(request(4), reserved))
    assert reserved.count == 1
    for member in gated.members:
        with contextlib.suppress(QueueFull):
            streams.append(member.engine.submit(request(7)))
    streams.append(gated.submit(request(5), reserved))
    assert reserved.count == 0
    with pytest.raises(QueueFull):
        gated.submit(request(6), reserved)


def test_counters_and_slots(gates: list[Gate]) -> None:
    steps = [SimulatedSteps(slots=n) for n in (1, 3)]
    group = group_of(steps)
    streams = [group.submit(request(i, 2, n=5)) for i in range(7)]
    assert [len(list(stream)) for stream in streams] == [5] * 7
    counters = group.counters()
    assert counters.finished == {"length": 7}
    assert (counters.prompt_tokens, counters.generated_tokens) == (14, 35)
    assert counters.running == counters.waiting == counters.kv_cache_usage == 0
    assert [status.index for status in group.slots()] == [0, 1, 2, 3]
    assert [status.engine for status in group.slots()] == [0, 1, 1, 1]
    group.prepare()
    assert all(each.is_prepared for each in steps)
    group.close()
    assert all(each.is_closed for each in steps)


@pytest.mark.parametrize("at", (1, 4, 7))
def test_a_lost_card(at: int) -> None:
    """Its requests continue at the other engine, with the tokens that they have."""

    def lose(number: int) -> None:
        if number >= at:
            card(group, 0).fail()

    steps = [SimulatedSteps(before_call=lose), SimulatedSteps()]
    group = group_of(steps)
    requests = [request(i, *PROMPT, n=9, logprobs=1, prompt_logprobs=0) for i in range(6)]
    found = [streamed_answer(stream) for stream in [group.submit(each) for each in requests]]
    for each, answer in zip(requests, found, strict=True):
        fresh = lone_answer(SimulatedSteps(), each)
        ways = [rounded(lone_answer(SimulatedSteps(), each, losses=[n])) for n in range(1, 9)]
        assert rounded(answer) in (rounded(fresh), *ways)
    counters = group.counters()
    assert counters.finished == {"length": 6} and counters.cache_losses == 1
    assert group.members[0].engine.counters().finished == {}
    stream = group.submit(request(1, 2))
    assert len(list(stream)) == 6
    assert group.members[0].engine.counters().cache_losses == 1
    assert not card(group, 0).uses_all
    closed(group)


def test_cancelled_requests_of_a_lost_card(gates: list[Gate]) -> None:
    def lose(number: int) -> None:
        gates[0](number)
        card(group, 0).fail()

    group = group_of([SimulatedSteps(before_call=lose), SimulatedSteps(before_call=gates[1])])
    streams = [group.submit(request(i, n=9)) for i in range(4)]
    streams[0].close()
    for gate in gates:
        gate.is_open.set()
    assert [len(list(stream)) for stream in streams] == [0, 9, 9, 9]
    closed(group)


def test_all_cards_are_lost() -> None:
    """The last engine continues on other devices."""

    def lose(index: int, number: int) -> None:
        if number >= 3:
            card(group, index).fail()

    steps = [SimulatedSteps(before_call=lambda n, i=i: lose(i, n)) for i in range(2)]  # type: ignore[misc]
    group = group_of(steps)
    streams = [group.submit(request(i, *PROMPT, n=9)) for i in range(6)]
    assert [len(list(stream)) for stream in streams] == [9] * 6
    assert any(card(group, index).uses_all for index in range(2))
    assert len(list(group.submit(request(1)))) == 6
    closed(group)


def test_a_loss_without_a_failed_device_stays_on_the_engine() -> None:
    """As an overflow of float16 does."""
    group = group_of([SimulatedSteps(lost_at=[3]), SimulatedSteps(lost_at=[3])])
    streams = [group.submit(request(i, *PROMPT, n=9)) for i in range(6)]
    assert [len(list(stream)) for stream in streams] == [9] * 6
    each = [member.engine.counters() for member in group.members]
    assert [counters.finished for counters in each] == [{"length": 3}] * 2
    closed(group)


def test_streams_hold_the_group() -> None:
    steps = [SimulatedSteps(), SimulatedSteps()]
    group = group_of(steps)
    alive = weakref.ref(group)
    stream = group.submit(request(1, n=9))
    del group
    gc.collect()
    assert alive() is not None
    assert len(list(stream)) == 9
    del stream
    gc.collect()
    assert alive() is None
    assert all(each.is_closed for each in steps)

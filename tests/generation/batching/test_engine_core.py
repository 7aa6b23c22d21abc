"""The order of an engine's steps, the ends of its requests, and its counters."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from inline_engine import InlineEngine
from lone_answers import lone_answer, rounded, streamed_answer
from simulated_steps import SimulatedSteps

import vksched as vs
from vksched.common.errors import EngineError, OutOfMemory, SamplingError
from vksched.generation.batching import next_token
from vksched.generation.completion import CompletionRequest, TokenLogprobs
from vksched.generation.logprobs import token_logprobs
from vksched.generation.sampling import Sampling

GREEDY = Sampling(temperature=0)


def names(engine: InlineEngine) -> list[str]:
    return [str(entry[0]) for entry in engine.steps.log]


@pytest.mark.parametrize("prompt", (1, 2, 7, 8, 9, 30, 63, 64))
@pytest.mark.parametrize("max_tokens", (0, 1, 5, 100))
def test_an_answer_equals_a_plain_loop(prompt: int, max_tokens: int) -> None:
    ids = tuple(i % 50 for i in range(3, prompt + 3))
    request = CompletionRequest(ids, max_tokens, logprobs=3, prompt_logprobs=2)
    found = streamed_answer(InlineEngine().stream(request))
    assert rounded(found) == rounded(lone_answer(SimulatedSteps(), request))


def test_penalties_count_generated_tokens_only() -> None:
    penalized = Sampling(temperature=0, presence_penalty=2.0, frequency_penalty=2.0)
    repeats = 0
    for first in range(10):
        prompt = tuple(range(first, first + 40))
        plain, found = (
            [o.token for o in InlineEngine().submit(prompt, 8, sampling=sampling)]
            for sampling in (GREEDY, penalized)
        )
        assert found[0] == plain[0]
        repeats += len(plain) - len(set(plain))
        assert len(set(found)) >= len(set(plain))
        request = CompletionRequest(prompt, 8, sampling=penalized)
        assert found == lone_answer(SimulatedSteps(), request)[0]
    assert repeats


def test_an_end_token_ends_the_answer() -> None:
    tokens = [o.token for o in InlineEngine().submit([1, 2], 20, sampling=GREEDY)]
    end = tokens[5]
    first = tokens.index(end)
    for options, fields in (({"ends": frozenset([end])}, {}), ({}, {"ends": frozenset([end])})):
        stream = InlineEngine(**options).submit([1, 2], 20, sampling=GREEDY, **fields)
        assert [o.token for o in stream] == tokens[:first]
        assert stream.finish_reason == "stop"


def test_a_request_without_ends_ignores_those_of_the_model() -> None:
    stream = InlineEngine(ends=frozenset(range(50))).submit([1, 2], 4, ends=frozenset())
    assert len(list(stream)) == 4
    assert stream.finish_reason == "length"


def test_the_reason_is_there_after_the_last_token() -> None:
    engine = InlineEngine()
    stream = engine.submit([1, 2], 2)
    engine.run()
    next(stream), next(stream)
    assert stream.finish_reason == ""
    assert list(stream) == []
    assert stream.finish_reason == "length"


def test_a_chunk_and_a_decode_step_alternate() -> None:
    engine = InlineEngine(max_pause_s=0)
    short, long = engine.submit([1], 20), engine.submit(range(32), 1)
    engine.run()
    assert len(list(short)) == 20
    assert len(list(long)) == 1
    assert names(engine)[:8] == ["prefill", "decode"] * 4


def test_cheap_chunks_share_a_pause() -> None:
    """A chunk of 8 tokens takes 0.08 s here: two of them fit into 0.2 s."""
    engine = InlineEngine(max_pause_s=0.2)
    assert len(list(engine.submit(range(8), 1))) == 1  # measures a chunk
    short, long = engine.submit([1], 20), engine.submit(range(9, 49), 1)
    begin = len(engine.steps.log)
    assert len(list(short)) == 20
    assert len(list(long)) == 1
    order = names(engine)[begin:]
    assert order[:8] == ["prefill"] * 3 + ["decode", "prefill", "prefill", "decode", "prefill"]


def test_log_probabilities_of_a_prompt_count_in_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of 8 tokens takes 0.08 s, and its log-probabilities 0.08 s more."""
    engine = InlineEngine(max_pause_s=0.2)

    def slow(*arguments: Any) -> TokenLogprobs:
        engine.steps.clock.now_s += 0.01
        return token_logprobs(*arguments)

    monkeypatch.setattr(next_token, "token_logprobs", slow)
    assert len(list(engine.submit(range(9), 1, prompt_logprobs=0))) == 1
    assert len(list(engine.submit(range(8), 1))) == 1  # faster: it has another cost
    assert engine.core.counters().prefill_s == pytest.approx(0.09 + 0.08 + 0.08)
    short, long = engine.submit([1], 20), engine.submit(range(9, 49), 1, prompt_logprobs=0)
    begin = len(engine.steps.log)
    assert len(list(short)) == 20
    assert len(list(long)) == 1
    order = names(engine)[begin:]
    assert order[:6] == ["prefill", "prefill", "decode", "prefill", "decode", "prefill"]


@pytest.mark.parametrize("move_s", (0.0, 0.3))
def test_moved_prefixes_count_in_a_pause(move_s: float) -> None:
    """Each of three requests moves a prefix to host memory. Above the limit of 0.2 s, a decode step
    comes between two of them.
    """

    class SlowMoves(SimulatedSteps):
        def read_rows(self, slot: int, tokens: int) -> Any:
            self.clock.now_s += move_s
            return super().read_rows(slot, tokens)

    engine = InlineEngine(SlowMoves(slots=4), cache_ram=10**6, max_pause_s=0.2)
    for stream in [engine.submit([first] * 9, 2) for first in (1, 2, 3, 4)]:
        assert len(list(stream)) == 2
    running = engine.submit([9], 20)
    next(running), next(running)
    begin = len(engine.steps.log)
    streams = [engine.submit([first] * 9, 2) for first in (5, 6, 7)]
    for stream in (running, *streams):
        list(stream)
    order = [name for name in names(engine)[begin:] if name in ("read_rows", "decode")]
    if move_s:
        assert order[:6] == ["read_rows", "decode"] * 3
    else:
        assert order[:4] == ["read_rows"] * 3 + ["decode"]


def test_requests_begin_in_the_order_of_their_arrival() -> None:
    engine = InlineEngine(SimulatedSteps(slots=1))
    streams = [engine.submit([i + 1], 2) for i in range(4)]
    ends = []
    while engine.core.step():
        ends += [i for i, s in enumerate(streams) if s._state.generated == 2 and i not in ends]
    assert ends == [0, 1, 2, 3]


def test_more_answers_than_rows_of_a_step() -> None:
    engine = InlineEngine(SimulatedSteps(slots=7))
    requests = [CompletionRequest((i + 1,), 5, logprobs=1) for i in range(7)]
    streams = [engine.stream(request) for request in requests]
    engine.run()
    assert [len(entry) - 1 for entry in engine.steps.log if entry[0] == "decode"][-2:] == [4, 3]
    for request, stream in zip(requests, streams, strict=True):
        alone = lone_answer(SimulatedSteps(), request)
        assert rounded(streamed_answer(stream)) == rounded(alone)


def test_closing_frees_the_slot_before_the_next_step() -> None:
    engine = InlineEngine(SimulatedSteps(slots=1))
    first, second = engine.submit([1], 50), engine.submit([2], 3)
    next(first)
    first.close()
    assert first.finish_reason == "closed"
    assert list(first) == []
    begin = len(engine.steps.log)
    assert len(list(second)) == 3
    assert names(engine)[begin:] == ["prefill", "decode", "decode"]
    assert engine.core.counters().finished == {"closed": 1, "length": 1}


def test_dropping_a_stream_cancels_its_request() -> None:
    engine = InlineEngine()
    stream = engine.submit([1], 50)
    next(stream)
    del stream
    gc.collect()
    assert engine.run() == 0
    assert engine.core.counters().finished == {"closed": 1}


def test_a_waiting_request_can_be_cancelled() -> None:
    engine = InlineEngine(SimulatedSteps(slots=1), max_queue=2)
    running, waiting, other = (engine.submit([i], 5) for i in (1, 2, 3))
    waiting.close()
    last = engine.submit([4], 5)  # takes the place of the cancelled request
    assert [len(list(s)) for s in (running, waiting, other, last)] == [5, 0, 5, 5]


def test_a_full_queue() -> None:
    engine = InlineEngine(SimulatedSteps(slots=2), max_queue=1)
    streams = [engine.submit([i], 30) for i in (1, 2, 3)]
    with pytest.raises(vs.QueueFull, match=r"at most 1 waiting requests, .*try again in") as caught:
        engine.submit([4], 30)
    assert caught.value.retry_after_s == 1
    for _ in range(8):
        engine.core.step()
    with pytest.raises(vs.QueueFull):
        engine.submit([4], 30)
    assert sum(len(list(s)) for s in streams) == 90
    assert len(list(engine.submit([4], 2))) == 2


def test_the_time_until_a_slot_is_free() -> None:
    """A decode step takes 0.02 s."""
    engine = InlineEngine(SimulatedSteps(slots=1, length=4096), max_queue=0)
    stream = engine.submit([1], 1001)
    next(stream), next(stream)
    assert engine.core._scheduler.retry_after_s(float("inf")) == pytest.approx(999 * 0.02)


@pytest.mark.parametrize(
    ("fields", "message"),
    (
        ({"prompt": ()}, "at least one token, got none"),
        ({"prompt": (1,) * 65}, "1 to 64 tokens, got 65; try a shorter"),
        ({"prompt": (1, 50)}, "token ids from 0 to 49, got 50"),
        ({"prompt": (-1, 5)}, "token ids from 0 to 49, got -1"),
        ({"prompt": (1.5, 5)}, "a prompt of token ids"),
        ({"prompt": ("a",)}, "a prompt of token ids"),
        ({"max_tokens": -1}, "max_tokens as a whole number of at least 0, got -1"),
        ({"max_tokens": 2.5}, "max_tokens as a whole number of at least 0, got 2.5"),
        ({"max_tokens": None}, "max_tokens as a whole number of at least 0, got None"),
        ({"logprobs": -1}, "logprobs as a whole number of at least 0"),
        ({"prompt_logprobs": True}, "prompt_logprobs as a whole number of at least 0"),
    ),
)
def test_wrong_requests(fields: dict[str, object], message: str) -> None:
    error = vs.ShapeError if "prompt" in fields else SamplingError
    with pytest.raises(error, match=message):
        InlineEngine().stream(CompletionRequest(**{"prompt": (1,), **fields}))  # type: ignore[arg-type]


def test_numpy_token_ids() -> None:
    prompt = tuple(np.arange(20))
    found = [o.token for o in InlineEngine().submit(prompt)]
    assert found == [o.token for o in InlineEngine().submit(range(20))]


def test_nan_ends_one_request_only() -> None:
    class Damaged(SimulatedSteps):
        def decode(self, slots, ids, starts):  # type: ignore[no-untyped-def]
            logits = super().decode(slots, ids, starts)
            logits[[slot == 1 for slot in slots]] = np.nan
            return logits

    engine = InlineEngine(Damaged())
    good, bad = engine.submit([1], 5), engine.submit([2], 5)
    assert len(list(good)) == 5
    next(bad)
    with pytest.raises(SamplingError, match="without NaN"):
        next(bad)
    assert bad.finish_reason == "closed"
    assert list(bad) == []
    assert engine.core.counters().finished == {"length": 1, "error": 1}


def test_an_error_of_a_chunk_ends_its_request() -> None:
    def fail(number: int) -> None:
        if number == 1:
            raise vs.OutOfMemory("[simulated] full")

    engine = InlineEngine(SimulatedSteps(before_call=fail))
    good, bad = engine.submit([1], 5), engine.submit([2], 5)
    assert len(list(good)) == 5
    with pytest.raises(vs.OutOfMemory, match="full"):
        next(bad)
    assert len(list(engine.submit([2], 3))) == 3


def test_an_error_of_the_placement_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = InlineEngine()
    failing = property(lambda self: (_ for _ in ()).throw(OutOfMemory("no device has memory")))
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedSteps, "chunk_sizes", failing, raising=False)
        stream = engine.submit([1, 2])
        with pytest.raises(OutOfMemory, match="no device has memory"):
            next(stream)
    assert not engine.core.step() and engine.core.slots()[0].phase == "idle"


def test_ended_requests_leave_their_prefix() -> None:
    engine = InlineEngine(SimulatedSteps(slots=1), reuse_decoded=True)
    stream, waiting = engine.submit([1, 2, 3], 8), engine.submit([4])
    next(stream)
    engine.core.end_requests("closed")
    assert list(stream) == list(waiting) == []
    assert stream.finish_reason == waiting.finish_reason == "closed"
    again = engine.submit([1, 2, 3, 4], 1)
    next(again)
    assert again.cached_tokens == 3


def test_an_error_of_a_decode_step_ends_its_requests() -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise RuntimeError("broken")

    engine = InlineEngine(SimulatedSteps(before_call=fail))
    streams = [engine.submit([1], 5), engine.submit([2], 5)]
    for stream in streams:
        next(stream)
        with pytest.raises(
            EngineError, match="got RuntimeError: broken; try the request"
        ) as caught:
            next(stream)
        assert isinstance(caught.value.__cause__, RuntimeError)
    assert len(list(engine.submit([2], 3))) == 3
    assert engine.core.counters().finished == {"error": 2, "length": 1}


def test_an_error_of_a_device_keeps_its_class() -> None:
    def fail(number: int) -> None:
        if number == 2:
            error = vs.OutOfMemory("[simulated] full")
            error.device = "vulkan:0"
            raise error

    engine = InlineEngine(SimulatedSteps(before_call=fail))
    streams, errors = [engine.submit([1], 5), engine.submit([2], 5)], []
    for stream in streams:
        next(stream)
        with pytest.raises(vs.OutOfMemory, match=r"^\[simulated\] full$") as caught:
            next(stream)
        assert caught.value.device == "vulkan:0"
        errors.append(caught.value)
    assert errors[0] is not errors[1]  # each thread adds its own traceback


def test_the_state_of_slots() -> None:
    engine = InlineEngine(SimulatedSteps(slots=2))
    assert [s.phase for s in engine.core.slots()] == ["idle", "idle"]
    stream = engine.submit(range(20), 4)
    engine.core.step()
    first, second = engine.core.slots()
    assert (first.phase, first.cached_tokens, first.prompt_tokens) == ("prefill", 8, 20)
    assert second.phase == "idle"
    next(stream), next(stream)
    first = engine.core.slots()[0]
    assert (first.phase, first.cached_tokens, first.generated_tokens) == ("decode", 21, 2)
    assert len(list(stream)) == 2
    assert [s.phase for s in engine.core.slots()] == ["idle", "idle"]


def test_counters() -> None:
    durations: list[tuple[str, float]] = []
    engine = InlineEngine(
        SimulatedSteps(slots=2), observer=lambda name, value: durations.append((name, value))
    )
    streams = [engine.submit(range(i, i + 9), 3) for i in range(3)]
    counters = engine.core.counters()
    assert (counters.running, counters.waiting) == (0, 3)
    engine.core.step()
    counters = engine.core.counters()
    assert (counters.running, counters.waiting, counters.prompt_tokens) == (2, 1, 8)
    assert counters.kv_cache_usage == 8 / 128
    assert [len(list(s)) for s in streams] == [3] * 3
    counters = engine.core.counters()
    assert (counters.prompt_tokens, counters.generated_tokens) == (27, 9)
    assert counters.finished == {"length": 3}
    assert counters.prefill_s == pytest.approx(0.27)
    assert counters.decode_s == pytest.approx(0.02 * counters.decode_steps)
    assert counters.decode_rows == 6
    assert counters.cache_losses == 0
    found = [name for name, _ in durations]
    expected = {"queue": 3, "time_to_first_token": 3, "time_between_tokens": 6, "request": 3}
    assert {name: found.count(name) for name in found} == expected
    first = next(value for name, value in durations if name == "time_to_first_token")
    assert first == pytest.approx(0.09)


def test_an_observer_that_fails_is_not_called_again() -> None:
    calls = []

    def observer(name: str, seconds: float) -> None:
        calls.append(name)
        raise ValueError("full disk")

    engine = InlineEngine(observer=observer)
    stream = engine.submit([1], 3)
    assert len(list(stream)) == 3
    assert calls == ["queue"]

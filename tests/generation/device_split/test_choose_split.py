"""The split of a model over several GPUs: predictions, rates in simulated time, and faults."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from split_models import COMPUTE, LENGTH, MEMORY, build, cards, clients, served, split_model

import vksched as vs
from vksched.common.errors import PlanError
from vksched.generation.completion import CompletionRequest
from vksched.generation.device_split.choose_split import SplitRequest, _distributed, choose_split
from vksched.generation.device_split.engine_group import EngineGroup
from vksched.generation.device_split.split_choice import SplitChoice
from vksched.generation.row_times import RowTimes
from vksched.importers.gguf.model import LanguageModel

pytestmark = pytest.mark.one_set
REQUESTS = clients(8, 20)
Rate = tuple[float, list[list[int]]]
"""The tokens per second of 8 clients, and their answers."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return split_model(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(autouse=True)
def widest_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode graphs are selected by measured times; real times have no meaning here."""
    monkeypatch.setattr(RowTimes, "measure", lambda *_: None)


def rate(
    model: LanguageModel,
    speeds: list[dict[str, float]],
    split: str,
    requests: list[CompletionRequest] = REQUESTS,
) -> Rate:
    clock, devices = cards(*speeds)
    with vs.Scheduler(devices, tune=False) as sched:
        engine = build(sched, model, split)
        seconds, answers = served(clock, engine, requests)
        engine.close()
    return sum(map(len, answers)) / seconds, answers


@pytest.fixture(scope="module")
def alone(model: LanguageModel) -> Iterator[Rate]:
    """One engine on one device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowTimes, "measure", lambda *_: None)
        yield rate(model, [COMPUTE], "layers")


def test_two_equal_devices_write_nearly_twice_the_tokens(model: LanguageModel, alone: Rate) -> None:
    """The split that is predicted to be the fastest, for 8 clients."""
    found, answers = rate(model, [COMPUTE] * 2, "auto")
    assert answers == alone[1]
    assert 1.8 * alone[0] <= found <= 2.0 * alone[0]


def test_layers_of_one_engine_gain_nothing(model: LanguageModel, alone: Rate) -> None:
    """Without replicas and a pipeline, a second device does not write more tokens."""
    found, answers = rate(model, [COMPUTE] * 2, "layers")
    assert answers == alone[1]
    assert found < 1.1 * alone[0]


def test_a_pipeline_overlaps_the_steps_of_its_engines(tmp_path: Path) -> None:
    """The first device is slower than the last one, whose layers include the output."""
    model, requests = split_model(tmp_path, 4), clients(8, 24, prompt=1)
    one, expected = rate(model, [COMPUTE], "layers", requests)
    slower = {**COMPUTE, "flops_per_s": 0.94 * COMPUTE["flops_per_s"]}
    found, answers = rate(model, [slower, COMPUTE], "pipeline", requests)
    assert answers == expected
    assert found > 1.5 * one


def choice_of(
    model: LanguageModel,
    speeds: list[dict[str, float]],
    split: str = "auto",
    slots: int | None = 8,
    **fields: Any,
) -> SplitChoice:
    with vs.Scheduler(cards(*speeds, **fields)[1], tune=False) as sched:
        return choose_split(SplitRequest(sched, model, LENGTH, slots), split)


def test_the_choice_explains_itself(model: LanguageModel) -> None:
    choice = choice_of(model, [COMPUTE] * 2)
    assert choice.split == "replicas"
    assert [engine.devices for engine in choice.engines] == [("null:0",), ("null:1",)]
    assert [engine.slots for engine in choice.engines] == [4, 4]
    text = choice.explain()
    first, *others = text.splitlines()
    assert "split replicas, 4 + 4 slots:" in first and "times the predicted" in first
    assert [line.split()[0] for line in others] == ["layers", "replicas", "pipeline"]
    assert "2 engines on null:0, null:1, 4 + 4 requests" in text


def test_reads_of_weights_are_not_divided(model: LanguageModel) -> None:
    """Two engines read the weights twice, so a second device gains less than with arithmetic."""

    def gain(speed: dict[str, float]) -> float:
        rates = choice_of(model, [speed] * 2).forecasts
        return rates["replicas"].tokens_per_s / rates["layers"].tokens_per_s

    assert gain(MEMORY) < 0.8 * gain(COMPUTE)


def test_unequal_devices_get_requests_by_speed(model: LanguageModel) -> None:
    third = {**COMPUTE, "flops_per_s": COMPUTE["flops_per_s"] / 3}
    choice = choice_of(model, [COMPUTE, third], "replicas")
    fast, slow = (engine.slots for engine in choice.engines)
    assert fast + slow == 8 and fast > 2 * slow > 0


def test_requests_are_distributed_by_their_end() -> None:
    assert _distributed(8, [8, 8], lambda engine, rows: rows * (1.0, 3.0)[engine]) == [6, 2]
    assert _distributed(8, [8, 8], lambda engine, rows: (1.0, 9.0)[engine]) == [7, 1]
    assert _distributed(8, [2, 3], lambda engine, rows: 1.0) == [2, 3]


def test_one_device_has_no_choice(model: LanguageModel) -> None:
    assert choice_of(model, [COMPUTE]).explain() == "split layers, 8 slots: one GPU"
    assert choice_of(model, [COMPUTE] * 2, slots=1).reason == "one slot"
    with pytest.raises(PlanError, match="a slot for each of 2 GPUs, got 1"):
        choice_of(model, [COMPUTE] * 2, "replicas", slots=1)
    for split in ("pipeline", "replicas"):
        with pytest.raises(PlanError, match=f"expected devices for {split}: it needs 2 GPUs"):
            choice_of(model, [COMPUTE], split)
    with pytest.raises(PlanError, match="expected one of auto, layers, pipeline, replicas, got"):
        choice_of(model, [COMPUTE], "rows")


def test_a_model_that_fits_on_no_device_has_no_replicas(model: LanguageModel) -> None:
    with pytest.raises(PlanError, match="does not fit on null:0, null:1"):
        choice_of(model, [COMPUTE] * 2, "replicas", memory_bytes=model.device_bytes // 2)


@pytest.mark.parametrize("split", ("replicas", "pipeline"))
def test_answers_go_on_after_a_loss(model: LanguageModel, split: str) -> None:
    requests = clients(4, 8)
    expected = rate(model, [COMPUTE], "layers", requests)[1]
    _, devices = cards(COMPUTE, COMPUTE)
    lossy = vs.FaultInjectionDevice(devices[1], at=None, times=1)
    with warnings.catch_warnings(), vs.Scheduler([devices[0], lossy], tune=False) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        engine = build(sched, model, split)
        assert isinstance(engine, EngineGroup)
        streams = [engine.submit(request) for request in requests]
        first = [next(stream).token for stream in streams]
        lossy.at = 0
        rest = [[output.token for output in stream] for stream in streams]
        assert [[a, *b] for a, b in zip(first, rest, strict=True)] == expected
        assert set(sched.failed_devices) == {"null:1"}
        assert engine.counters().cache_losses >= 1
        later = engine.submit(requests[0])
        assert [output.token for output in later] == expected[0]
        if split == "replicas":
            working = [member.is_working for member in engine.members]
            assert working == [True, False]
            assert engine.members[1].engine.counters().running == 0
        engine.close()


def test_all_devices_are_lost(model: LanguageModel) -> None:
    requests = clients(4, 6)
    expected = rate(model, [COMPUTE], "layers", requests)[1]
    lossy = [
        vs.FaultInjectionDevice(device, at=None, times=1) for device in cards(*[COMPUTE] * 2)[1]
    ]
    with warnings.catch_warnings(), vs.Scheduler(lossy, tune=False) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        engine = build(sched, model, "replicas")
        streams = [engine.submit(request) for request in requests]
        first = [next(stream).token for stream in streams]
        for device in lossy:
            device.at = 0
        rest = [[output.token for output in stream] for stream in streams]
        assert [[a, *b] for a, b in zip(first, rest, strict=True)] == expected
        assert len(sched.failed_devices) == 2
        engine.close()

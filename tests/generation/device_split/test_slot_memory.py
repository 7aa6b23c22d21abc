"""The number of slots by the memory of each device, counted from the tensors of the model."""

from __future__ import annotations

from typing import Any

import pytest
from split_models import COMPUTE, LENGTH, cards, split_model

import vksched as vs
from vksched.generation.compiled_steps import CompiledSteps
from vksched.generation.device_split import choose_split, slot_memory
from vksched.generation.device_split.choose_split import SplitRequest
from vksched.generation.device_split.slot_memory import slots_by_memory
from vksched.importers.gguf.model import LanguageModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return split_model(tmp_path_factory.mktemp("four"), 4)


def slots(model: LanguageModel, count: int, memory_bytes: int, engines: int = 1) -> int:
    devices = cards(*[COMPUTE] * count, memory_bytes=memory_bytes)[1]
    with vs.Scheduler(devices, tune=False) as sched:
        steps = CompiledSteps(sched, model, LENGTH, prefetch=False, in_flight=engines)
        steps.decide()
        assert (steps.layer_placement is None) is (count == 1 and memory_bytes > 1 << 30)
        return slots_by_memory(steps, engines, most=10**9)


def slot_bytes(model: LanguageModel) -> int:
    """Return the bytes of one slot in float32."""
    hyper = model.hyper
    return 4 * LENGTH * sum(hyper.kv_heads) * (hyper.key_length + hyper.value_length)


def test_one_device(model: LanguageModel) -> None:
    free = (4 << 30) - model.device_bytes
    assert slots(model, 1, 4 << 30) == free // 2 // slot_bytes(model)


def test_a_draft_model_needs_memory(
    model: LanguageModel,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the device of the model, which has less left, or on one of its own, for all engines."""
    calls: list[int] = []

    def slots_noted(steps: CompiledSteps, engines: int, **draft: Any) -> int:
        calls.append(draft["draft_engines"])
        return slots_by_memory(steps, engines, 10**9, **draft)

    monkeypatch.setattr(choose_split, "slots_by_memory", slots_noted)
    draft = split_model(tmp_path_factory.mktemp("one"), 1)
    small = cards(COMPUTE, COMPUTE, memory_bytes=2 << 30)[1][1:]  # it has another name
    large = cards(COMPUTE, memory_bytes=4 << 30)[1]
    with vs.Scheduler(large, tune=False) as sched, vs.Scheduler(small, tune=False) as other:
        found = []
        for own in (None, other):
            speculation = vs.Speculation(draft=draft, scheduler=own)
            request = SplitRequest(sched, model, LENGTH, speculation=speculation)
            found.append(request.slots_of_engine(sched, replicas=16))
    free = (4 << 30) - model.device_bytes - draft.device_bytes
    others = (2 << 30) - draft.device_bytes
    assert found[0] == free // 2 // (slot_bytes(model) + slot_bytes(draft))
    assert found[1] == others // 2 // (16 * slot_bytes(draft))
    assert calls == [1, 16]


def test_layers_on_two_devices_need_memory_on_each(model: LanguageModel) -> None:
    """Two groups: each device has two layers and half of each slot, so the memory of both counts,
    but not more than that of the fuller device.
    """
    room = 8 << 20
    found = slots(model, 2, room, engines=2)
    least = (room - model.device_bytes) // 2 // 2 // (slot_bytes(model) // 2)
    most = room // 2 // 2 // (slot_bytes(model) // 2)
    assert least < found < most


def test_no_memory_is_one_slot(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers without memory on a GPU are on the CPU, so the server starts in any case."""
    monkeypatch.setattr(slot_memory, "CACHE_FRACTION", 1e-12)
    assert slots(model, 1, 4 << 30) == slots(model, 2, 8 << 20, engines=2) == 1

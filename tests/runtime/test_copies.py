"""Copies beside work on Vulkan devices: submissions of their own, ordered by semaphores.

Drivers with one queue take both there (VKSCHED_COPY_QUEUE=same): the way is the same, nothing
overlaps.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.plan.types.plan_types import DOWNLOAD, UPLOAD, Span
from vksched.planner.partition import transfers
from vksched.runtime.vulkan import binding
from vksched.runtime.vulkan import context as context_module
from vksched.runtime.vulkan.context import Context
from vksched.runtime.vulkan.staging import download, upload
from vksched.runtime.vulkan.vulkan_device import VulkanPreparedPlan

pytestmark = pytest.mark.own_devices


SIDE = 48
LAYERS = 6


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies, however small, go a way of their own on devices that are opened now."""
    monkeypatch.setenv("VKSCHED_COPY_QUEUE", "same")
    monkeypatch.setattr(transfers, "MIN_BYTES", 1)


@pytest.fixture
def gpus(devices: list[str]) -> list[str]:
    found = [name for name in devices if name != "cpu"]
    if not found:
        pytest.skip("no device with queues")
    return found


def streamed(gpus: list[str], rng: np.random.Generator) -> tuple[Any, Any, list[NDArray]]:
    """Products with weights in host memory, whose results cross from device to device."""
    y, placement = vs.input("x", (SIDE, SIDE)), {}
    weights: list[NDArray] = []
    for layer in range(LAYERS):
        weights.append(rng.standard_normal((SIDE, SIDE), dtype=np.float32) / 8)
        weight = vs.weight(weights[-1], name=f"w{layer}")
        y = vs.matmul(y, weight, name=f"p{layer}")
        placement |= {weight: "cpu", y: gpus[layer * len(gpus) // LAYERS]}
    return y, placement, weights


def test_runs_in_flight_are_right_and_use_the_way_of_their_own(
    gpus: list[str], rng: np.random.Generator, copies: None
) -> None:
    y, placement, weights = streamed(gpus, rng)
    with vs.Scheduler(gpus, copies=2, optimize=False) as sched:
        run = sched.compile(y, placement)
        splits = run.plan.splits
        assert (
            all(UPLOAD in split.async_transfers for split in splits) and len(splits) >= LAYERS // 2
        )
        assert DOWNLOAD in splits[-1].async_transfers
        for _ in range(3):
            feeds = [rng.standard_normal((SIDE, SIDE), dtype=np.float32) for _ in range(4)]
            for feed, future in [(feed, run.submit(x=feed)) for feed in feeds]:
                expected = feed
                for weight in weights:
                    expected = expected @ weight
                np.testing.assert_allclose(future.result(), expected, rtol=1e-3, atol=1e-4)


def test_copies_out_are_handed_over_behind_the_next_copies_in(
    gpus: list[str], rng: np.random.Generator, copies: None
) -> None:
    y, placement, weights = streamed(gpus[:1], rng)
    results = [tensor for tensor in placement if tensor.op == "matmul"]
    assert results[-1] is y
    with vs.Scheduler(gpus[:1], optimize=False) as sched:
        run = sched.compile(results, placement)
        assert (
            sum(len(split.deferred_downloads) for split in run.plan.splits)
            == len(run.plan.splits) - 1
        )
        expected = rng.standard_normal((SIDE, SIDE), dtype=np.float32)
        for weight, found in zip(weights, run(x=expected), strict=True):
            expected = expected @ weight
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_a_copy_out_that_the_driver_drops_is_found(
    gpus: list[str], rng: np.random.Generator, copies: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    y, placement, weights = streamed(gpus[:1], rng)
    hand_over = VulkanPreparedPlan._hand_over

    def dropping(
        self: VulkanPreparedPlan, memory: Any, split: int, stage: str, again: bool = False
    ) -> None:
        if stage != DOWNLOAD:
            hand_over(self, memory, split, stage, again)
        else:
            memory.download_runs[split] = memory.sequence_numbers[split]

    monkeypatch.setattr(VulkanPreparedPlan, "_hand_over", dropping)
    with vs.Scheduler(gpus[:1], optimize=False) as sched:
        run = sched.compile(y, placement)
        with pytest.warns(vs.VkschedWarning, match="sequence word"):
            found = run(x=np.ones((SIDE, SIDE), np.float32))  # on the CPU in the end
    expected = np.ones((SIDE, SIDE), np.float32)
    for weight in weights:
        expected = expected @ weight
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_an_interrupt_behind_copies_out_leaves_the_plan_in_use(
    gpus: list[str], rng: np.random.Generator, copies: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    y, placement, weights = streamed(gpus[:1], rng)
    hand_over, init, interrupts = VulkanPreparedPlan._hand_over, VulkanPreparedPlan.__init__, [True]
    prepared_plans: list[VulkanPreparedPlan] = []

    def interrupted(
        self: VulkanPreparedPlan, memory: Any, split: int, stage: str, again: bool = False
    ) -> None:
        hand_over(self, memory, split, stage, again)
        if stage == DOWNLOAD and interrupts:
            interrupts.clear()
            del memory.download_runs[split]  # it came before that was noted
            raise KeyboardInterrupt

    def keeping(prepared: VulkanPreparedPlan, *args: Any) -> None:
        init(prepared, *args)
        prepared_plans.append(prepared)

    monkeypatch.setattr(VulkanPreparedPlan, "_hand_over", interrupted)
    monkeypatch.setattr(VulkanPreparedPlan, "__init__", keeping)
    expected = np.ones((SIDE, SIDE), np.float32)
    with vs.Scheduler(gpus[:1], optimize=False) as sched:
        run = sched.compile(y, placement)
        with pytest.raises(KeyboardInterrupt):
            run(x=expected)
        found = run(x=expected)
        assert len(prepared_plans) == 1, "nothing is made anew"
    for weight in weights:
        expected = expected @ weight
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_uploads_and_downloads_go_that_way_too(
    gpus: list[str], rng: np.random.Generator, copies: None
) -> None:
    context = Context(int(gpus[0].split(":")[1]), gpus[0])
    try:
        assert context.copies == "same"
        buffer = context.storage(3000)
        array = rng.standard_normal(2000, dtype=np.float32)
        upload(context, buffer, [array], at_word=16)
        words = download(context, buffer, Span(0, 16, 2000))
        assert np.array_equal(words.view(np.float32), array)
    finally:
        context.close()


def test_a_submission_waits_for_others_and_only_for_those_that_there_are(
    gpus: list[str], copies: None
) -> None:
    context = Context(int(gpus[0].split(":")[1]), gpus[0])
    try:
        buffers = [context.host(64) for _ in range(4)]
        buffers[0].array[:] = 7
        chain = []
        for number, (source, target) in enumerate(pairwise(buffers)):
            recording = context.recording(copies=number % 2 == 0)
            recording.begin()
            recording.barrier("device", "device")
            recording.copy(source, target, 0, 0, 64)
            recording.barrier("device", "host")
            recording.end()
            chain.append(recording)
        with pytest.raises(vs.DeviceError, match="expected a submitted recording"):
            chain[1].submit([chain[0]])
        for _ in range(3):
            chain[0].submit()
            chain[1].submit([chain[0]])
            chain[2].submit([chain[1], chain[0]])
            for recording in chain:
                recording.wait(60.0)
            assert (buffers[3].array == 7).all()
    finally:
        context.close()


def test_a_driver_without_timeline_semaphores_has_no_copy_queue(
    gpus: list[str], rng: np.random.Generator, copies: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding.companion, "timeline_semaphores_enabled", lambda manager: False)
    y, placement, _ = streamed(gpus, rng)
    with vs.Scheduler(gpus, optimize=False) as sched:
        assert not any(split.async_transfers for split in sched.compile(y, placement).plan.splits)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_copy_queue_that_is_not_wanted_is_not_opened(
    gpus: list[str], monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    index = int(gpus[0].split(":")[1])
    described = binding.describe_devices()
    described[index]["copy_queue_family"] = described[index]["compute_queue_family"]
    families: list[list[int]] = []

    class Manager(binding.kp.Manager):  # type: ignore[misc, name-defined]
        def __init__(self, index: int, asked: list[int], extensions: list[str]) -> None:
            families.append(asked)
            super().__init__(index, [], extensions)  # there is only one family

    monkeypatch.setenv("VKSCHED_COPY_QUEUE", "own")
    monkeypatch.setattr(context_module, "describe_devices", lambda known=False: described)
    monkeypatch.setattr(binding.kp, "Manager", Manager)
    context = Context(index, gpus[0], copy_queue=wanted)
    assert (context.copies, len(families[0])) == (("own", 2) if wanted else ("", 0))
    context.close()


def test_copies_of_their_own_have_times(gpus: list[str], copies: None) -> None:
    context = Context(int(gpus[0].split(":")[1]), gpus[0])
    try:
        source, target = context.host(4096), context.host(4096)
        recording = context.recording(copies=True)
        recording.begin()
        recording.copy(source, target, 0, 0, 4096)
        recording.end()
        for _ in range(3):
            recording.submit()
            recording.wait(60.0)
            duration = recording.duration_s()
            assert duration is not None and 0 <= duration < 60
    finally:
        context.close()


def test_on_drivers_with_one_queue_nothing_changes(
    gpus: list[str], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "MIN_BYTES", 1)
    described = binding.describe_devices()
    y, placement, _ = streamed(gpus, rng)
    with vs.Scheduler(gpus, optimize=False) as sched:
        plan = sched.compile(y, placement).plan
    for split in plan.splits:
        index = int(plan.topology.devices[split.device].name.split(":")[1])
        has_queue = described[index]["copy_queue_family"] is not None
        assert bool(split.async_transfers) == has_queue


def test_a_tape_tells_what_the_copy_queue_did(
    gpus: list[str], rng: np.random.Generator, copies: None
) -> None:
    y, placement, _ = streamed(gpus, rng)
    tape = vs.Tape()
    with vs.Scheduler(gpus, trace=tape, optimize=False) as sched:
        run = sched.compile(y, placement)
        run(x=np.ones((SIDE, SIDE), np.float32))
        splits = run.plan.splits
    reported = [event for event in tape.contents().events if event.name == "transfer_queue"]
    assert len(reported) == sum(len(split.async_transfers) for split in splits)
    assert {event.fields["way"] for event in reported} == {"in", "out"}
    for event in reported:
        assert (
            event.start_s <= event.end_s
            and event.fields["bytes"] == 4 * SIDE * SIDE
            or (
                event.fields["bytes"] == 8 * SIDE * SIDE  # x and the first weight
            )
        )

"""Memory holders free memory before each compilation, and after an allocation failed."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

import vksched as vs


class Holder:
    """A holder with a number of parts to free."""

    def __init__(self, parts: int, unused: bool = False) -> None:
        self.parts, self.unused, self.freed = parts, unused, 0
        self.errors: list[vs.OutOfMemory] = []

    def free_unused(self) -> bool:
        found, self.unused = self.unused, False
        self.freed += found
        return found

    def can_shrink(self) -> bool:
        return self.parts > 0

    def shrink(self, error: vs.OutOfMemory) -> bool:
        self.errors.append(error)
        self.parts -= 1
        return self.parts >= 0


class StrictHolder(Holder):
    """A holder that prefers an error to a plan for other devices."""

    def shrink(self, error: vs.OutOfMemory) -> bool:
        raise error


class FullDevice(vs.FaultInjectionDevice):
    """A device without free memory, at first."""

    free_bytes = 4096

    @property
    def spec(self) -> vs.DeviceSpec:
        return replace(super().spec, memory_bytes=self.free_bytes)


class Freeing(Holder):
    """A holder of a device's memory."""

    def __init__(self, device: FullDevice) -> None:
        super().__init__(1)
        self._device = device

    def shrink(self, error: vs.OutOfMemory) -> bool:
        self._device.free_bytes = 1 << 28
        return super().shrink(error)


@pytest.fixture
def device() -> vs.FaultInjectionDevice:
    names = [d.name for d in vs.devices() if d.name != "cpu" and d.usable]
    if not names:
        pytest.skip("no Vulkan device")
    return vs.FaultInjectionDevice(names[0], 0, "memory", "prepare", times=2)


def compile_sum(sched: vs.Scheduler) -> vs.CompiledGraph:
    return sched.compile(vs.input("x", (4,)) + 1)


def add(sched: vs.Scheduler, *holders: Holder) -> None:
    for holder in holders:
        sched.graphs.preparing.opened.holders.add(holder)


def test_a_compilation_is_repeated_while_holders_free_memory(
    device: vs.FaultInjectionDevice,
) -> None:
    first, second = Holder(1), Holder(9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with vs.Scheduler([device]) as sched:
            add(sched, first, second)
            run = compile_sum(sched)
            found = run(x=np.zeros(4, np.float32))
            names = [run.plan.topology.devices[s.device].name for s in run.plan.splits]
    np.testing.assert_array_equal(found, np.ones(4, np.float32))
    assert names == [device.name]
    assert len(first.errors) == 2 and len(second.errors) == 1


def test_a_device_is_left_if_no_holder_frees_memory(device: vs.FaultInjectionDevice) -> None:
    with vs.Scheduler([device]) as sched:
        add(sched, Holder(0))
        with pytest.warns(vs.VkschedWarning, match="no memory left"):
            run = compile_sum(sched)
        np.testing.assert_array_equal(run(x=np.zeros(4, np.float32)), np.ones(4, np.float32))


def test_a_holder_may_end_the_compilation(device: vs.FaultInjectionDevice) -> None:
    with vs.Scheduler([device]) as sched:
        add(sched, StrictHolder(0))
        with pytest.raises(vs.OutOfMemory, match="no memory left"):
            compile_sum(sched)
        assert not sched.failed_devices


@pytest.mark.parametrize("frees", [True, False])
def test_a_plan_that_avoids_a_full_gpu_is_repeated(frees: bool) -> None:
    names = [d.name for d in vs.devices() if d.name != "cpu" and d.usable]
    if not names:
        pytest.skip("no Vulkan device")
    full = FullDevice(names[0], None)
    x = vs.input("x", (512, 512))
    with vs.Scheduler([full]) as sched:
        holder = Freeing(full) if frees else Holder(0)
        add(sched, holder)
        with nullcontext() if frees else pytest.warns(vs.VkschedWarning, match="full"):
            run = sched.compile((x + 1) @ x)
        working = {run.plan.topology.devices[d].name for d in run.plan.working}
    assert (full.name in working) == frees
    assert [type(error).__name__ for error in holder.errors] == ["DeviceFull"] * frees


def test_unused_memory_is_freed_before_each_compilation() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        holders = [Holder(0, unused=True) for _ in range(2)]
        add(sched, *holders)
        compile_sum(sched)
        compile_sum(sched)
    assert [holder.freed for holder in holders] == [1, 1]

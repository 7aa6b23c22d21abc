"""Memory holders free memory before each compilation, and after an allocation failed."""

from __future__ import annotations

import warnings

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

    def shrink(self, error: vs.OutOfMemory) -> bool:
        self.errors.append(error)
        self.parts -= 1
        return self.parts >= 0


class StrictHolder(Holder):
    """A holder that prefers an error to a plan for other devices."""

    def shrink(self, error: vs.OutOfMemory) -> bool:
        raise error


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


def test_unused_memory_is_freed_before_each_compilation() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        holders = [Holder(0, unused=True) for _ in range(2)]
        add(sched, *holders)
        compile_sum(sched)
        compile_sum(sched)
    assert [holder.freed for holder in holders] == [1, 1]

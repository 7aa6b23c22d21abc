"""Saved values leave devices that are full, and the memory of dropped models is freed."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vksched as vs
import vksched.torch
from vksched.ir.tensor import Tensor
from vksched.runtime.simulated.fault_injection import FaultInjectionDevice, FaultyStates
from vksched.runtime.state_store import Item
from vksched.torch.backend import vksched as backend
from vksched.torch.explanation import explain
from vksched.torch.frame import programs
from vksched.torch.program import Specialisation
from vksched.torch.segment import DeviceSegment

ANY_BYTES = 1 << 40


class SmallNet(nn.Module):
    """Saves the result of tanh, and the mask of relu, for its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 50), nn.Linear(50, 2)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.second(torch.tanh(self.first(x))))


class LimitedStates(FaultyStates):
    """The states of a device that has memory for a few bytes of them."""

    def __init__(self, device: LimitedDevice) -> None:
        super().__init__(device)
        self._limited = device

    def add(self, items: Iterable[Item]) -> None:
        listed = list(items)
        if state_bytes(self) + sum(array.nbytes for _, array in listed) > self._limited.limit_bytes:
            raise vs.OutOfMemory(f"[states] {self._limited.name} has no memory left")
        super().add(listed)


class LimitedDevice(FaultInjectionDevice):
    """A device with memory for `limit_bytes` bytes of states."""

    limit_bytes = ANY_BYTES
    is_truthful = False
    """True if the planner knows the free memory, as it does with most drivers."""

    @property
    def spec(self) -> vs.DeviceSpec:
        found = super().spec
        if not self.is_truthful:
            return found
        return replace(found, memory_bytes=max(0, self.limit_bytes - state_bytes(self.states)))

    @property
    def states(self) -> LimitedStates:
        return LimitedStates(self)

    def leave(self, free_bytes: int) -> None:
        """Limit the memory, so that some bytes are free now."""
        self.limit_bytes = state_bytes(self.states) + free_bytes


def state_bytes(states: FaultyStates) -> int:
    return sum(4 * key.size for key in states.keys() if isinstance(key, Tensor))


@pytest.fixture
def device(gpu_name: str) -> LimitedDevice:
    return LimitedDevice(gpu_name, None, "memory", "prepare")


@pytest.fixture
def scheduler(device: LimitedDevice) -> Iterator[vs.Scheduler]:
    with vs.Scheduler([device]) as opened:
        yield opened


class Training:
    """A network on a scheduler, and its copy in eager PyTorch."""

    def __init__(self, scheduler: vs.Scheduler) -> None:
        self.eager = SmallNet()
        self.model = copy.deepcopy(self.eager)
        options = {"scheduler": scheduler}
        self.fast = torch.compile(self.model, backend=backend, options=options, dynamic=True)

    def step(self, rows: int) -> None:
        """Compare the gradients of some rows with eager PyTorch."""
        x = torch.linspace(-2, 3, rows * 4).reshape(rows, 4)
        found, wanted = (
            torch.autograd.grad(forward(x).square().sum(), [*model.parameters()])
            for forward, model in ((self.fast, self.model), (self.eager, self.eager))
        )
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def special(kind: str) -> list[Specialisation]:
    """Return the specialisations of the graphs of a kind of the network."""
    gc.collect()  # networks of earlier tests
    found = [p for frame, p in programs() if frame.label == "SmallNet" and p.info.kind == kind]
    return [each for p in found for each in p.specialisations.values()]


def bytes_of(each: Specialisation) -> int:
    return sum(4 * held.size for held in each.states)


def test_saved_values_of_other_sizes_leave_a_full_device(
    device: LimitedDevice, scheduler: vs.Scheduler
) -> None:
    training = Training(scheduler)
    training.step(20)
    device.leave(bytes_of(special("forward")[0]))  # for one more set
    with warnings.catch_warnings():
        warnings.simplefilter("error", vs.VkschedWarning)
        for rows in (19, 18, 20):
            training.step(rows)
    for kind in ("forward", "backward"):
        assert len(special(kind)) == 2 and all(each.states for each in special(kind))
    assert not device.failed and not scheduler.failed_devices


def test_a_full_device_is_not_left_for_the_cpu(
    device: LimitedDevice, scheduler: vs.Scheduler
) -> None:
    training = Training(scheduler)
    training.step(2000)
    device.leave(bytes_of(special("forward")[0]) * 5 // 2)  # a step needs 3
    device.is_truthful = True
    training.step(1999)
    for kind in ("forward", "backward"):
        (left,) = special(kind)
        plans = [step.compiled.plan for step in left.steps if isinstance(step, DeviceSegment)]
        assert plans and all(plan.topology.cpu not in plan.working for plan in plans)


def test_values_that_no_backward_pass_reads_leave_first(
    device: LimitedDevice, scheduler: vs.Scheduler
) -> None:
    training = Training(scheduler)
    training.step(20)
    (trained,) = special("forward")
    training.fast(torch.ones(19, 4))  # without a backward pass
    device.leave(0)
    training.step(18)
    assert trained in special("forward") and len(special("forward")) == 2


def test_values_pass_through_the_host_if_a_device_is_too_small(
    device: LimitedDevice, scheduler: vs.Scheduler
) -> None:
    training = Training(scheduler)
    device.limit_bytes = sum(4 * p.numel() for p in training.model.parameters())
    with pytest.warns(vs.VkschedWarning, match="backward pass pass through host memory: .*memory"):
        training.step(20)
    assert state_bytes(device.states) == device.limit_bytes  # the parameters alone
    assert "pass through host memory" in explain(training.fast)
    training.step(20)
    assert [len(special(kind)) for kind in ("forward", "backward")] == [1, 1]


def test_a_backward_graph_without_memory_gets_its_values_from_the_host(
    device: LimitedDevice, scheduler: vs.Scheduler
) -> None:
    training = Training(scheduler)
    loss = training.fast(torch.ones(20, 4)).square().sum()
    (forward,) = special("forward")
    assert forward.states
    device.times, device.at = 1, device.calls["prepare"]
    found = torch.autograd.grad(loss, [*training.model.parameters()])
    assert device.failed
    eager = training.eager
    wanted = torch.autograd.grad(eager(torch.ones(20, 4)).square().sum(), [*eager.parameters()])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    with pytest.warns(vs.VkschedWarning, match="no memory for the backward graph"):
        training.step(20)
    assert not any(each.states for kind in ("forward", "backward") for each in special(kind))
    del forward, loss
    vksched.torch.release()
    assert state_bytes(device.states) == sum(4 * p.numel() for p in eager.parameters())


def test_calls_below_no_grad_leave_nothing_on_devices(
    device: LimitedDevice, scheduler: vs.Scheduler
) -> None:
    training = Training(scheduler)
    training.step(20)
    device.leave(0)
    with torch.no_grad():
        for rows in (19, 20):
            training.fast(torch.ones(rows, 4))
    assert len(special("forward")) == 1 and special("forward")[0].states


@pytest.mark.parametrize("how", ["compile", "release"])
def test_memory_of_a_dropped_model_is_freed(
    device: LimitedDevice, scheduler: vs.Scheduler, how: str
) -> None:
    training = Training(scheduler)
    training.step(20)
    assert state_bytes(device.states)
    del training
    torch._dynamo.reset()
    gc.collect()
    if how == "release":
        vksched.torch.release()
    else:
        run = scheduler.compile(vs.input("x", (4,)) + 1)
        np.testing.assert_array_equal(run(x=np.ones(4, np.float32)), np.full(4, 2, np.float32))
    assert state_bytes(device.states) == 0


def test_release_passes_over_closed_schedulers() -> None:
    with vs.Scheduler(["cpu"]) as opened:
        training = Training(opened)
        training.step(3)
    del training
    torch._dynamo.reset()
    vksched.torch.release()
    with vs.Scheduler(["cpu"]) as opened:
        Training(opened).step(3)

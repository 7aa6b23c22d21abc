"""Runs that are submitted before the results of the one before are read."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest
from conftest import vulkan_names
from test_executor import X, null_devices

import vksched as vs
from vksched.common.dtypes import NDArray, Progress
from vksched.plan.types.plan_types import PlanValue
from vksched.plan.verify.happens_before import check_plan
from vksched.runtime.device import Device, PreparedPlan, WrappedPreparedPlan
from vksched.runtime.executors.base_executor import INTERRUPTED_S
from vksched.runtime.simulated.device_wrapper import WrappedDevice

NAMES = ["null", *vulkan_names()[-1:]]


class Watched(WrappedDevice):
    """A device that lists its calls; one of them is interrupted."""

    def __init__(self, device: Device, at: int = -1) -> None:
        super().__init__(device)
        self.calls: list[str] = []
        self.at = at

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> PreparedPlan:
        return WatchedPlan(self, self.device.prepare(plan, index, progress))


class WatchedPlan(WrappedPreparedPlan):
    def __init__(self, device: Watched, prepared: PreparedPlan) -> None:
        super().__init__(prepared)
        self._device = device

    def _meet(self, call: str) -> None:
        self._device.calls.append(call)
        if len(self._device.calls) - 1 == self._device.at:
            raise KeyboardInterrupt

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        self._meet(f"submit {slot}")
        super().submit(slot, split, sequence_number)

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        self._meet(f"wait {slot}")
        super().wait(slot, split, timeout_s)

    def fetch(self, slot: int, node: int) -> NDArray:
        self._meet(f"fetch {slot}")
        return super().fetch(slot, node)


@contextmanager
def counting(
    device: Device, ahead: bool = True, backup: bool = False
) -> Iterator[tuple[vs.Scheduler, vs.CompiledGraph, vs.Tensor]]:
    """A run that returns an input minus a state, and adds one to the state."""
    held = vs.state(X, name="held", backup=backup)
    with warnings.catch_warnings(), vs.Scheduler([device]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        minus = vs.sub(vs.input("x", X.shape), held)
        updates = {held: held + 1.0}
        yield sched, sched.compile(minus, {"*": device.name}, updates=updates, ahead=ahead), held


def opened(name: str) -> Device:
    return null_devices(1)[1][0] if name == "null" else vs.FaultInjectionDevice(name, None)


def feeds(count: int) -> Iterator[dict[str, NDArray]]:
    return ({"x": X * number} for number in range(count))


def into(found: list[Any]) -> Callable[[Any], bool]:
    """A consumer that takes all results."""

    def take(result: Any) -> bool:
        found.append(result)
        return True

    return take


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_submitted_before_results_are_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKSCHED_CHECK", "1")
    device = Watched(opened(name))
    with counting(device) as (sched, run, held):
        found: list[Any] = []
        run.run_ahead(feeds(4), into(found))
        assert all(np.array_equal(f, X * n - (X + n)) for n, f in enumerate(found))
        assert len(found) == 4 and np.array_equal(sched.read(held), X + 4)
        calls = [call for call, _ in itertools.groupby(device.calls)]
        steps = ("submit 1", "wait 0", "fetch 0", "submit 0", "wait 1", "fetch 1")
        assert calls == ["submit 0", *steps, "submit 1", "wait 0", "fetch 0", "wait 1", "fetch 1"]
        assert run.stats is not None and run.stats.waits == 1
        assert np.array_equal(run(x=X), X - (X + 4))
        check_plan(run.plan)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_was_submitted_ahead_is_dropped(name: str) -> None:
    with counting(Watched(opened(name))) as (sched, run, held):
        found: list[Any] = []

        def take(result: Any) -> bool:
            found.append(result)
            return len(found) < 2

        run.run_ahead(feeds(9), take)
        assert len(found) == 2 and np.array_equal(sched.read(held), X + 3)
        run.run_ahead(iter([{"x": X}]), take)
        assert np.array_equal(found[2], X - (X + 3)) and np.array_equal(sched.read(held), X + 4)


@pytest.mark.parametrize("how", ["without ahead", "with a backup", "two devices"])
def test_other_graphs_run_one_after_the_other(how: str) -> None:
    device = Watched(null_devices(1)[1][0])
    with counting(device, how != "without ahead", how == "with a backup") as (sched, run, held):
        found: list[Any] = []
        if how == "two devices":
            run = sched.compile(
                vs.sub(vs.mul(vs.input("x", X.shape), 1.0, name="there"), held),
                {"*": device.name, "there": "cpu"},
                updates={held: held + 1.0},
                ahead=True,
            )
        run.run_ahead(feeds(3), into(found))
        assert all(np.array_equal(f, X * n - (X + n)) for n, f in enumerate(found))
        assert {call.split()[1] for call in device.calls} == {"0"}


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupt_at_any_call(name: str) -> None:
    """The runs in flight have ended when it is raised, and the graph is usable."""
    for at in itertools.count():
        device = Watched(opened(name), at)
        with counting(device) as (sched, run, held):
            found: list[Any] = []
            try:
                run.run_ahead(feeds(3), into(found))
            except KeyboardInterrupt:
                device.at = -1
                done = sched.read(held)
                assert np.ptp(done - X) == 0 and len(found) <= done[0, 0] <= len(found) + 2
                assert np.array_equal(run(x=X), X - done)
                assert np.array_equal(sched.read(held), done + 1)
            else:
                break
    assert at > 10


def test_errors_of_the_consumer_are_raised_after_the_runs_in_flight() -> None:
    with counting(null_devices(1)[1][0]) as (sched, run, held):
        for error, raised in ((ValueError(), ValueError), (vs.DeviceLost("no"), vs.RunCancelled)):

            def take(result: Any, error: Exception = error) -> bool:
                raise error

            before = sched.read(held)
            with pytest.raises(raised):
                run.run_ahead(feeds(3), take)
            assert np.array_equal(sched.read(held), before + 2) and not sched.failed_devices


@pytest.mark.parametrize("call", ["submit", "wait", "check", "fetch"])
def test_a_device_that_fails(call: str) -> None:
    """No result is wrong, and the state is lost."""
    for at in range(8):
        device = vs.FaultInjectionDevice(null_devices(1)[1][0], at, "lost", call)
        with counting(device) as (sched, run, held):
            found: list[Any] = []
            run.run_ahead(feeds(3), into(found))
            assert all(np.array_equal(f, X * n - (X + n)) for n, f in enumerate(found))
            if not device.failed:
                assert len(found) == 3
                break
            assert len(found) < 3 and device.name in sched.failed_devices
            for attempt in (lambda: sched.read(held), lambda: run(x=X)):
                with pytest.raises(vs.StateLost, match="'held'"):
                    attempt()
            sched.write(held, X)
            run.run_ahead(feeds(2), into(found))
            assert np.array_equal(found[-1], X - (X + 1))
    assert at > 2


def test_a_failure_is_raised_if_the_user_wants_it() -> None:
    device = vs.FaultInjectionDevice(null_devices(1)[1][0], 3)
    held = vs.state(X, name="held", backup=False)
    with vs.Scheduler([device], on_device_failure="raise") as sched:
        updates = {held: held + 1.0}
        run = sched.compile(vs.neg(held), {"*": device.name}, updates=updates, ahead=True)
        with pytest.raises(vs.DeviceLost):
            run.run_ahead(({} for _ in range(3)), lambda result: True)


class Hung(WatchedPlan):
    """Once it hangs, it ends no submission, while the user presses Ctrl-C again and again."""

    limits_s: ClassVar[list[float]] = []
    hangs: ClassVar[bool] = False

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        if not self.hangs:
            return super().wait(slot, split, timeout_s)
        self.limits_s.append(timeout_s)
        time.sleep(0.1)
        if timeout_s < INTERRUPTED_S - 0.25 or len(self.limits_s) > 9:
            raise vs.DeviceTimeout("[wait] hung")
        raise KeyboardInterrupt


class HungDevice(Watched):
    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> PreparedPlan:
        return Hung(self, self.device.prepare(plan, index, progress))


@pytest.mark.parametrize("ahead", [False, True])
def test_all_interrupts_of_a_device_that_hangs_have_one_deadline(ahead: bool) -> None:
    device = HungDevice(null_devices(1)[1][0])
    with counting(device, ahead) as (sched, run, held):
        assert run.plan.commits_early
        Hung.hangs = False
        run(x=X)
        Hung.hangs = True
        Hung.limits_s.clear()
        with pytest.raises(KeyboardInterrupt):
            run.run_ahead(feeds(3), lambda result: True) if ahead else run(x=X)
        first, *others = Hung.limits_s
        assert first > INTERRUPTED_S >= others[0] and others == sorted(others, reverse=True)
        assert 2 < len(others) < 6
        assert device.name in sched.failed_devices
        with pytest.raises(vs.StateLost, match="'held'"):
            sched.read(held)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_without_memory_is_repeated(name: str) -> None:
    """Nothing of it was submitted that writes states: these are right, and the device is in use."""
    for at in itertools.count():
        device = vs.FaultInjectionDevice(opened(name), None, "memory", "submit", times=1)
        with counting(device) as (sched, run, held):
            run(x=X)
            device.at = device.calls["submit"] + at
            found: list[Any] = []
            run.run_ahead(feeds(4), into(found))
            assert len(found) == 4 and not sched.failed_devices
            assert all(np.array_equal(f, X * n - (X + n + 1)) for n, f in enumerate(found))
            assert np.array_equal(sched.read(held), X + 5)
            if not device.failed:
                break
    assert at == 8  # two splits of each run


def test_a_run_in_flight_is_awaited_before_one_without_memory_ends() -> None:
    device = vs.FaultInjectionDevice(null_devices(1)[1][0], 3, "memory", "submit", times=1)
    watched = Watched(device)
    with counting(watched) as (sched, run, held):
        found: list[Any] = []
        run.run_ahead(feeds(2), lambda result: bool(found.append(result)))
        calls = [call for call, _ in itertools.groupby(watched.calls)]
        assert calls == ["submit 0", "submit 1", "wait 0", "fetch 0"]
        assert len(found) == 1 and np.array_equal(sched.read(held), X + 1)


@pytest.mark.parametrize("ahead", [False, True])
def test_no_inputs(ahead: bool) -> None:
    with counting(null_devices(1)[1][0], ahead) as (sched, run, held):
        run.run_ahead([], lambda result: True)
        assert np.array_equal(sched.read(held), X)
        run.run_ahead(feeds(2), lambda result: True)
        assert np.array_equal(sched.read(held), X + 2)


def test_a_slot_that_does_not_begin_costs_the_device() -> None:
    class Plan(WatchedPlan):
        def begin(self, slot: int) -> None:
            if device.at == 99:
                raise vs.DeviceLost("[begin] gone")
            super().begin(slot)

    class Device_(Watched):
        def prepare(
            self, plan: PlanValue, index: int, progress: Progress | None = None
        ) -> PreparedPlan:
            return Plan(self, self.device.prepare(plan, index, progress))

    device = Device_(null_devices(1)[1][0])
    with counting(device) as (sched, run, _):
        run(x=X)
        device.at = 99
        run.run_ahead(feeds(3), lambda result: True)
        assert device.name in sched.failed_devices


def test_observers_are_called_and_may_end_a_run() -> None:
    seen: list[NDArray] = []
    held = vs.state(X, name="held", backup=False)
    minus = vs.mul(vs.input("x", X.shape), -1.0, name="minus")

    def observe(name: str, value: NDArray) -> bool:
        seen.append(value)
        return len(seen) < 3

    with vs.Scheduler(null_devices(1)[1]) as sched:
        options: dict[str, Any] = {"updates": {held: held + 1.0}, "observe": {minus: observe}}
        run = sched.compile(minus + held, {"*": "null:0"}, ahead=True, **options)
        found: list[Any] = []
        with pytest.raises(vs.RunCancelled):
            run.run_ahead(feeds(9), into(found))
        assert all(np.array_equal(value, -X * n) for n, value in enumerate(seen))
        assert len(seen) == 3 and len(found) == 2 and np.array_equal(sched.read(held), X + 2)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("good", [0, 1, 2, 3])
def test_results_before_a_wrong_input_are_taken(good: int, ahead: bool) -> None:
    def lost() -> Iterator[dict[str, NDArray]]:
        yield from feeds(good)
        raise vs.DeviceLost("[read] the device of the inputs is gone")

    wrong = [*feeds(good), {"y": X}]
    for inputs, error in ((wrong, vs.GraphError), (lost(), vs.DeviceLost)):
        with counting(null_devices(1)[1][0], ahead) as (sched, run, held):
            found: list[Any] = []
            with pytest.raises(error):
                run.run_ahead(inputs, into(found))
            assert len(found) == good and np.array_equal(sched.read(held), X + good)
            assert not sched.failed_devices

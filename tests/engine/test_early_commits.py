"""Early commits: one wait for each run with states on one device; states are written or as before,
whatever ends the run.
"""

from __future__ import annotations

import itertools
import linecache
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from test_executor import X, null_devices

import vksched as vs
from vksched.common.dtypes import NDArray, Progress
from vksched.common.errors import IndexOutOfRange, PlanError
from vksched.plan.simulation.simulate_plan import simulate
from vksched.plan.types.plan_types import PlanValue
from vksched.plan.verify.happens_before import check_plan
from vksched.runtime.device import Device, PreparedPlan, WrappedPreparedPlan
from vksched.runtime.executors import plan_executor
from vksched.runtime.simulated.device_wrapper import WrappedDevice
from vksched.runtime.simulated.fault_injection import KINDS

BACKUP = pytest.mark.parametrize("backup", [True, False])


@contextmanager
def counting(
    device: str | Device, backup: bool = True
) -> Iterator[tuple[vs.Scheduler, vs.CompiledGraph, vs.Tensor]]:
    """A run that returns minus a state, and adds one to it."""
    held = vs.state(X, name="held", backup=backup)
    with warnings.catch_warnings(), vs.Scheduler([device]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        name = sched.devices[0].name
        yield sched, sched.compile(vs.neg(held), {"*": name}, updates={held: held + 1.0}), held


def waits_of(run: vs.CompiledGraph) -> int:
    assert run.stats is not None
    return run.stats.waits


# -- plans -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["null", *vulkan_names()])
def test_a_run_with_states_on_one_device_waits_once(name: str) -> None:
    with counting(null_devices(1)[1][0] if name == "null" else name) as (sched, run, held):
        for number in range(3):
            assert np.array_equal(run(), -X - number)
            assert waits_of(run) == 1 and run.plan.fences == 1 and len(run.plan.splits) == 2
        assert run.plan.commits_early and np.array_equal(sched.read(held), X + 3)
        check_plan(run.plan.verify())


def test_predictions_count_one_wait() -> None:
    """The simulator of plans and null devices agree on the time of a run."""
    clock, devices = null_devices(1, submit_s=1e-3)
    with counting(devices[0]) as (_, run, _):
        start_s = clock.now()
        run()
        assert clock.now() - start_s == pytest.approx(simulate(run.plan).seconds, rel=1e-9)


def picked(bounds: tuple[int, int] | None) -> tuple[vs.Tensor, dict[vs.Tensor, vs.Tensor]]:
    held = vs.state(X, name="held")
    at = vs.input("at", (2,), "int32", bounds=bounds)
    return vs.gather(held, at), {held: held + 1.0}


def test_indices_that_may_be_out_of_range_are_seen_before_states_are_written() -> None:
    bad = np.array([0, len(X)], np.int32)
    for bounds in (None, (0, len(X)), (0, len(X) - 1), (-len(X), -1)):
        with vs.Scheduler(null_devices(1)[1]) as sched:
            outputs, updates = picked(bounds)
            run = sched.compile(outputs, {"*": "null:0"}, updates=updates)
            assert run.plan.commits_early == (bounds is not None and bounds[1] < len(X))
            with pytest.raises(IndexOutOfRange):
                run(at=bad)
            assert np.array_equal(sched.read(next(iter(updates))), X)
            run(at=np.array([-1, -2] if bounds and bounds[0] < 0 else [0, 2], np.int32))
            assert waits_of(run) == (1 if run.plan.commits_early else 2)


def test_observed_values_and_other_devices_are_seen_first() -> None:
    with vs.Scheduler(null_devices(2)[1]) as sched:
        held = vs.state(X, name="held")
        minus, updates = vs.neg(held, name="minus"), {held: held + 1.0}
        observe = {minus: lambda name, value: False}
        watched = sched.compile(minus, {"*": "null:0"}, updates=updates, observe=observe)
        assert not watched.plan.commits_early
        with pytest.raises(vs.RunCancelled):
            watched()
        other = vs.mul(minus, 2.0, name="other")
        two = sched.compile(other, {"*": "null:0", "other": "null:1"}, updates=updates)
        assert not two.plan.commits_early
        assert np.array_equal(two(), -2 * X) and waits_of(two) == 4
        one = sched.compile(minus, {"*": "null:0"}, updates=updates)
        assert one.plan.commits_early and np.array_equal(one(), -X - 1)


def test_long_work_is_complete_before_states_are_written() -> None:
    """Ctrl-C waits for an early commit."""
    with vs.Scheduler(null_devices(1, flops_per_s=10.0)[1]) as sched:
        held = vs.state(X, name="held")
        run = sched.compile(vs.exp(held), {"*": "null:0"}, updates={held: held + 1.0})
        assert not run.plan.commits_early


def test_a_plan_that_must_not_commit_early_is_refused() -> None:
    with vs.Scheduler(null_devices(1)[1]) as sched:
        outputs, updates = picked(None)
        plan = sched.reserve(outputs, {"*": "null:0"}, updates=updates)
        *before, commit = plan.splits
        damaged = replace(plan, splits=(*before, replace(commit, waits=())))
        assert damaged.commits_early
        with pytest.raises(PlanError, match="writes states before"):
            damaged.verify()
        with pytest.raises(PlanError, match="out of order"):
            check_plan(damaged)


# -- devices that fail -----------------------------------------------------------------------------


@BACKUP
@pytest.mark.parametrize("call", ["submit", "wait", "check", "fetch"])
def test_a_device_that_fails_at_any_call(call: str, backup: bool) -> None:
    """Each run gives the right result; a state is right, or lost where it has no backup."""
    for kind, at in itertools.product(KINDS if call == "submit" else ("lost", "error"), range(7)):
        device = vs.FaultInjectionDevice(null_devices(1)[1][0], at, kind, call, times=1)
        with counting(device, backup) as (sched, run, held):
            expected = X
            for _ in range(3):
                try:
                    result = run()
                except vs.StateLost:
                    assert not backup
                    sched.write(held, expected)
                    result = run()
                assert np.array_equal(result, -expected), (kind, at)
                expected = expected + 1
            assert (
                backup or device.failed == 0 or "null:0" in sched.failed_devices or kind == "memory"
            )
            assert np.array_equal(sched.read(held), expected), (kind, at)


@pytest.mark.parametrize("call", ["wait", "submit"])
def test_a_write_without_memory_costs_the_device(call: str) -> None:
    """Nothing was submitted: the device stays in use. Later the states are torn: it does not."""
    device = vs.FaultInjectionDevice(null_devices(1)[1][0], None, "memory", call, times=1)
    with counting(device) as (sched, run, held):
        run()
        device.at = device.calls[call] + (call == "submit")
        assert np.array_equal(run(), -X - 1) and device.failed == 1
        assert ("null:0" in sched.failed_devices) == (call == "wait")
        assert np.array_equal(sched.read(held), X + 2)


# -- interrupts ------------------------------------------------------------------------------------


class Interrupted(WrappedDevice):
    """A device of which one call is interrupted by Ctrl-C, before or after its work."""

    def __init__(self, device: Device, at: int, after: bool) -> None:
        super().__init__(device)
        self.left, self.after = at, after

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> PreparedPlan:
        return InterruptedPlan(self, self.device.prepare(plan, index, progress))

    def meet(self, after: bool) -> None:
        if after == self.after:
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt


class InterruptedPlan(WrappedPreparedPlan):
    def __init__(self, device: Interrupted, prepared: PreparedPlan) -> None:
        super().__init__(prepared)
        self._device = device

    def __getattribute__(self, name: str) -> Any:
        call = super().__getattribute__(name)
        if name not in ("submit", "wait", "check", "fetch"):
            return call

        def interrupted(*args: Any) -> Any:
            self._device.meet(after=False)
            result = call(*args)
            self._device.meet(after=True)
            return result

        return interrupted


@BACKUP
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["null", *vulkan_names()[-1:]])
def test_an_interrupted_call(name: str, after: bool, backup: bool) -> None:
    """A run that was interrupted has changed the state, or not; its backup says the same."""
    written = []
    for at in itertools.count():
        inner = null_devices(1)[1][0] if name == "null" else vs.FaultInjectionDevice(name, None)
        device = Interrupted(inner, at, after)
        with counting(device, backup) as (sched, run, held):
            try:
                run()
            except KeyboardInterrupt:
                written.append(check_state(sched, run, held))
            else:
                break
    assert not written[0] and written[-1] and written == sorted(written)
    assert len(written) == (7 if backup else 6)  # submit, submit, wait, check, check, fetch


def check_state(sched: vs.Scheduler, run: vs.CompiledGraph, held: vs.Tensor) -> bool:
    """Return True if the interrupted run has written its state; the next run goes on from there."""
    found = sched.read(held)
    is_written = bool(found[0, 0])
    assert np.array_equal(found, X + is_written)
    copy = sched._states._copies.get(held)
    assert copy is None or np.array_equal(copy, found)
    assert np.array_equal(run(), -found) and np.array_equal(sched.read(held), found + 1)
    return is_written


def test_an_interrupt_at_any_line_of_the_executor() -> None:
    """Ctrl-C between two lines: the state is as before, or written, and the graph is usable."""
    tracer, written = sys.gettrace(), list[bool]()
    with counting(null_devices(1)[1][0]) as (sched, run, held):
        for number in itertools.count():
            sched.write(held, X)
            try:
                sys.settrace(Interrupt(number))
                run()
            except KeyboardInterrupt:
                sys.settrace(tracer)
                written.append(check_state(sched, run, held))
            else:
                break
            finally:
                sys.settrace(tracer)
    assert written == sorted(written) and written.count(True) > 10 < written.count(False)


class Interrupt:
    """A tracer that interrupts the executor before its line number `left`."""

    def __init__(self, left: int) -> None:
        self._left = left

    def __call__(self, frame: FrameType, event: str, _: object) -> Interrupt | None:
        if frame.f_code.co_filename != plan_executor.__file__:
            return None
        # an interrupt is raised by a call or the end of a loop
        if event == "line" and "(" in linecache.getline(plan_executor.__file__, frame.f_lineno):
            self._left -= 1
            if self._left == -1:
                raise KeyboardInterrupt
        return self


@BACKUP
def test_a_device_is_lost_after_an_interrupt(backup: bool) -> None:
    """Ctrl-C in the wait, and then the device fails: the interrupt is raised, no value is torn."""

    class Lost(InterruptedPlan):
        def __getattribute__(self, name: str) -> Any:
            if name == "check" and device.left < -1 and armed:
                raise vs.DeviceLost("[check] gone")
            return super().__getattribute__(name)

    class Device_(Interrupted):
        def prepare(
            self, plan: PlanValue, index: int, progress: Progress | None = None
        ) -> PreparedPlan:
            return Lost(self, self.device.prepare(plan, index, progress))

    device, armed = Device_(null_devices(1)[1][0], 100, after=False), list[bool]()
    values: list[NDArray] = []
    with counting(device, backup) as (sched, run, held):
        run()
        device.left = 2
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            run()
        assert device.name in sched.failed_devices
        if backup:
            values.append(sched.read(held))
            assert np.array_equal(values[0], X + 1) and np.array_equal(run(), -X - 1)
        else:
            with pytest.raises(vs.StateLost, match="'held'"):
                run()

"""Commits that a run does not wait for: one wait for each run, and failures that the next user of
the states learns of.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from test_executor import X
from test_state_faults import check, named_devices

import vksched as vs
from vksched.common.dtypes import NDArray, Progress
from vksched.common.errors import DeviceError
from vksched.plan.types.plan_types import PlanValue
from vksched.runtime.device import Device, PreparedPlan, WrappedPreparedPlan
from vksched.runtime.simulated.device_wrapper import WrappedDevice

CARD = vulkan_names()[-1:]
pytestmark = pytest.mark.skipif(not CARD, reason="no Vulkan device")


class Watched(WrappedDevice):
    """A device that tells of its waits, and may fail in a wait for a commit."""

    def __init__(self, device: str | Device) -> None:
        super().__init__(device)
        self.waited: list[str] = []
        self.ended = True
        """False: no commit has ended when somebody asks."""
        self.failure: BaseException | None = None

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> PreparedPlan:
        return WatchedPlan(self, plan, self.device.prepare(plan, index, progress))


class WatchedPlan(WrappedPreparedPlan):
    def __init__(self, watched: Watched, plan: PlanValue, prepared: PreparedPlan) -> None:
        super().__init__(prepared)
        self._watched = watched
        self._commits = {split.id for split in plan.commits}  # type: ignore[attr-defined]

    def _kind(self, split: int) -> str:
        return "commit" if split in self._commits else "results"

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        self._watched.waited.append(self._kind(split))
        failure = self._watched.failure
        if failure is not None and split in self._commits:
            self._watched.failure = None
            self._prepared.wait(slot, split, timeout_s)
            raise failure
        self._prepared.wait(slot, split, timeout_s)

    def ends_s(self, slot: int, split: int) -> float | None:
        if split not in self._commits:
            return self._prepared.ends_s(slot, split)
        if self._watched.ended:
            self._prepared.wait(slot, split, 60.0)
        return self._prepared.ends_s(slot, split) if self._watched.ended else None


@contextmanager
def counting(
    device: Watched, backup: bool = False, **settings: Any
) -> Iterator[tuple[vs.Scheduler, vs.CompiledGraph, vs.Tensor]]:
    """A run that returns minus a state, and adds one to it."""
    held = vs.state(X, name="held", backup=backup)
    with warnings.catch_warnings(), vs.Scheduler([device], **settings) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        run = sched.compile(vs.neg(held), {"*": device.name}, updates={held: held + 1.0})
        yield sched, run, held


def test_a_run_with_states_waits_once() -> None:
    device = Watched(CARD[0])
    with counting(device) as (sched, run, held):
        for number in range(4):
            device.waited.clear()
            assert np.array_equal(run(), -X - number)
            # the commit of the run before, which has ended, and the results
            assert device.waited == ["commit", "results"][number == 0 :]
        assert run.stats is not None and (run.stats.waits, run.stats.fence_waits) == (1, 1)
        assert [split.device_s is not None for split in run.stats.splits] == [True, True]
        device.ended = False
        run()
        assert run.stats.waits == 2, "the commit had not ended"
        assert np.array_equal(sched.read(held), X + 5)


@pytest.mark.parametrize("how", ["raise", "traced"])
def test_runs_that_are_watched_wait_for_their_commits(how: str) -> None:
    device = Watched(CARD[0])
    settings: dict[str, Any] = (
        {"on_device_failure": "raise"}
        if how == "raise"
        else {"trace": vs.Trace(sinks=[lambda event: None])}
    )
    with counting(device, **settings) as (_, run, _):
        run()
        assert device.waited == ["results", "commit"]


USES: dict[str, Callable[[vs.Scheduler, vs.CompiledGraph, vs.Tensor], object]] = {
    "read": lambda sched, run, held: sched.read(held),
    "write": lambda sched, run, held: sched.write(held, X),
    "stats": lambda sched, run, held: run.stats,
    "report": lambda sched, run, held: run.report(advice=False),
    "synchronize": lambda sched, run, held: run.synchronize(),
    "close of the run": lambda sched, run, held: run.close(),
    "close": lambda sched, run, held: sched.close(),
    "another graph": lambda sched, run, held: sched.compile(held * 2.0)(),
}


@pytest.mark.parametrize("name", USES)
def test_every_use_of_states_waits_first(name: str) -> None:
    device = Watched(CARD[0])
    with counting(device) as (sched, run, held):
        run()
        assert device.waited == ["results"]
        USES[name](sched, run, held)
        assert device.waited[:2] == ["results", "commit"]


@pytest.mark.parametrize("backup", [True, False])
def test_the_next_use_learns_of_a_lost_commit(backup: bool) -> None:
    device = Watched(CARD[0])
    with counting(device, backup) as (sched, run, held):
        assert np.array_equal(run(), -X)
        assert device.name not in sched.failed_devices
        device.failure = vs.DeviceLost("[wait] gone")
        if backup:
            assert np.array_equal(run(), -X - 1) and np.array_equal(sched.read(held), X + 2)
        else:
            for attempt in (run, lambda: sched.read(held)):
                with pytest.raises(vs.StateLost, match=r"'held'.*gone.*sched\.write"):
                    attempt()
            sched.write(held, X)
            assert np.array_equal(run(), -X) and np.array_equal(sched.read(held), X + 1)
        assert device.name in sched.failed_devices


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), ValueError("a fault of another kind")])
def test_other_errors_are_raised_once_by_the_next_use(cause: BaseException) -> None:
    device = Watched(CARD[0])
    with counting(device) as (sched, run, held):
        run()
        device.failure = cause
        with pytest.raises(type(cause)):
            sched.read(held)
        if isinstance(cause, KeyboardInterrupt):  # the write was complete before it was raised
            assert np.array_equal(sched.read(held), X + 1)
            assert np.array_equal(run(), -X - 1)


@pytest.mark.parametrize("call", ["wait", "check", "submit"])
@pytest.mark.parametrize("backup", [True, False])
def test_every_call_may_fail(two_devices: list[str], call: str, backup: bool) -> None:
    """Of the device whose commits are deferred, if its driver has timestamps."""
    for at in range(6):
        check(named_devices(two_devices), 1, backup, kind="lost", call=call, at=at, times=1)


def test_a_close_with_a_lost_commit_ends() -> None:
    device = Watched(CARD[0])
    with counting(device) as (sched, run, held):
        run()
        device.failure = DeviceError("[wait] failed")
        sched.close()
        assert device.failure is None


def test_threads_take_turns(two_devices: list[str]) -> None:
    """Runs, reads and runs of another graph on another device, at once."""
    held, other = vs.state(X, name="held"), vs.state(X, name="other")
    found: list[NDArray] = []
    errors: list[BaseException] = []
    with vs.Scheduler(two_devices) as sched:
        names = [device.name for device in sched.devices]
        run = sched.compile(vs.neg(held), {"*": names[0]}, updates={held: held + 1.0})
        both = sched.compile(held + other, {"*": names[1]}, updates={other: other + 1.0})

        def work(call: Callable[[], object]) -> None:
            try:
                for _ in range(20):
                    call()
            except BaseException as error:
                errors.append(error)

        calls = [run, run, both, lambda: found.append(sched.read(held))]
        threads = [threading.Thread(target=work, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert np.array_equal(sched.read(held), X + 40)
        assert np.array_equal(sched.read(other), X + 20)
    steps = [float((value - X).flat[0]) for value in found]
    assert steps == sorted(steps) and all(np.ptp(value - X) < 1e-3 for value in found)

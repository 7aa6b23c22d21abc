"""Race checker (VKSCHED_CHECK=1): prepared plans that report their operations to the happens-before
checker.

    executor --upload, submit, wait, check, fetch--> Watched --> the device's prepared plan
                                                       \\--> Log --> plan.verify.happens_before

The reported order is the execution order: a submission and its event are one step under the queue's
lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from ...common.dtypes import NDArray
from ...common.env import is_on
from ...common.errors import DeviceError
from ...plan.types.plan_types import PlanValue, Upload
from ...plan.verify.happens_before import Checker, Finding, fail_on
from ...plan.verify.memory_events import Event, EventGenerator
from ..device import PreparedPlan, WrappedPreparedPlan


def wanted() -> bool:
    """Return True if runs are to be checked."""
    return is_on("VKSCHED_CHECK")


class Log:
    """The operations of one executor's runs, checked as they happen."""

    def __init__(self, plan: PlanValue) -> None:
        self._plan = plan
        self._tell = EventGenerator(plan)
        self._checker = Checker(plan)
        self._found: list[Finding] = []
        self._runs = 0
        self._lock = threading.Lock()

    def watch(self, prepared: PreparedPlan, device: int) -> PreparedPlan:
        """Return a prepared plan that reports its operations."""
        return _Watched(prepared, device, self)

    def acquire(self, slot: int) -> None:
        """Record that a run gets a slot. Called before other threads know, as `release` is called
        while the run still has the slot.
        """
        self.take([self._tell.acquire(slot, self._runs)])
        self._runs += 1

    def release(self, slot: int) -> None:
        """Record that a run releases its slot. Unfinished operations of a failed run count for the
        next run only if it depends on them.
        """
        self.take([self._tell.release(slot)])
        self._take_found(slot)

    def end(self, slot: int) -> None:
        """Record that a run has its results.

        Raises
        ------
        PlanError
            Some of its operations were unordered.
        """
        self.take([self._tell.end(slot)])
        fail_on(self._take_found(slot))

    def _take_found(self, slot: int) -> list[Finding]:
        with self._lock:
            found = [f for f in self._found if f.slot == slot]
            self._found = [f for f in self._found if f.slot != slot]
        return found

    def take(self, events: Iterable[Event]) -> None:
        """Add events in execution order."""
        with self._lock:
            for event in events:
                self._found += self._checker.feed(event)


class _Watched(WrappedPreparedPlan):
    """A prepared plan and the log that it reports to."""

    def __init__(self, prepared: PreparedPlan, device: int, log: Log) -> None:
        super().__init__(prepared)
        self._device = device
        self._log = log
        self._tell = log._tell
        self._queue = threading.Lock()

    def upload(self, slot: int, copy: Upload, array: NDArray) -> None:
        super().upload(slot, copy, array)
        self._log.take([self._tell.stage(slot, self._device, copy)])

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        with self._queue:
            super().submit(slot, split, sequence_number)
            self._log.take(self._tell.submit(slot, split))

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        try:
            super().wait(slot, split, timeout_s)
        except Exception as error:
            if not isinstance(error, DeviceError):  # the split has ended, although with an error
                self._log.take(self._tell.wait(slot, split))
            raise
        self._log.take(self._tell.wait(slot, split))

    def check(self, slot: int, split: int, sequence_number: int) -> None:
        self._log.take([self._tell.check(slot, split)])
        super().check(slot, split, sequence_number)

    def fetch(self, slot: int, node: int) -> NDArray:
        self._log.take([self._tell.fetch(slot, node, self._device)])
        return super().fetch(slot, node)

    def close(self) -> None:
        self._log.take([self._tell.free(self._device)])
        super().close()

"""DeviceRecovery: opens failed devices again, so that a server is not degraded until its restart.

    failed --10 s--> restore_device --error, or it fails again--> 20 s --> 40 s ... 10 minutes
                          '-- in use for longer than 10 minutes --> the next wait is 10 s again

A device that exceeds the scheduler's timeout stalls all requests until then. It waits at least as
long, and at most ten times as long, so that it stalls them for a small share of the time. Hosts of
a cluster return by themselves. A driver may hang while it opens a device, so that a thread of its
own waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..common.errors import DeviceTimeout, VkschedError
from ..topology.host_names import DRIVER, host_of
from .error_log import LOG

MOST_S = 600.0
"""The longest wait, and the time in use after which a wait is the first one again."""
MOST_TIMEOUTS = 10
"""The same for a device that exceeds the timeout, in timeouts, if that is longer."""
POLL_S = 0.5
CLOSE_LIMIT_S = 5.0


class RestoresDevices(Protocol):
    """The parts of a scheduler that restore devices."""

    @property
    def failed_devices(self) -> Mapping[str, str]: ...

    def restore_device(self, name: str) -> None:
        """Use a failed device again."""


@dataclass
class _Attempt:
    """The next attempt to restore a device, or the last one: its time, and the wait before it.
    used_from_s: the time from which on the device was in use after it; None if it was not.
    """

    time_s: float
    wait_s: float
    is_done: bool = False
    used_from_s: float | None = None


class DeviceRecovery:
    """Restores failed devices of this host in a thread.

    Parameters
    ----------
    after_s
        The time from a failure to the first attempt in seconds.
    timeout_s
        The time limit of a submission of the scheduler.
    """

    def __init__(self, scheduler: RestoresDevices, after_s: float, timeout_s: float) -> None:
        self._scheduler = scheduler
        self._after_s = after_s
        self._timeout_s = timeout_s
        self._attempts: dict[str, _Attempt] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vksched-recovery", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; wait for it for at most 5 s, because a driver may hang in it."""
        self._closing.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_LIMIT_S)

    def step(self, now_s: float) -> None:
        """Restore the devices that are due."""
        failed = dict(self._scheduler.failed_devices)
        for name, last in self._attempts.items():
            if name not in failed and last.used_from_s is None:
                last.used_from_s, last.is_done = now_s, True  # perhaps by another caller
        for name, reason in failed.items():
            if host_of(name) != DRIVER:
                continue
            attempt = self._attempts.get(name)
            if attempt is None or attempt.is_done:
                wait_s = self._wait_s(attempt, reason, now_s)
                self._attempts[name] = _Attempt(now_s + wait_s, wait_s)
            elif now_s >= attempt.time_s:
                attempt.is_done = True
                self._restore(name)

    def _wait_s(self, last: _Attempt | None, reason: str, now_s: float) -> float:
        """Return the time from a failure to the next attempt."""
        first_s, most_s = self._after_s, MOST_S
        if reason.startswith(f"{DeviceTimeout.__name__}:"):
            first_s = max(first_s, self._timeout_s)
            most_s = max(most_s, MOST_TIMEOUTS * self._timeout_s)
        if last is None:
            return first_s
        if last.used_from_s is not None and now_s - last.used_from_s > most_s:
            return first_s
        return min(max(first_s, 2 * last.wait_s), most_s)

    def _restore(self, name: str) -> None:
        try:
            self._scheduler.restore_device(name)
        except VkschedError as error:
            LOG.warning("%s cannot be restored: %s", name, error)
        else:
            LOG.warning("%s is used again", name)

    def _run(self) -> None:
        while not self._closing.wait(POLL_S):
            try:
                self.step(time.monotonic())
            except Exception:  # of a driver, or of another thread's change; the next step continues
                LOG.exception("devices cannot be restored")

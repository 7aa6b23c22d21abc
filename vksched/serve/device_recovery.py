"""DeviceRecovery: opens failed devices again, so that a server is not degraded until its restart.

    failed --10 s--> restore_device --error, or it fails within 10 s--> 20 s --> ... 10 minutes
                          '-- in use for longer than its last wait --> the next one is 10 s again

Hosts of a cluster return by themselves. A driver may hang while it opens a device, so that a thread
of its own waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..common.errors import VkschedError
from ..topology.host_names import DRIVER, host_of
from .error_log import LOG

MOST_S = 600.0
POLL_S = 0.5


class RestoresDevices(Protocol):
    """The parts of a scheduler that restore devices."""

    @property
    def failed_devices(self) -> Mapping[str, str]: ...

    def restore_device(self, name: str) -> None:
        """Use a failed device again."""


@dataclass
class _Attempt:
    """The next attempt to restore a device, or the last one: its time, and the wait before it."""

    time_s: float
    wait_s: float
    is_done: bool = False


class DeviceRecovery:
    """Restores failed devices of this host in a thread.

    Parameters
    ----------
    after_s
        The time from a failure to the first attempt in seconds.
    """

    def __init__(self, scheduler: RestoresDevices, after_s: float) -> None:
        self._scheduler = scheduler
        self._after_s = after_s
        self._attempts: dict[str, _Attempt] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vksched-recovery", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, unless a driver hangs in it."""
        self._closing.set()

    def step(self, now_s: float) -> None:
        """Restore the devices that are due."""
        for name in list(self._scheduler.failed_devices):
            if host_of(name) != DRIVER:
                continue
            attempt = self._attempts.get(name)
            if attempt is None or attempt.is_done:
                wait_s = self._wait_s(attempt, now_s)
                self._attempts[name] = _Attempt(now_s + wait_s, wait_s)
            elif now_s >= attempt.time_s:
                attempt.time_s, attempt.is_done = now_s, True
                self._restore(name)

    def _wait_s(self, last: _Attempt | None, now_s: float) -> float:
        """Return the time from a failure to the next attempt."""
        if last is None or now_s - last.time_s > last.wait_s:
            return self._after_s
        return min(2 * last.wait_s, MOST_S)

    def _restore(self, name: str) -> None:
        try:
            self._scheduler.restore_device(name)
        except VkschedError as error:
            LOG.warning("%s cannot be restored: %s", name, error)
        else:
            LOG.warning("%s is used again", name)

    def _run(self) -> None:
        while not self._closing.wait(POLL_S):
            self.step(time.monotonic())

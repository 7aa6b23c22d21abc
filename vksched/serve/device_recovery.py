"""DeviceRecovery: opens failed devices again, so that a server is not degraded until its restart.

    failed --10 s--> restore_device --error, or it fails again--> 20 s --> 40 s --> ... 10 minutes
                          '-- in use for 10 minutes --> the next failure waits 10 s again

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
    """The next attempt to restore a device: its time, and the wait before it in seconds."""

    due_s: float
    wait_s: float
    is_restored: bool = False


class DeviceRecovery:
    """Restores failed devices of this host in a thread.

    Parameters
    ----------
    after_s
        The time from a failure to the first attempt in seconds; it doubles with each attempt.
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
        failed = [name for name in self._scheduler.failed_devices if host_of(name) == DRIVER]
        for name, attempt in list(self._attempts.items()):
            if name not in failed and now_s - attempt.due_s > MOST_S:
                del self._attempts[name]
        for name in failed:
            attempt = self._attempts.setdefault(
                name, _Attempt(now_s + self._after_s, self._after_s)
            )
            if attempt.is_restored:  # it failed again
                attempt.wait_s = min(2 * attempt.wait_s, MOST_S)
                attempt.due_s, attempt.is_restored = now_s + attempt.wait_s, False
            elif now_s >= attempt.due_s:
                self._restore(name, attempt)
                attempt.due_s = now_s

    def _restore(self, name: str, attempt: _Attempt) -> None:
        attempt.is_restored = True  # after an error, `step` sees a device that failed again
        try:
            self._scheduler.restore_device(name)
        except VkschedError as error:
            LOG.warning("%s cannot be restored: %s", name, error)
        else:
            LOG.warning("%s is used again", name)

    def _run(self) -> None:
        while not self._closing.wait(POLL_S):
            self.step(time.monotonic())

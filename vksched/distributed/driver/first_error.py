"""First error: which of the errors that the hosts of a run report is the one that it failed of.

    node1: lost    node2: HostLost(node1)    node3: waited in vain for node2    driver: given up
    ^ this one

Problem: one failure shows on all hosts, and its echo may be heard first; and a host may say what is
not true. Method: what a host says of its own devices, and what the driver saw itself, goes before
what one says of another, that before a wait in vain, and that before a run that was given up; among
equals the first one counts. What a host says of another puts itself out of use: had the other one
failed, the driver would have seen it. Examples: tests/distributed/test_cluster.py.
"""

from __future__ import annotations

import threading

from ...common.errors import DeviceError, DeviceTimeout, RunAborted
from ...topology.host_names import DRIVER, host_of


class FirstError:
    """The errors of one run, as they are told by any threads."""

    def __init__(self) -> None:
        self._errors: list[tuple[int, str, BaseException]] = []
        self._lock = threading.Lock()

    def add(self, host: str, error: BaseException) -> None:
        """Notes what a host, or the driver about that host, says."""
        with self._lock:
            if all(error is not known for *_, known in self._errors):
                self._errors.append((_distance(host, error), host, error))

    @property
    def any(self) -> bool:
        return bool(self._errors)

    def cause(self) -> BaseException:
        """Return the error that the others follow from, with who is to blame for it; there must be
        one.
        """
        with self._lock:
            _, host, error = min(self._errors, key=lambda each: each[0])
        return only_itself(host, error)


def only_itself(host: str, error: BaseException) -> BaseException:
    """Return an error that blames none but who says it; the driver may say it of others."""
    if isinstance(error, DeviceError) and host != DRIVER:
        own = bool(error.device) and host_of(error.device) == host
        if not own or error.host not in (DRIVER, host):
            error.device, error.host = "", host
    return error


def _distance(host: str, error: BaseException) -> int:
    """How far an error is from what happened."""
    if not isinstance(error, Exception):  # the driver was interrupted
        return 0
    if isinstance(error, RunAborted):
        return 4
    if not isinstance(error, DeviceError) or error.host in (DRIVER, host):
        return 1
    return 3 if isinstance(error, DeviceTimeout) else 2

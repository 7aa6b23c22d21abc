"""First error: find the root cause among the errors that the hosts of a run report.

    node1: lost    node2: HostLost(node1)    node3: waited in vain for node2    driver: aborted
    ^ root cause

Problem: one failure raises errors on all hosts, consequences may arrive first, and a host may
report false errors. Method: errors that a host reports about its own devices, and errors that the
driver observed itself, take precedence over errors about other hosts, these over timeouts, and
these over aborts; among equals the first one counts. A host that blames another host is itself
marked as failed: the driver would have observed a failure of the other one.

Examples: tests/distributed/test_cluster.py.
"""

from __future__ import annotations

import threading

from ...common.errors import DeviceError, DeviceTimeout, RunAborted
from ...topology.host_names import DRIVER, host_of


class FirstError:
    """The errors of one run. Thread-safe."""

    def __init__(self) -> None:
        self._errors: list[tuple[int, str, BaseException]] = []
        self._lock = threading.Lock()

    def add(self, host: str, error: BaseException) -> None:
        """Add an error that a host reports, or that the driver observed about it."""
        with self._lock:
            if all(error is not known for *_, known in self._errors):
                self._errors.append((_distance(host, error), host, error))

    @property
    def any(self) -> bool:
        return bool(self._errors)

    def cause(self) -> BaseException:
        """Return the root cause with the device or host to blame; there must be at least one
        error.
        """
        with self._lock:
            _, host, error = min(self._errors, key=lambda each: each[0])
        return only_itself(host, error)


def only_itself(host: str, error: BaseException) -> BaseException:
    """Return an error that blames only the reporting host; the driver may blame others."""
    if isinstance(error, DeviceError) and host != DRIVER:
        own = bool(error.device) and host_of(error.device) == host
        if not own or error.host not in (DRIVER, host):
            error.device, error.host = "", host
    return error


def _distance(host: str, error: BaseException) -> int:
    """Return the rank of an error; lower ranks are closer to the cause."""
    if not isinstance(error, Exception):  # the driver was interrupted
        return 0
    if isinstance(error, RunAborted):
        return 4
    if not isinstance(error, DeviceError) or error.host in (DRIVER, host):
        return 1
    return 3 if isinstance(error, DeviceTimeout) else 2

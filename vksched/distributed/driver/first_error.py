"""Blame: which of the errors that the hosts of a run report is the one that it failed of.

    node1: lost    node2: HostLost(node1)    node3: waited in vain for node2    caller: given up
    ^ this one

Problem: one failure shows on all hosts, and its echo may be heard first; and a host may say what is
not true. Method: what a host says of its own devices, and what the caller saw itself, goes before
what one says of another, that before a wait in vain, and that before a run that was given up; among
equals the first one counts. What a host says of another puts itself out of use: had the other one
failed, the caller would have seen it. Examples: tests/distributed/test_cluster.py.
"""

from __future__ import annotations

import threading

from ...common.errors import DeviceError, DeviceTimeout, RunAborted
from ...topology.host_names import CALLER, host_of


class Blame:
    """The errors of one run, as they are told by any threads."""

    def __init__(self) -> None:
        self._told: list[tuple[int, str, BaseException]] = []
        self._lock = threading.Lock()

    def add(self, host: str, error: BaseException) -> None:
        """Notes what a host, or the caller about that host, says."""
        with self._lock:
            if all(error is not known for *_, known in self._told):
                self._told.append((_distance(host, error), host, error))

    @property
    def any(self) -> bool:
        return bool(self._told)

    def cause(self) -> BaseException:
        """Returns the error that the others follow from, with who is to blame for it; there must be
        one.
        """
        with self._lock:
            _, host, error = min(self._told, key=lambda each: each[0])
        return only_itself(host, error)


def only_itself(host: str, error: BaseException) -> BaseException:
    """Returns an error that blames none but who says it; the caller may say it of others."""
    if isinstance(error, DeviceError) and host != CALLER:
        own = bool(error.device) and host_of(error.device) == host
        if not own or error.host not in (CALLER, host):
            error.device, error.host = "", host
    return error


def _distance(host: str, error: BaseException) -> int:
    """How far an error is from what happened."""
    if not isinstance(error, Exception):  # the caller was interrupted
        return 0
    if isinstance(error, RunAborted):
        return 4
    if not isinstance(error, DeviceError) or error.host in (CALLER, host):
        return 1
    return 3 if isinstance(error, DeviceTimeout) else 2

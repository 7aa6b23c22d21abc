"""Membership: handles hosts that return, for all graphs of a scheduler.

    a run: HostLost --faults.py--> all its devices in quarantine --> next generation without them
    reached by all hosts --restore_device--> out of quarantine --> each graph plans again at its run

Examples: tests/cluster/test_schedulers.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import WeakMethod

from ..common.errors import DeviceError
from ..topology.host_names import DRIVER, host_of
from .graph_registry import GraphRegistry
from .plan_builder import PlanBuilder


class Membership:
    """The devices of other hosts that one scheduler uses."""

    def __init__(self, preparing: PlanBuilder, graphs: GraphRegistry) -> None:
        self._preparing = preparing
        self._graphs = graphs
        self._lock = threading.Lock()
        self._hosts = preparing.opened.hosts
        preparing.membership = self  # reachable from compiled graphs even without the scheduler
        if self._hosts is not None:
            self._hosts.watch(_weakly(self.restore_device), preparing.quarantine.unreached)

    def restore_device(self, name: str) -> None:
        """Use a device, or all devices of a host, again.

        Raises
        ------
        DeviceError
            There is no such host or device, or it cannot be reached.
        """
        opened, host = self._preparing.opened, host_of(name) or name
        known = [device.name for device in opened.devices if host_of(device.name) != DRIVER]
        names = [each for each in known if name in (each, host_of(each))]
        if self._hosts is None or not names:
            raise DeviceError(
                f"[restore_device] expected one of {', '.join(known) or 'no device of a cluster'}, "
                f"or a host of theirs, got {name!r}; try a new Scheduler for devices of this host"
            )
        with self._lock:
            there = {device.name: device for device in self._hosts.rejoin(host)}
            for each in opened.devices:
                new = there.get(each.name)
                if new is not None and new is not each:
                    self._preparing.states.mark_lost(each.name)
                    opened.replace(new)
                    self._preparing.specs[new.name] = new.spec
            back = [known for known in names if known in there]
            if not back:
                raise DeviceError(
                    f"[restore_device] expected {', '.join(names)} on {host}, which returned with "
                    f"{', '.join(there) or 'no device'}; try a new Scheduler"
                )
            for returned in back:
                self._preparing.states.recover(returned)
            self._preparing.quarantine.restore_device(back)
            self._graphs.reconsider()


def _weakly(method: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that calls a method while its object is alive, with a weak reference
    to it.
    """
    ref = WeakMethod(method)

    def call(name: str) -> None:
        found = ref()
        if found is not None:
            found(name)

    return call

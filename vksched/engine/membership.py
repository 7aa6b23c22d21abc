"""Membership: handles devices and hosts that return, for all graphs of a scheduler.

    a run: DeviceLost, HostLost --faults.py--> quarantine --> next generation without the devices
    reopened, or reached by all hosts --restore_device--> each graph plans again at its next run

Examples: tests/engine/test_restore_device.py, tests/cluster/test_schedulers.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from weakref import WeakMethod

from ..common.errors import DeviceError
from ..runtime.device import Device, Reopens
from ..topology.host_names import DRIVER, host_of
from .graph_registry import GraphRegistry
from .plan_builder import PlanBuilder


class Membership:
    """The devices that one scheduler uses, and may use again after a failure."""

    def __init__(self, preparing: PlanBuilder, graphs: GraphRegistry) -> None:
        self._preparing = preparing
        self._graphs = graphs
        self._lock = threading.Lock()
        """Held while a device is restored, which a driver may prevent for ever."""
        self._closing_lock = threading.Lock()
        self._is_closed = False
        self._hosts = preparing.opened.hosts
        preparing.membership = self  # reachable from compiled graphs even without the scheduler
        if self._hosts is not None:
            self._hosts.watch(_weakly(self.restore_device), preparing.quarantine.unreached)

    def restore_device(self, name: str) -> None:
        """Use a failed device, or all devices of a host, again.

        Raises
        ------
        DeviceError
            There is no such host or device, or it cannot be reached or opened.
        """
        opened, host = self._preparing.opened, host_of(name) or name
        local = [each for each in opened.devices if host_of(each.name) == DRIVER]
        own = {each.name: each for each in local if isinstance(each, Reopens)}
        known = [each.name for each in opened.devices if each not in local]
        names = [each for each in known if name in (each, host_of(each))]
        with self._lock:
            self._require_open()
            if name in own:
                self._reopen(name)
            elif self._hosts is not None and names:
                self._rejoin(host, names)
            else:
                expected = ", ".join([*known, *own]) or "no device of a cluster"
                raise DeviceError(
                    f"[restore_device] expected one of {expected}, or a host of theirs, got "
                    f"{name!r}; try a new Scheduler for other devices"
                )

    def close(self) -> None:
        """Let no device return from now on; the scheduler closes its devices after this."""
        with self._closing_lock:
            self._is_closed = True

    def _require_open(self) -> None:
        if self._is_closed:
            raise DeviceError(
                "[restore_device] expected an open scheduler, got one that was closed meanwhile"
            )

    def _reopen(self, name: str) -> None:
        """Open a device of this host again, unless it is in use."""
        if name not in self._preparing.quarantine.reasons:
            return
        device = next(each for each in self._preparing.opened.devices if each.name == name)
        assert isinstance(device, Reopens)
        self._preparing.states.mark_lost(name)
        device.close()
        new = device.reopen()
        try:
            self._return([new], [name])
        finally:
            if not self._preparing.states.is_in_use(new):
                new.close()

    def _rejoin(self, host: str, names: Sequence[str]) -> None:
        """Use devices of another host again. names: those that are expected."""
        assert self._hosts is not None
        there = {device.name: device for device in self._hosts.rejoin(host)}
        back = [name for name in names if name in there]
        if not back:
            raise DeviceError(
                f"[restore_device] expected {', '.join(names)} on {host}, which returned with "
                f"{', '.join(there) or 'no device'}; try a new Scheduler"
            )
        known = {device.name: device for device in self._preparing.opened.devices}
        self._return(
            [new for name, new in there.items() if name in known and known[name] is not new], back
        )

    def _return(self, new: Sequence[Device], names: Sequence[str]) -> None:
        """Let the next plans use devices. new: objects that replace closed ones."""
        preparing = self._preparing
        specs = {device.name: device.spec for device in new}
        # before, so that no run begins on a closed device, and after, for plans made meanwhile
        self._graphs.reconsider()
        with self._closing_lock:
            self._require_open()
            with preparing.quarantine.lock:
                for device in new:
                    preparing.states.mark_lost(device.name)
                    preparing.opened.replace(device)
                preparing.specs.update(specs)
                for name in names:
                    preparing.states.recover(name)
                preparing.quarantine.restore_device(names)
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

r"""Faults: excludes failed devices of a scheduler, and decides how each graph recovers.

    error of a device --record--> quarantine (all graphs)      lost, hangs, drops a submission
                               \-> this graph: less memory, then without the device    out of memory

A device that is out of memory is not quarantined, because memory may be freed.

Examples: tests/engine/test_faults.py.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from ..common.errors import DeviceError, HostLost, OutOfMemory, StateLost
from ..runtime.device import Device
from ..topology.host_names import host_of
from ..trace import Event, Trace
from .state_table import StateTable

ON_DEVICE_FAILURE = ("retry", "raise")


class Quarantine:
    """The failed devices with the reasons, for all graphs of a scheduler.

    names: the devices that may fail; errors of the CPU always go to the caller. lock: held while a
    device is excluded, or replaced by a reopened one, so that a fault of the former device does not
    exclude the new one.
    """

    def __init__(self, names: Iterable[str], on_device_failure: str = "retry") -> None:
        self.names = frozenset(names)
        self.on_device_failure = on_device_failure
        self.reasons: dict[str, str] = {}
        self.lock = threading.RLock()
        self.counts: Counter[str] = Counter()
        """The number of failures of each device."""
        self._unreached: set[str] = set()
        """Devices of hosts that another host could not reach."""

    def blamed(self, error: DeviceError) -> list[str]:
        """Return the devices that an error excludes: all of a host that is lost."""
        if error.host:
            return sorted(name for name in self.names if host_of(name) == error.host)
        return [error.device] if error.device in self.names else []

    def disable_device(self, name: str, reason: str, error: DeviceError) -> None:
        """Exclude a device; the first reason is retained."""
        self.reasons.setdefault(name, reason)
        if isinstance(error, HostLost):
            self._unreached.add(name)

    def restore_device(self, names: Iterable[str]) -> None:
        """Use devices again."""
        for name in names:
            self._unreached.discard(name)
            self.reasons.pop(name, None)

    def unreached(self) -> set[str]:
        """Return the hosts that are excluded because another host could not reach them."""
        return {host_of(name) for name in list(self._unreached)}

    def require_empty(self) -> None:
        """Raise if replanning is disabled and a device has failed."""
        for name, reason in list(self.reasons.items()) if self.on_device_failure == "raise" else ():
            host = host_of(name)
            remedy = f"try sched.restore_device({host or name!r})"
            error = DeviceError(
                f"[fault] {name} failed earlier: {reason}; {remedy}, or try "
                'on_device_failure="retry"'
            )
            error.device = name
            raise error


class Faults:
    """The failures of one graph; the caller holds a lock.

    short: devices that were out of memory once; the next plan uses one copy. plans: the numbers of
    the graph's plans, for events.
    """

    def __init__(
        self, quarantine: Quarantine, states: StateTable, trace: Trace, plans: Sequence[int] = ()
    ) -> None:
        self._quarantine = quarantine
        self._states = states
        self._trace = trace
        self.short: set[str] = set()
        self._plans = plans
        self._without: dict[str, str] = {}
        """Devices that were out of memory twice; this graph no longer uses them."""
        self._unreported: list[tuple[DeviceError, str]] = []

    @property
    def plan(self) -> int:
        """The number of the current plan; -1 before the first."""
        return self._plans[-1] if self._plans else -1

    @property
    def left_out(self) -> dict[str, str]:
        """The devices that the next plan excludes, with the reasons."""
        return {**self._quarantine.reasons, **self._without}

    @property
    def last(self) -> DeviceError | None:
        """The last failure that was not reported."""
        return self._unreported[-1][0] if self._unreported else None

    def forget_memory(self) -> None:
        """Clear the devices that were out of memory, because memory may have been freed."""
        self.short.clear()
        self._without.clear()

    def may_retry(self, error: DeviceError) -> bool:
        """Return True if a run that failed with this error is retried."""
        return self._is_fault(error) and self._quarantine.on_device_failure == "retry"

    def record(self, errors: Iterable[DeviceError], devices: Sequence[Device] = ()) -> None:
        """Record failures for the next plan. devices: the failed device objects; failures of a
        device that was replaced since are ignored.
        """
        for error in filter(self._is_fault, errors):
            names = self._quarantine.blamed(error)
            with self._quarantine.lock:
                if any(
                    device.name == error.device and not self._states.is_in_use(device)
                    for device in devices
                ):
                    continue
                # already recorded and reported by another graph
                known = self._quarantine.reasons.keys() >= set(names)
                remedy = [self._remedy(error, name) for name in names][-1]
            now, kind = self._trace.clock.now(), type(error).__name__
            fields = {"error": kind, "message": str(error), "during": error.during}
            for name in names:
                self._quarantine.counts[name] += 1
                self._trace.emit(Event("fault", name, now, now, -1, fields, self.plan))
            if self.may_retry(error) and not known:
                self._unreported.append((error, remedy))

    def report(self, devices: Iterable[str] | None, failed: Exception | None = None) -> list[str]:
        """Return a warning for each unreported failure, with the recovery.

        devices: the devices that the graph runs on from now on; None if it cannot run because of
        `failed`.
        """
        if devices is None and isinstance(failed, StateLost):
            now = "and states that lay there are lost"
        elif devices is None:
            now = "and nothing can take its place"
        else:
            now = f"what was not done runs on {', '.join(devices)}"
        texts = [
            f"[fault] {error.host or error.device} failed in {error.during}: {error}; {remedy}, "
            f"{now}"
            for error, remedy in self._unreported
        ]
        self._unreported.clear()
        return texts

    def _is_fault(self, error: DeviceError) -> bool:
        return bool(self._quarantine.blamed(error)) and not isinstance(error, StateLost)

    def _remedy(self, error: DeviceError, name: str) -> str:
        replay, kind = self.may_retry(error), type(error).__name__
        reason = f"{kind}: {str(error).split('; try')[0]}"
        if not isinstance(error, OutOfMemory):
            self._states.mark_lost(name)  # first, so that an excluded device never holds a state
            self._quarantine.disable_device(name, reason, error)
            is_host = isinstance(error, HostLost)
            lasts = "it is back" if is_host else f"sched.restore_device({name!r})"
            return f"it is out of use until {lasts}"
        if replay and name in self.short:
            self._without[name] = reason
            return "this graph does without it"
        if replay:
            self.short.add(name)
        return "planned again with what is free now and one copy"

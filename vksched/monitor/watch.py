"""Watch: the monitor's view of one scheduler: finished runs and current work.

    Activity (finished runs) -------------.
    GraphExecutionState (in progress) ----+--> SchedulerNow
    devices (memory, pci) ----------------'

It never waits for a run and holds only weak references to a scheduler. Examples:
tests/monitor/test_watch.py.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence

from ..common.errors import DeviceError
from ..engine.compiled_graph import load_of
from ..engine.graph_registry import GraphRegistry
from ..runtime.device import Device, MemoryUsage, ReportsMemory
from ..runtime.executors.run_record import InFlightSplit
from ..trace import SystemClock
from . import sensors
from .activity import Activity, rate
from .top.snapshot import DEVICES, DeviceNow, SchedulerNow

GAUGE_TICKS = 2
"""Drivers and sensors are queried in every second snapshot only."""
OPS = 3

_numbers = itertools.count(1)


class Watch:
    """The watch of one scheduler. number: its index in the process."""

    def __init__(self, graphs: GraphRegistry, policy: str) -> None:
        preparing = graphs.preparing
        self.number = next(_numbers)
        self.policy = policy
        self.activity = Activity(preparing.trace.clock, preparing.specs)
        self._graphs = weakref.ref(graphs)
        self._memory: dict[str, tuple[MemoryUsage, float | None]] = {}
        self._looks = 0
        preparing.seen = self.activity.ran

    @property
    def gone(self) -> bool:
        """Return True if the scheduler has been garbage-collected."""
        return self._graphs() is None

    def look(self) -> SchedulerNow | None:
        """Return the snapshot of the scheduler, or None if it is gone."""
        graphs = self._graphs()
        if graphs is None:
            return None
        loads = [load_of(compiled) for compiled in list(graphs.compiled)]
        devices = graphs.preparing.opened.devices[:DEVICES]
        if self._looks % GAUGE_TICKS == 0:
            self._memory = {device.name: _memory_usage(device) for device in devices}
        self._looks += 1
        at_work: dict[str, list[InFlightSplit]] = {device.name: [] for device in devices}
        for load in loads:
            for each in load.at_work:
                at_work.get(each.device, []).append(each)
        activity, now_s = self.activity, self.activity.clock.now()
        activity.drain()
        with activity.lock:
            activity.lately.advance(now_s)
            return SchedulerNow(
                number=self.number,
                policy=self.policy,
                simulated=not isinstance(activity.clock, SystemClock),
                graphs=len(loads),
                running=sum(load.running for load in loads),
                waiting=sum(load.waiting for load in loads),
                runs=activity.runs,
                runs_per_s=rate(activity.lately.values(), now_s),
                run_s=activity.run_s,
                devices=tuple(self._device(d, graphs, at_work[d.name], now_s) for d in devices),
            )

    def _device(
        self, device: Device, graphs: GraphRegistry, at_work: Sequence[InFlightSplit], now_s: float
    ) -> DeviceNow:
        name, preparing = device.name, graphs.preparing
        did, (usage, temperature_c) = self.activity.devices[name], self._memory[name]
        since_s = min((each.since_s for each in at_work), default=None)
        history, busy = did.shares(now_s, since_s)
        for ticks in did.lately.values():
            ticks.advance(now_s)
        lately = {what: rate(ticks.values(), now_s) for what, ticks in did.lately.items()}
        return DeviceNow(
            name=name,
            label=preparing.specs[name].label,
            kind=preparing.specs[name].kind,
            problem=preparing.quarantine.reasons.get(name, ""),
            busy=busy,
            # excludes an unfinished one
            history=tuple(round(100 * share) for share in history[:-1]),
            now=_describe(min(at_work, key=lambda each: each.since_s)) if at_work else "",
            queue=len(at_work),
            memory_used_bytes=None if usage.used_bytes is None else max(0, usage.used_bytes),
            memory_total_bytes=usage.total_bytes,
            memory_own_bytes=usage.own_bytes,
            temperature_c=temperature_c,
            runs=did.runs,
            runs_per_s=lately["runs"],
            copies=did.copies,
            copies_per_s=lately["copies"],
            copied_bytes=did.copied_bytes,
            copied_bytes_per_s=lately["copied_bytes"],
            busy_s=did.busy_s,
            faults=preparing.quarantine.counts[name],
        )


def _memory_usage(device: Device) -> tuple[MemoryUsage, float | None]:
    """Return a device's memory use and temperature."""
    try:
        usage = device.memory_usage() if isinstance(device, ReportsMemory) else MemoryUsage()
    except DeviceError:  # closed or lost
        usage = MemoryUsage()
    return usage, sensors.temperature_c(usage.pci)


def _describe(work: InFlightSplit) -> str:
    """Return a description of a device's current work."""
    ops = ", ".join(work.ops[:OPS]) + (", ..." if len(work.ops) > OPS else "")
    nodes = "1 node" if work.nodes == 1 else f"{work.nodes} nodes"
    return f"run {work.run}, split {work.split}: {ops} ({nodes})"

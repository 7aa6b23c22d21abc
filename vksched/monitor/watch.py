"""Watch: one scheduler as the monitor sees it: what its runs did, and what goes on at this moment.

    Activity (what is done) ---.
    GraphExecutionState (under way) ------+--> SchedulerNow
    devices (memory, pci) -----'

Nothing here waits for a run, and nothing of a scheduler is kept alive. Examples:
tests/monitor/test_watch.py.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence

from ..common.errors import DeviceError
from ..engine.compiled_graph import load_of
from ..engine.graph_registry import Graphs
from ..runtime.device import Device, Gauge, Gauged
from ..runtime.executors.run_record import AtWork
from ..trace import SystemClock
from . import sensors
from .activity import Activity, rate
from .top.snapshot import DEVICES, TEXT, DeviceNow, SchedulerNow

GAUGE_TICKS = 2
"""Drivers and sensors are asked at every second snapshot only."""
OPS = 3

_numbers = itertools.count(1)


class Watch:
    """Looks at one scheduler. number: among those of the process."""

    def __init__(self, graphs: Graphs, policy: str) -> None:
        preparing = graphs.preparing
        self.number = next(_numbers)
        self.policy = policy
        self.activity = Activity(preparing.trace.clock, preparing.specs)
        self._graphs = weakref.ref(graphs)
        self._gauges: dict[str, tuple[Gauge, float | None]] = {}
        self._looks = 0
        preparing.seen = self.activity.ran

    @property
    def gone(self) -> bool:
        """Whether its scheduler is."""
        return self._graphs() is None

    def look(self) -> SchedulerNow | None:
        """Returns what the scheduler does now; None where it is gone."""
        graphs = self._graphs()
        if graphs is None:
            return None
        loads = [load_of(compiled) for compiled in list(graphs.compiled)]
        devices = graphs.preparing.opened.devices[:DEVICES]
        if self._looks % GAUGE_TICKS == 0:
            self._gauges = {device.name: _gauge(device) for device in devices}
        self._looks += 1
        at_work: dict[str, list[AtWork]] = {device.name: [] for device in devices}
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
        self, device: Device, graphs: Graphs, at_work: Sequence[AtWork], now_s: float
    ) -> DeviceNow:
        name, preparing = device.name, graphs.preparing
        did, (gauge, temperature_c) = self.activity.devices[name], self._gauges[name]
        since_s = min((each.since_s for each in at_work), default=None)
        history, busy = did.shares(now_s, since_s)
        for ticks in did.lately.values():
            ticks.advance(now_s)
        lately = {what: rate(ticks.values(), now_s) for what, ticks in did.lately.items()}
        return DeviceNow(
            name=name,
            label=preparing.specs[name].label[:TEXT],
            kind=preparing.specs[name].kind,
            problem=preparing.quarantine.reasons.get(name, "")[:TEXT],
            busy=busy,
            history=tuple(round(100 * share) for share in history[:-1]),  # that one is not over
            now=_words(min(at_work, key=lambda each: each.since_s)) if at_work else "",
            queue=len(at_work),
            memory_used_bytes=None if gauge.used_bytes is None else max(0, gauge.used_bytes),
            memory_total_bytes=gauge.total_bytes,
            memory_own_bytes=gauge.own_bytes,
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


def _gauge(device: Device) -> tuple[Gauge, float | None]:
    """Returns what a device tells, and how warm it is."""
    try:
        gauge = device.gauge() if isinstance(device, Gauged) else Gauge()
    except DeviceError:  # closed, or lost
        gauge = Gauge()
    return gauge, sensors.temperature_c(gauge.pci)


def _words(work: AtWork) -> str:
    """Returns what a device works on, as a person reads it."""
    ops = ", ".join(work.ops[:OPS]) + (", ..." if len(work.ops) > OPS else "")
    nodes = "1 node" if work.nodes == 1 else f"{work.nodes} nodes"
    return f"run {work.run}, split {work.split}: {ops} ({nodes})"[:TEXT]

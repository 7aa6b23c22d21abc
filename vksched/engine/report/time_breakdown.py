"""Time breakdown: divides the time of a run into busy, copying, waiting and idle, for each device
and the host.

    run       |--------------------------------------------------------|
    gpu:0     copy | busy ......... | copy | waiting | copy | busy | idle
    gpu:1     waiting ..................... | copy | busy .. | copy| idle
    host      copy | waiting ...... | copy | waiting ....... | copy| busy

Problem: spans of one device overlap, because the host copies the next value while the device
computes. Method: each moment counts once, as the first of busy, copying, waiting, idle that
applies. The four therefore add up to the time of the run. Complexity: O(n log n) for n spans.
Examples: tests/engine/test_shares.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...common.errors import PlanError
from ...plan.types.plan_types import PlanValue
from .run_history import WholeRun

HOST = "host"
RELATIVE_TOLERANCE = 1e-6
"""The tolerated relative rounding error of the sum."""
MAX_KINDS = 4
"""The maximum number of ops in the name of a split."""
Stretch = tuple[float, float]


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """The time of one device in a run, in seconds that add up to the run's.

    busy_s: it computed splits of this run. copying_s: the host wrote its inputs or read its results
    while it was not busy. waiting_s: neither, and the run still needed it: operands were missing, a
    submission was in progress, other runs used the device, or the host had not yet observed its
    end. idle_s: the run had no further work for it, or none at all.

    For the host, copying_s covers all devices, waiting_s is the time spent waiting for one, and
    busy_s is the rest.

    Raises
    ------
    PlanError
        The parts do not add up, or one is negative.
    """

    device: str
    wall_s: float
    busy_s: float
    copying_s: float
    waiting_s: float
    idle_s: float

    def __post_init__(self) -> None:
        parts = self.busy_s, self.copying_s, self.waiting_s, self.idle_s
        off = abs(sum(parts) - self.wall_s)
        if min(parts) < 0 or not off <= RELATIVE_TOLERANCE * max(self.wall_s, RELATIVE_TOLERANCE):
            raise PlanError(
                f"[report] expected times of {self.device} that add up to {self.wall_s:g} s, got "
                f"{', '.join(f'{part:g}' for part in parts)} s"
            )

    @property
    def busy(self) -> float:
        """The fraction of the run in which it was busy, from 0 to 1."""
        return self.busy_s / self.wall_s if self.wall_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the breakdown as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """An interval of a run, in seconds from its start. kind: "busy" for a device; "copy" or "wait"
    for the host's work for a device; "host_op" for a CPU step between two graphs. what: the split
    with its ops.
    """

    kind: str
    device: str
    start_s: float
    end_s: float
    what: str


def spans_of(run: WholeRun) -> tuple[TimeSpan, ...]:
    """Return the recorded spans of a run, of devices and of the host's work for them."""
    found: list[TimeSpan] = []
    zero_s, many = run.start_s, len(run.graphs) > 1

    def add(kind: str, device: str, start_s: float, end_s: float, what: str) -> None:
        start_s, end_s = max(start_s, run.start_s), min(end_s, run.end_s)
        if end_s > start_s:
            found.append(TimeSpan(kind, device, start_s - zero_s, end_s - zero_s, what))

    for number, graph in enumerate(run.graphs):
        within = f"graph {number + 1}, " if many else ""
        for work in graph.stats.splits:
            what = f"{within}split {work.split}: {_ops(graph.plan, work.split)}"
            add("busy", work.device, work.begin_s, work.end_s, what)
        devices, splits = graph.plan.topology.devices, graph.plan.splits
        for kind, split, start_s, end_s in graph.stats.spans:
            name = devices[splits[split].device].name
            add(kind, name, start_s, end_s, f"{within}split {split}")
    for step in run.steps:
        add("host_op", "cpu", step.start_s, step.end_s, step.op)
    return tuple(sorted(found, key=lambda span: (span.start_s, span.end_s)))


def _ops(plan: PlanValue, split: int) -> str:
    """Return the op kinds of a split, at most MAX_KINDS."""
    kinds = list(dict.fromkeys(plan.graph.nodes[node].op for node in plan.splits[split].nodes))
    return ", ".join(kinds[:MAX_KINDS]) + (", ..." if len(kinds) > MAX_KINDS else "")


def time_breakdowns(run: WholeRun, spans: Sequence[TimeSpan]) -> tuple[TimeBreakdown, ...]:
    """Return the breakdown of all devices of a run in order, and of the host.

    spans: the spans of that run.
    """
    names = dict.fromkeys(s.name for g in run.graphs for s in g.plan.topology.devices)
    names.update(dict.fromkeys(span.device for span in spans))
    by_device: dict[str, dict[str, list[Stretch]]] = {name: {} for name in names}
    for span in spans:
        kind = "busy" if span.kind == "host_op" else span.kind
        by_device[span.device].setdefault(kind, []).append((span.start_s, span.end_s))
    wall_s = run.seconds
    out = [_of_device(name, wall_s, kinds) for name, kinds in by_device.items()]
    copies = [stretch for kinds in by_device.values() for stretch in kinds.get("copy", ())]
    waits = [stretch for kinds in by_device.values() for stretch in kinds.get("wait", ())]
    copying_s, either_s = _length(copies), _length([*copies, *waits])
    waiting_s, rest_s = max(0.0, either_s - copying_s), max(0.0, wall_s - either_s)
    return (*out, TimeBreakdown(HOST, wall_s, rest_s, copying_s, waiting_s, 0.0))


def _of_device(name: str, wall_s: float, kinds: Mapping[str, Sequence[Stretch]]) -> TimeBreakdown:
    busy, copies = kinds.get("busy", ()), kinds.get("copy", ())
    needed_s = max((end for stretches in kinds.values() for _, end in stretches), default=0.0)
    busy_s = _length(busy)
    worked_s = _length([*busy, *copies])
    idle_s = max(0.0, wall_s - needed_s)
    copying_s, waiting_s = max(0.0, worked_s - busy_s), max(0.0, needed_s - worked_s)
    return TimeBreakdown(name, wall_s, busy_s, copying_s, waiting_s, idle_s)


def _length(stretches: Iterable[Stretch]) -> float:
    """Return the length of the union of intervals."""
    total = reached = 0.0
    for start, end in sorted(stretches):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total

"""SlowdownTracker: how much slower than planned a device proved to be, so that no submission takes
long.

Problem: many drivers end a submission after two seconds, and the device with it; plans cut long
splits by rough speeds, which may be wrong by ten. Method: each run is measured. A submission over
the bound that nobody planned to be long makes its device count as slower, for all graphs from then
on, and the graph is planned again before its next run. One that was planned to be long cannot be
cut: a single op of a single dispatch. A software driver translates kernels when they first run,
which may take seconds, and ends no submission: the first run of a plan shows nothing of it.

    planned 0.4 s, took 3.2 s: over 1 s  ->  null:0 counts as 8 times slower  ->  8 submissions

Examples: tests/runtime/test_slowdown_tracker.py.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from ...plan.costs.node_cost import first_cost, longest_seconds, lower_node, submission_seconds
from ...plan.types.plan_types import PlanValue, Split
from ...topology.device_spec import DeviceSpec
from ...trace import Event, Trace
from ..run_stats import RunStats

LONGEST_S = 1.0
"""Of one submission, half of what drivers allow."""

SURPRISE = 1.5
"""From how many times the planned time on the plan is at fault; less is noise."""


class SlowdownTracker:
    """The slowdowns of a scheduler's devices, as measured."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._slowdowns: dict[str, float] = {}
        self._lock = threading.Lock()

    def correct(self, spec: DeviceSpec) -> DeviceSpec:
        """Returns what the planner may believe of a device."""
        return replace(spec, slowdown=self._slowdowns.get(spec.name, 1.0))

    def see(self, plan: PlanValue, stats: RunStats, first: bool = False, number: int = -1) -> bool:
        """Take in what a run measured; returns whether its graph should be planned again. first:
        no run of this plan ended before. number: of the plan, for events.
        """
        again = False
        for measured in stats.splits:
            if measured.longest_s is None or measured.longest_s <= LONGEST_S:
                continue
            split = plan.splits[measured.split]
            spec = plan.topology.devices[split.device]
            if first and spec.limits.software:
                continue
            if any(copy.node in plan.graph.data for copy in split.uploads):
                continue  # weights were streamed in: the time may be that of the bus
            first_s, allowed_s = _seconds(plan, split)
            if measured.device_s >= SURPRISE * allowed_s:
                slowdown = measured.device_s / first_s
                self._note(spec, slowdown, measured.split, measured.longest_s, number)
                again |= _divisible(plan, split)
        return again

    def _note(
        self, spec: DeviceSpec, slowdown: float, split: int, longest_s: float, number: int
    ) -> None:
        with self._lock:
            if slowdown <= self._slowdowns.get(spec.name, 1.0):
                return
            self._slowdowns[spec.name] = slowdown
        now = self._trace.clock.now()
        fields = {"split": split, "longest_s": longest_s, "slowdown": slowdown}
        self._trace.emit(Event("slowdown", spec.name, now, now, -1, fields, number))


def _seconds(plan: PlanValue, split: Split) -> tuple[float, float]:
    """Return the time of a split at first thought, and the time that its plan allowed for."""
    spec, graph = plan.topology.devices[split.device], plan.graph
    nodes = [graph.nodes[n] for n in split.nodes]
    beside_s = submission_seconds(spec)
    first_s = sum(first_cost(spec, graph, node).seconds for node in nodes)
    allowed_s = sum(longest_seconds(spec, graph, node) for node in nodes)
    return beside_s + first_s, beside_s + allowed_s


def _divisible(plan: PlanValue, split: Split) -> bool:
    """Whether a split can become several submissions."""
    graph, spec = plan.graph, plan.topology.devices[split.device]
    if len(split.nodes) > 1:
        return True
    return len(lower_node(spec, graph, graph.nodes[split.nodes[0]]).dispatches) > 1

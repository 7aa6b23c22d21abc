"""SlowdownTracker: measures how much slower than planned devices are, so that no submission is too
long.

Problem: many drivers reset a device whose submission takes over two seconds. Plans cut long splits
by rough speeds, which may be wrong by ten. Method: each run is measured. A submission over the
limit that was not planned to be long raises the slowdown of its device for all later plans, and the
graph is planned again before its next run. A submission that was planned to be long cannot be cut:
it is a single op of a single dispatch. A software driver compiles kernels when they first run,
which may take seconds, and resets nothing: there the first run of a plan is ignored.

    planned 0.4 s, took 3.2 s: over 1 s  ->  slowdown of null:0 is 8  ->  8 submissions

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
"""Limit of one submission, half of the drivers' timeout."""

MIN_SLOWDOWN = 1.5
"""A submission that exceeds its planned time by this factor shows that the plan is wrong; less is
noise.
"""


class SlowdownTracker:
    """The measured slowdowns of a scheduler's devices."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._slowdowns: dict[str, float] = {}
        self._lock = threading.Lock()

    def correct(self, spec: DeviceSpec) -> DeviceSpec:
        """Return a device spec with its measured slowdown."""
        return replace(spec, slowdown=self._slowdowns.get(spec.name, 1.0))

    def see(self, plan: PlanValue, stats: RunStats, first: bool = False, number: int = -1) -> bool:
        """Record the times of a run; return True if its graph should be planned again.

        Parameters
        ----------
        first
            True for the first run of this plan.
        number
            The number of the plan in events.
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
                continue  # weights are streamed in: the time may be that of the link
            first_s, allowed_s = _seconds(plan, split)
            if measured.device_s >= MIN_SLOWDOWN * allowed_s:
                slowdown = measured.device_s / first_s
                self._note(spec, slowdown, measured.split, measured.longest_s, number)
                again |= _is_divisible(plan, split)
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
    """Return the estimated time of a split by initial speeds, and the time that its plan allowed
    for.
    """
    spec, graph = plan.topology.devices[split.device], plan.graph
    nodes = [graph.nodes[n] for n in split.nodes]
    overhead_s = submission_seconds(spec)
    first_s = sum(first_cost(spec, graph, node).seconds for node in nodes)
    allowed_s = sum(longest_seconds(spec, graph, node) for node in nodes)
    return overhead_s + first_s, overhead_s + allowed_s


def _is_divisible(plan: PlanValue, split: Split) -> bool:
    """Return True if a split can be divided into several submissions."""
    graph, spec = plan.graph, plan.topology.devices[split.device]
    if len(split.nodes) > 1:
        return True
    return len(lower_node(spec, graph, graph.nodes[split.nodes[0]]).dispatches) > 1

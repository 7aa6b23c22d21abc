"""Single device: trials of whether one device is faster than the plan over several, as measured.

Problem: a simulation knows the speeds of devices, but not all interference between them: a shared
bus, a power limit, or CPU cores that a driver uses. A plan over several devices may then be slower
than one of them alone, and the speed factors do not show it: each device seems slow while both
work. Method: the measured time of runs, or for a stream the time between two results, is compared
with the prediction for the best single device at planning time, corrected for its own slowdown
relative to the others. If the single device is faster by a margin, and the change pays, the device
executes the next runs alone. It is retained if it is faster by measurement. Otherwise the plan over
several devices returns, and there is no other trial for CALM times as many runs.

    runs        0 ..... 15 | 16 ....... 31 | 32 ...
    on          both       | null:0 alone  | null:0
    measured    1.4 ms     | 1.0 ms        | retained
    predicted   both 0.7 ms, null:0 alone 1.0 ms

Trials need plans whose costs were measured, graphs without states, and the objective latency or
throughput alone. Complexity: O(window) for each run. Examples:
tests/scheduler/test_single_device.py.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..plan.types.decision import Decision
from ..plan.types.plan_types import PlanValue
from ..runtime.run_stats import RunStats

WINDOW, FULL = 8, 4
"""The number of runs in the window; for a stream at least this number for each copy."""
MIN_UTILIZATION = 0.75
"""The minimum utilization of a stream's slots."""
MIN_RATIO = 1.1
"""The minimum ratio of the plan's time to the prediction for the single device."""
CALM = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a trial. only: the devices of the next runs; empty for all. device: the
    candidate for running alone. before_s, after_s: the value of the objective, as measured, and as
    predicted or measured for the next runs.
    """

    only: tuple[str, ...]
    device: str
    before_s: float
    after_s: float


class SingleDeviceTrials:
    """The trials of one graph; the caller holds a lock."""

    def __init__(self) -> None:
        self.only: tuple[str, ...] = ()
        """The devices that the graph's plans may use; empty for all."""
        self._decision: Decision | None = None
        self._together_s: float | None = None
        """The measured time of the plan over several devices, during a trial."""
        self._next = 0
        """The run number from which on there may be another trial."""
        self._left_out = 0
        self._copies = 1
        self._last: deque[tuple[float, float]] = deque()

    def begin(self, plan: PlanValue) -> None:
        """Start another plan."""
        if self._together_s is None:  # otherwise this is the trial of an earlier decision
            self._decision = _judged(plan)
        self._copies = sum(own.copies for own in (plan, *plan.replicas))
        window = max(WINDOW, FULL * self._copies)
        self._left_out = window  # the first runs include deferred work
        self._last = deque(maxlen=window)

    def see(self, stats: RunStats) -> None:
        """Record a run."""
        if self._decision is None:
            return
        if self._left_out:
            self._left_out -= 1
            return
        self._last.append((stats.start_s, stats.end_s))

    def find(self, runs: int, costs_s: float, slower: Callable[[str], float]) -> Finding | None:
        """Return a finding if other devices should execute the next runs.

        Parameters
        ----------
        runs
            The number of runs until now.
        costs_s
            The seconds that another plan costs, which the same number of further runs must save.
        slower
            Returns the slowdown of a device since planning time. The slowdown that all used devices
            share may be interference; the rest is the device's own.
        """
        decision, measured_s = self._decision, self._measured()
        if decision is None or measured_s is None:
            return None
        single = decision.best_single_device
        if self._together_s is not None:  # the trial has ended
            together_s, self._together_s = self._together_s, None
            if measured_s <= together_s:
                return None
            self._next = CALM * runs
            return Finding((), single.single, measured_s, together_s)
        foreseen_s = single.metrics.period_s
        if decision.objective.word == "latency":
            foreseen_s = single.metrics.latency_s
        several = not decision.chosen.single and single.single in single.devices
        if self.only or not several or runs < self._next or measured_s <= MIN_RATIO * foreseen_s:
            return None
        foreseen_s *= slower(single.single) / min(map(slower, decision.chosen.devices))
        saved_s = measured_s - foreseen_s
        if measured_s <= MIN_RATIO * foreseen_s:
            return None
        if saved_s * runs < costs_s:
            return None
        return Finding(single.devices, single.single, measured_s, foreseen_s)

    def follow(self, finding: Finding) -> None:
        """Use the plan of a finding from now on."""
        self.only = finding.only
        self._together_s = finding.before_s if finding.only else None

    def forget(self) -> None:
        """Allow all devices again, because the single device has slowed down."""
        self.only, self._together_s = (), None

    def _measured(self) -> float | None:
        """Return the measured value of the objective; None if there are too few runs, or the
        stream's utilization is too low.
        """
        runs = self._last
        if self._decision is None or len(runs) < (runs.maxlen or 1):
            return None
        if self._decision.objective.word == "latency":
            return statistics.median(end - start for start, end in runs)
        ends = sorted(end for _, end in runs)
        span_s = max(ends) - min(start for start, _ in runs)
        busy_s = sum(end - start for start, end in runs)
        if busy_s < MIN_UTILIZATION * self._copies * span_s:
            return None
        return (ends[-1] - ends[0]) / (len(ends) - 1)


def _judged(plan: PlanValue) -> Decision | None:
    """Return the decision of a plan, if runs can verify it."""
    decision = plan.decision
    if decision is None or not decision.measured or plan.graph.states:
        return None
    if any(split.observed for split in plan.splits):  # such runs wait for the user's functions
        return None
    return decision if decision.objective.word in ("latency", "throughput") else None

"""Alone: would one device be faster than the plan over several, as measured?

Problem: a simulation knows what devices take, not all that they take from each other: a bus, power,
cores that a driver uses without a word. A plan over several devices may then be slower than one of
them alone, and the paces of devices say nothing of that: each of them seems slow while both work.
Method: what runs take, or in a stream the time between two results, is compared with what the best
single device was to take when the plan was made; where it is slower than others since, with more.
Where that is less by a margin, and pays, the device gets the next runs alone. It keeps them if it
really is faster. If not, the plan over several devices comes back, and there is no other trial
before CALM times as many runs.

    runs        0 ..... 15 | 16 ....... 31 | 32 ...
    on          both       | null:0 alone  | null:0
    measured    1.4 ms     | 1.0 ms        | stays
    foreseen    both 0.7 ms, null:0 alone 1.0 ms

Only plans whose costs were measured are judged, of graphs without states, for latency or throughput
alone. Complexity: O(window) for each run. Examples: tests/scheduler/test_single_device.py.
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
"""Runs whose time counts, and of a stream so many for each copy where that is more."""
FLOWING = 0.75
"""A stream flows where so much of its slots' time is runs."""
SURE = 1.1
"""The plan has to take so many times what the device was to take alone."""
CALM = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """What was measured. only: the devices that get the next runs; none for all of them. device:
    the one that was to be faster alone. before_s, after_s: what is made small, as measured, and as
    foreseen or measured of what comes.
    """

    only: tuple[str, ...]
    device: str
    before_s: float
    after_s: float


class Alone:
    """The trials of one graph. The caller holds a lock."""

    def __init__(self) -> None:
        self.only: tuple[str, ...] = ()
        """The devices that the graph's plans may use; none for all."""
        self._decision: Decision | None = None
        self._together_s: float | None = None
        """Of the plan over several devices that a trial was made for, as measured."""
        self._next = 0
        """The number of the run from which on there may be another trial."""
        self._left_out = 0
        self._copies = 1
        self._last: deque[tuple[float, float]] = deque()

    def begin(self, plan: PlanValue) -> None:
        """Runs follow another plan from now on."""
        if self._together_s is None:  # else it is the trial of what was decided before
            self._decision = _judged(plan)
        self._copies = sum(own.copies for own in (plan, *plan.replicas))
        window = max(WINDOW, FULL * self._copies)
        self._left_out = window  # the first runs pay for what is put off until then
        self._last = deque(maxlen=window)

    def see(self, stats: RunStats) -> None:
        """Take in a run that ended."""
        if self._decision is None:
            return
        if self._left_out:
            self._left_out -= 1
            return
        self._last.append((stats.start_s, stats.end_s))

    def find(self, runs: int, costs_s: float, slower: Callable[[str], float]) -> Finding | None:
        """Return whether other devices are to get the next runs.

        Parameters
        ----------
        runs
            How many there were.
        costs_s
            Seconds that another plan costs, which as many runs more have to save.
        slower
            Tells how many times longer a device takes than when its plan was made. By what all
            that are at work take longer they may hold each other up; the rest is their own.
        """
        decision, measured_s = self._decision, self._measured()
        if decision is None or measured_s is None:
            return None
        single = decision.best_single_device
        if self._together_s is not None:  # the trial is over
            together_s, self._together_s = self._together_s, None
            if measured_s <= together_s:
                return None
            self._next = CALM * runs
            return Finding((), single.single, measured_s, together_s)
        foreseen_s = single.metrics.period_s
        if decision.objective.word == "latency":
            foreseen_s = single.metrics.latency_s
        several = not decision.chosen.single and single.single in single.devices
        if self.only or not several or runs < self._next or measured_s <= SURE * foreseen_s:
            return None
        foreseen_s *= slower(single.single) / min(map(slower, decision.chosen.devices))
        saved_s = measured_s - foreseen_s
        if measured_s <= SURE * foreseen_s:
            return None
        if saved_s * runs < costs_s:
            return None
        return Finding(single.devices, single.single, measured_s, foreseen_s)

    def follow(self, finding: Finding) -> None:
        """The next plan is the one that was found to be better."""
        self.only = finding.only
        self._together_s = finding.before_s if finding.only else None

    def forget(self) -> None:
        """All devices may be used again, as the one that works has slowed down."""
        self.only, self._together_s = (), None

    def _measured(self) -> float | None:
        """Returns what is made small, as the last runs had it; None where there are too few, or
        they are no stream that flows.
        """
        runs = self._last
        if self._decision is None or len(runs) < (runs.maxlen or 1):
            return None
        if self._decision.objective.word == "latency":
            return statistics.median(end - start for start, end in runs)
        ends = sorted(end for _, end in runs)
        span_s = max(ends) - min(start for start, _ in runs)
        busy_s = sum(end - start for start, end in runs)
        if busy_s < FLOWING * self._copies * span_s:
            return None
        return (ends[-1] - ends[0]) / (len(ends) - 1)


def _judged(plan: PlanValue) -> Decision | None:
    """Returns what a plan was chosen from, where runs can tell whether that was right."""
    decision = plan.decision
    if decision is None or not decision.measured or plan.graph.states:
        return None
    if any(split.observed for split in plan.splits):  # a run waits for the user's functions then
        return None
    return decision if decision.objective.word in ("latency", "throughput") else None

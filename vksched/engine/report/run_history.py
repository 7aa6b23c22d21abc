"""Run history: the recorded timings of the last runs of a graph or a model, for reports.

    run 7   graph of plan a | CPU step | graph of plan b      recorded
    run 8   graph of plan a | CPU step | graph of plan b      recorded: equal plans
    run 9   graph of plan c                                   recorded; 7 and 8 are dropped

Only runs with equal plans can be compared, so a run with other plans clears the history.
Complexity: O(graphs of a run). Examples: tests/engine/test_report.py.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from ...plan.simulation.predict import Prediction
from ...plan.types.plan_types import PlanValue
from ...runtime.run_stats import RunStats

RUNS = 32
"""The maximum number of recorded runs."""
MAX_SPLITS = 20_000
"""The maximum number of splits of all recorded runs."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of a plan other than its policy; see `plan_graph`. copies: None for the plan's
    own number. all_reduce_nodes: names of nodes that are terms or results of an all-reduce.
    """

    overrides: tuple[tuple[str | int, str], ...] = ()
    with_cpu: bool = False
    copies: int | str | None = None
    all_reduce_nodes: frozenset[str] = frozenset()


DEFAULT_OPTIONS = PlanOptions()
_PLAN_OF = attrgetter("plan")


class GraphRun(NamedTuple):
    """A run of one compiled graph. expected: the prediction of its plan, if it exists already."""

    plan: PlanValue
    stats: RunStats
    options: PlanOptions = DEFAULT_OPTIONS
    expected: Prediction | None = None


class CpuStepTime(NamedTuple):
    """A CPU step between two graphs of a model, in seconds of the scheduler's clock."""

    op: str
    start_s: float
    end_s: float


class WholeRun(NamedTuple):
    """A complete run, in seconds of the scheduler's clock.

    graphs: in the order of their ends. first: the run planned or compiled something.
    """

    start_s: float
    end_s: float
    graphs: tuple[GraphRun, ...]
    steps: tuple[CpuStepTime, ...] = ()
    first: bool = False

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def run_of(graph: GraphRun) -> WholeRun:
    """Return a complete run of one graph."""
    return WholeRun(graph.stats.start_s, graph.stats.end_s, (graph,))


LARGE_PLAN_SPLITS = MAX_SPLITS // RUNS
"""The number of splits of a plan from which on fewer runs are recorded."""


class GraphHistory:
    """The last runs of one compiled graph with its newest plan. Every run adds an entry, so there
    is no lock: atomic operations of Python suffice. options: returns the options of a plan.
    """

    def __init__(
        self, options: Callable[[PlanValue], PlanOptions] = lambda _: DEFAULT_OPTIONS
    ) -> None:
        self._asked = options
        self._known: tuple[PlanValue | None, PlanOptions] = None, DEFAULT_OPTIONS
        """The options of the newest plan."""
        self._plans: tuple[PlanValue, ...] = ()
        """The current plan and its replicas."""
        self._runs: deque[tuple[PlanValue, RunStats]] = deque(maxlen=RUNS)

    def begin(self, plan: PlanValue) -> None:
        """Set the plan of the following runs, with its replicas."""
        self._plans = (plan, *plan.replicas)

    def _same_history(self, one: PlanValue, other: PlanValue) -> bool:
        """Return True if runs of both plans belong to one history."""
        return one is other or (one in self._plans and other in self._plans)

    def add(self, plan: PlanValue, stats: RunStats) -> None:
        """Add a finished run."""
        runs = self._runs
        if (runs and not self._same_history(runs[-1][0], plan)) or len(
            stats.splits
        ) > LARGE_PLAN_SPLITS:
            max_runs = MAX_SPLITS // max(1, len(stats.splits))
            self._runs = runs = deque(
                (r for r in runs.copy() if self._same_history(r[0], plan)),
                min(RUNS, max(1, max_runs)),
            )
        runs.append((plan, stats))

    @property
    def newest(self) -> RunStats | None:
        """The stats of the last run; None before the first."""
        runs = self._runs.copy()
        return runs[-1][1] if runs else None

    def last(self, count: int | None = None) -> tuple[WholeRun, ...]:
        """Return the last recorded runs, at most `count`; empty before the first."""
        runs = list(self._runs.copy())[-(count or 0) :]
        newest = [self.graph_run(*run) for run in runs if run[0] is runs[-1][0]]
        return tuple(map(run_of, newest))

    def graph_run(self, plan: PlanValue, stats: RunStats) -> GraphRun:
        """Return a run of this graph."""
        known, options = self._known
        if known is not plan:
            options = self._asked(plan)
            self._known = plan, options
        return GraphRun(plan, stats, options)


class RunHistory:
    """The last runs of one model with equal plans; thread-safe."""

    def __init__(self) -> None:
        self._runs: deque[WholeRun] = deque(maxlen=RUNS)
        self._plans: list[PlanValue] = []
        """The plans of the recorded runs."""
        self._lock = threading.Lock()

    def add(self, run: WholeRun) -> None:
        """Add a finished run."""
        plans = list(map(_PLAN_OF, run.graphs))
        with self._lock:
            if plans != self._plans:  # plans compare by identity
                splits = sum([len(graph.stats.splits) for graph in run.graphs])
                max_runs = max(1, min(RUNS, MAX_SPLITS // max(1, splits)))
                self._plans, self._runs = plans, deque(maxlen=max_runs)
            self._runs.append(run)

    def last(self, count: int | None = None) -> tuple[WholeRun, ...]:
        """Return the last recorded runs, at most `count`; empty before the first.

        Runs that compiled something are excluded if there are others.
        """
        with self._lock:
            runs = tuple(self._runs)
        settled = tuple(run for run in runs if not run.first) or runs
        return settled[-(count or 0) :]

"""Runs: what was measured of the last runs of a graph or a model, for its report.

    run 7   graph of plan a | step of the host | graph of plan b      kept
    run 8   graph of plan a | step of the host | graph of plan b      kept: the same plans
    run 9   graph of plan c                                           kept; 7 and 8 are forgotten

Only runs through the same plans can be compared, so others make room at once.
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
"""So many runs are kept at most."""
SPLITS = 20_000
"""Of runs with many splits fewer are kept, these splits together."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan was made with beside its policy; see `plan_graph`. copies: None for as
    many as the plan has. all_reduce_nodes: names of nodes that are terms or results of sums over
    devices.
    """

    overrides: tuple[tuple[str | int, str], ...] = ()
    with_cpu: bool = False
    copies: int | str | None = None
    all_reduce_nodes: frozenset[str] = frozenset()


DEFAULT_OPTIONS = PlanOptions()
_PLAN_OF = attrgetter("plan")


class GraphRun(NamedTuple):
    """A run of one compiled graph. expected: of its plan, where that is known already."""

    plan: PlanValue
    stats: RunStats
    options: PlanOptions = DEFAULT_OPTIONS
    expected: Prediction | None = None


class CpuStepTime(NamedTuple):
    """What the host ran between two graphs of a model, in seconds of the scheduler's clock."""

    op: str
    start_s: float
    end_s: float


class WholeRun(NamedTuple):
    """A run as its caller saw it, in seconds of the scheduler's clock.

    graphs: in the order of their ends. first: something was planned or compiled in it.
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
    """Return a run that is one graph."""
    return WholeRun(graph.stats.start_s, graph.stats.end_s, (graph,))


LARGE = SPLITS // RUNS
"""Splits of a plan from which on fewer runs are kept."""


class GraphHistory:
    """The last runs of one compiled graph, of its newest plan. Each run adds one, so that takes no
    lock: what Python does in one step is enough. options: tells what a plan was made with.
    """

    def __init__(
        self, options: Callable[[PlanValue], PlanOptions] = lambda _: DEFAULT_OPTIONS
    ) -> None:
        self._asked = options
        self._known: tuple[PlanValue | None, PlanOptions] = None, DEFAULT_OPTIONS
        """What the newest plan was made with."""
        self._plans: tuple[PlanValue, ...] = ()
        """That which runs follow, and its replicas."""
        self._runs: deque[tuple[PlanValue, RunStats]] = deque(maxlen=RUNS)

    def begin(self, plan: PlanValue) -> None:
        """Runs follow a plan or its replicas from now on."""
        self._plans = (plan, *plan.replicas)

    def _same_history(self, one: PlanValue, other: PlanValue) -> bool:
        """Whether runs of two plans are kept together."""
        return one is other or (one in self._plans and other in self._plans)

    def add(self, plan: PlanValue, stats: RunStats) -> None:
        """Keep a run that is done."""
        runs = self._runs
        if (runs and not self._same_history(runs[-1][0], plan)) or len(stats.splits) > LARGE:
            most = SPLITS // max(1, len(stats.splits))
            self._runs = runs = deque(
                (r for r in runs.copy() if self._same_history(r[0], plan)), min(RUNS, max(1, most))
            )
        runs.append((plan, stats))

    @property
    def newest(self) -> RunStats | None:
        """What the last run cost; None before the first."""
        runs = self._runs.copy()
        return runs[-1][1] if runs else None

    def last(self, count: int | None = None) -> tuple[WholeRun, ...]:
        """Return the last runs, all that are kept or `count` of them; none before the first."""
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
    """The last runs of one model that went through the same plans; any thread may add one."""

    def __init__(self) -> None:
        self._runs: deque[WholeRun] = deque(maxlen=RUNS)
        self._plans: list[PlanValue] = []
        """Of the runs that are kept."""
        self._lock = threading.Lock()

    def add(self, run: WholeRun) -> None:
        """Keep a run that is done."""
        plans = list(map(_PLAN_OF, run.graphs))
        with self._lock:
            if plans != self._plans:  # a plan is equal to no other one
                splits = sum([len(graph.stats.splits) for graph in run.graphs])
                most = max(1, min(RUNS, SPLITS // max(1, splits)))
                self._plans, self._runs = plans, deque(maxlen=most)
            self._runs.append(run)

    def last(self, count: int | None = None) -> tuple[WholeRun, ...]:
        """Return the last runs, all that are kept or `count` of them; none before the first. Runs
        in which something was compiled are left out where there are others.
        """
        with self._lock:
            runs = tuple(self._runs)
        settled = tuple(run for run in runs if not run.first) or runs
        return settled[-(count or 0) :]

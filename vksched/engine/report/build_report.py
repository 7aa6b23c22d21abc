"""Build report: creates the report of runs with one set of plans.

Complexity: O(runs * splits). Examples: tests/engine/test_report.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...common.errors import PlanError
from ...common.formatting import format_seconds
from ...plan.costs.lower_bound import find_bound
from ...plan.simulation.predict import Prediction, predict
from .advice import advise
from .predictions import make_prediction_table
from .run_history import GraphHistory, RunHistory, WholeRun
from .run_report import RunReport
from .time_breakdown import TimeBreakdown, spans_of, time_breakdowns
from .transfers import transfer_volumes

MAX_BUSY_RATIO = 1.05
"""The tolerated ratio of a device's busy time to the host's wall time."""


def make_report(runs: Sequence[WholeRun], advice: bool = False) -> RunReport:
    """Return the report of one or more runs with one set of plans.

    advice: include advice on devices to remove or to add.
    """
    middle = sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]
    expected = _expected(middle)
    lines = make_prediction_table(runs, expected)
    timeline = spans_of(middle)
    times = time_breakdowns(middle, timeline)
    return RunReport(
        lines.run,
        lines.devices,
        lines.ops,
        len(runs),
        len(middle.graphs),
        times,
        timeline,
        sum(_bounds(middle)),
        advise(middle) if advice else None,
        tuple(_doubts(middle, times)),
        transfer_volumes(middle),
    )


def report_last(history: GraphHistory | RunHistory, count: int | None, advice: bool) -> RunReport:
    """Return the report of the last recorded runs, at most `count`.

    Raises
    ------
    PlanError
        There is no run, or the count is invalid.
    """
    if count is not None and not (isinstance(count, int) and count > 0):
        raise PlanError(f"[report] expected at least one run, got {count!r}; try runs=1")
    runs = history.last(count)
    if not runs:
        raise PlanError("[report] expected a run that has finished, got none; try run(...)")
    return make_report(runs, advice)


def _expected(run: WholeRun) -> list[Prediction]:
    known: dict[int, Prediction] = {}
    out: list[Prediction] = []
    for graph in run.graphs:
        key = id(graph.plan)
        if key not in known:
            known[key] = graph.expected or predict(graph.plan)
        out.append(known[key])
    return out


def _bounds(run: WholeRun) -> list[float]:
    """Return, for each graph of a run, the lower bound of its time over all placements."""
    known: dict[int, float] = {}
    for graph in run.graphs:
        if id(graph.plan) not in known:
            known[id(graph.plan)] = find_bound(graph.plan).latency_s
    return [known[id(graph.plan)] for graph in run.graphs]


def _doubts(run: WholeRun, times: Sequence[TimeBreakdown]) -> list[str]:
    """Return notes on measured times that are inconsistent."""
    out: list[str] = []
    for share in times:
        busy_s = sum(graph.stats.device_seconds.get(share.device, 0.0) for graph in run.graphs)
        if busy_s > MAX_BUSY_RATIO * share.wall_s:
            out.append(
                f"{share.device} says that it worked for {format_seconds(busy_s)} of a run of "
                f"{format_seconds(share.wall_s)}: its clock is wrong, or its splits overlap"
            )
    return out

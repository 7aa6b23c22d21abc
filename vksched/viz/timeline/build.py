"""Builders of timelines, for plans and for recorded runs.

    PlanView ---------------------------+--> spans, links, counters --> critical path --> Timeline
    events of runs --measured.py--------+

Complexity: spans + links. Examples: tests/viz/test_view_make.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ...common.formatting import count_of, format_seconds
from ...trace import Event
from .critical_path import critical_spans
from .measured import measured_spans
from .memory_counters import memory_counters
from .predicted import MAX_OPS, predicted_spans
from .span_links import find_links
from .timeline import Timeline
from .timeline_types import Lane, PlanView, Span

MAX_NAMES = 4
"""Maximum number of devices in a heading."""
MAX_PREDICTIONS = 3
"""Maximum number of predictions of overlapping runs that are drawn one below the other."""


def plan_timeline(view: PlanView, lanes: Sequence[Lane]) -> Timeline:
    """Return the timeline of one expected run of a plan."""
    spans = predicted_spans(view, 0, 0, 0.0, True)
    nodes = sum(len(split.nodes) for split in view.splits)
    busy = _busy(spans, lanes, "predicted", view.seconds)
    return _finish(
        f"{view.name}: {count_of(nodes, 'node')} in {count_of(len(view.splits), 'split')}",
        f"predicted: a run takes {format_seconds(view.seconds)}; {busy}; nothing has run",
        lanes,
        spans,
        [view],
    )


def run_timeline(
    events: Iterable[Event],
    plans: Sequence[PlanView],
    lanes: Sequence[Lane],
) -> Timeline:
    """Return the timeline of recorded runs, with the expected runs of their plans below them.

    events: `plan` is a position in `plans`, or -1. lanes: the lanes of the host and of devices;
    other lanes that events name are added.
    """
    lanes = list(lanes)
    spans = measured_spans(events, plans, lanes)
    runs = [span for span in spans if span.kind == "run" and span.plan >= 0]
    room, notes = MAX_OPS, []
    shown = _predicted_runs(runs, plans)
    for run in reversed(shown):  # the last runs are warm
        room -= len(plans[run.plan].nodes)
        spans += predicted_spans(plans[run.plan], run.plan, run.run, run.start_s, room >= 0)
    if room < 0:
        notes.append("ops are drawn for the last runs only")
    if len(shown) < len(runs):
        notes.append(f"predictions that overlap are drawn for {len(shown)} runs")
    title = f"{count_of(len(runs), 'run')} on {_names(lanes)}"
    return _finish(title, _format_summary(spans, lanes), lanes, spans, plans, notes)


def _predicted_runs(runs: Sequence[Span], plans: Sequence[PlanView]) -> list[Span]:
    """Return the runs whose predictions are drawn: at most MAX_PREDICTIONS of them at any
    moment.
    """
    shown: list[Span] = []
    ends_s: list[float] = []
    for run in sorted(runs, key=lambda run: run.start_s):
        ends_s = [end_s for end_s in ends_s if end_s > run.start_s]
        if len(ends_s) < MAX_PREDICTIONS:
            ends_s.append(run.start_s + plans[run.plan].seconds)
            shown.append(run)
    return shown


def _format_summary(spans: Sequence[Span], lanes: Sequence[Lane]) -> str:
    times = sorted(span.seconds for span in spans if span.kind == "run")
    if not times:
        return count_of(len(spans), "event")
    text = f"a run takes {format_seconds(times[len(times) // 2])}"
    if len(times) > 1:
        text += f" (median; {format_seconds(times[0])} to {format_seconds(times[-1])})"
    first_s, last_s = _shown(spans)
    whole_s = last_s - first_s
    return f"{text}; {_busy(spans, lanes, 'work', whole_s)}"


def _shown(spans: Sequence[Span]) -> tuple[float, float]:
    """Return the start of the first run and the end of the last one, or the bounds of all spans if
    there are no runs.
    """
    runs = [span for span in spans if span.row == "run"] or spans
    return min((s.start_s for s in runs), default=0.0), max((s.end_s for s in runs), default=0.0)


def _busy(spans: Sequence[Span], lanes: Sequence[Lane], row: str, whole_s: float) -> str:
    """Return a text with the share of time in which each working device is busy."""
    busy_s: dict[int, float] = defaultdict(float)
    done_s: dict[int, float] = defaultdict(lambda: -math.inf)
    for span in sorted(spans, key=lambda span: span.start_s):
        if span.row == row and span.kind == "split":
            # splits of two runs may overlap by the host's times
            busy_s[span.lane] += max(0.0, span.end_s - max(span.start_s, done_s[span.lane]))
            done_s[span.lane] = max(done_s[span.lane], span.end_s)
    parts = [
        f"{lanes[lane].name} {busy_s[lane] / whole_s:.0%}" for lane in sorted(busy_s) if whole_s
    ]
    return f"busy: {', '.join(parts[:MAX_NAMES])}" if parts else "no device works"


def _names(lanes: Sequence[Lane]) -> str:
    names = [lane.name for lane in lanes[1:]]
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _finish(
    title: str,
    view: str,
    lanes: Sequence[Lane],
    spans: Sequence[Span],
    plans: Sequence[PlanView],
    notes: Sequence[str] = (),
) -> Timeline:
    return Timeline(
        title,
        view,
        tuple(lanes),
        tuple(spans),
        tuple(find_links(spans, plans)),
        tuple(memory_counters(spans, plans)),
        tuple(plans),
        critical_spans(spans),
        tuple(notes),
        _shown(spans),
    )

"""Timelines of a plan, of a tape, or of a file that a tape saved.

    Plan ----------------------------------------> viz.timeline.build.plan_timeline
    file --load_tape--> TapeFile --documents--> plans, events --> viz.timeline.build.run_timeline

Complexity: O(events + nodes of plans). Examples: tests/plan/test_timelines.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import cast

from ...common.errors import DECODE_ERRORS, PlanError, VkschedError
from ...trace import Tape, TapeFile, load_tape
from ...trace.read import MAX_TIME_S
from ...viz.timeline.build import run_timeline
from ...viz.timeline.timeline import Timeline
from ...viz.timeline.timeline_types import Lane, PlanView
from ..explain.timeline import MAX_TEXTS, lanes_of, make_plan_view, timeline_of
from ..types.plan_types import PlanValue
from .plan_codec import PlanRecord, decode_plan_record

Source = PlanValue | Tape | TapeFile | str | PathLike[str]


def timeline(source: Source) -> Timeline:
    """Return the timeline of recorded runs, or of the expected run of a plan.

    Parameters
    ----------
    source
        A plan, a tape (`run.trace`, `vs.Tape`), or the path of a file that a tape saved.

    Raises
    ------
    VkschedError
        The file is no tape file of vksched, or a tape has no events; the text gives the reason.
    """
    if isinstance(source, PlanValue):
        return timeline_of(source)
    if isinstance(source, Tape):
        events, plans = source.recorded()
        records = [
            p if isinstance(p, PlanRecord) else _planned(cast(TapeFile, p))[0] for p in plans
        ]
    else:
        file = source if isinstance(source, TapeFile) else load_tape(source)
        events, records = [*file.events], _planned(file)
    if not events:
        raise VkschedError("[timeline] expected events, got none; try it after a run")
    lanes = lanes_of(planned.plan for planned in records)
    views = []
    room = MAX_TEXTS
    for at, planned in enumerate(records):
        views.append(_make_view(planned, lanes, _name(at, records), room))
        room -= len(planned.plan.graph.nodes)
    return run_timeline(events, views, lanes)


def _planned(file: TapeFile) -> list[PlanRecord]:
    """Return the plans of a file, each verified."""
    return [decode_plan_record(file.graphs[each["graph"]], each) for each in file.plans]


def _make_view(planned: PlanRecord, lanes: Sequence[Lane], name: str, room: int) -> PlanView:
    try:
        view = make_plan_view(planned.plan, lanes, name, room, planned.decides)
        if not view.seconds <= MAX_TIME_S:
            raise ValueError(f"a run would take {view.seconds} s")
    except DECODE_ERRORS as error:
        raise PlanError(f"[timeline] the {name} of a tape cannot be drawn: {error}") from error
    return view


def _name(at: int, records: list[PlanRecord]) -> str:
    return "plan" if len(records) == 1 else f"plan {at} ({records[at].cause})"

"""Replay tape: rebuilds each plan of a tape, replays its runs, and reports the first difference.

Examples: tests/trace/test_replay.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ...common.errors import DECODE_ERRORS
from ...common.formatting import count_of
from ...common.version import __version__
from ...trace import Event, TapeFile
from .replay_plans import Difference, RebuiltPlan, rebuild_plan
from .replay_runs import ORDERED, PlannedEvent, RecordedRun, first_difference, order_of

DifferenceAt = tuple[int, Difference]
"""An event index and the difference there."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay. version: the vksched version that wrote the tape. plans, runs,
    events: the numbers of compared items. notes: the skipped items with reasons. difference: the
    first one, None if there is none.
    """

    version: str
    plans: int
    runs: int
    events: int
    notes: tuple[str, ...]
    difference: Difference | None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        out = asdict(self)
        return {**out, "notes": list(self.notes), "replayed_by": __version__}

    def __str__(self) -> str:
        counts = [
            count_of(self.plans, "plan"),
            count_of(self.runs, "run"),
            f"{count_of(self.events, 'event')} of vksched {self.version}",
        ]
        end = "no difference" if self.difference is None else f"differs: {self.difference}"
        return "\n".join([", ".join(counts), *(f"note: {note}" for note in self.notes), end])


def replay_tape(tape: TapeFile) -> Replay:
    """Rebuild all plans of a tape, and replay one run of each on meta devices.

    Raises
    ------
    PlanError
        The tape contains an invalid graph, topology or plan request.
    """
    found: list[DifferenceAt] = []
    notes: list[str] = []
    runs = events = 0
    of_plan = _runs_by_plan(tape)
    for number, document in enumerate(tape.plans):
        where = f"plan {number}"
        rebuilt = rebuild_plan(tape.graphs[document["graph"]], document, where)
        if rebuilt.difference is not None:
            found.append((_place_of(tape.events, number), rebuilt.difference))
        taped = of_plan.get(number, [])
        if document["decides"]:
            notes += (
                [f"{where}: its {count_of(len(taped), 'run')} scheduled dynamically"]
                if taped
                else []
            )
            continue
        if taped and any("/" in device["name"] for device in document["topology"]["devices"]):
            notes.append(f"{where}: its runs are not compared: several computers carried them out")
            continue
        order = _order(rebuilt, where, notes) if taped else None
        if order is None:
            continue
        runs, events = runs + len(taped), events + sum(len(run.events) for run in taped)
        names = [node["name"] for node in tape.graphs[document["graph"]]["nodes"]]
        found += _differences(taped, order, names, where)
    notes += _gaps(tape)
    if tape.version != __version__:
        notes.append(f"the tape is of vksched {tape.version}, this is {__version__}")
    first = min(found, key=lambda each: each[0])[1] if found else None
    return Replay(tape.version, len(tape.plans), runs, events, tuple(notes), first)


def _order(rebuilt: RebuiltPlan, where: str, notes: list[str]) -> list[PlannedEvent] | None:
    """Return the events of a run of a plan; None, with a note, if they cannot be determined."""
    if rebuilt.plan is None:
        return None
    try:
        return order_of(rebuilt.plan, rebuilt.observed)
    except DECODE_ERRORS as error:
        notes.append(f"{where}: its runs are not compared: {error}")
        return None


def _differences(
    taped: Iterable[RecordedRun], order: list[PlannedEvent], names: list[str], where: str
) -> Iterator[DifferenceAt]:
    for run in taped:
        found = first_difference(run, order, names, f"{where}, run {run.number}")
        if found is not None:
            yield found


def _runs_by_plan(tape: TapeFile) -> dict[int, list[RecordedRun]]:
    """Return the runs of each plan, in the order of their first events."""
    events: dict[tuple[int, int], list[tuple[int, Event]]] = {}
    failed: set[tuple[int, int]] = set()
    for at, event in enumerate(tape.events):
        key = event.plan, event.run
        if event.plan < 0 or event.run < 0:
            continue
        if event.name in ORDERED:
            events.setdefault(key, []).append((at, event))
        elif event.name == "failed":
            failed.add(key)
    out: dict[int, list[RecordedRun]] = {}
    for (plan, number), each in events.items():
        run = RecordedRun(number, each, (plan, number) in failed, not tape.dropped)
        out.setdefault(plan, []).append(run)
    return out


def _place_of(events: Iterable[Event], plan: int) -> int:
    """Return the index of a plan's event; -1 if it was dropped."""
    places = (at for at, event in enumerate(events) if event.name == "plan" and event.plan == plan)
    return next(places, -1)


def _gaps(tape: TapeFile) -> list[str]:
    """Return notes on the events and plans that the tape has dropped."""
    out: list[str] = []
    if tape.dropped:
        out.append(f"{count_of(tape.dropped, 'event')} dropped for later ones")
    if tape.dropped_plans:
        out.append(f"{count_of(tape.dropped_plans, 'plan')} dropped for later ones")
    return out

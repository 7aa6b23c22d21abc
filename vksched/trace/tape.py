"""Tape: a sink that keeps events and the plans they belong to, and saves both in one file.

Problem: a program may run for days, so that neither events nor plans may pile up; and a kept plan
would keep the weights of its graph. Method: a ring of the last events. A plan is turned into a text
document when it is made, packed, and counted by what graphs they share. Of plans, too, the last
ones are kept.

    events   | dropped: 12,000 | run 17 | run 18 | ... | run 90 |      the last `limit`
    plans    | dropped: 2 | plan 2 | plan 3 |                          the last PLANS

Complexity: O(1) for an event; O(nodes) for a plan, and its weights are read once for their hashes.
Examples: tests/trace/test_tape.py.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from os import PathLike
from typing import Protocol, runtime_checkable

from ..common.errors import PlanError
from ..common.fork_guard import in_child
from .event_fields import fields_of
from .events import Event, Trace
from .read import TapeFile, tape_of
from .write import Document, document, pack, save_tape

EVENTS = 100_000
"""The events that a tape keeps by default: some 50 MB."""
PLANS = 256
"""The plans that a tape keeps, packed: some 10 kB for each 100 nodes."""


@runtime_checkable
class Documented(Protocol):
    """The field "about" of a "plan" event: what can be written down."""

    def as_document(self) -> tuple[Document, Document]:
        """Return the graph and the plan as plain data."""
        ...

    def as_reference(self) -> Reference:
        """Return a function that gives the plan again while it lives, and None afterwards."""
        ...


Reference = Callable[[], Documented | None]


class Tape:
    """A sink that keeps the last events, and the documents of the plans they belong to.

    limit: how many events at most; None for all. Any number of threads and schedulers may share it.

    Raises:
        ValueError: a limit below 1.
    """

    def __init__(self, limit: int | None = EVENTS) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"[trace] expected a limit of 1 or more events, got {limit}")
        self.limit = limit
        self.events: deque[Event] = deque(maxlen=limit)
        """In the order in which they came."""
        self.dropped = 0
        """Events that had to make room for later ones."""
        self.dropped_plans = 0
        self._graphs: dict[int, bytes] = {}
        """Packed documents of graphs, by a number of their own."""
        self._plans: OrderedDict[int, tuple[int, bytes]] = OrderedDict()
        """By the number of a plan that of its graph, and its packed document."""
        self._living: dict[int, Reference] = {}
        """By the number of a plan."""
        self._lock = threading.Lock()
        _TAPES.add(self)

    def __call__(self, event: Event) -> None:
        if event.name == "plan":
            event = self._take_plan(event)
        with self._lock:
            if len(self.events) == self.limit:
                self.dropped += 1
            self.events.append(event)

    def select(self, name: str, device: str | None = None) -> list[Event]:
        """Return the events of a name, of one device when given, in order of arrival."""
        found = self._snapshot()
        return [e for e in found if e.name == name and (device is None or e.device == device)]

    def of_plans(self, plans: Iterable[int]) -> Tape:
        """Return a tape of the events of some plans, by their numbers; it keeps no more events."""
        out, plans = Tape(None), frozenset(plans)
        with self._lock:
            out.events.extend(event for event in self.events if event.plan in plans)
            out.dropped, out.dropped_plans = self.dropped, self.dropped_plans
            for number in plans & self._plans.keys():
                out._plans[number] = self._plans[number]
                out._graphs[self._plans[number][0]] = self._graphs[self._plans[number][0]]
                out._living[number] = self._living[number]
        return out

    def clear(self) -> None:
        """Forget all events; plans stay, as later events belong to them."""
        with self._lock:
            self.events.clear()
            self.dropped = 0

    def save(self, path: str | PathLike[str]) -> None:
        """Write one JSON file. Perfetto and chrome://tracing show it, `vksched trace` draws it,
        and `vksched replay` makes its plans and orders again.

        Raises:
            VkschedError: the file cannot be written.
        """
        save_tape(path, *self._all())

    def contents(self) -> TapeFile:
        """Returns what a file would tell that was saved now."""
        return tape_of({"vksched": document(*self._all())})

    def recorded(self) -> tuple[list[Event], list[Documented | TapeFile]]:
        """Return the events and the plans they belong to: each plan that lives as it is, any other
        as the file of this plan alone. `Event.plan` is a position among these plans, or -1.
        """
        with self._lock:
            events, living = list(self.events), {n: self._living[n]() for n in self._plans}
        plans = [
            self.of_plans([number]).contents() if plan is None else plan
            for number, plan in living.items()
        ]
        at = {number: position for position, number in enumerate(living)}
        return [replace(e, plan=at.get(e.plan, -1), fields=fields_of(e)) for e in events], plans

    def _all(self) -> _All:
        with self._lock:
            events, plans = list(self.events), list(self._plans.items())
            return events, dict(self._graphs), plans, self.dropped, self.dropped_plans

    def _snapshot(self) -> list[Event]:
        with self._lock:
            return list(self.events)

    def _take_plan(self, event: Event) -> Event:
        """Keep the document of a plan; returns its event without the plan."""
        fields = dict(event.fields)
        about = fields.pop("about", None)
        if isinstance(about, Documented):
            graph, plan = (pack(document) for document in about.as_document())
            with self._lock:
                known = (number for number, text in self._graphs.items() if text == graph)
                number = next(known, event.plan)
                self._graphs[number] = graph
                self._plans[event.plan] = number, plan
                self._living[event.plan] = about.as_reference()
                while len(self._plans) > PLANS:
                    del self._living[self._plans.popitem(last=False)[0]]
                    self.dropped_plans += 1
                used = {of for of, _ in self._plans.values()}
                self._graphs = {of: text for of, text in self._graphs.items() if of in used}
        return replace(event, fields=fields)

    def __repr__(self) -> str:
        more = f", {self.dropped} dropped" if self.dropped else ""
        return f"<{type(self).__name__}: {len(self.events)} events{more}>"


_All = tuple[list[Event], dict[int, bytes], list[tuple[int, tuple[int, bytes]]], int, int]


def find_tape(trace: Trace) -> Tape:
    """Return the tape among the sinks of a trace.

    Raises:
        PlanError: there is none.
    """
    for sink in trace.sinks:
        if isinstance(sink, Tape):
            return sink
    raise PlanError(
        "[trace] expected a scheduler with a tape, got one without; try "
        "vs.Scheduler(trace=vs.Tape()), or the variable VKSCHED_TRACE=t.json"
    )


class Recorder(Tape):
    """A tape without end, for short programs and tests."""

    def __init__(self) -> None:
        super().__init__(None)


_TAPES: weakref.WeakSet[Tape] = weakref.WeakSet()


@in_child
def _renew_locks() -> None:
    """A lock that another thread held when the process forked is never released in the child."""
    for tape in _TAPES:
        tape._lock = threading.Lock()

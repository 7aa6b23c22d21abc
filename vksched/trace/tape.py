"""Tape: a sink that records events with their plans, and saves both in one file.

Problem: a program may run for days, so the numbers of events and plans must be bounded; and a
reference to a plan would retain the weights of its graph. Method: a ring of the last events. A new
plan is serialized as a packed text document, and plans share the documents of their graphs. The
tape retains the last plans only.

    events   | dropped: 12,000 | run 17 | run 18 | ... | run 90 |      the last `limit`
    plans    | dropped: 2 | plan 2 | plan 3 |                          the last PLANS

Complexity: O(1) for an event; O(nodes) for a plan, whose weights are read once for their hashes.
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
"""Default maximum number of events of a tape: some 50 MB."""
PLANS = 256
"""Maximum number of packed plans of a tape: some 10 kB for each 100 nodes."""


@runtime_checkable
class Documented(Protocol):
    """The field "about" of a "plan" event, which can be serialized."""

    def as_document(self) -> tuple[Document, Document]:
        """Return the graph and the plan as plain data."""
        ...

    def as_reference(self) -> Reference:
        """Return a function that returns the plan while it is alive, and None afterwards."""
        ...


Reference = Callable[[], Documented | None]


class Tape:
    """A sink that records the last events, and the documents of their plans.

    Any number of threads and schedulers may share a tape.

    Parameters
    ----------
    limit
        The maximum number of events; None for no limit.

    Raises
    ------
    ValueError
        The limit is below 1.
    """

    def __init__(self, limit: int | None = EVENTS) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"[trace] expected a limit of 1 or more events, got {limit}")
        self.limit = limit
        self.events: deque[Event] = deque(maxlen=limit)
        """The events in order of arrival."""
        self.dropped = 0
        """The number of discarded older events."""
        self.dropped_plans = 0
        self._graphs: dict[int, bytes] = {}
        """Packed documents of graphs, by number."""
        self._plans: OrderedDict[int, tuple[int, bytes]] = OrderedDict()
        """For each plan, the number of its graph, and its packed document."""
        self._living: dict[int, Reference] = {}
        """For each plan, a reference to it."""
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
        """Return the events with a name, and optionally of one device, in order of arrival."""
        found = self._snapshot()
        return [e for e in found if e.name == name and (device is None or e.device == device)]

    def of_plans(self, plans: Iterable[int]) -> Tape:
        """Return a tape of the events of some plans, by their numbers. It records no further
        events.
        """
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
        """Discard all events. Plans stay, because later events refer to them."""
        with self._lock:
            self.events.clear()
            self.dropped = 0

    def save(self, path: str | PathLike[str]) -> None:
        """Write one JSON file. Perfetto and chrome://tracing show it, `vksched trace` draws it, and
        `vksched replay` repeats its planning.

        Raises
        ------
        VkschedError
            The file cannot be written.
        """
        save_tape(path, *self._all())

    def contents(self) -> TapeFile:
        """Return the content of a file if the tape were saved now."""
        return tape_of({"vksched": document(*self._all())})

    def recorded(self) -> tuple[list[Event], list[Documented | TapeFile]]:
        """Return the events and their plans: each living plan itself, and any other one as a file
        of this plan alone. `Event.plan` is a position in these plans, or -1.
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
        """Store the document of a plan, and return its event without the plan."""
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

    Raises
    ------
    PlanError
        There is none.
    """
    for sink in trace.sinks:
        if isinstance(sink, Tape):
            return sink
    raise PlanError(
        "[trace] expected a scheduler with a tape, got one without; try "
        "vs.Scheduler(trace=vs.Tape()), or the variable VKSCHED_TRACE=t.json"
    )


class Recorder(Tape):
    """A tape without a limit, for short programs and tests."""

    def __init__(self) -> None:
        super().__init__(None)


_TAPES: weakref.WeakSet[Tape] = weakref.WeakSet()


@in_child
def _renew_locks() -> None:
    """Replace the locks after a fork: a lock of another thread is never released in the child."""
    for tape in _TAPES:
        tape._lock = threading.Lock()

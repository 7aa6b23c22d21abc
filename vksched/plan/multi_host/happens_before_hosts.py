"""Hosts: is all that several hosts do for one plan in order, whichever of them is ahead?

Problem: each host waits for its own devices and for messages, and none sees what the others do.
Method: the events of all hosts, each with a thread for each slot, are judged by one checker. Who
hears a message knows what its sender knew; nothing else orders two hosts. For that the parts are
put side by side as one plan, in which devices and splits of every part have numbers of their own.

    caller    tell start -> stage ... | hear done
    node1     hear start | submit, wait, check | post h | tell h | tell done
    node2     hear start | hear h | stage h | submit ...            without "hear h": a race

Complexity: that of `happens.py`. Examples: tests/plan/test_happens_before_hosts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from ...topology.host_names import CALLER, on
from ...topology.topology import Topology
from ..types.plan_types import HOST, PlanValue, Split
from ..verify.happens_before import Checker, Finding, fail_on
from ..verify.interleavings import Walk
from ..verify.memory_events import Event, Hear, Narrator
from .host_plan import Part, Send


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a part stands in the joined plan: its first device, split and thread, and its CPU."""

    part: Part
    device: int
    split: int
    thread: int

    @property
    def devices(self) -> range:
        return range(self.device, self.device + len(self.part.plan.topology.devices))

    def moved(self, split: Split) -> Split:
        """Returns a split with the numbers of the joined plan."""
        return replace(
            split,
            id=split.id + self.split,
            device=split.device + self.device,
            waits=tuple(wait + self.split for wait in split.waits),
            copies_in=tuple(
                copy if copy.source == HOST else replace(copy, source=copy.source + self.split)
                for copy in split.copies_in
            ),
        )


class Joined:
    """The parts of a plan, side by side; the caller's comes last, as its CPU does.

    plan: with all devices and splits, to be looked at and not to be carried out.
    """

    def __init__(self, plan: PlanValue, parts: Sequence[Part]) -> None:
        ordered = sorted(parts, key=lambda part: part.host == CALLER)
        self.places: list[_Place] = []
        device = split = 0
        for number, part in enumerate(ordered):
            self.places.append(_Place(part, device, split, number * plan.copies))
            device += len(part.plan.topology.devices)
            split += len(part.plan.splits)
        self.plan = self._join(plan)

    def _join(self, plan: PlanValue) -> PlanValue:
        specs = [
            replace(spec, name=on(place.part.host, spec.name))
            for place in self.places
            for spec in place.part.plan.topology.devices
        ]
        return replace(
            plan,
            topology=Topology(tuple(specs)),
            splits=tuple(p.moved(s) for p in self.places for s in p.part.plan.splits),
            memory=tuple(memory for p in self.places for memory in p.part.plan.memory),
            locations={
                (device + place.device, node): span
                for place in self.places
                for (device, node), span in place.part.plan.locations.items()
            },
        )

    def walk(self, place: _Place, told: Set[object], draw: np.random.Generator) -> HostWalk:
        """Returns what one host does; a part has its own graph, and the numbers of all. told: the
        labels of messages that have been sent.
        """
        own, joined = place.part.plan, self.plan
        placements = tuple(replace(p, device=p.device + place.device) for p in own.placements)
        numbered = replace(
            own,
            topology=joined.topology,
            splits=joined.splits,
            memory=joined.memory,
            locations=joined.locations,
            placements=placements,
        )
        narrator = Narrator(numbered, place.devices, place.thread)
        return HostWalk(self, place, narrator, told, draw)

    def cpu_of(self, host: str) -> int:
        """Returns the CPU of a host."""
        return next(place.devices[-1] for place in self.places if place.part.host == host)

    @property
    def others(self) -> list[Part]:
        """The parts that are not the caller's."""
        return [place.part for place in self.places[:-1]]


class HostWalk(Walk):
    """What one host does for each run, and what it says to the others. It sends values at any
    moment that `draw` says, but before it waits for another host.
    """

    def __init__(
        self,
        joined: Joined,
        place: _Place,
        narrator: Narrator,
        told: Set[object],
        draw: np.random.Generator,
    ) -> None:
        part = place.part
        super().__init__(
            narrator,
            [place.moved(split) for split in part.plan.commits],
            [wait + place.split for wait in part.plan.final_waits],
        )
        self._joined = joined
        self._place = place
        self._part = part
        self._told = told
        self._draw = draw
        self._unsent: dict[int, list[Send]] = {}

    @property
    def _results(self) -> int:
        return self._part.results

    def _begin(self, slot: int, number: int) -> Iterator[Event]:
        tell, host = self.narrator, self._part.host
        if host != CALLER:
            about = self._cpu(host)
            yield tell.hear(slot, number, "start", host, about, self._part.inputs)
            yield tell.acquire(slot, number)
            yield tell.read(slot, "start", about)
            return
        yield tell.acquire(slot, number)
        for other in self._joined.others:
            yield tell.tell(slot, number, "start", other.host)

    def _listen(self, slot: int, number: int, what: str, host: str) -> Iterator[Event]:
        yield self.narrator.hear(slot, number, what, host, self._cpu(host))
        yield self.narrator.read(slot, what, self._cpu(host))

    def _cpu(self, host: str) -> int:
        return self._joined.cpu_of(host)

    def _cross(self, slot: int, at: int, complete: set[int]) -> Iterator[Event]:
        tell, run, host = self.narrator, self.narrator.run_in(slot), self._part.host
        unsent = self._unsent.setdefault(slot, [])
        for step in self._part.steps.get(at, ()):
            if isinstance(step, Send):
                unsent.append(step)
                continue
            heard = tell.hear(slot, run, "value", host, self._cpu(host), [step.value])
            while unsent and not (heard.label in self._told and self._puts_off()):
                yield from self._send(slot, unsent.pop(0), complete)
            yield heard
            for _ in step.shown:
                yield tell.open(slot, step.value)
        last = at == len(self._part.plan.splits) - len(self._commits)
        while unsent and (last or not self._puts_off()):
            yield from self._send(slot, unsent.pop(0), complete)

    def _puts_off(self) -> bool:
        return bool(self._draw.random() < 0.5)

    def _send(self, slot: int, step: Send, complete: set[int]) -> Iterator[Event]:
        tell, split = self.narrator, step.split + self._place.split
        yield from self._wait(slot, split, complete)
        yield tell.post(slot, step.value, split)
        yield tell.tell(slot, tell.run_in(slot), "value", step.host, step.value)

    def _feed(self, slot: int, value: int) -> Iterator[Event]:
        fed = self._part.host != CALLER and value in self._part.inputs
        if fed or value in self._part.taken:
            yield self.narrator.open(slot, value)

    def _fetch(self, slot: int, value: int) -> Iterator[Event]:
        source = next((v for v in (value, self._root(value)) if v in self._part.taken), None)
        if source is None:
            yield from super()._fetch(slot, value)
        else:
            yield self.narrator.open(slot, source)

    def _root(self, value: int) -> int:
        return self.narrator.plan.graph.root(value)

    def _agree(self, slot: int, number: int) -> Iterator[Event]:
        host = self._part.host
        if host != CALLER:
            if self._commits:
                yield self.narrator.tell(slot, number, "ready", host)
                yield from self._listen(slot, number, "commit", host)
            return
        committing = [part.host for part in self._joined.others if part.plan.commits]
        for other in self._joined.others:
            what = "ready" if other.host in committing else "done"
            yield from self._listen(slot, number, what, other.host)
        yield self.narrator.end(slot)
        for name in committing:
            yield self.narrator.tell(slot, number, "commit", name)

    def _finish(self, slot: int, number: int) -> Iterator[Event]:
        tell, host = self.narrator, self._part.host
        if host != CALLER:
            yield tell.release(slot)
            yield tell.tell(slot, number, "done", host)
            return
        for other in self._joined.others:
            if other.plan.commits:
                yield from self._listen(slot, number, "done", other.host)
        yield tell.end(slot)
        yield tell.release(slot)


def events_of_parts(
    plan: PlanValue, parts: Sequence[Part], runs: int = 1, rng: np.random.Generator | None = None
) -> list[Event]:
    """Returns the events of some runs on all hosts, in an order drawn by `rng`: at each step one
    thread goes on that waits for no message. The caller gives each run the first slot that is free.
    """
    joined, draw = Joined(plan, parts), rng or np.random.default_rng(0)
    free, told = list(range(plan.copies)), set[object]()
    *others, caller = [joined.walk(place, told, draw) for place in joined.places]
    threads: list[tuple[int, Iterator[Event], list[Event]]] = []
    events: list[Event] = []
    started = 0

    def begin(slot: int, number: int) -> None:
        for walk in (*others, caller):
            made = walk.run(slot, number)
            threads.append((slot if walk is caller else -1, made, [next(made)]))

    while started < runs or threads:
        if free and started < runs and (not threads or draw.random() < 0.2):
            begin(free.pop(0), started)
            started += 1
        ready = [t for t in threads if not isinstance(t[2][0], Hear) or t[2][0].label in told]
        thread = ready[int(draw.integers(len(ready)))]
        slot, walk, pending = thread
        event = pending.pop()
        events.append(event)
        told.add(getattr(event, "label", None))
        following = next(walk, None)
        if following is not None:
            pending.append(following)
        else:
            threads.remove(thread)
            if slot >= 0:
                free.append(slot)
    return events


def check_part_events(
    plan: PlanValue, parts: Sequence[Part], events: Sequence[Event]
) -> list[Finding]:
    """Returns all that is not in order in the events of a plan's parts."""
    checker = Checker(Joined(plan, parts).plan, len(parts))
    return [finding for event in events for finding in checker.feed(event)]


def check_parts(plan: PlanValue, parts: Sequence[Part], runs: int = 2, seed: int = 0) -> None:
    """Lets some runs of a plan's parts go on at once.

    Raises:
        PlanError: what is not in order.
    """
    events = events_of_parts(plan, parts, runs, np.random.default_rng(seed))
    fail_on(check_part_events(plan, parts, events))

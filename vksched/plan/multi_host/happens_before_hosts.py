"""Happens-before of hosts: a check of a plan over several hosts under every order of their events.

Problem: each host waits for its own devices and for messages, and none observes the others. Method:
one checker takes the events of all hosts, each with a thread for each slot. The receiver of a
message learns the clock of its sender; no other event orders two hosts. The host plans are joined
into one plan, in which the devices and splits of every host plan have numbers of their own.

    caller    tell start -> stage ... | hear done
    node1     hear start | submit, wait, check | post h | tell h | tell done
    node2     hear start | hear h | stage h | submit ...            without "hear h": a race

Complexity: that of `happens_before.py`. Examples: tests/plan/test_happens_before_hosts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from ...topology.host_names import DRIVER, on
from ...topology.topology import Topology
from ..types.plan_types import HOST, PlanValue, Split
from ..verify.happens_before import Checker, Finding, fail_on
from ..verify.interleavings import RunEvents
from ..verify.memory_events import Event, EventGenerator, RecvMsg
from .host_plan import HostPlan, Send


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a host plan in the joined plan: its first device, split and thread, and its
    CPU.
    """

    host_plan: HostPlan
    device: int
    split: int
    thread: int

    @property
    def devices(self) -> range:
        return range(self.device, self.device + len(self.host_plan.plan.topology.devices))

    def moved(self, split: Split) -> Split:
        """Return a split with the numbers of the joined plan."""
        return replace(
            split,
            id=split.id + self.split,
            device=split.device + self.device,
            waits=tuple(wait + self.split for wait in split.waits),
            uploads=tuple(
                copy if copy.source == HOST else copy._replace(source=copy.source + self.split)
                for copy in split.uploads
            ),
        )


class JoinedPlans:
    """The host plans of a plan, joined; the driver's comes last, as its CPU does.

    plan: the plan of all devices and splits, for checks only.
    """

    def __init__(self, plan: PlanValue, host_plans: Sequence[HostPlan]) -> None:
        ordered = sorted(host_plans, key=lambda host_plan: host_plan.host == DRIVER)
        self.places: list[_Place] = []
        device = split = 0
        for number, host_plan in enumerate(ordered):
            self.places.append(_Place(host_plan, device, split, number * plan.copies))
            device += len(host_plan.plan.topology.devices)
            split += len(host_plan.plan.splits)
        self.plan = self._join(plan)

    def _join(self, plan: PlanValue) -> PlanValue:
        specs = [
            replace(spec, name=on(place.host_plan.host, spec.name))
            for place in self.places
            for spec in place.host_plan.plan.topology.devices
        ]
        return replace(
            plan,
            topology=Topology(tuple(specs)),
            splits=tuple(p.moved(s) for p in self.places for s in p.host_plan.plan.splits),
            memory=tuple(memory for p in self.places for memory in p.host_plan.plan.memory),
            locations={
                (device + place.device, node): span
                for place in self.places
                for (device, node), span in place.host_plan.plan.locations.items()
            },
        )

    def walk(
        self, place: _Place, sent_labels: Set[object], draw: np.random.Generator
    ) -> HostEvents:
        """Return the walk of one host. A host plan has its own graph, and the numbers of the joined
        plan.

        sent_labels: the labels of sent messages.
        """
        own, joined = place.host_plan.plan, self.plan
        placements = tuple(replace(p, device=p.device + place.device) for p in own.placements)
        numbered = replace(
            own,
            topology=joined.topology,
            splits=joined.splits,
            memory=joined.memory,
            locations=joined.locations,
            placements=placements,
        )
        generator = EventGenerator(numbered, place.devices, place.thread)
        return HostEvents(self, place, generator, sent_labels, draw)

    def cpu_of(self, host: str) -> int:
        """Return the CPU of a host."""
        return next(place.devices[-1] for place in self.places if place.host_plan.host == host)

    @property
    def others(self) -> list[HostPlan]:
        """The host plans of the workers."""
        return [place.host_plan for place in self.places[:-1]]


class HostEvents(RunEvents):
    """The events of one host for each run, with its messages to other hosts. It sends values at any
    moment drawn by `draw`, but before it waits for another host.
    """

    def __init__(
        self,
        joined: JoinedPlans,
        place: _Place,
        generator: EventGenerator,
        sent_labels: Set[object],
        draw: np.random.Generator,
    ) -> None:
        host_plan = place.host_plan
        super().__init__(
            generator,
            [place.moved(split) for split in host_plan.plan.commits],
            [wait + place.split for wait in host_plan.plan.final_waits],
        )
        self._joined = joined
        self._place = place
        self._part = host_plan
        self._sent_labels = sent_labels
        self._draw = draw
        self._unsent: dict[int, list[Send]] = {}

    @property
    def _results(self) -> int:
        return self._part.results

    def _begin(self, slot: int, number: int) -> Iterator[Event]:
        tell, host = self.generator, self._part.host
        if host != DRIVER:
            about = self._cpu(host)
            yield tell.hear(slot, number, "start", host, about, self._part.inputs)
            yield tell.acquire(slot, number)
            yield tell.read(slot, "start", about)
            return
        yield tell.acquire(slot, number)
        for other in self._joined.others:
            yield tell.tell(slot, number, "start", other.host)

    def _listen(self, slot: int, number: int, what: str, host: str) -> Iterator[Event]:
        yield self.generator.hear(slot, number, what, host, self._cpu(host))
        yield self.generator.read(slot, what, self._cpu(host))

    def _cpu(self, host: str) -> int:
        return self._joined.cpu_of(host)

    def _cross(self, slot: int, at: int, complete: set[int]) -> Iterator[Event]:
        tell, run, host = self.generator, self.generator.run_in(slot), self._part.host
        unsent = self._unsent.setdefault(slot, [])
        for step in self._part.steps.get(at, ()):
            if isinstance(step, Send):
                unsent.append(step)
                continue
            heard = tell.hear(slot, run, "value", host, self._cpu(host), [step.value])
            while unsent and not (heard.label in self._sent_labels and self._puts_off()):
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
        tell, split = self.generator, step.split + self._place.split
        yield from self._wait(slot, split, complete)
        yield tell.post(slot, step.value, split)
        yield tell.tell(slot, tell.run_in(slot), "value", step.host, step.value)

    def _feed(self, slot: int, value: int) -> Iterator[Event]:
        fed = self._part.host != DRIVER and value in self._part.inputs
        if fed or value in self._part.taken:
            yield self.generator.open(slot, value)

    def _fetch(self, slot: int, value: int) -> Iterator[Event]:
        source = next((v for v in (value, self._root(value)) if v in self._part.taken), None)
        if source is None:
            yield from super()._fetch(slot, value)
        else:
            yield self.generator.open(slot, source)

    def _root(self, value: int) -> int:
        return self.generator.plan.graph.view_base(value)

    def _agree(self, slot: int, number: int) -> Iterator[Event]:
        host = self._part.host
        if host != DRIVER:
            if self._commits:
                yield self.generator.tell(slot, number, "ready", host)
                yield from self._listen(slot, number, "commit", host)
            return
        committing = [host_plan.host for host_plan in self._joined.others if host_plan.plan.commits]
        for other in self._joined.others:
            what = "ready" if other.host in committing else "done"
            yield from self._listen(slot, number, what, other.host)
        yield self.generator.end(slot)
        for name in committing:
            yield self.generator.tell(slot, number, "commit", name)

    def _finish(self, slot: int, number: int) -> Iterator[Event]:
        tell, host = self.generator, self._part.host
        if host != DRIVER:
            yield tell.release(slot)
            yield tell.tell(slot, number, "done", host)
            return
        for other in self._joined.others:
            if other.plan.commits:
                yield from self._listen(slot, number, "done", other.host)
        yield tell.end(slot)
        yield tell.release(slot)


def events_of_parts(
    plan: PlanValue,
    host_plans: Sequence[HostPlan],
    runs: int = 1,
    rng: np.random.Generator | None = None,
) -> list[Event]:
    """Return the events of some runs on all hosts, in an order drawn by `rng`: at each step one
    thread that waits for no message proceeds. The driver runs each run in the first free slot.
    """
    joined, draw = JoinedPlans(plan, host_plans), rng or np.random.default_rng(0)
    free, sent_labels = list(range(plan.copies)), set[object]()
    *others, caller = [joined.walk(place, sent_labels, draw) for place in joined.places]
    threads: list[tuple[int, Iterator[Event], list[Event]]] = []
    events: list[Event] = []
    started = 0

    def begin(slot: int, number: int) -> None:
        for walk in (*others, caller):
            walked = walk.run(slot, number)
            threads.append((slot if walk is caller else -1, walked, [next(walked)]))

    while started < runs or threads:
        if free and started < runs and (not threads or draw.random() < 0.2):
            begin(free.pop(0), started)
            started += 1
        ready = [
            t for t in threads if not isinstance(t[2][0], RecvMsg) or t[2][0].label in sent_labels
        ]
        thread = ready[int(draw.integers(len(ready)))]
        slot, walk, pending = thread
        event = pending.pop()
        events.append(event)
        sent_labels.add(getattr(event, "label", None))
        following = next(walk, None)
        if following is not None:
            pending.append(following)
        else:
            threads.remove(thread)
            if slot >= 0:
                free.append(slot)
    return events


def check_part_events(
    plan: PlanValue, host_plans: Sequence[HostPlan], events: Sequence[Event]
) -> list[Finding]:
    """Return all findings in the events of the host plans of a plan."""
    checker = Checker(JoinedPlans(plan, host_plans).plan, len(host_plans))
    return [finding for event in events for finding in checker.feed(event)]


def check_parts(
    plan: PlanValue, host_plans: Sequence[HostPlan], runs: int = 2, seed: int = 0
) -> None:
    """Check some concurrent runs of the host plans of a plan.

    Raises
    ------
    PlanError
        The findings.
    """
    events = events_of_parts(plan, host_plans, runs, np.random.default_rng(seed))
    fail_on(check_part_events(plan, host_plans, events))

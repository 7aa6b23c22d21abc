"""Interleavings: the events of the host for runs of a plan, in a possible order of an executor.

    run 0, slot 0   acquire | stage, submit ... wait, check, fetch | end | release
    run 1, slot 1          acquire | stage ...             drawn: which run goes on next

Complexity: O(items) for each run. Examples: tests/plan/test_happens_before.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..types.plan_types import HOST, PlanValue, Split
from .memory_events import Event, EventGenerator


class RunEvents:
    """The events of the executor for each run, with an observer for all observable values.

    splits: the splits of this host, of which the last `commits` write states. Subclasses add the
    events of a host among others.
    """

    def __init__(
        self, generator: EventGenerator, commits: Sequence[Split], final_waits: Sequence[int]
    ) -> None:
        self.generator = generator
        self._commits = commits
        self._final_waits = final_waits
        self._downloaded = {c.node for s in generator.splits for c in s.downloads}
        self._splits_of: dict[int, list[Split]] = {}
        for split in generator.splits:
            self._splits_of.setdefault(split.device, []).append(split)
        self._device_of = {split.id: split.device for split in generator.splits}

    def run(self, slot: int, number: int) -> Iterator[Event]:
        """Yield the events of one run."""
        generator, complete = self.generator, set[int]()
        graph, commits = generator.plan.graph, self._commits
        yield from self._begin(slot, number)
        before = generator.splits[: len(generator.splits) - len(commits)]
        for at, split in enumerate(before):
            yield from self._cross(slot, at, complete)
            yield from self._start(slot, split, complete)
        yield from self._cross(slot, len(before), complete)
        if is_early := generator.plan.commits_early:
            for split in commits:
                yield from self._start(slot, split, complete)
        for waited in commits[0].waits if commits and not is_early else self._final_waits:
            yield from self._wait(slot, waited, complete)
        for value in (*(n for _, n in graph.outputs[: self._results]), *graph.backed_up_states):
            yield from self._fetch(slot, value)
        yield from self._agree(slot, number)
        for split in () if is_early else commits:
            yield from self._start(slot, split, complete)
        if commits:
            for waited in self._final_waits:
                yield from self._wait(slot, waited, complete)
        yield from self._finish(slot, number)

    @property
    def _results(self) -> int:
        return len(self.generator.plan.graph.outputs)

    def _begin(self, slot: int, number: int) -> Iterator[Event]:
        yield self.generator.acquire(slot, number)

    def _cross(self, slot: int, at: int, complete: set[int]) -> Iterator[Event]:
        """Yield the events of transfers between hosts before a split, by its position."""
        yield from ()

    def _agree(self, slot: int, number: int) -> Iterator[Event]:
        yield self.generator.end(slot)

    def _finish(self, slot: int, number: int) -> Iterator[Event]:
        if self._commits:
            yield self.generator.end(slot)
        yield self.generator.release(slot)

    def _fetch(self, slot: int, value: int) -> Iterator[Event]:
        plan = self.generator.plan
        source = value if value in self._downloaded else plan.graph.view_base(value)
        if not plan.graph.nodes[source].declaration.leaf:
            device = plan.placements[plan.graph.view_base(value)].device
            yield self.generator.fetch(slot, source, device)

    def _wait(self, slot: int, split_id: int, complete: set[int]) -> Iterator[Event]:
        if split_id in complete:
            return
        yield from self.generator.wait(slot, split_id)
        splits = self._splits_of[self._device_of[split_id]]
        ended = [s for s in splits if s.id <= split_id and s.id not in complete]
        for split in ended:
            complete.add(split.id)
            yield self.generator.check(slot, split.id)
        for split in ended:
            for value in split.observed:
                yield from self._fetch(slot, value)

    def _start(self, slot: int, split: Split, complete: set[int]) -> Iterator[Event]:
        generator, data = self.generator, self.generator.plan.graph.data
        for copy in split.uploads:
            if copy.source == HOST and copy.node not in data:
                yield from self._feed(slot, copy.node)
                yield generator.stage(slot, split.device, copy)
        for waited in split.waits:
            yield from self._wait(slot, waited, complete)
        for copy in split.uploads:
            if split.refills and copy.node in data:
                yield generator.stage(slot, split.device, copy)
            elif copy.source != HOST:
                yield generator.fetch(slot, copy.node, self._device_of[copy.source])
                yield generator.stage(slot, split.device, copy)
        yield from generator.submit(slot, split.id)

    def _feed(self, slot: int, value: int) -> Iterator[Event]:
        """Yield the events by which the host gets a value that no split of its own produces."""
        yield from ()


def events_of(
    plan: PlanValue,
    runs: int = 1,
    rng: np.random.Generator | None = None,
) -> list[Event]:
    """Return the events of some runs, each in the first free slot, in an order drawn by `rng`: at
    each step one of the active runs proceeds.
    """
    walk, draw = RunEvents(EventGenerator(plan), plan.commits, plan.final_waits), rng or _default()
    free, under_way = list(range(plan.copies)), dict[int, Iterator[Event]]()
    events: list[Event] = []
    started = 0
    while started < runs or under_way:
        if free and started < runs and (not under_way or draw.random() < 0.5):
            slot = free.pop(0)
            under_way[slot] = walk.run(slot, started)
            started += 1
        slot = list(under_way)[int(draw.integers(len(under_way)))]
        event = next(under_way[slot], None)
        if event is None:
            del under_way[slot]
            free.append(slot)
        else:
            events.append(event)
    return events


def _default() -> np.random.Generator:
    return np.random.default_rng(0)

"""Events: what runs of a plan do to memory, in the order in which the host did it.

Problem: whether a plan's waits and barriers suffice is a question about all orders that they allow,
of several runs at once. Method: tell everything that touches memory as plain data, once for the
executor and for `events_of`, which draws an order that an executor could have taken; `happens.py`
judges.

    executor (VKSCHED_CHECK=1) --\\
                                   Narrator --events--> happens.Checker --> findings
    events_of(plan, runs, rng) --/

Complexity: O(items) once per plan, O(1) per event. Examples: tests/plan/test_happens.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..value import HOST, CopyIn, PlanValue, Span, Split, scratch_of

Memory = tuple[str, int, int]
"""Kind (inbox, outbox, activation, status, weight, state, or value: an array of the CPU), device,
page: the node's number for the last three, the split's for status.
"""

SHARED = ("weight", "state")
"""Kinds of memory that all slots share, and that hold something before the first run."""


@dataclass(frozen=True, slots=True)
class Access:
    """Words of a memory, from start up to end, that hold a node's value when it is read.

    split: the one that must have written it, where that matters, or -1.
    """

    memory: Memory
    start: int
    end: int
    node: int
    split: int = -1


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a queue does. Items without a barrier between them run beside each other."""

    name: str
    barrier: bool
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a host thread does for a run in a slot.

    agent: the thread, numbered from 0. slot: whose memory it is about.
    """

    agent: int
    slot: int
    run: int


@dataclass(frozen=True, slots=True)
class Acquire(Event):
    """The run gets the slot: it knows all that the one before knew when it gave it back."""


@dataclass(frozen=True, slots=True)
class Touch(Event):
    """The host reads or writes memory itself."""

    item: Item


@dataclass(frozen=True, slots=True)
class Submit(Event):
    """A split goes to the queue of its device, behind a barrier."""

    device: int
    split: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Wait(Event):
    """The host has seen the fence of a split, and so the end of all its queue did before."""

    split: int


@dataclass(frozen=True, slots=True)
class End(Event):
    """Results are there, or states are written: nothing of the run may be under way."""


@dataclass(frozen=True, slots=True)
class Release(Event):
    """The slot is free for another run."""


@dataclass(frozen=True, slots=True)
class Free(Event):
    """The memory of a device is given back; agent, slot and run do not matter."""

    device: int


class Narrator:
    """Tells the events of a plan. One run holds a slot at a time.

    items: what the queue does in each split.
    """

    def __init__(self, plan: PlanValue) -> None:
        self.plan = plan
        self._cpu = plan.machine.cpu
        self._held = [-1] * plan.copies
        self._outboxes = {
            (s.device, c.node): (c.outbox, s.id) for s in plan.splits for c in s.copies_out
        }
        self._on_cpu = {n for s in plan.splits if s.device == self._cpu for n in s.nodes}
        self._to_cpu = {
            c.node: c for s in plan.splits if s.device == self._cpu for c in s.copies_in
        }
        self.items = tuple(self._of_split(s) for s in plan.splits)

    def acquire(self, slot: int, run: int) -> Acquire:
        self._held[slot] = run
        return Acquire(slot, slot, run)

    def stage(self, slot: int, device: int, copy: CopyIn) -> Touch:
        """The host moves a value from the caller or an outbox to where its device finds it."""
        reads = () if copy.source == HOST else (self._given_out(copy.node, copy.source),)
        write = self._words("inbox", device, copy.inbox, copy.node)
        if device == self._cpu:
            write = self._value(copy.node)
        return self._touch(slot, f"copy of {self._name(copy.node)} by the host", reads, (write,))

    def submit(self, slot: int, split: int) -> Iterator[Event]:
        """The host writes the ticket of a split and hands it to its queue."""
        made = self.plan.splits[split]
        yield self._touch(slot, f"ticket of split {split}", (), (self._ticket(made),))
        yield Submit(slot, slot, self._held[slot], made.device, split, self.items[split])

    def wait(self, slot: int, split: int) -> Wait:
        return Wait(slot, slot, self._held[slot], split)

    def check(self, slot: int, split: int) -> Touch:
        """The host reads the sequence word of a split."""
        read = self._echo(self.plan.splits[split])
        return self._touch(slot, f"check of split {split}", (read,), ())

    def fetch(self, slot: int, node: int, device: int) -> Touch:
        """The host reads a value that was copied out."""
        _, maker = self._outboxes.get((device, node), (None, -1))
        read = self._given_out(node, maker, device)
        return self._touch(slot, f"fetch of {self._name(node)}", (read,), ())

    def end(self, slot: int) -> End:
        return End(slot, slot, self._held[slot])

    def release(self, slot: int) -> Release:
        return Release(slot, slot, self._held[slot])

    def free(self, device: int) -> Free:
        return Free(0, 0, -1, device)

    def _touch(
        self, slot: int, name: str, reads: tuple[Access, ...], writes: tuple[Access, ...]
    ) -> Touch:
        return Touch(slot, slot, self._held[slot], Item(name, False, reads, writes))

    # -- what is where -----------------------------------------------------------------------------

    def _of_split(self, split: Split) -> tuple[Item, ...]:
        """Copies in, nodes, copies out, sequence word; numpy copies nothing and takes one node
        after the other.
        """
        device, on_cpu = split.device, split.device == self._cpu
        items = [
            Item(
                f"copy in of {self._name(copy.node)}",
                False,
                (self._entered(device, copy),),
                (self._words("activation", device, copy.target, copy.node),),
            )
            for copy in (() if on_cpu else split.copies_in)
        ]
        for node_id in split.nodes:
            reads, writes = self._of_node(device, node_id, split.id)
            items.append(Item(self._name(node_id), on_cpu, reads, writes))
        for out in () if on_cpu else split.copies_out:
            written = self._words("outbox", device, out.outbox, out.node, split.id)
            reads = self._read(device, out.node)
            items.append(Item(f"copy out of {self._name(out.node)}", False, reads, (written,)))
        if not on_cpu:
            barriers = set(split.barriers)
            items = [
                Item(item.name, position in barriers, item.reads, item.writes)
                for position, item in enumerate(items)
            ]
        items.append(Item("sequence word", True, (self._ticket(split),), (self._echo(split),)))
        return tuple(items)

    def _entered(self, device: int, copy: CopyIn) -> Access:
        """What a copy in reads: the window, in which a streamed weight is before the first run."""
        if copy.node in self.plan.graph.data:
            return Access(("weight", device, copy.node), 0, 1, copy.node)
        return self._words("inbox", device, copy.inbox, copy.node)

    def _of_node(
        self, device: int, node_id: int, split: int
    ) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        """What a node reads and writes."""
        graph, inputs = self.plan.graph, self.plan.graph.nodes[node_id].inputs
        held = graph.states.get(node_id)
        if held is None:
            reads = tuple(a for i in inputs for a in self._read(device, i))
            return reads, self._written(device, node_id, split)
        state = self._state(device, held)
        if node_id != held:
            return self._read(device, inputs[1]), (state,)
        # numpy takes the array as its value; a device reads a state where it is
        return ((state,), (self._value(held, split),)) if device == self._cpu else ((), ())

    def _read(self, device: int, node_id: int) -> tuple[Access, ...]:
        """What is read where a node of a device reads a value."""
        graph, plan = self.plan.graph, self.plan
        root, offset = graph.views.get(node_id, (node_id, 0))
        if root in plan.in_place:
            written = self._state(device, plan.in_place[root], offset, graph.words[node_id])
            return (replace(written, node=root),)
        if root in graph.data and (device == self._cpu or root in plan.memory[device].weights):
            return (Access(("weight", device, root), 0, 1, root),)
        if device == self._cpu:
            value = node_id if node_id in self._to_cpu or node_id in self._on_cpu else root
            read = (self._value(value),)
            copy = self._to_cpu.get(value)
            if copy is None or copy.source == HOST:
                return read
            return (*read, self._given_out(value, copy.source))  # numpy reads the outbox itself
        if root in graph.states and plan.placements[root].device == device:
            return (self._state(device, root, offset, graph.nodes[node_id].type.words),)
        own = plan.locations.get((device, node_id))
        if own is not None:
            return (self._words("activation", device, own, node_id),)
        span = plan.locations.get((device, root))
        if span is not None:
            span = Span(span.page, span.offset + offset, graph.nodes[node_id].type.words)
        return (self._words("activation", device, span, root),)

    def _written(self, device: int, node_id: int, split: int) -> tuple[Access, ...]:
        if device == self._cpu:
            return (self._value(node_id, split),)
        span = self.plan.locations.get((device, node_id))
        own: tuple[Access, ...] = (self._words("activation", device, span, node_id, split),)
        if node_id in self.plan.in_place:
            own = self._read(device, node_id)
        beside = scratch_of(node_id)
        scratch = self.plan.locations.get((device, beside))
        if scratch is None:
            return own
        return (*own, self._words("activation", device, scratch, beside, split))

    def _given_out(self, node: int, split: int, device: int | None = None) -> Access:
        here = self.plan.splits[split].device if device is None else device
        if here == self._cpu:
            return self._value(node if node in self._on_cpu else self.plan.graph.root(node), split)
        span, _ = self._outboxes.get((here, node), (None, -1))
        return self._words("outbox", here, span, node, split)

    def _words(
        self, kind: str, device: int, span: Span | None, node: int, split: int = -1
    ) -> Access:
        """An empty value stands for its first word; one without a place lies where none writes."""
        if span is None:
            return Access((f"{kind} without a place", device, 0), 0, 1, node, split)
        words = max(1, span.words)
        return Access((kind, device, span.page), span.offset, span.offset + words, node, split)

    def _value(self, node: int, split: int = -1) -> Access:
        return Access(("value", self._cpu, node), 0, 1, node, split)

    def _state(self, device: int, held: int, offset: int = 0, words: int | None = None) -> Access:
        size = self.plan.graph.nodes[held].type.words if words is None else words
        return Access(("state", device, held), offset, offset + max(1, size), held)

    def _ticket(self, split: Split) -> Access:
        return Access(("status", split.device, split.id), 0, 1, split.id)

    def _echo(self, split: Split) -> Access:
        return Access(("status", split.device, split.id), 1, 2, split.id)

    def _name(self, node: int) -> str:
        return self.plan.graph.nodes[node].name


def events_of(
    plan: PlanValue,
    runs: int = 1,
    rng: np.random.Generator | None = None,
) -> list[Event]:
    """Returns the events of some runs, each in the first slot that is free, in an order drawn by
    `rng`: at each step one of the runs under way goes on.
    """
    narrator, draw = Narrator(plan), rng or np.random.default_rng(0)
    free, under_way = list(range(plan.copies)), dict[int, Iterator[Event]]()
    events: list[Event] = []
    started = 0
    while started < runs or under_way:
        if free and started < runs and (not under_way or draw.random() < 0.5):
            slot = free.pop(0)
            under_way[slot] = _run(narrator, slot, started)
            started += 1
        slot = list(under_way)[int(draw.integers(len(under_way)))]
        event = next(under_way[slot], None)
        if event is None:
            del under_way[slot]
            free.append(slot)
        else:
            events.append(event)
    return events


def _run(narrator: Narrator, slot: int, number: int) -> Iterator[Event]:
    """What the executor does for one run, with an observer for all that may be observed."""
    plan, root = narrator.plan, narrator.plan.graph.root
    given = {c.node for s in plan.splits for c in s.copies_out}
    complete: dict[int, None] = {}

    def fetch(value: int) -> Iterator[Event]:
        source = value if value in given else root(value)
        if not plan.graph.nodes[source].declaration.leaf:
            yield narrator.fetch(slot, source, plan.placements[root(value)].device)

    def wait(split_id: int) -> Iterator[Event]:
        if split_id in complete:
            return
        yield narrator.wait(slot, split_id)
        device = plan.splits[split_id].device
        ended = [s for s in splits_of[device] if s.id <= split_id and s.id not in complete]
        for split in ended:
            complete[split.id] = None
            yield narrator.check(slot, split.id)
        for split in ended:
            for value in split.observed:
                yield from fetch(value)

    def start(split: Split) -> Iterator[Event]:
        for copy in split.copies_in:
            if copy.source == HOST:
                yield narrator.stage(slot, split.device, copy)
        for waited in split.waits:
            yield from wait(waited)
        for copy in split.copies_in:
            if copy.source != HOST:
                yield narrator.fetch(slot, copy.node, plan.splits[copy.source].device)
                yield narrator.stage(slot, split.device, copy)
        yield from narrator.submit(slot, split.id)

    splits_of: dict[int, list[Split]] = {}
    for split in plan.splits:
        splits_of.setdefault(split.device, []).append(split)
    commits = plan.commits
    yield narrator.acquire(slot, number)
    for split in plan.splits[: len(plan.splits) - len(commits)]:
        yield from start(split)
    for waited in commits[0].waits if commits else plan.final_waits:
        yield from wait(waited)
    for value in (*(n for _, n in plan.graph.outputs), *plan.graph.kept):
        yield from fetch(value)
    yield narrator.end(slot)
    if commits:
        for split in commits:
            yield from start(split)
        for waited in plan.final_waits:
            yield from wait(waited)
        yield narrator.end(slot)
    yield narrator.release(slot)

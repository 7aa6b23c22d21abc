"""Memory events: the accesses of runs of a plan to memory, in the order in which the host performed
them.

Problem: waits and barriers of a plan must suffice under all orders that they allow, for several
concurrent runs. Method: one generator of events, as plain data, for the executor and for
`events_of` in interleavings.py, which draws a possible order of an executor; `happens_before.py`
checks the events.

    executor (VKSCHED_CHECK=1) --\\
                                   EventGenerator --events--> happens_before.Checker --> findings
    events_of(plan, runs, rng) --/

Complexity: O(items) once per plan, O(1) per event. Examples: tests/plan/test_happens_before.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..types.plan_types import (
    COMPUTE,
    DOWNLOAD,
    HOST,
    UPLOAD,
    PlanValue,
    Span,
    Split,
    Upload,
    scratch_of,
)

Memory = tuple[str, int, int]
"""Kind, device and page.

Kinds are upload, download, activation, status, weight, state, value (an array of the CPU) and mail
(a value of another host, or a message). The page is the node's number for weight, state, value and
mail, and the split's for status.
"""

Label = tuple[str, str, int, int]
"""A message between hosts: its type, the host that it goes to or refers to, a value or -1, and the
run.
"""

SHARED = ("weight", "state")
"""Kinds of memory that all slots share, and that have contents before the first run."""


@dataclass(frozen=True, slots=True)
class Access:
    """Words of a memory, from start up to end, that hold a node's value when they are read.

    split: the split that must have written them, or -1 for any.
    """

    memory: Memory
    start: int
    end: int
    node: int
    split: int = -1


@dataclass(frozen=True, slots=True)
class Item:
    """One operation of a queue. Items without a barrier between them run concurrently."""

    name: str
    barrier: bool
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a host thread for a run in a slot.

    agent: the thread, numbered from 0. slot: the slot whose memory is accessed.
    """

    agent: int
    slot: int
    run: int


@dataclass(frozen=True, slots=True)
class Acquire(Event):
    """The run gets the slot, and learns the clock of the previous run at its release."""


@dataclass(frozen=True, slots=True)
class Touch(Event):
    """The host reads or writes memory itself."""

    item: Item


@dataclass(frozen=True, slots=True)
class Submit(Event):
    """A stage of a split is submitted to a queue of its device, behind a barrier: its work to the
    compute queue, asynchronous copies to the copy queue.

    after: stages, with their splits, whose semaphores it waits for first.
    """

    device: int
    split: int
    items: tuple[Item, ...]
    stage: str = COMPUTE
    after: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Wait(Event):
    """The host has seen the fence of a stage of a split, and with it the end of all earlier work of
    its queue.
    """

    split: int
    stage: str = COMPUTE


@dataclass(frozen=True, slots=True)
class SendMsg(Event):
    """The thread sends a message. Its receiver learns the clock of the thread at this time."""

    label: Label


@dataclass(frozen=True, slots=True)
class RecvMsg(Event):
    """The thread has waited for a message, whose content is now in the memory of its host."""

    label: Label
    item: Item


@dataclass(frozen=True, slots=True)
class End(Event):
    """Results exist, or states are written: no work of the run may be under way."""


@dataclass(frozen=True, slots=True)
class Release(Event):
    """The slot is free for another run."""


@dataclass(frozen=True, slots=True)
class Free(Event):
    """The memory of a device is freed. Agent, slot and run are ignored."""

    device: int


class EventGenerator:
    """Generates the events of a plan. One run holds a slot at a time.

    items: for each split and stage, the operations of a queue. devices: the devices of the events,
    the CPU last; all of the topology by default. first: the number of the thread of slot 0.
    """

    def __init__(
        self, plan: PlanValue, devices: Sequence[int] | None = None, first: int = 0
    ) -> None:
        self.plan = plan
        own = range(len(plan.topology.devices)) if devices is None else devices
        self._cpu = own[-1]
        self._first = first
        self._held = [-1] * plan.copies
        self._downloads_submitted: list[set[int]] = [set() for _ in range(plan.copies)]
        """For each slot, the splits of the run whose downloads were submitted to the copy queue."""
        self._download_spans = {
            (s.device, c.node): (c.staging, s.id) for s in plan.splits for c in s.downloads
        }
        self._on_cpu = {n for s in plan.splits if s.device == self._cpu for n in s.nodes}
        self._to_cpu = {c.node: c for s in plan.splits if s.device == self._cpu for c in s.uploads}
        self.splits = tuple(s for s in plan.splits if s.device in own)
        self.items = {s.id: self._of_split(s) for s in self.splits}
        self._async_downloads = [s for s in self.splits if DOWNLOAD in s.async_transfers]

    def acquire(self, slot: int, run: int) -> Acquire:
        self._held[slot] = run
        self._downloads_submitted[slot].clear()
        return Acquire(self._first + slot, slot, run)

    def run_in(self, slot: int) -> int:
        """Return the run that holds a slot."""
        return self._held[slot]

    def stage(self, slot: int, device: int, copy: Upload) -> Touch:
        """Return the event of the host that copies a value from the caller or a download buffer to
        the upload buffer of its device.
        """
        reads = () if copy.source == HOST else (self._downloaded(copy.node, copy.source),)
        write = self._words("upload", device, copy.staging, copy.node)
        if device == self._cpu:
            write = self._value(copy.node)
        return self._touch(slot, f"copy of {self._name(copy.node)} by the host", reads, (write,))

    def submit(self, slot: int, split: int) -> Iterator[Event]:
        """Yield the events of a submission, which writes the sequence number of the split."""
        planned = self.plan.splits[split]
        yield self._touch(
            slot, f"sequence_number of split {split}", (), (self._sequence_number(planned),)
        )
        if UPLOAD in planned.async_transfers:
            yield self._submit(slot, planned, UPLOAD)
        yield self._submit(slot, planned, COMPUTE)
        for number in planned.deferred_downloads:
            self._downloads_submitted[slot].add(number)
            yield self._submit(slot, self.plan.splits[number], DOWNLOAD)

    def _submit(self, slot: int, split: Split, stage: str) -> Submit:
        what = self.items[split.id][stage], stage, split.after(stage)
        where = self._first + slot, slot, self._held[slot]
        return Submit(*where, split.device, split.id, *what)

    def wait(self, slot: int, split: int) -> Iterator[Event]:
        """Yield the events of a wait of the host for a split.

        Asynchronous downloads of this split and of the earlier ones on its device are awaited as
        well. If no later split has submitted them, they are submitted now, after the fence of the
        work.
        """
        device, submitted = self.plan.splits[split].device, self._downloads_submitted[slot]
        ended = [s for s in self._async_downloads if s.device == device and s.id <= split]
        left = [s for s in ended if s.id not in submitted]
        submitted.update(s.id for s in left)
        yield from (self._submit(slot, s, DOWNLOAD) for s in left if not s.after(DOWNLOAD))
        where = self._first + slot, slot, self._held[slot]
        yield Wait(*where, split)
        yield from (self._submit(slot, s, DOWNLOAD) for s in left if s.after(DOWNLOAD))
        yield from (Wait(*where, s.id, DOWNLOAD) for s in ended)

    def check(self, slot: int, split: int) -> Touch:
        """Return the event of the host that reads the sequence numbers of a split."""
        planned = self.plan.splits[split]
        reads = tuple(self._echo(planned, stage) for stage in self.items[split])
        return self._touch(slot, f"check of split {split}", reads, ())

    def fetch(self, slot: int, node: int, device: int) -> Touch:
        """Return the event of the host that reads a downloaded value."""
        _, maker = self._download_spans.get((device, node), (None, -1))
        read = self._downloaded(node, maker, device)
        return self._touch(slot, f"fetch of {self._name(node)}", (read,), ())

    def end(self, slot: int) -> End:
        return End(self._first + slot, slot, self._held[slot])

    def release(self, slot: int) -> Release:
        return Release(self._first + slot, slot, self._held[slot])

    def tell(self, slot: int, run: int, what: str, host: str, value: int = -1) -> SendMsg:
        return SendMsg(self._first + slot, slot, run, (what, host, value, run))

    def hear(
        self, slot: int, run: int, what: str, host: str, about: int, values: Sequence[int] = ()
    ) -> RecvMsg:
        """Return the event of a received message.

        about: the CPU of the host that the message goes to or comes from, which holds messages.
        values: the values that it carries.
        """
        brought = (*(self._mail(value) for value in values), self._message(what, about))
        label = what, host, values[0] if what == "value" else -1, run
        item = Item(f"message {what}", False, (), brought)
        return RecvMsg(self._first + slot, slot, run, label, item)

    def read(self, slot: int, what: str, about: int) -> Touch:
        """Return the event of the host that reads a message."""
        return self._touch(slot, f"reading {what}", (self._message(what, about),), ())

    def post(self, slot: int, node: int, split: int) -> Touch:
        """Return the event of the host that sends a downloaded value of a split."""
        return self._touch(
            slot, f"sending {self._name(node)}", (self._downloaded(node, split),), ()
        )

    def open(self, slot: int, node: int) -> Touch:
        """Return the event of the host that reads a value sent by another host."""
        read = self._mail(node)
        return self._touch(slot, f"reading {self._name(node)}", (read,), ())

    def free(self, device: int) -> Free:
        return Free(0, 0, -1, device)

    def _touch(
        self, slot: int, name: str, reads: tuple[Access, ...], writes: tuple[Access, ...]
    ) -> Touch:
        item = Item(name, False, reads, writes)
        return Touch(self._first + slot, slot, self._held[slot], item)

    # -- memory of accesses ------------------------------------------------------------------------

    def _of_split(self, split: Split) -> dict[str, tuple[Item, ...]]:
        """Return uploads, nodes and downloads by stage, each with a sequence number at the end. The
        CPU copies nothing and runs one node after the other.
        """
        device, on_cpu = split.device, split.device == self._cpu
        items = [
            Item(
                f"copy in of {self._name(copy.node)}",
                False,
                (self._entered(split, copy),),
                (self._words("activation", device, copy.target, copy.node),),
            )
            for copy in (() if on_cpu else split.uploads)
        ]
        for node_id in split.nodes:
            reads, writes = self._of_node(device, node_id, split.id)
            items.append(Item(self._name(node_id), on_cpu, reads, writes))
        for out in () if on_cpu else split.downloads:
            written = self._words("download", device, out.staging, out.node, split.id)
            reads = self._read(device, out.node)
            items.append(Item(f"copy out of {self._name(out.node)}", False, reads, (written,)))
        if not on_cpu:
            barriers = set(split.barriers)
            items = [
                Item(item.name, position in barriers, item.reads, item.writes)
                for position, item in enumerate(items)
            ]
        return {
            stage: (*(items[at] for at in part), self._sequence_word(split, stage))
            for stage, part in (
                split.stages if not on_cpu else {COMPUTE: range(len(items))}
            ).items()
        }

    def _sequence_word(self, split: Split, stage: str) -> Item:
        return Item(
            "sequence word", True, (self._sequence_number(split),), (self._echo(split, stage),)
        )

    def _entered(self, split: Split, copy: Upload) -> Access:
        """Return the access of an upload to its staging buffer. A streamed weight with a staging
        buffer of its own is there before the first run.
        """
        if copy.node in self.plan.graph.data and not split.refills:
            return Access(("weight", split.device, copy.node), 0, 1, copy.node)
        return self._words("upload", split.device, copy.staging, copy.node)

    def _of_node(
        self, device: int, node_id: int, split: int
    ) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        """Return the accesses of a node: reads and writes."""
        graph, inputs = self.plan.graph, self.plan.graph.nodes[node_id].inputs
        held = graph.states.get(node_id)
        if held is None:
            reads = tuple(a for i in inputs for a in self._read(device, i))
            return reads, self._written(device, node_id, split)
        state = self._state(device, held)
        if node_id != held:
            return self._read(device, inputs[1]), (state,)
        # numpy takes the array as its value; a device reads a state in its own memory
        return ((state,), (self._value(held, split),)) if device == self._cpu else ((), ())

    def _read(self, device: int, node_id: int) -> tuple[Access, ...]:
        """Return the accesses of a node of a device that reads a value."""
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
            return (
                *read,
                self._downloaded(value, copy.source),
            )  # numpy reads the download buffer itself
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
        scratch_id = scratch_of(node_id)
        scratch = self.plan.locations.get((device, scratch_id))
        if scratch is None:
            return own
        return (*own, self._words("activation", device, scratch, scratch_id, split))

    def _downloaded(self, node: int, split: int, device: int | None = None) -> Access:
        here = self.plan.splits[split].device if device is None else device
        if here == self._cpu:
            return self._value(
                node if node in self._on_cpu else self.plan.graph.view_base(node), split
            )
        span, _ = self._download_spans.get((here, node), (None, -1))
        return self._words("download", here, span, node, split)

    def _words(
        self, kind: str, device: int, span: Span | None, node: int, split: int = -1
    ) -> Access:
        """Return the access to a span. An empty value stands for its first word; a value without a
        span is in memory that nothing writes.
        """
        if span is None:
            return Access((f"{kind} without a place", device, 0), 0, 1, node, split)
        words = max(1, span.words)
        return Access((kind, device, span.page), span.offset, span.offset + words, node, split)

    def _value(self, node: int, split: int = -1) -> Access:
        return Access(("value", self._cpu, node), 0, 1, node, split)

    def _mail(self, node: int) -> Access:
        return Access(("mail", self._cpu, node), 0, 1, node)

    def _message(self, what: str, cpu: int) -> Access:
        return Access((f"message {what}", cpu, 0), 0, 1, 0)

    def _state(self, device: int, held: int, offset: int = 0, words: int | None = None) -> Access:
        size = self.plan.graph.nodes[held].type.words if words is None else words
        return Access(("state", device, held), offset, offset + max(1, size), held)

    def _sequence_number(self, split: Split) -> Access:
        return Access(("status", split.device, split.id), 0, 1, split.id)

    def _echo(self, split: Split, stage: str) -> Access:
        at = 1 + (COMPUTE, UPLOAD, DOWNLOAD).index(stage)
        return Access(("status", split.device, split.id), at, at + 1, split.id)

    def _name(self, node: int) -> str:
        return self.plan.graph.nodes[node].name

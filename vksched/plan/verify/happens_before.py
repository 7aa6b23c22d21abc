"""Happens-before: a check that every order allowed by waits and barriers gives one result.

Problem: a missing wait mostly has no effect, and fails one day on another driver. Method: vector
clocks. Each host thread counts its events, and each queue its barriers; a waiting agent learns the
clock of the awaited one. For each word, the last write and the later reads are recorded. Two
accesses, at least one of them a write, that are unordered by these clocks are a race, in whatever
order they occurred this time. A read must also get a value of its own run, not a leftover of
another run.

    host of slot 0   write upload | submit ---------------------> wait | read download
    queue of gpu:0           \\-> copy in | barrier | nodes -/       without the wait: race

A device may have a second queue for asynchronous copies. A submission that waits for a semaphore
learns the clock of the signalling queue at that time, as do all later submissions to its own queue.
A fence covers all earlier submissions of its queue, from any slot, because submission order is part
of the first scope of a fence's signal (Vulkan specification, "Fence signaling"). Each recording
starts with a barrier, which orders it after all earlier ones of the queue.

Complexity: O(accesses * log(pieces of a page)).
Source: Flanagan and Freund, "FastTrack" (PLDI 2009). Examples: tests/plan/test_happens_before.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ...common.errors import PlanError
from ..types.early_commits import is_early_allowed
from ..types.plan_types import COMPUTE, PlanValue
from .interleavings import events_of
from .memory_events import (
    SHARED,
    Access,
    Acquire,
    End,
    Event,
    Free,
    Item,
    Label,
    Memory,
    RecvMsg,
    Release,
    SendMsg,
    Submit,
    Touch,
    Wait,
)

BEFORE_ALL = -(1 << 62)
"""Start of the first piece of a page: before any word."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An ordering error. kind: race, unwritten, stale, pending, slot or freed.

    slot: the slot of the faulty run. missing: the synchronization that would prevent it.
    """

    kind: str
    slot: int
    message: str
    missing: str

    def __str__(self) -> str:
        return f"{self.message}; missing: {self.missing}"


class _Actor(NamedTuple):
    """An access with its time: the agent, its count at that time, and the event."""

    agent: int
    time: int
    event: Event
    item: Item
    access: Access


@dataclass(slots=True)
class _Piece:
    """Words of a page with one history: the last write, and the last read of each agent."""

    written: _Actor | None = None
    read: dict[int, _Actor] = field(default_factory=dict)


class _Page:
    """The pieces of a page, in order; piece i ends at the start of the next one."""

    def __init__(self) -> None:
        self.starts = [BEFORE_ALL]
        self.pieces = [_Piece()]

    def cut(self, access: Access) -> slice:
        """Return the pieces that make up the words of an access, split at its bounds."""
        for at in (access.start, access.end):
            position = bisect_right(self.starts, at) - 1
            if self.starts[position] != at:
                piece = self.pieces[position]
                self.starts.insert(position + 1, at)
                self.pieces.insert(position + 1, _Piece(piece.written, dict(piece.read)))
        return slice(bisect_left(self.starts, access.start), bisect_left(self.starts, access.end))


class _Submission(NamedTuple):
    """A submission: its queue's count at its end, and the queue's clock at that time."""

    event: Submit
    time: int
    known: tuple[int, ...]


class Checker:
    """Takes the events of one plan one by one, and returns the findings of each.

    hosts: the number of hosts, each with a thread for each slot.
    """

    def __init__(self, plan: PlanValue, hosts: int = 1) -> None:
        self._plan = plan
        devices, slots, threads = len(plan.topology.devices), plan.copies, hosts * plan.copies
        queues = 2 * devices  # compute queues, and copy queues
        self._devices = devices
        self._first_host = queues
        # known[agent][other]: the count of `other` up to which `agent` knows its events. An agent's
        # own next access has the count after its own entry.
        self._known = [[0] * (queues + threads) for _ in range(queues + threads)]
        self._released = [[0] * (queues + threads) for _ in range(threads)]
        self._holder: list[Event | None] = [None] * threads
        self._sent_clocks: dict[Label, list[int]] = {}
        self._sent: list[dict[tuple[int, str], _Submission]] = [{} for _ in range(slots)]
        self._pages: dict[tuple[int, Memory], _Page] = {}
        self._freed: set[int] = set()
        self._first = _complete_first(plan)

    def feed(self, event: Event) -> list[Finding]:
        """Take the next event in the order in which hosts performed them."""
        if isinstance(event, Free):
            return self._free(event)
        host = self._first_host + event.agent
        known = self._known[host]
        if isinstance(event, Acquire):
            return self._acquire(event, known)
        if isinstance(event, SendMsg):
            self._sent_clocks[event.label] = list(known)
            return []
        if isinstance(event, RecvMsg):
            return self._receive(event, known)
        out = self._check_holder(event)
        if isinstance(event, Touch):
            out += self._touch(host, event, event.item)
            known[host] += 1
        elif isinstance(event, Submit):
            out += self._submit(event, known)
            known[host] += 1
        elif isinstance(event, Wait):
            sent = self._sent[event.slot].get((event.split, event.stage))
            if sent is None or sent.event.run != event.run:
                what = f"{_run(event)} waits for split {event.split}, which it has not submitted"
                out.append(Finding("pending", event.slot, what, "a submission before the wait"))
            else:
                _join(known, sent.known)
        elif isinstance(event, End):
            for sent in self._sent[event.slot].values():
                if known[self._queue(sent.event)] < sent.time:
                    what = f"{_run(event)} ends while {self._split(sent.event)} may be under way"
                    out.append(Finding("pending", event.slot, what, self._wait_for(sent.event)))
        elif isinstance(event, Release):
            self._released[self._held_at(event)] = list(known)
            self._holder[self._held_at(event)] = None
        return out

    def _receive(self, event: RecvMsg, known: list[int]) -> list[Finding]:
        sent = self._sent_clocks.pop(event.label, None)
        if sent is None:
            what = f"{_run(event)} hears {event.label}, which was not sent"
            return [Finding("pending", event.slot, what, "the message before")]
        _join(known, sent)
        host = self._first_host + event.agent
        out = self._touch(host, event, event.item)
        known[host] += 1
        return out

    # -- slots and life ----------------------------------------------------------------------------

    def _acquire(self, event: Acquire, known: list[int]) -> list[Finding]:
        out = []
        holder = self._holder[self._held_at(event)]
        if holder is not None:
            what = f"{_run(event)} takes slot {event.slot}, which {_run(holder)} still holds"
            out.append(Finding("slot", event.slot, what, f"the end of {_run(holder)} before"))
        self._holder[self._held_at(event)] = event
        _join(known, self._released[self._held_at(event)])
        return out

    def _held_at(self, event: Event) -> int:
        """Return the slot of an event, numbered among the slots of all hosts."""
        copies = self._plan.copies
        return event.agent // copies * copies + event.slot

    def _check_holder(self, event: Event) -> list[Finding]:
        holder = self._holder[self._held_at(event)]
        if holder is not None and (holder.agent, holder.run) == (event.agent, event.run):
            return []
        what = f"{_run(event)} uses slot {event.slot}, which it does not hold"
        return [Finding("slot", event.slot, what, f"the release of slot {event.slot} after")]

    def _free(self, event: Free) -> list[Finding]:
        known = [max(column) for column in zip(*self._released, strict=True)]
        name = self._device(event.device)
        out = []
        for holder in self._holder:
            if holder is not None:
                slot = holder.slot
                what = f"memory of {name} is freed while {_run(holder)} holds slot {slot}"
                out.append(Finding("freed", slot, what, f"the end of {_run(holder)} before"))
        for slot in range(self._plan.copies):
            for sent in self._sent[slot].values():
                queue = self._queue(sent.event)
                if sent.event.device == event.device and known[queue] < sent.time:
                    what = f"memory of {name} is freed while {self._split(sent.event)} may use it"
                    out.append(Finding("freed", slot, what, self._wait_for(sent.event)))
        self._freed.add(event.device)
        return out

    # -- accesses ----------------------------------------------------------------------------------

    def _submit(self, event: Submit, host: list[int]) -> list[Finding]:
        out = []
        number = self._queue(event)
        before = self._sent[event.slot].get((event.split, event.stage))
        if before is not None and host[number] < before.time:
            what = f"{self._split(event)} is submitted while its recording may be under way"
            out.append(Finding("pending", event.slot, what, self._wait_for(before.event)))
        out += self._check_complete(event, host)
        queue = self._known[number]
        _join(queue, host)
        for stage, split in event.after:
            signal = self._sent[event.slot].get((split, stage))
            if signal is None or signal.event.run != event.run:
                what = f"{self._split(event)} waits for {stage} of split {split}"
                missing = f"{stage} of split {split} on {self._device(event.device)} before"
                out.append(Finding("pending", event.slot, what, missing))
            else:
                _join(queue, signal.known)
        queue[number] += 1  # the barrier at the start of each recording
        for item in event.items:
            queue[number] += item.barrier
            out += self._touch(number, event, item)
        queue[number] += 1  # a fence covers all items: their count is one above this entry
        time = queue[number]
        self._sent[event.slot][event.split, event.stage] = _Submission(event, time, tuple(queue))
        return out

    def _queue(self, event: Submit) -> int:
        """Return the number of the queue of a submission."""
        return event.device + (0 if event.stage == COMPUTE else self._devices)

    def _check_complete(self, event: Submit, host: list[int]) -> list[Finding]:
        out = []
        for first in self._first[event.split]:
            sent = self._sent[event.slot].get((first, COMPUTE))
            there = sent is not None and sent.event.run == event.run
            device = self._plan.splits[first].device
            if not there or sent is None or host[device] < sent.time:
                what = f"{self._split(event)} is submitted before split {first} is complete"
                missing = f"a wait for split {first} on {self._device(device)}"
                out.append(Finding("pending", event.slot, what, missing))
        return out

    def _touch(self, agent: int, event: Event, item: Item) -> list[Finding]:
        """Check the accesses of an item, and record them."""
        known = self._known[agent]
        time = known[agent] + 1
        out: list[Finding] = []
        for access in item.reads:
            actor = _Actor(agent, time, event, item, access)
            page = self._page(event.slot, access.memory)
            fault: Finding | None = self._of_freed(actor)
            for piece in page.pieces[page.cut(access)]:
                fault = fault or self._check_read(piece, actor, known)
            out += [fault] if fault else []
        for access in item.writes:
            actor = _Actor(agent, time, event, item, access)
            page = self._page(event.slot, access.memory)
            fault = self._of_freed(actor)
            for piece in page.pieces[page.cut(access)]:
                for earlier in (*([piece.written] if piece.written else []), *piece.read.values()):
                    if fault is None and known[earlier.agent] < earlier.time:
                        fault = self._race(earlier, actor)
            out += [fault] if fault else []
            out += self._overwrites_operand(actor)
        for access in item.reads:
            page = self._page(event.slot, access.memory)
            for piece in page.pieces[page.cut(access)]:
                piece.read[agent] = _Actor(agent, time, event, item, access)
        for access in item.writes:
            page = self._page(event.slot, access.memory)
            pieces = page.cut(access)
            page.starts[pieces] = [access.start]
            page.pieces[pieces] = [_Piece(_Actor(agent, time, event, item, access))]
        return out

    def _page(self, slot: int, memory: Memory) -> _Page:
        shared = memory[0] in SHARED
        key = (-1 if shared else slot, memory)
        found = self._pages.get(key)
        if found is None:
            found = self._pages[key] = _Page()
        return found

    def _check_read(self, piece: _Piece, reader: _Actor, known: Sequence[int]) -> Finding | None:
        writer, wanted = piece.written, reader.access
        # a weight, or a state's old value, and not a value in its place
        before = wanted.memory[0] in SHARED and wanted.memory[2] == wanted.node
        if writer is None:
            if before:
                return None
            what = f"{self._what(reader)} reads {self._where(reader)}, which nothing has written"
            missing = f"a write of {self._value(wanted)} before"
            return Finding("unwritten", reader.event.slot, what, missing)
        if known[writer.agent] < writer.time:
            return self._race(writer, reader)
        found = writer.access
        if before:
            if writer.event.run != reader.event.run:
                return None
            what = f"{self._what(reader)} reads {self._value(wanted)} after {self._what(writer)}"
            return Finding("stale", reader.event.slot, what, "all reads before the write")
        if (found.node, writer.event.run) == (wanted.node, reader.event.run):
            if wanted.split in (-1, found.split):
                return None
        what = (
            f"{self._what(reader)} reads {self._where(reader)} and finds {self._value(found)} "
            f"written by {self._what(writer)}"
        )
        missing = f"a write of {self._value(wanted)}"
        if wanted.split != -1:
            missing += f" by split {wanted.split}"
        return Finding("stale", reader.event.slot, what, f"{missing} before, and none after it")

    def _overwrites_operand(self, writer: _Actor) -> list[Finding]:
        """Check for an item that writes over its operand: the invocations of a dispatch have no
        order, and one may write a word that another has to read.
        """
        one = writer.access
        for two in writer.item.reads:
            if one.memory[0] == "state" and replace(two, node=one.node) == one:
                continue  # each element needs itself alone, as checked by `verify`
            if one.memory == two.memory and max(one.start, two.start) < min(one.end, two.end):
                what = f"{self._what(writer)} writes over its own operand in {self._where(writer)}"
                return [Finding("race", writer.event.slot, what, "memory of its own")]
        return []

    def _of_freed(self, actor: _Actor) -> Finding | None:
        if actor.access.memory[1] not in self._freed:
            return None
        what = f"{self._what(actor)} uses {self._where(actor)} after it was freed"
        return Finding("freed", actor.event.slot, what, "the end of the run before the free")

    # -- words -------------------------------------------------------------------------------------

    def _race(self, earlier: _Actor, later: _Actor) -> Finding:
        what = (
            f"{self._what(later)} and {self._what(earlier)} meet in {self._where(later)}: nothing "
            "orders them"
        )
        if not isinstance(earlier.event, Submit):
            missing = f"an order between {_run(earlier.event)} and {_run(later.event)}"
        elif isinstance(later.event, Submit) and later.agent == earlier.agent:
            missing = f"a barrier before {later.item.name} in split {later.event.split}"
        else:
            missing = self._wait_for(earlier.event)
        return Finding("race", later.event.slot, what, missing)

    def _what(self, actor: _Actor) -> str:
        event = actor.event
        if isinstance(event, Submit):
            return f"{actor.item.name} in {self._split(event)}"
        return f"{actor.item.name} in {_run(event)}"

    def _where(self, actor: _Actor) -> str:
        kind, device, page = actor.access.memory
        words = f"words {actor.access.start} to {actor.access.end - 1}"
        slot = f"slot {actor.event.slot}"
        if kind in ("value", "mail", "status"):
            return f"{self._device(device)}, {slot}, {kind} of {self._value(actor.access)}"
        return f"{self._device(device)}, {slot}, {kind} page {page}, {words}"

    def _value(self, access: Access) -> str:
        kind, device, page = access.memory
        if kind == "status":
            return f"split {page}"
        if kind.startswith("message"):
            return f"the {kind} of the host of {self._device(device)}"
        if access.node < 0:
            return f"the scratch memory of {self._plan.graph.nodes[-1 - access.node].name}"
        return self._plan.graph.nodes[access.node].name

    def _wait_for(self, sent: Submit) -> str:
        return f"a wait for {_stage(sent)}split {sent.split} on {self._device(sent.device)}"

    def _split(self, event: Submit) -> str:
        where = f"of {_run(event)} on {self._device(event.device)}"
        return f"{_stage(event)}split {event.split} {where}"

    def _device(self, device: int) -> str:
        return self._plan.topology.devices[device].name


def _complete_first(plan: PlanValue) -> list[tuple[int, ...]]:
    """Return, for each split, the splits that must be complete before it starts, whatever memory
    they use.

    A failed run changes no state: states are written after all other splits, unless no split can
    fail (`early_commits.py`). A run that an observer stops does not proceed beyond the observed
    values.
    """
    commits = set() if is_early_allowed(plan) else {s.id for s in plan.commits}
    others = tuple(s.id for s in plan.splits if s.id not in commits)
    out: list[tuple[int, ...]] = []
    shown: tuple[int, ...] = ()
    for split in plan.splits:
        out.append(others if split.id in commits else shown)
        shown = (split.id,) if split.observed else shown
    return out


def _stage(event: Submit) -> str:
    return "" if event.stage == COMPUTE else f"{event.stage} of "


def _run(event: Event) -> str:
    return f"run {event.run}"


def _join(known: list[int], other: Sequence[int]) -> None:
    known[:] = map(max, known, other)


def check_events(plan: PlanValue, events: Iterable[Event]) -> list[Finding]:
    """Return all findings in the events of a plan."""
    checker = Checker(plan)
    return [finding for event in events for finding in checker.feed(event)]


def check_plan(plan: PlanValue, runs: int = 2, seed: int = 0) -> PlanValue:
    """Return the plan if some concurrent runs of it have no findings.

    Raises
    ------
    PlanError
        The findings.
    """
    fail_on(check_events(plan, events_of(plan, runs, np.random.default_rng(seed))))
    return plan


def fail_on(findings: Sequence[Finding]) -> None:
    """Raise PlanError with the first findings, if there are any."""
    if findings:
        shown = "\n  ".join(map(str, findings[:3]))
        raise PlanError(f"[check] {len(findings)} accesses are out of order:\n  {shown}")

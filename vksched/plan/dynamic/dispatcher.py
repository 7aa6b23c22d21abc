"""Dispatcher: the choice of the next piece and of its device.

Problem: pieces of a graph become ready while devices work at speeds unknown in advance. Method: the
executor, with real devices, and the simulator use the same dispatcher. It knows which pieces were
submitted to which devices, which of them have ended, and their times.

"earliest-finish": one queue. The most urgent piece goes to the device that would finish it first,
transfers included. If that device has its target number of pieces, the piece stays in the queue,
because the estimate may change meanwhile. It counts as the next work of that device when the
following pieces are placed.

"work-stealing": a queue per device. A ready piece joins the queue of the device that holds most of
its operands or, if no device holds any, of the one that would finish first. An idle device steals
the piece that is cheapest to move from the longest queue, if it would finish that piece before the
owner of the queue would finish its work.

    queue: c, d, e     gpu:0 works on a       c: gpu:0 would end it first, but is full: it waits
                       gpu:1 is idle          d: gpu:1 ends it first: it goes there now

A device gets its next piece during the current one, so that it never waits for the host.

Complexity: O(LOOKAHEAD * devices * values read) for each decision.
Source: Augonnet et al., "StarPU: a unified platform for task scheduling on heterogeneous multicore
architectures" (2011), whose dmda and ws policies these resemble. Examples:
tests/planner/test_dynamic.py.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ..types.plan_types import HOST
from .options import Options

DEPTH = 2
"""Maximum number of submitted pieces of a device: one under way and the next one."""
SOLO_DEPTH = 16
"""The maximum if one device has all pieces, because no decision is pending."""
LOOKAHEAD = 16
"""Maximum number of ready pieces that a decision considers, the most urgent ones first."""
GAIN = 0.5
"""Weight of the latest pieces in the estimate of a device's speed."""
RECENT_PIECES = 3
"""Number of latest pieces of a device whose median counts, so that a single outlier has no effect.
"""
RESTS = 16
"""Runs without a piece after which a slow device is probed.

Each probe that finds it slow doubles the number, so at most log2(n / RESTS) of n runs probe a
device that stays slow.
"""
SLOW_LOG_RATIO = math.log(1.5)
"""A device is slow if its slowdown relative to its best exceeds this, as a logarithm."""
MAX_LOG_RATIO = math.log(64.0)
"""Maximum ratio of a speed to the expected one, as a logarithm."""


class Speeds:
    """The current ratio of measured to expected time for each device, learned from its pieces.

    A device without pieces shows no times, although it may have recovered. After some runs without
    a piece its speed is therefore assumed to be its best again. Its next piece is a probe: the
    device gets no second piece until the probe has ended.
    """

    def __init__(self, devices: int) -> None:
        self._pace = [0.0] * devices
        self._last: list[deque[float]] = [deque(maxlen=RECENT_PIECES) for _ in range(devices)]
        self._best = [math.inf] * devices
        self._rested = [0] * devices
        """Runs since the last piece of each device."""
        self._rests = [RESTS] * devices
        self._probed = [False] * devices

    def of(self, device: int) -> float:
        """Return the ratio of measured to expected time of a device."""
        return math.exp(self._pace[device])

    def depth(self, device: int) -> int:
        """Return the maximum number of submitted pieces of a device."""
        return 1 if self._probed[device] else DEPTH

    def begin(self) -> list[int]:
        """Begin a run, and return the devices that it probes."""
        probed = []
        for device, pace in enumerate(self._pace):
            # a device with few pieces has no best yet: they may have been delayed
            best = 0.0 if self._best[device] == math.inf else self._best[device]
            if pace > best + SLOW_LOG_RATIO and self._rested[device] >= self._rests[device]:
                self._pace[device] = best
                self._last[device].clear()
                self._probed[device] = True
                probed.append(device)
            self._rested[device] += 1
        return probed

    def see(self, device: int, expected_s: float, taken_s: float) -> None:
        """Record the time of a piece."""
        if expected_s <= 0 or taken_s <= 0:
            return
        seen = max(-MAX_LOG_RATIO, min(MAX_LOG_RATIO, math.log(taken_s / expected_s)))
        last = self._last[device]
        last.append(seen)
        if self._probed[device]:
            recovered = seen <= self._pace[device] + SLOW_LOG_RATIO
            self._rests[device] = RESTS if recovered else 2 * self._rests[device]
        self._probed[device], self._rested[device] = False, 0
        gain = GAIN if len(last) > 1 else 1.0  # the expected time may be a guess
        self._pace[device] += gain * (sorted(last)[(len(last) - 1) // 2] - self._pace[device])
        if len(last) == RECENT_PIECES:
            self._best[device] = min(self._best[device], self._pace[device])


@dataclass(frozen=True, slots=True)
class DispatchedPiece:
    """A submitted piece.

    brought: values that were copied in for it, each with the piece that produced it, or HOST.
    waits: pieces whose end the host learned of since the previous submission.
    """

    piece: int
    device: int
    brought: tuple[tuple[int, int], ...]
    waits: tuple[int, ...]


@dataclass(slots=True)
class DynamicRunRecord:
    """The record of a run. waits: pieces that were awaited after the last submission."""

    sent: list[DispatchedPiece] = field(default_factory=list)
    waits: tuple[int, ...] = ()


class DispatchTarget(Protocol):
    """The executor of a dispatcher's decisions: devices, or a simulated clock."""

    def now(self) -> float: ...

    def bring(self, value: int, source: int, device: int) -> None:
        """Copy a value to a device. source: the completed piece that produced it, or HOST."""

    def submit(self, piece: int, device: int) -> None:
        """Submit a piece to a device's queue."""

    def wait(self, heads: list[tuple[int, int]]) -> tuple[int, float]:
        """Wait for one of several pieces, each with its device.

        Return the piece that ended, and its seconds on the device, or 0 if they say nothing.
        """


class Dispatcher:
    """The decisions of one run. Subclasses choose the next piece.

    alone: the device that runs all pieces, or None.
    """

    def __init__(self, options: Options, speeds: Speeds, alone: int | None = None) -> None:
        self.options = options
        self.speeds = speeds
        self._alone = alone
        self.device_of: dict[int, int] = {}
        self.complete: set[int] = set()
        self.tape = DynamicRunRecord()
        devices = len(options.topology.devices)
        self.queues: list[list[int]] = [[] for _ in range(devices)]
        """For each device, the submitted pieces that have not ended."""
        self._free_s = [0.0] * devices
        self._end_s: dict[int, float] = {}
        self._there: set[tuple[int, int]] = set()
        self._seen: list[int] = []
        self._waits, self._readers = _dependencies(options)
        for piece, waits in enumerate(self._waits):
            if not waits:
                self.arrive(piece)

    def next(self, now_s: float) -> tuple[int, int] | None:
        """Return a piece and the device to submit it to now, or None if it is better to wait."""
        raise NotImplementedError

    def arrive(self, piece: int) -> None:
        """Mark a piece as ready: its operands exist or are under way."""
        raise NotImplementedError

    @property
    def over(self) -> bool:
        return len(self.complete) == len(self.options.pieces)

    def missing(self, piece: int, device: int) -> Iterator[tuple[int, int]]:
        """Yield the values that a device lacks for a piece, with the pieces that produced them."""
        makers = self.options.makers
        for value in self.options.pieces[piece].reads:
            if (device, value) not in self._there:
                yield value, makers.get(value, HOST)

    def sent(self, piece: int, device: int, brought: list[tuple[int, int]], now_s: float) -> None:
        """Record the submission of a piece to a device."""
        self.tape.sent.append(DispatchedPiece(piece, device, tuple(brought), tuple(self._seen)))
        self._seen.clear()
        self.device_of[piece] = device
        self.queues[device].append(piece)
        self._there.update((device, value) for value, _ in brought)
        self._there.update((device, value) for value in self.options.pieces[piece].gives)
        entries_s = sum(self.options.entry_s(value, device) for value, _ in brought)
        start_s = max(now_s, self._free_s[device]) + entries_s * self.speeds.of(device)
        self._free_s[device] = self._end_s[piece] = start_s + self.expected_s(piece, device)
        for reader in self._readers[piece]:
            self._waits[reader] -= 1
            if not self._waits[reader]:
                self.arrive(reader)

    def ended(self, piece: int, now_s: float, taken_s: float) -> None:
        """Record that the host knows the end of a piece. taken_s: seconds on its device."""
        device = self.device_of[piece]
        self.queues[device].remove(piece)
        self.complete.add(piece)
        self._seen.append(piece)
        self.speeds.see(device, self.options.pieces[piece].seconds[device], taken_s)
        at_s = now_s
        for left in self.queues[device]:
            at_s += self.expected_s(left, device)
            self._end_s[left] = at_s
        self._free_s[device] = at_s
        if self.over:
            self.tape.waits = tuple(self._seen)

    def heads(self) -> list[tuple[int, int]]:
        """Return the piece that each busy device will end first, with the device."""
        return [(queue[0], device) for device, queue in enumerate(self.queues) if queue]

    # -- estimates ---------------------------------------------------------------------------------

    def places(self, piece: int) -> Collection[int]:
        """Return the devices that may run a piece in this run."""
        return self.options.pieces[piece].seconds if self._alone is None else (self._alone,)

    def expected_s(self, piece: int, device: int) -> float:
        return self.options.pieces[piece].seconds[device] * self.speeds.of(device)

    def may_go(self, piece: int, device: int) -> bool:
        """Return True if a piece can go to a device now: each operand from another device must be
        complete.
        """
        depth = self.speeds.depth(device) if self._alone is None else SOLO_DEPTH
        if len(self.queues[device]) >= depth:
            return False
        return all(m == HOST or m in self.complete for _, m in self.missing(piece, device))

    def moving_s(self, piece: int, device: int) -> tuple[float, float]:
        """Return the seconds of host and device to copy in the operands of a piece."""
        options, host_s, device_s = self.options, 0.0, 0.0
        for value, maker in self.missing(piece, device):
            if maker != HOST:
                host_s += options.leaves_s(value, self.device_of[maker])
            host_s += options.enters_s(value, device)
            device_s += options.entry_s(value, device)
        return host_s, device_s

    def finish_s(self, piece: int, device: int, now_s: float, free_s: float) -> float:
        """Return the end of a piece on a device. free_s: the end of its earlier work."""
        host_s, device_s = self.moving_s(piece, device)
        ready_s = now_s
        for _, maker in self.missing(piece, device):
            if maker != HOST and maker not in self.complete:
                ready_s = max(ready_s, self._end_s[maker])
        start_s = max(free_s, ready_s + host_s) + device_s * self.speeds.of(device)
        return start_s + self.expected_s(piece, device)

    def free_s(self, device: int, now_s: float) -> float:
        """Return the time at which a device ends all its submitted pieces."""
        return max(now_s, self._free_s[device]) if self.queues[device] else now_s


class SharedQueue(Dispatcher):
    """One queue, in order of urgency."""

    def __init__(self, options: Options, speeds: Speeds, alone: int | None = None) -> None:
        self._ready: list[tuple[float, int]] = []
        super().__init__(options, speeds, alone)

    def arrive(self, piece: int) -> None:
        insort(self._ready, (-self.options.pieces[piece].rank, piece))

    def next(self, now_s: float) -> tuple[int, int] | None:
        free_s = [self.free_s(device, now_s) for device in range(len(self.queues))]
        for entry in self._ready[:LOOKAHEAD]:
            piece = entry[1]
            end_s, device = min(
                (self.finish_s(piece, device, now_s, free_s[device]), device)
                for device in self.places(piece)
            )
            if self.may_go(piece, device):
                self._ready.remove(entry)
                return piece, device
            free_s[device] = end_s
        return None


class WorkStealing(Dispatcher):
    """A queue of ready pieces for each device, each in order of urgency."""

    def __init__(self, options: Options, speeds: Speeds, alone: int | None = None) -> None:
        self._ready: list[list[tuple[float, int]]] = [[] for _ in options.topology.devices]
        super().__init__(options, speeds, alone)

    def arrive(self, piece: int) -> None:
        about, words, places = (
            self.options.pieces[piece],
            self.options.graph.words,
            self.places(piece),
        )
        has = {
            device: sum(words[v] for v in about.reads if (device, v) in self._there)
            for device in places
        }
        done_s = {d: self.load_s(d) + self._taken_s(piece, d) for d in places}
        home = min(places, key=lambda d: (-has[d], done_s[d], d))
        insort(self._ready[home], (-about.rank, piece))

    def _taken_s(self, piece: int, device: int) -> float:
        """Return the seconds of a piece on a device, with the transfers to another host."""
        reads = self.options.pieces[piece].reads
        network_s = sum(self.options.network_s(value, device) for value in reads)
        return self.expected_s(piece, device) + network_s

    def load_s(self, device: int) -> float:
        """Return the seconds of work in the queue of a device."""
        waiting = [piece for _, piece in self._ready[device]]
        return sum(self.expected_s(piece, device) for piece in (*self.queues[device], *waiting))

    def next(self, now_s: float) -> tuple[int, int] | None:
        for device, ready in enumerate(self._ready):
            for entry in ready[:LOOKAHEAD]:
                if self.may_go(entry[1], device):
                    ready.remove(entry)
                    return entry[1], device
        for thief in range(len(self._ready)):
            if not self.queues[thief]:
                found = self._steal(thief, now_s)
                if found is not None:
                    return found, thief
        return None

    def _steal(self, thief: int, now_s: float) -> int | None:
        """Return the piece of the longest queue that is cheapest to move to a device."""
        loads = sorted((-self.load_s(d), d) for d in range(len(self._ready)) if d != thief)
        for load, victim in loads:
            fits = [
                (sum(self.moving_s(entry[1], thief)), entry)
                for entry in self._ready[victim][:LOOKAHEAD]
                if thief in self.places(entry[1]) and self.may_go(entry[1], thief)
            ]
            for _, entry in sorted(fits):
                if self.finish_s(entry[1], thief, now_s, now_s) < now_s - load:
                    self._ready[victim].remove(entry)
                    return entry[1]
        return None


POLICIES: dict[str, type[Dispatcher]] = {
    "earliest-finish": SharedQueue,
    "work-stealing": WorkStealing,
}


def execute(dispatcher: Dispatcher, target: DispatchTarget) -> None:
    """Run all pieces once: the loop of the executor and of the simulator."""
    while not dispatcher.over:
        while (chosen := dispatcher.next(target.now())) is not None:
            piece, device = chosen
            brought = list(dispatcher.missing(piece, device))
            for value, source in brought:
                target.bring(value, source, device)
            target.submit(piece, device)
            dispatcher.sent(piece, device, brought, target.now())
        ended, taken_s = target.wait(dispatcher.heads())
        dispatcher.ended(ended, target.now(), taken_s)


def _dependencies(options: Options) -> tuple[list[int], list[list[int]]]:
    """Return the number of producers and the list of consumers of each piece."""
    waits: list[int] = []
    readers: list[list[int]] = [[] for _ in options.pieces]
    for number, piece in enumerate(options.pieces):
        before = {options.makers[v] for v in piece.reads if v in options.makers}
        waits.append(len(before))
        for maker in before:
            readers[maker].append(number)
    return waits, readers

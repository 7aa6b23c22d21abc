r"""Activity: what the last minute of a scheduler's runs was, by device, in bounded memory.

    run ends --ran--> short list --drain--> ticks:  busy  .  #  #  #  .     a minute
                                            totals: runs, seconds, bytes    for ever

Problem: a run must not pay for being watched. Method: it adds its stats to a list. Whoever looks,
or finds the list full, counts all of them together, and spreads the time of each split over the
ticks in which the device was at work. Complexity: O(splits) a run. Examples:
tests/monitor/test_activity.py.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ..plan.types.plan_types import PlanValue
from ..runtime.run_stats import RunStats
from ..trace import Clock

TICK_S = 0.5
TICKS = 120
"""A minute."""
RECENT = 4
"""Ticks that rates are counted over."""
PENDING = 64
"""Runs in the list before somebody has to drain it. Of many more that stay there Python's collector
of garbage would go through all, again and again.
"""
PLANS = 64
"""So many plans are remembered with what their runs move."""


class Ticks:
    """Amounts of the last TICKS stretches of TICK_S seconds."""

    def __init__(self) -> None:
        self._newest = -1
        self._values = [0.0] * TICKS

    def advance(self, now_s: float) -> None:
        """Make room for the tick of a moment; moments before the newest change nothing."""
        tick = int(now_s // TICK_S)
        for fresh in range(max(self._newest + 1, tick - TICKS + 1), tick + 1):
            self._values[fresh % TICKS] = 0.0
        self._newest = max(self._newest, tick)

    def add(self, at_s: float, amount: float) -> None:
        """Add an amount at a moment."""
        self.advance(at_s)
        self._put(int(at_s // TICK_S), amount)

    def spread(self, begin_s: float, end_s: float) -> None:
        """Add the seconds from one moment to another, each to its tick."""
        self.advance(end_s)
        last = int(end_s // TICK_S)
        for tick in range(max(int(begin_s // TICK_S), last - TICKS + 1), last + 1):
            within = min(end_s, (tick + 1) * TICK_S) - max(begin_s, tick * TICK_S)
            self._put(tick, max(0.0, within))

    def _put(self, tick: int, amount: float) -> None:
        if tick > self._newest - TICKS:
            self._values[tick % TICKS] += amount

    def values(self) -> list[float]:
        """Return them, the oldest first."""
        cut = (self._newest + 1) % TICKS
        return [*self._values[cut:], *self._values[:cut]]

    def copy(self) -> Ticks:
        other = Ticks()
        other._newest, other._values = self._newest, list(self._values)
        return other


@dataclass(slots=True)
class Moved:
    """copies: values that go between a device and the host in a run. copied_bytes: theirs."""

    copies: int = 0
    copied_bytes: int = 0


class DeviceActivity:
    """What one device did. runs: those that it took part in."""

    def __init__(self) -> None:
        self.busy = Ticks()
        self.runs, self.busy_s, self.copies, self.copied_bytes = 0, 0.0, 0, 0
        self.lately = {"runs": Ticks(), "copies": Ticks(), "copied_bytes": Ticks()}
        self._until_s = 0.0

    def work(self, spans: list[tuple[float, float]]) -> None:
        """Take in when it was at work; what overlaps counts once."""
        spans.sort()
        until_s, tick, within = self._until_s, -1.0, 0.0
        for begin_s, end_s in spans:
            if begin_s < until_s:
                begin_s = until_s
            if end_s <= begin_s:
                continue
            until_s = end_s
            if begin_s // TICK_S == tick == end_s // TICK_S:  # as with most
                within += end_s - begin_s
                continue
            if within:
                self._at_work(tick * TICK_S, within)
            tick, within = end_s // TICK_S, 0.0
            self.busy.spread(begin_s, end_s)
            self.busy_s += end_s - begin_s
        if within:
            self._at_work(tick * TICK_S, within)
        self._until_s = until_s

    def _at_work(self, at_s: float, seconds: float) -> None:
        self.busy.add(at_s, seconds)
        self.busy_s += seconds

    def move(self, tick: float, runs: int, moved: Moved) -> None:
        """Take in what runs that ended in a tick moved to and from it, each of them."""
        amounts = runs, runs * moved.copies, runs * moved.copied_bytes
        self.runs += amounts[0]
        self.copies += amounts[1]
        self.copied_bytes += amounts[2]
        for ticks, amount in zip(self.lately.values(), amounts, strict=True):
            ticks.add(tick * TICK_S, amount)

    def shares(self, now_s: float, since_s: float | None) -> tuple[list[float], float]:
        """Return the busy share of each tick, and that of the last ones up to now. since_s: since
        when it has had work whose end nobody has seen.
        """
        busy = self.busy
        if since_s is not None and now_s > (begin_s := max(since_s, self._until_s)):
            busy = busy.copy()
            busy.spread(begin_s, now_s)
        busy.advance(now_s)
        values = busy.values()
        return [min(1.0, each / TICK_S) for each in values], rate(values, now_s)


def rate(values: list[float], now_s: float) -> float:
    """Return an amount a second, of the last RECENT ticks; the last of them is not over."""
    seconds = (RECENT - 1) * TICK_S + now_s % TICK_S
    return sum(values[-RECENT:]) / seconds


class Activity:
    """What the devices of one scheduler did."""

    def __init__(self, clock: Clock, devices: Iterable[str]) -> None:
        self.clock = clock
        self.devices = {name: DeviceActivity() for name in devices}
        self.runs, self.run_s = 0, 0.0
        self.lately = Ticks()
        self._pending: deque[tuple[PlanValue, RunStats]] = deque()
        self.lock = threading.RLock()
        """Held while anything above is changed or read."""
        self._moved: dict[int, tuple[weakref.ref[PlanValue], dict[str, Moved]]] = {}

    def ran(self, plan: PlanValue, stats: RunStats) -> None:
        """Take in a run that is done."""
        self._pending.append((plan, stats))
        if len(self._pending) >= PENDING:
            self.drain()

    def drain(self) -> None:
        """Count all runs that are done."""
        with self.lock:
            spans: dict[str, list[tuple[float, float]]] = {name: [] for name in self.devices}
            before: tuple[PlanValue, float] | None = None
            runs = 0
            for _ in range(len(self._pending)):
                plan, stats = self._pending.popleft()
                self.run_s += stats.seconds
                for split in stats.splits:
                    spans[split.device].append((split.begin_s, split.end_s))
                tick = (stats.start_s + stats.seconds) // TICK_S
                if before is None or before[0] is not plan or before[1] != tick:
                    if before is not None:
                        self._count(*before, runs)
                    before, runs = (plan, tick), 0
                runs += 1
            if before is not None:
                self._count(*before, runs)
            for name, each in spans.items():
                self.devices[name].work(each)

    def _count(self, plan: PlanValue, tick: float, runs: int) -> None:
        self.runs += runs
        self.lately.add(tick * TICK_S, runs)
        for name, moved in self._moved_by(plan).items():
            self.devices[name].move(tick, runs, moved)

    def _moved_by(self, plan: PlanValue) -> dict[str, Moved]:
        known = self._moved.get(id(plan))
        if known is not None and known[0]() is plan:
            return known[1]
        if len(self._moved) >= PLANS:
            self._moved.clear()
        found = moved_by(plan)
        self._moved[id(plan)] = weakref.ref(plan), found
        return found


def moved_by(plan: PlanValue) -> dict[str, Moved]:
    """Returns what a run of a plan moves between each device that works and the host: inputs,
    results, what crosses, streamed weights. Nothing moves between numpy and the host.
    """
    out: dict[str, Moved] = {}
    for split in plan.splits:
        moved = out.setdefault(plan.topology.devices[split.device].name, Moved())
        if not plan.topology.is_cpu(split.device):
            copies = [c.node for c in split.uploads] + [c.node for c in split.downloads]
            moved.copies += len(copies)
            moved.copied_bytes += sum(plan.graph.nodes[n].type.device_bytes for n in copies)
    return out

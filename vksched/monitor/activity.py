r"""Activity: utilization by device in the last minute of a scheduler's runs, in bounded memory.

    run ends --ran--> short list --drain--> ticks:  busy  .  #  #  #  .     a minute
                                            totals: runs, seconds, bytes    since the start

Problem: monitoring must not slow runs. Method: a run appends its stats to a list. A reader, or a
full list, aggregates all of them and adds the time of each split to the ticks in which the device
was busy. Complexity: O(splits) per run. Examples: tests/monitor/test_activity.py.
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
"""One minute."""
RECENT = 4
"""Number of ticks that rates are averaged over."""
PENDING = 64
"""Maximum number of runs in the list. With many more, Python's garbage collector would traverse all
of them repeatedly.
"""
PLANS = 64
"""Maximum number of plans with cached transfer amounts."""


class Ticks:
    """Amounts per tick of the last TICKS ticks of TICK_S seconds."""

    def __init__(self) -> None:
        self._newest = -1
        self._values = [0.0] * TICKS

    def advance(self, now_s: float) -> None:
        """Advance to the tick of a time; earlier times change nothing."""
        tick = int(now_s // TICK_S)
        for fresh in range(max(self._newest + 1, tick - TICKS + 1), tick + 1):
            self._values[fresh % TICKS] = 0.0
        self._newest = max(self._newest, tick)

    def add(self, at_s: float, amount: float) -> None:
        """Add an amount at a time."""
        self.advance(at_s)
        self._put(int(at_s // TICK_S), amount)

    def spread(self, begin_s: float, end_s: float) -> None:
        """Add the seconds of an interval to its ticks."""
        self.advance(end_s)
        last = int(end_s // TICK_S)
        for tick in range(max(int(begin_s // TICK_S), last - TICKS + 1), last + 1):
            within = min(end_s, (tick + 1) * TICK_S) - max(begin_s, tick * TICK_S)
            self._put(tick, max(0.0, within))

    def _put(self, tick: int, amount: float) -> None:
        if tick > self._newest - TICKS:
            self._values[tick % TICKS] += amount

    def values(self) -> list[float]:
        """Return the amounts, the oldest first."""
        cut = (self._newest + 1) % TICKS
        return [*self._values[cut:], *self._values[:cut]]

    def copy(self) -> Ticks:
        other = Ticks()
        other._newest, other._values = self._newest, list(self._values)
        return other


@dataclass(slots=True)
class TransferCount:
    """copies: transfers between a device and the host in a run. copied_bytes: their size."""

    copies: int = 0
    copied_bytes: int = 0


class DeviceActivity:
    """Activity of one device. runs: number of runs that used it."""

    def __init__(self) -> None:
        self.busy = Ticks()
        self.runs, self.busy_s, self.copies, self.copied_bytes = 0, 0.0, 0, 0
        self.lately = {"runs": Ticks(), "copies": Ticks(), "copied_bytes": Ticks()}
        self._until_s = 0.0

    def work(self, spans: list[tuple[float, float]]) -> None:
        """Add busy intervals; overlaps count once."""
        spans.sort()
        until_s, tick, within = self._until_s, -1.0, 0.0
        for begin_s, end_s in spans:
            if begin_s < until_s:
                begin_s = until_s
            if end_s <= begin_s:
                continue
            until_s = end_s
            if begin_s // TICK_S == tick == end_s // TICK_S:  # the common case
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

    def move(self, tick: float, runs: int, moved: TransferCount) -> None:
        """Add the transfers of runs that ended in a tick."""
        amounts = runs, runs * moved.copies, runs * moved.copied_bytes
        self.runs += amounts[0]
        self.copies += amounts[1]
        self.copied_bytes += amounts[2]
        for ticks, amount in zip(self.lately.values(), amounts, strict=True):
            ticks.add(tick * TICK_S, amount)

    def shares(self, now_s: float, since_s: float | None) -> tuple[list[float], float]:
        """Return the busy share of each tick, and of the most recent ones. since_s: start of
        unfinished work.
        """
        busy = self.busy
        if since_s is not None and now_s > (begin_s := max(since_s, self._until_s)):
            busy = busy.copy()
            busy.spread(begin_s, now_s)
        busy.advance(now_s)
        values = busy.values()
        return [min(1.0, each / TICK_S) for each in values], rate(values, now_s)


def rate(values: list[float], now_s: float) -> float:
    """Return an amount per second over the last RECENT ticks; the last tick is incomplete."""
    seconds = (RECENT - 1) * TICK_S + now_s % TICK_S
    return sum(values[-RECENT:]) / seconds


class Activity:
    """Activity of the devices of one scheduler."""

    def __init__(self, clock: Clock, devices: Iterable[str]) -> None:
        self.clock = clock
        self.devices = {name: DeviceActivity() for name in devices}
        self.runs, self.run_s = 0, 0.0
        self.lately = Ticks()
        self._pending: deque[tuple[PlanValue, RunStats]] = deque()
        self.lock = threading.RLock()
        """Guards all attributes above."""
        self._moved: dict[int, tuple[weakref.ref[PlanValue], dict[str, TransferCount]]] = {}

    def ran(self, plan: PlanValue, stats: RunStats) -> None:
        """Record a finished run."""
        self._pending.append((plan, stats))
        if len(self._pending) >= PENDING:
            self.drain()

    def drain(self) -> None:
        """Aggregate all finished runs."""
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
        for name, moved in self._count_transfers(plan).items():
            self.devices[name].move(tick, runs, moved)

    def _count_transfers(self, plan: PlanValue) -> dict[str, TransferCount]:
        known = self._moved.get(id(plan))
        if known is not None and known[0]() is plan:
            return known[1]
        if len(self._moved) >= PLANS:
            self._moved.clear()
        found = moved_by(plan)
        self._moved[id(plan)] = weakref.ref(plan), found
        return found


def moved_by(plan: PlanValue) -> dict[str, TransferCount]:
    """Return the transfers of a run between each device and the host: inputs, results, cross-device
    transfers, streamed weights. The CPU has none.
    """
    out: dict[str, TransferCount] = {}
    for split in plan.splits:
        moved = out.setdefault(plan.topology.devices[split.device].name, TransferCount())
        if not plan.topology.is_cpu(split.device):
            copies = [c.node for c in split.uploads] + [c.node for c in split.downloads]
            moved.copies += len(copies)
            moved.copied_bytes += sum(plan.graph.nodes[n].type.device_bytes for n in copies)
    return out

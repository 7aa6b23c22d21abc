"""Partial schedule: a schedule under construction, task by task.

    p0 |aaaa|....gap....|ccc|          ready[b] on p0: the arrival of the data of b
    p1      |bb|                       insertion: the first gap that is long enough

`choose` returns the device that ends a task first; `place` puts it there. With insertion a task may
fill a gap between earlier placed tasks. Devices with full memory are excluded.

Complexity: for one task, (edges to it + 1) * devices; with insertion times the gaps, of which a
device stores the latest `GAPS`. From `WIDE` devices on, numpy does the work. Examples:
tests/schedule/test_policies.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...common.errors import PlanError
from .problem import INFINITY, Problem
from .simulate_tasks import TaskPlacement

GAPS = 64
"""Maximum number of gaps of a device, so that the search stays short with 100,000 tasks."""
WIDE = 48
"""Number of devices from which numpy is faster than a loop."""


class DeadEnd(PlanError):
    """Every device that could run the next task has too little free memory."""


class Partial:
    """The placed tasks with their times, and the gaps and free memory of devices."""

    def __init__(self, problem: Problem, insertion: bool = False) -> None:
        self.problem = problem
        self.device = [-1] * problem.n
        self.start = [0.0] * problem.n
        self.finish = [0.0] * problem.n
        self.free = [0.0] * problem.m
        self.load = [0.0] * problem.m
        self.room = list(problem.room)
        self._limited = problem.limited
        if self._limited:
            self._reserve()
        self._gaps: list[list[tuple[float, float]]] | None = (
            [[] for _ in range(problem.m)] if insertion else None
        )
        """(end, start) of idle times, in order."""
        self._wide = problem.m >= WIDE
        self._free = np.zeros(problem.m if self._wide else 0)
        self._zeros = [0.0] * problem.m
        self._channel: dict[int, float] = {}

    def _reserve(self) -> None:
        """Reserve the memory of tasks that have a single device."""
        for t, devices in enumerate(self.problem.candidate_devices):
            if len(devices) == 1:
                self.room[devices[0]] -= self.problem.size[t]

    def devices(self, t: int) -> Sequence[int]:
        """Return the devices that can run a task and have memory for it.

        Raises
        ------
        DeadEnd
            There is none.
        """
        candidate_devices = self.problem.candidate_devices[t]
        size = self.problem.size[t]
        if not size or not self._limited or len(candidate_devices) == 1:
            return candidate_devices
        fit = [d for d in candidate_devices if size <= self.room[d]]
        if not fit:
            raise DeadEnd("[schedule] expected memory for every task; try more memory_bytes")
        return fit

    def arrivals(self, t: int) -> list[float]:
        """Return the arrival of a task's data on each device; its producers are placed.

        With exclusive links, transfers wait for earlier placed ones.
        """
        problem = self.problem
        before = problem.before[t]
        if not before:
            return self._zeros
        if problem.exclusive:
            return self._queued(t)
        if self._wide:
            out: list[float] = self._wide_arrivals(before).tolist()
            return out
        ready = self._zeros
        for p, size in before:
            s, at = self.device[p], self.finish[p]
            ready = [
                found if (found := at + late + size * each) > now else now
                for now, late, each in zip(
                    ready, problem.latency[s], problem.inverse[s], strict=True
                )
            ]
        return ready

    def _wide_arrivals(self, before: Iterable[tuple[int, float]]) -> NDArray[np.float64]:
        problem = self.problem
        ready = np.zeros(problem.m)
        for p, size in before:
            s = self.device[p]
            took = problem.latencies[s] + size * problem.inverses[s]
            np.maximum(ready, took + self.finish[p], out=ready)
        return ready

    def _queued(self, t: int) -> list[float]:
        problem = self.problem
        out: list[float] = []
        arcs = sorted((self.finish[p], p, size) for p, size in problem.before[t])
        for d in range(problem.m):
            ready, busy = 0.0, dict[int, float]()
            for at, p, size in arcs:
                s = self.device[p]
                if s != d:
                    channel = problem.channel[s][d]
                    begun = max(at, busy.get(channel, self._channel.get(channel, 0.0)))
                    at = busy[channel] = begun + problem.transfer_s(size, s, d)
                ready = max(ready, at)
            out.append(ready)
        return out

    def begin(self, t: int, d: int, ready: float) -> float:
        """Return the earliest start of a task on a device, after the arrival of its data."""
        if self._gaps is not None and self._gaps[d]:
            cost, gaps = self.problem.cost[t][d], self._gaps[d]
            for end, start in gaps[bisect_left(gaps, (ready + cost, -1.0)) :]:
                at = ready if ready > start else start
                if at + cost <= end:
                    return at
        free = self.free[d]
        return ready if ready > free else free

    def choose(self, t: int, extra: Sequence[float] | None = None) -> tuple[int, float]:
        """Return the device that ends a task first, and its start there.

        extra: seconds by device that are added to the end before ends are compared.
        """
        devices = self.devices(t)
        if self._wide and self._gaps is None and not self.problem.exclusive:
            return self._wide_choose(t, devices, extra)
        ready, cost = self.arrivals(t), self.problem.cost[t]
        best, found, at = INFINITY, devices[0], 0.0
        for d in devices:
            start = self.begin(t, d, ready[d])
            end = start + cost[d]
            if extra is not None:
                end += extra[d]
            if end < best:
                best, found, at = end, d, start
        return found, at if best < INFINITY else self.begin(t, found, ready[found])

    def _wide_choose(
        self, t: int, devices: Sequence[int], extra: Sequence[float] | None
    ) -> tuple[int, float]:
        start = np.maximum(self._wide_arrivals(self.problem.before[t]), self._free)
        end = start + self.problem.rows[self.problem.kind[t]]
        if extra is not None:
            end += np.asarray(extra)
        if len(devices) == self.problem.m:
            found = int(end.argmin())
        else:
            found = devices[int(end[list(devices)].argmin())]
        return found, float(start[found])

    def place(self, t: int, d: int, start: float) -> float:
        """Place a task on a device, and return its end."""
        cost = self.problem.cost[t][d]
        end = start + cost
        self.device[t], self.start[t], self.finish[t] = d, start, end
        self.load[d] += cost
        if self._limited and len(self.problem.candidate_devices[t]) > 1:
            self.room[d] -= self.problem.size[t]
        if self._gaps is not None:
            self._fill(d, start, end)
        if end > self.free[d]:
            self.free[d] = end
            if self._wide:
                self._free[d] = end
        if self.problem.exclusive:
            self._occupy(t, d)
        return end

    def put(self, t: int, d: int) -> float:
        """Place a task on a device as early as possible, and return its end."""
        return self.place(t, d, self.begin(t, d, self.arrivals(t)[d]))

    def _fill(self, d: int, start: float, end: float) -> None:
        assert self._gaps is not None
        gaps, free = self._gaps[d], self.free[d]
        if start >= free:
            if start > free:
                gaps.append((start, free))
                if len(gaps) > GAPS:
                    del gaps[0]
            return
        at = bisect_left(gaps, (end, -1.0))
        while at < len(gaps) and gaps[at][1] > start:
            at += 1
        if at < len(gaps) and gaps[at][0] >= end:
            close, begun = gaps[at]
            gaps[at : at + 1] = [gap for gap in ((start, begun), (close, end)) if gap[0] > gap[1]]

    def _occupy(self, t: int, d: int) -> None:
        problem = self.problem
        for at, p, size in sorted((self.finish[p], p, size) for p, size in problem.before[t]):
            s = self.device[p]
            if s != d:
                channel = problem.channel[s][d]
                begun = max(at, self._channel.get(channel, 0.0))
                self._channel[channel] = begun + problem.transfer_s(size, s, d)

    def done(self) -> TaskPlacement:
        """Return the schedule, in the order of starts."""
        rank = [0] * self.problem.n
        for at, t in enumerate(self.problem.order):
            rank[t] = at
        keys = list(zip(self.start, self.finish, rank, strict=True))
        return TaskPlacement(self.device, sorted(range(self.problem.n), key=keys.__getitem__))


def place_in_order(
    problem: Problem,
    order: Iterable[int],
    insertion: bool = True,
    extra: Callable[[int], Sequence[float]] | None = None,
) -> TaskPlacement:
    """Return the schedule that places tasks in an order, each on the device where it ends first.

    order: producers before consumers. extra: seconds by device for a task, added to its ends before
    they are compared.
    """
    partial = Partial(problem, insertion)
    for t in order:
        d, start = partial.choose(t, extra(t) if extra else None)
        partial.place(t, d, start)
    return partial.done()

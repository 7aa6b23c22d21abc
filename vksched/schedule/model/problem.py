"""Problem: tasks and a topology as arrays indexed by integers, for inner loops.

    names --index--> 0 1 2 ...     cost[t][d] seconds, infinity if d cannot run t
                                   before[t] = [(producer, bytes), ...]

Tasks with one mapping of costs share a row, so that many tasks on many devices need little memory.

Complexity: tasks + edges + rows * devices + devices squared. Examples: tests/schedule/.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...common.errors import PlanError
from .task_graph import Platform, TaskGraph

INFINITY = float("inf")
LINKS = ("parallel", "exclusive")
Arcs = list[list[tuple[int, float]]]


@dataclass(frozen=True)
class Problem:
    """Tasks 0 to n - 1 and devices 0 to m - 1, built by `make_problem`."""

    tasks: TaskGraph
    where: Platform
    exclusive: bool
    rows: NDArray[np.float64]
    """(kinds of tasks, m): seconds."""
    kind: list[int]
    """The row of each task."""
    candidate_devices: list[tuple[int, ...]]
    """The devices that may run each task."""
    before: Arcs
    after: Arcs
    order: list[int]
    """Producers before consumers."""
    size: list[int]
    """Bytes of each task on its device."""
    room: list[float]
    """Bytes of memory of each device."""
    latency: list[list[float]]
    inverse: list[list[float]]
    """Seconds per byte."""
    channel: list[list[int]]
    """Numbers of channels; empty if transfers do not wait for each other."""

    @cached_property
    def n(self) -> int:
        return len(self.kind)

    @cached_property
    def m(self) -> int:
        return len(self.room)

    @cached_property
    def cost(self) -> list[list[float]]:
        """Seconds of each task on each device; tasks of one kind share a list."""
        rows: list[list[float]] = self.rows.tolist()
        return [rows[k] for k in self.kind]

    @cached_property
    def edges(self) -> int:
        return sum(map(len, self.before))

    @cached_property
    def limited(self) -> bool:
        """Return True if memory can restrict placements."""
        return any(self.size) and min(self.room) < INFINITY

    @cached_property
    def latencies(self) -> NDArray[np.float64]:
        return np.array(self.latency)

    @cached_property
    def inverses(self) -> NDArray[np.float64]:
        return np.array(self.inverse)

    @cached_property
    def uniform(self) -> bool:
        """Return True if all pairs of devices have equal links."""
        off = ~np.eye(self.m, dtype=bool)
        return self.m < 2 or all(
            bool(np.all(table[off] == table[off][0])) for table in (self.latencies, self.inverses)
        )

    @cached_property
    def mean_link(self) -> tuple[float, float]:
        """Latency and seconds per byte, as the mean over pairs of different devices."""
        pairs = max(self.m * (self.m - 1), 1)
        return float(self.latencies.sum()) / pairs, float(self.inverses.sum()) / pairs

    @cached_property
    def least_link(self) -> tuple[float, float]:
        """The least latency and the least seconds per byte over pairs of different devices."""
        if self.m < 2:
            return 0.0, 0.0
        off = ~np.eye(self.m, dtype=bool)
        return float(self.latencies[off].min()), float(self.inverses[off].min())

    @cached_property
    def least(self) -> list[float]:
        """The least seconds of each task."""
        rows: list[float] = self.rows.min(axis=1, initial=INFINITY).tolist()
        return [rows[k] for k in self.kind]

    @cached_property
    def mean(self) -> list[float]:
        """The mean seconds of each task over the devices that can run it."""
        can = np.isfinite(self.rows)
        sums = np.where(can, self.rows, 0.0).sum(axis=1)
        rows: list[float] = (sums / np.maximum(can.sum(axis=1), 1)).tolist()
        return [rows[k] for k in self.kind]

    def transfer_s(self, size: float, source: int, target: int) -> float:
        """Return the seconds of a transfer; 0 on one device."""
        return self.latency[source][target] + size * self.inverse[source][target]

    def only(self, chosen: dict[int, int]) -> Problem:
        """Return the problem with some tasks bound to a device each."""
        base = len(self.rows)
        found: dict[tuple[int, int], int] = {}
        kind, candidate_devices = list(self.kind), list(self.candidate_devices)
        for t, d in chosen.items():
            kind[t] = found.setdefault((self.kind[t], d), base + len(found))
            candidate_devices[t] = (d,)
        more = np.full((len(found), self.m), INFINITY)
        for (row, d), at in found.items():
            more[at - base, d] = self.rows[row, d]
        return replace(
            self,
            rows=np.concatenate([self.rows, more]),
            kind=kind,
            candidate_devices=candidate_devices,
        )


def make_problem(tasks: TaskGraph, where: Platform, links: str = "parallel") -> Problem:
    """Return tasks and a topology as arrays.

    Raises
    ------
    PlanError
        No device can run or hold some task, or the value of `links` is unknown.
    """
    if links not in LINKS:
        raise PlanError(f"[schedule] expected links of {' or '.join(LINKS)}, got {links!r}")
    number = {name: i for i, name in enumerate(where.devices)}
    m, rows, found, kind = len(number), list[list[float]](), dict[int, int](), list[int]()
    for task in tasks:
        row = found.get(id(task.cost_s))
        if row is None:
            row = found[id(task.cost_s)] = len(rows)
            get = task.cost_s.get
            rows.append([get(name, INFINITY) for name in where.devices])
        kind.append(row)
    can = [tuple(d for d, cost in enumerate(row) if cost < INFINITY) for row in rows]
    size = [task.memory_bytes for task in tasks]
    room = [where.memory_bytes.get(name, INFINITY) for name in where.devices]
    candidate_devices = [can[k] for k in kind]
    if any(size) and min(room) < INFINITY:
        candidate_devices = [
            devices if not size[t] else tuple(d for d in devices if size[t] <= room[d])
            for t, devices in enumerate(candidate_devices)
        ]
    for t, devices in enumerate(candidate_devices):
        if not devices:
            _refuse(tasks, where, t)
    _check_room(where, candidate_devices, size, room)
    before: Arcs = [[] for _ in kind]
    after: Arcs = [[] for _ in kind]
    for (a, b), many in tasks.arcs.items():
        before[b].append((a, many))
        after[a].append((b, many))
    latency, inverse = _tables(where, number)
    channel = _channels(where) if links == "exclusive" else []
    return Problem(
        tasks,
        where,
        bool(channel),
        np.array(rows, dtype=np.float64).reshape(len(rows), m),
        kind,
        candidate_devices,
        before,
        after,
        list(tasks.order),
        size,
        room,
        latency,
        inverse,
        channel,
    )


def _refuse(tasks: TaskGraph, where: Platform, t: int) -> None:
    task = tasks.tasks[t]
    mine = ", ".join(sorted(task.cost_s)[:8]) or "no device"
    known = ", ".join(where.devices[:8])
    if any(name in task.cost_s for name in where.devices):
        raise PlanError(
            f"[schedule] expected a device with {task.memory_bytes} bytes of memory for "
            f"{task.name!r}, which runs on {mine}, got none; try more memory_bytes"
        )
    raise PlanError(
        f"[schedule] expected a device that can run {task.name!r}, got costs for {mine} and the "
        f"devices {known}"
    )


def _check_room(
    where: Platform, candidate_devices: list[tuple[int, ...]], size: list[int], room: list[float]
) -> None:
    """Raise a PlanError if the tasks with a single device do not fit there."""
    left = list(room)
    for devices, many in zip(candidate_devices, size, strict=True):
        if len(devices) == 1:
            left[devices[0]] -= many
    for d, rest in enumerate(left):
        if rest < 0:
            raise PlanError(
                f"[schedule] expected at most {room[d]} bytes of tasks that run on "
                f"{where.devices[d]!r} only, got {room[d] - rest}; try more memory_bytes"
            )


def _tables(where: Platform, number: dict[str, int]) -> tuple[list[list[float]], list[list[float]]]:
    m, base = len(number), where.default_link
    latency = np.full((m, m), float(base.latency_s))
    inverse = np.full((m, m), 1.0 / base.bytes_per_s)
    for back in (True, False):  # the named direction comes last and has precedence
        for (a, b), link in where.links.items():
            i, j = (number[b], number[a]) if back else (number[a], number[b])
            latency[i, j], inverse[i, j] = link.latency_s, 1.0 / link.bytes_per_s
    np.fill_diagonal(latency, 0.0)
    np.fill_diagonal(inverse, 0.0)
    return latency.tolist(), inverse.tolist()


def _channels(where: Platform) -> list[list[int]]:
    numbers: dict[tuple[str, str], int] = {}
    return [
        [
            -1 if a == b else numbers.setdefault(where.channel(a, b), len(numbers))
            for b in where.devices
        ]
        for a in where.devices
    ]

"""Task graphs: tasks with costs, edges with bytes, and platforms of devices with links.

    Task("a", {"p0": 1.0, "p1": 2.5}) --edge of 4 MB--> Task("b", {"p1": 3.0})
                                                            |
    Platform: p0 ----Link(8e9 bytes/s, 20 us)---- p1 <------+ b cannot run on p0

A value is checked on creation, so that policies need no checks. Times are seconds, sizes bytes.

Complexity: linear in tasks, edges and links. Examples: tests/schedule/test_schedule_values.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...common.errors import GraphError, PlanError
from ...topology.links import Link
from ...topology.power import DevicePower

MOST = 1e60
"""Maximum seconds, bytes and watts: products of larger ones, as joules, may overflow."""
MIN_PER_S = 1e-60
"""Minimum bytes per second: the seconds of slower transfers would overflow."""
AT_MOST = f"at most {MOST:g}"


def is_amount(value: object, most: float = MOST) -> bool:
    """Return True if a value is a number from 0 to the maximum."""
    if isinstance(value, np.generic):
        value = value.item()  # the maximum is no float32
    return isinstance(value, (int, float)) and 0 <= value <= most


@dataclass(frozen=True, slots=True)
class Task:
    """A unit of work that one device runs without interruption.

    Parameters
    ----------
    cost_s
        Seconds on each device that can run the task. A missing device cannot run it. Many tasks may
        share one mapping, which saves memory and time.
    memory_bytes
        Bytes that the task occupies on its device permanently, as weights do.
    """

    name: str
    cost_s: Mapping[str, float]
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        if not is_amount(self.memory_bytes):
            raise GraphError(
                f"[task] expected memory_bytes of 0 or more for {self.name!r}, {AT_MOST}, got "
                f"{self.memory_bytes!r}"
            )


@dataclass(frozen=True, slots=True, init=False)
class TaskGraph:
    """An acyclic graph of tasks and the data between them.

    Parameters
    ----------
    edges
        (producer, consumer, bytes), or (producer, consumer) for 0 bytes. Repeated edges are one
        transfer of the sum of their sizes.

    Raises
    ------
    GraphError
        Names are unknown or used twice, sizes or costs are below 0, or the graph has a cycle.
    """

    tasks: tuple[Task, ...]
    edges: tuple[tuple[str, str, float], ...]
    index: Mapping[str, int] = field(repr=False, compare=False)
    """The position of each task by name."""
    arcs: Mapping[tuple[int, int], float] = field(repr=False, compare=False)
    """Bytes by the positions of producer and consumer."""
    order: Sequence[int] = field(repr=False, compare=False)
    """Positions in topological order."""

    def __init__(
        self,
        tasks: Iterable[Task],
        edges: Iterable[tuple[str, str, float] | tuple[str, str]] = (),
    ) -> None:
        task_list = tuple(tasks)
        index = {task.name: i for i, task in enumerate(task_list)}
        if len(index) < len(task_list):
            seen: set[str] = set()
            twice = next(t.name for t in task_list if t.name in seen or seen.add(t.name))  # type: ignore[func-returns-value]
            raise GraphError(f"[tasks] expected a name once, got {twice!r} twice")
        _check_costs(task_list)
        full: list[tuple[str, str, float]] = []
        arcs: dict[tuple[int, int], float] = {}
        for edge in edges:
            if not isinstance(edge, (tuple, list)) or len(edge) not in (2, 3):
                raise GraphError(
                    f"[tasks] expected edges of producer, consumer and maybe bytes, got {edge!r}"
                )
            size = edge[2] if len(edge) == 3 else 0
            full.append((edge[0], edge[1], size))
            for end in edge[:2]:
                if end not in index:
                    raise GraphError(
                        f"[tasks] expected edges between tasks that are there, got {end!r} in "
                        f"{edge!r}"
                    )
            if not is_amount(size):
                raise GraphError(f"[tasks] expected 0 or more bytes, {AT_MOST}, got {edge!r}")
            ends = index[edge[0]], index[edge[1]]
            arcs[ends] = arcs.get(ends, 0.0) + size
        object.__setattr__(self, "tasks", task_list)
        object.__setattr__(self, "edges", tuple(full))
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "arcs", arcs)
        object.__setattr__(self, "order", _sort(task_list, arcs))

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)


def _check_costs(tasks: Sequence[Task]) -> None:
    known: set[int] = set()
    for task in tasks:
        if id(task.cost_s) in known:
            continue
        known.add(id(task.cost_s))
        if not isinstance(task.cost_s, Mapping):
            raise GraphError(
                f"[task] expected a mapping of devices to seconds for {task.name!r}, got "
                f"{task.cost_s!r}; try {{'gpu:0': 1e-3}}"
            )
        for device, cost in task.cost_s.items():
            if not is_amount(cost):
                raise GraphError(
                    f"[task] expected 0 or more seconds for {task.name!r} on {device!r}, "
                    f"{AT_MOST}, got {cost!r}; try to leave out a device that cannot run it"
                )


def _sort(tasks: Sequence[Task], arcs: Mapping[tuple[int, int], float]) -> list[int]:
    """Return a topological order of tasks."""
    after: list[list[int]] = [[] for _ in tasks]
    waits = [0] * len(tasks)
    for a, b in arcs:
        after[a].append(b)
        waits[b] += 1
    order = [i for i, count in enumerate(waits) if not count]
    for at in order:  # grows as tasks become ready
        for other in after[at]:
            waits[other] -= 1
            if not waits[other]:
                order.append(other)
    if len(order) < len(tasks):
        circle = _find_cycle(after, [i for i, count in enumerate(waits) if count])
        names = " -> ".join(tasks[i].name for i in circle)
        raise GraphError(f"[tasks] expected no circle, got {names}")
    return order


def _find_cycle(after: Sequence[Sequence[int]], left: Sequence[int]) -> list[int]:
    """Return a cycle among tasks of which each waits for another of them."""
    alive = set(left)
    before = {b: a for a in left for b in after[a] if b in alive}
    at, seen = left[0], dict[int, int]()
    while at not in seen:
        seen[at] = len(seen)
        at = before[at]
    walk = list(seen)[seen[at] :]
    return [at, *reversed(walk[1:]), at]


@dataclass(frozen=True, slots=True, init=False)
class Platform:
    """Devices, the links between them, their memory and their watts.

    Parameters
    ----------
    links
        A link for (a, b) serves both directions unless (b, a) is present as well.
    default_link
        The link of all other pairs.
    memory_bytes
        The capacity of each device with limited memory.
    watts
        The power of devices. The objective "energy" and the energy of `Schedule.metrics` need the
        watts of all devices.

    Raises
    ------
    PlanError
        Names are unknown or used twice, or a link is invalid.
    """

    devices: tuple[str, ...]
    links: Mapping[tuple[str, str], Link]
    memory_bytes: Mapping[str, float]
    default_link: Link
    watts: Mapping[str, DevicePower]

    def __init__(
        self,
        devices: Iterable[str],
        links: Mapping[tuple[str, str], Link] | None = None,
        *,
        memory_bytes: Mapping[str, float] | None = None,
        default_link: Link | None = None,
        watts: Mapping[str, DevicePower] | None = None,
    ) -> None:
        names = tuple(devices)
        known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        known_names = set(names)
        if not names or len(known_names) < len(names):
            raise PlanError(f"[platform] expected devices with a name each, got {known or 'none'}")
        links_by_ends, room, power = (_mapping(each) for each in (links, memory_bytes, watts))
        base = Link() if default_link is None else default_link
        _check_link(("default", "link"), base, known, {"default", "link"})
        for ends, link in links_by_ends.items():
            _check_link(ends, link, known, known_names)
        for name, size in room.items():
            if name not in known_names or not is_amount(size, math.inf):
                raise PlanError(
                    f"[platform] expected 0 or more bytes of memory for {known}, got {size!r} for "
                    f"{name!r}"
                )
        for name, each in power.items():
            fits = isinstance(each, DevicePower) and is_amount(each.busy)
            if name not in known_names or not fits or not is_amount(each.idle, each.busy):
                raise PlanError(
                    f"[platform] expected busy watts, {AT_MOST}, and at most as many idle ones, "
                    f"for {known}, got {each!r} for {name!r}; try DevicePower(busy=150, idle=15)"
                )
        object.__setattr__(self, "devices", names)
        object.__setattr__(self, "links", links_by_ends)
        object.__setattr__(self, "memory_bytes", room)
        object.__setattr__(self, "default_link", base)
        object.__setattr__(self, "watts", power)

    def link(self, source: str, target: str) -> Link:
        """Return the link from one device to another."""
        way = self.links.get((source, target)) or self.links.get((target, source))
        return way or self.default_link

    def channel(self, source: str, target: str) -> tuple[str, str]:
        """Return the name of the channel from one device to another.

        With exclusive links a channel carries one transfer at a time. A link for both directions is
        one channel, as is each pair of devices without a link of its own.
        """
        if (source, target) in self.links:
            return source, target
        if (target, source) in self.links:
            return target, source
        return min((source, target), (target, source))


def _mapping(value: object) -> dict[Any, Any]:
    if value is None or isinstance(value, Mapping):
        return dict(value or {})
    raise PlanError(
        f"[platform] expected mappings as links, memory_bytes and watts, got {value!r}; try "
        "memory_bytes={'gpu:0': 8 << 30}"
    )


def _check_link(ends: object, link: object, known: str, known_names: set[str]) -> None:
    """Raise a PlanError unless the value is a link between two known devices."""
    pair = isinstance(ends, tuple) and len(ends) == 2
    if not pair or ends[0] not in known_names or ends[1] not in known_names:  # type: ignore[index]
        raise PlanError(f"[platform] expected links between {known}, got {ends!r}")
    if ends[0] == ends[1]:  # type: ignore[index]
        raise PlanError(f"[platform] expected links between two devices, got {ends!r}")
    speed = link.bytes_per_s if isinstance(link, Link) else None
    fast = is_amount(speed, math.inf) and float(speed or 0) >= MIN_PER_S
    if not isinstance(link, Link) or not fast or not is_amount(link.latency_s):
        raise PlanError(
            f"[platform] expected a link with a speed above 0, at least {MIN_PER_S:g}, and a "
            f"latency of 0 or more, {AT_MOST}, for {ends!r}, got {link!r}"
        )

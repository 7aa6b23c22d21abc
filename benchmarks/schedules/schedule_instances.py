"""Instances of scheduling: a shape, the devices that shall run it, and the links between them.

    shape (schedule_families.py) --+
    speeds, 1 to 30 ---------------+--> Instance --> TaskGraph, Platform of vksched.schedule
    links, scaled to a ratio ------'            '--> Problem of saga (schedule_peers.py)

Speeds lie between 1 and the heterogeneity, which both occur. In an instance that is not consistent,
a device is good at some kinds of tasks and bad at others, and cannot run some kinds at all; saga
has no words for that. Links are alike, or differ by up to 4. They are scaled so that the mean
transfer takes `ratio` times the mean task: the ratio of communication to computation.

Everything is drawn from the seed, the family, and the numbers asked for, by a source of chance of
its own. So a set may grow, and what was in it stays the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from schedule_families import Family, Shape
from schedule_peers import Problem
from schedule_workflows import RECIPES, families

from vksched.schedule import Link, Platform, Task, TaskGraph

SIZES = (20, 60, 120, 200)
QUICK_SIZES = (20, 50)
LARGE = {1_000: ("cholesky", "transformer", "layered"), 10_000: ("stencil", "layered")}
DEVICES = (2, 3, 4, 6, 8, 12, 16)
MAX_HETEROGENEOUS = 30.0
RATIOS = (0.1, 10.0)
LINKS_DIFFER = 4.0
GAP = 0.1
"""The share of pairs of kinds and devices that do not go together, where not consistent."""


@dataclass(frozen=True)
class Instance:
    """speed: relative speed of each device; factor: slowdown of a kind of task on a device, by
    kind and device (missing: cannot run there), None if consistent; bytes_per_s: bandwidth of
    links, by two devices.
    """

    family: str
    shape: Shape
    speed: tuple[float, ...]
    bytes_per_s: Mapping[tuple[int, int], float]
    heterogeneity: float
    ratio: float
    factor: Mapping[tuple[str, int], float] | None = None

    @property
    def name(self) -> str:
        """Says what the instance is, in a line."""
        kind = "" if self.factor is None else ", not consistent"
        return (
            f"{self.family}, {len(self.shape.names)} tasks, {len(self.speed)} devices, "
            f"heterogeneity {self.heterogeneity:.1f}, ratio {self.ratio:.2f}{kind}"
        )

    def seconds(self, task: int) -> dict[int, float]:
        """Return the seconds of a task on each device that can run it."""
        work, kind = self.shape.work[task], kind_of(self.shape.names[task])
        if self.factor is None:
            return {i: work / speed for i, speed in enumerate(self.speed)}
        return {
            i: work / speed * self.factor[kind, i]
            for i, speed in enumerate(self.speed)
            if (kind, i) in self.factor
        }

    def graph(self) -> TaskGraph:
        """Return the tasks for vksched.schedule; devices are p0, p1 and so on."""
        names = self.shape.names
        tasks = [
            Task(name, {device_name(d): s for d, s in self.seconds(i).items()})
            for i, name in enumerate(names)
        ]
        edges = [(names[a], names[b], size) for a, b, size in self.shape.edges]
        return TaskGraph(tasks, edges)

    def where(self) -> Platform:
        """Return the devices for vksched.schedule."""
        links = {
            (device_name(a), device_name(b)): Link(bandwidth, 0.0)
            for (a, b), bandwidth in self.bytes_per_s.items()
        }
        return Platform([device_name(i) for i in range(len(self.speed))], links)

    def problem(self) -> Problem:
        """Return the same for saga."""
        if self.factor is not None:
            raise ValueError(f"[instance] expected a consistent one, got {self.name}")
        return Problem(self.shape.work, self.shape.edges, self.speed, self.bytes_per_s)


def device_name(number: int) -> str:
    """Return the name of a device."""
    return f"p{number}"


def kind_of(name: str) -> str:
    """Return the kind of a task: its name without the numbers at its end."""
    return name.rstrip("0123456789._")


def draw(
    family: str, make: Family, tasks: int, number: int, seed: int, *, consistent: bool = True
) -> Instance:
    """Draw an instance. tasks: about how many; number: which one of that size."""
    rng = random.Random(f"{seed}/{family}/{tasks}/{number}/{consistent}")
    shape = make(tasks, rng)
    count = rng.choice(DEVICES)
    heterogeneity = _between(rng, 1.0, MAX_HETEROGENEOUS)
    speed = [1.0, heterogeneity, *(_between(rng, 1.0, heterogeneity) for _ in range(count - 2))]
    rng.shuffle(speed)
    factor = None if consistent else _factors(shape, count, heterogeneity, rng)
    ratio = _between(rng, *RATIOS)
    differ = rng.choice((1.0, LINKS_DIFFER))
    slow = {pair: _between(rng, 1.0, differ) for pair in combinations(range(count), 2)}
    bare = Instance(family, shape, tuple(speed), {}, heterogeneity, ratio, factor)
    task_s = fmean(s for i in range(len(shape.names)) for s in bare.seconds(i).values())
    bytes_each = fmean(size for _, _, size in shape.edges)
    bandwidth = bytes_each * fmean(slow.values()) / (ratio * task_s)
    links = {pair: bandwidth / times for pair, times in slow.items()}
    return Instance(family, shape, tuple(speed), links, heterogeneity, ratio, factor)


def _between(rng: random.Random, low: float, high: float) -> float:
    """Draw a number whose logarithm is uniform."""
    drawn: float = low * (high / low) ** rng.random()
    return drawn


def _factors(
    shape: Shape, devices: int, heterogeneity: float, rng: random.Random
) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = {}
    for kind in dict.fromkeys(kind_of(name) for name in shape.names):
        able = [i for i in range(devices) if rng.random() >= GAP] or [rng.randrange(devices)]
        found |= {(kind, i): _between(rng, 1.0, heterogeneity) for i in able}
    return found


def drawn_set(
    seed: int,
    *,
    sizes: Sequence[int] = SIZES,
    each: int = 2,
    only: Sequence[str] = (),
    large: bool = False,
    consistent: bool = True,
) -> Iterator[Instance]:
    """Yield the instances of a run. each: instances per family and size; only: these families;
    large: those of `LARGE`, too. A recipe has no instance of sizes that are smaller than its
    smallest.
    """
    for family, make in families().items():
        if only and family not in only:
            continue
        for size in sizes:
            if size < _SMALLEST.get(family, 0):
                continue
            for number in range(each):
                yield draw(family, make, size, number, seed, consistent=consistent)
        if large:
            for size in (size for size, names in LARGE.items() if family in names):
                yield draw(family, make, size, 0, seed, consistent=consistent)


_SMALLEST = {f"wfcommons:{name.lower()}": size for name, size in RECIPES.items()}

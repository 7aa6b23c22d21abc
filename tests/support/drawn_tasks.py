"""Instances of scheduling for tests: drawn from a seed or by hypothesis."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import strategies as st

from vksched.schedule import Link, Platform, Task, TaskGraph

INFINITY = float("inf")
Instance = tuple[TaskGraph, Platform]


def drawn(seed: int, tasks: int, devices: int, *, missing: float = 0.0) -> Instance:
    """Return an instance; missing: the share of costs that are left out."""
    rng = random.Random(seed)
    names = [f"p{i}" for i in range(devices)]
    work = []
    for i in range(tasks):
        cost = {d: rng.uniform(0.5, 5.0) for d in names if rng.random() >= missing}
        work.append(Task(f"t{i}", cost or {rng.choice(names): 1.0}))
    edges = [
        (f"t{a}", f"t{b}", rng.uniform(0, 4e6))
        for b in range(1, tasks)
        for a in sorted({rng.randrange(max(0, b - 6), b) for _ in range(rng.randint(0, 2))})
    ]
    links = {
        (a, b): Link(bandwidth=rng.uniform(1e6, 4e6), latency_s=rng.choice([0.0, 0.1]))
        for a in names
        for b in names
        if a < b
    }
    return TaskGraph(work, edges), Platform(names, links)


@st.composite
def instances(draw: Callable[..., object], most: int = 12) -> Instance:
    """Draw an instance with the extremes that are legal: zero costs, infinite bandwidth, one
    device, missing costs, no task, limited memory.
    """
    pick: Callable[..., object] = draw
    count = pick(st.integers(0, most))
    devices = [f"p{i}" for i in range(pick(st.integers(1, 4)))]  # type: ignore[arg-type]
    seconds = st.one_of(st.just(0.0), st.floats(1e-6, 10.0))
    candidate_devices = st.dictionaries(st.sampled_from(devices), seconds, min_size=1)
    stored = st.sampled_from([0, 0, 1, 3])
    tasks = [Task(f"t{i}", pick(candidate_devices), pick(stored)) for i in range(count)]  # type: ignore[arg-type,call-overload]
    edges = []
    for b in range(1, len(tasks)):
        for a in pick(st.sets(st.integers(0, b - 1), max_size=3)):  # type: ignore[attr-defined]
            edges.append((f"t{a}", f"t{b}", pick(st.sampled_from([0, 1, 1000, 5_000_000]))))
    link = st.builds(
        Link,
        bytes_per_s=st.sampled_from([1e3, 1e6, INFINITY]),
        latency_s=st.sampled_from([0.0, 1e-3, 2.0]),
    )
    ends = st.tuples(st.sampled_from(devices), st.sampled_from(devices))
    links = pick(st.dictionaries(ends.filter(lambda e: e[0] != e[1]), link, max_size=4))
    room = sum(task.memory_bytes for task in tasks)  # all fits anywhere, or nothing is limited
    memory = dict.fromkeys(devices, room) if pick(st.booleans()) else {}
    where = Platform(devices, links, memory_bytes=memory, default_link=pick(link))  # type: ignore[arg-type]
    return TaskGraph(tasks, edges), where  # type: ignore[arg-type]


def optimum(tasks: TaskGraph, where: Platform) -> float:
    """Return the least makespan, by trying all orders of starts and all devices.

    It reads the values that a user gives, and shares no code with the policies.
    """
    costs = [task.cost_s for task in tasks]
    before: list[list[tuple[int, float]]] = [[] for _ in costs]
    for a, b, size in tasks.edges:
        before[tasks.index[b]].append((tasks.index[a], size))
    tail = [0.0] * len(costs)
    for t in reversed(range(len(costs))):
        tail[t] += min(costs[t].values())
        for p, _ in before[t]:
            tail[p] = max(tail[p], tail[t])
    best = sum(map(max, (c.values() for c in costs))) + 1e9

    def go(place: dict[int, tuple[str, float]], free: dict[str, float], last: float) -> None:
        nonlocal best
        if len(place) == len(costs):
            best = min(best, max((end for _, end in place.values()), default=0.0))
            return
        options = []
        for t in range(len(costs)):
            if t in place or any(p not in place for p, _ in before[t]):
                continue
            for d, cost in costs[t].items():
                start = free[d]
                for p, size in before[t]:
                    s, end = place[p]
                    link = where.link(s, d) if s != d else None
                    wait = link.latency_s + size / link.bytes_per_s if link else 0.0
                    start = max(start, end + wait)
                if start >= last:
                    options.append((start + cost, start, t, d))
        for end, start, t, d in sorted(options):
            if max(end, *(start + tail[o] for o in range(len(costs)) if o == t)) >= best:
                continue
            heirs = [o for o in range(len(costs)) if any(p == t for p, _ in before[o])]
            if max((end + tail[o] for o in heirs), default=end) >= best:
                continue
            go({**place, t: (d, end)}, {**free, d: end}, start)

    go({}, dict.fromkeys(where.devices, 0.0), 0.0)
    return best

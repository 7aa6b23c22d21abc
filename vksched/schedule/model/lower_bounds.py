"""Lower bounds on the time, memory and energy of all schedules.

    path    the longest path, each task with its least seconds, with unavoidable transfers
    area    the work spread over all capable devices, as a linear program over fractions of tasks
    pinned  the work that only one device can do
    links   with exclusive links: transfers between tasks that have one device each
    memory  bytes: the largest task, all tasks spread evenly, and the tasks of a single device
    energy  joules: the least for each task, and idle watts for the duration of the other bounds

The area is the smallest T for which fractions x[t][d] of all tasks exist with sum over t of
seconds[t][d] * x[t][d] <= T for each device d. scipy solves it (HiGHS) if it is installed and the
program is small: tasks with proportional seconds count as one kind. Otherwise weights w of devices,
which sum to 1, give a bound by duality, T >= sum over t of the least w[d] * seconds[t][d], and some
iterations improve the weights. A bound from weights may be lower than the program's, typically by a
fraction of a percent.

Sources: Lenstra, Shmoys, Tardos, "Approximation algorithms for scheduling unrelated parallel
machines", Mathematical Programming 46, 1990; Arora, Hazan, Kale, "The multiplicative weights update
method", Theory of Computing 8, 2012.
Complexity: path edges * devices; area kinds * devices * STEPS, or that of a linear program with at
most CELLS variables. Examples: tests/schedule/test_bounds.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .problem import INFINITY, Problem

CELLS = 4_000
"""Maximum number of variables of a linear program that is solved."""
STEPS = 200
"""Maximum number of iterations that improve the weights."""
WORK = 20_000_000
"""Maximum number of cells visited by all these iterations."""
FULL = 2_000_000
"""Edges * devices * devices up to which the path bound considers each pair of devices."""
ROUNDING = 1e-9
"""The relative amount by which rounding of the linear program could exceed the true value."""
LINEAR, WEIGHTS = "linear program", "weights of devices"
HINT = "; try pip install 'vksched[bounds]' for a linear program, whose bound may be higher"
Table = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds in seconds; the ones that the objective does not need are 0.

    by: the origin of the area, `LINEAR` or `WEIGHTS`, with `HINT` if only the lack of scipy
    prevented a linear program for the largest bound. peak_bytes: bound on the memory of a device.
    energy_j: bound on the energy of one run.
    """

    path_s: float = 0.0
    area_s: float = 0.0
    pinned_s: float = 0.0
    links_s: float = 0.0
    by: str = ""
    peak_bytes: float = 0.0
    energy_j: float = 0.0

    @property
    def value_s(self) -> float:
        """The largest of all."""
        return max(self.path_s, self.area_s, self.pinned_s, self.links_s)

    def as_dict(self) -> dict[str, Any]:
        """Return all bounds as plain data."""
        return asdict(self)


def find_bounds(problem: Problem, objective: str = "latency", linear: bool = True) -> Bounds:
    """Return the lower bounds of a problem.

    linear: False to compute without scipy.
    """
    if not problem.n:
        return Bounds()
    area, by = area_bound(problem, linear)
    found = Bounds(
        path_s=path_bound(problem) * (1 - ROUNDING) if objective != "throughput" else 0.0,
        area_s=area * (1 - ROUNDING),
        pinned_s=pinned_bound(problem) * (1 - ROUNDING),
        links_s=links_bound(problem) * (1 - ROUNDING),
        by=by.removesuffix(HINT),
        peak_bytes=peak_bound(problem),
    )
    found = replace(found, energy_j=energy_bound(problem, found.value_s) * (1 - ROUNDING))
    return replace(found, by=by) if found.area_s == found.value_s else found


def path_bound(problem: Problem) -> float:
    """Return the longest path, over the best device of each task.

    ends[t][d] is the least end of t if it runs on d and devices could run any number of tasks at
    once. Large problems count each transfer with the fastest link.
    """
    m = problem.m
    ends: list[Table | None] = [None] * problem.n
    full = not problem.uniform and problem.edges * m * m <= FULL
    latency, each = problem.least_link
    left = [len(arcs) for arcs in problem.after]
    longest = 0.0
    for t in problem.order:
        row = np.zeros(m)
        for p, size in problem.before[t]:
            known = ends[p]
            assert known is not None
            if full:
                through = known[:, None] + problem.latencies + size * problem.inverses
                np.maximum(row, through.min(axis=0), out=row)
            else:
                cross = float(known.min()) + latency + size * each
                np.maximum(row, np.minimum(known, cross), out=row)
            left[p] -= 1
            if not left[p]:
                ends[p] = None  # free memory of long graphs
        row += problem.rows[problem.kind[t]]
        if len(problem.candidate_devices[t]) < m:
            shut = np.full(m, INFINITY)
            shut[list(problem.candidate_devices[t])] = 0.0
            row += shut
        longest = max(longest, float(row.min()))
        ends[t] = row
    return longest


def pinned_bound(problem: Problem) -> float:
    """Return the largest load of a device by tasks that no other device can run."""
    load = [0.0] * problem.m
    for t, devices in enumerate(problem.candidate_devices):
        if len(devices) == 1:
            load[devices[0]] += problem.cost[t][devices[0]]
    return max(load)


def links_bound(problem: Problem) -> float:
    """Return the largest load of an exclusive link by unavoidable transfers."""
    if not problem.exclusive:
        return 0.0
    load: dict[int, float] = {}
    for t, devices in enumerate(problem.candidate_devices):
        if len(devices) == 1:
            for p, size in problem.before[t]:
                source = problem.candidate_devices[p]
                if len(source) == 1 and source != devices:
                    channel = problem.channel[source[0]][devices[0]]
                    took = problem.transfer_s(size, source[0], devices[0])
                    load[channel] = load.get(channel, 0.0) + took
    return max(load.values(), default=0.0)


def peak_bound(problem: Problem) -> float:
    """Return the bytes that some device holds in every schedule."""
    held = [0.0] * problem.m
    for t, devices in enumerate(problem.candidate_devices):
        if len(devices) == 1:
            held[devices[0]] += problem.size[t]
    return max(*held, max(problem.size), sum(problem.size) / problem.m)


def energy_bound(problem: Problem, least_s: float) -> float:
    """Return the joules of every schedule. least_s: a lower bound on its time.

    A device uses its idle watts all the time, and more while it works.
    """
    watts = problem.where.watts
    more = [watts[name].more if name in watts else 0.0 for name in problem.where.devices]
    work = sum(
        min(more[d] * problem.cost[t][d] for d in devices)
        for t, devices in enumerate(problem.candidate_devices)
    )
    return work + least_s * sum(each.idle for each in watts.values())


def area_bound(problem: Problem, linear: bool = True) -> tuple[float, str]:
    """Return the least largest load over fractions of tasks, and the origin of the bound."""
    rows, many = _kinds(problem)
    scale = float(np.where(np.isfinite(rows), rows, 0.0).max(initial=0.0))
    if scale <= 0.0:
        return 0.0, WEIGHTS
    by, weighted = WEIGHTS, _weighted(rows / scale, many)
    if linear and rows.size <= CELLS and weighted > 0.0:
        try:
            found = _linear(rows / scale, many, weighted)
        except ImportError:
            found, by = None, WEIGHTS + HINT
        if found is not None:
            return max(found, weighted) * scale, LINEAR
    return weighted * scale, by


def _kinds(problem: Problem) -> tuple[Table, Table]:
    """Return seconds by kind, and the number of tasks of each kind.

    Tasks with proportional rows are one kind: twice the seconds on all devices count twice.
    """
    candidate_devices: dict[tuple[int, tuple[int, ...]], int] = {}
    for kind, devices in zip(problem.kind, problem.candidate_devices, strict=True):
        candidate_devices[kind, devices] = candidate_devices.get((kind, devices), 0) + 1
    rows = problem.rows[[kind for kind, _ in candidate_devices]]
    for at, (kind, devices) in enumerate(candidate_devices):
        if len(devices) < np.isfinite(problem.rows[kind]).sum():
            row = np.full(problem.m, INFINITY)
            row[list(devices)] = rows[at, list(devices)]
            rows[at] = row
    many = np.array(list(candidate_devices.values()), dtype=np.float64)
    unit = rows.min(axis=1)
    many = many[unit > 0] * unit[unit > 0]  # a task with 0 seconds on some device adds no work
    rows = rows[unit > 0] / unit[unit > 0][:, None]
    groups: dict[bytes, int] = {}
    where = [groups.setdefault(np.round(row, 12).tobytes(), len(groups)) for row in rows]
    first = np.zeros(len(groups), dtype=np.intp)
    first[where[::-1]] = np.arange(len(where))[::-1]
    return rows[first], np.bincount(where, many, len(groups)).astype(np.float64)


def _linear(rows: Table, many: Table, about: float) -> float | None:
    """Return the value of the linear program, or None if scipy does not solve it.

    about: an approximate value, because the solver's tolerance is absolute.

    Raises
    ------
    ImportError
        Scipy is not installed.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    kinds, m = rows.shape
    can = np.isfinite(rows)
    row, column = np.nonzero(can)
    count = len(row)
    unit = max(float(many.max()), 1e-300)
    goal = np.zeros(count + 1)
    goal[-1] = 1.0
    places = np.arange(count)
    load = coo_array(
        (
            np.concatenate([rows[can] * (unit / about), -np.ones(m)]),
            (np.concatenate([column, np.arange(m)]), np.append(places, np.full(m, count))),
        ),
        shape=(m, count + 1),
    )
    whole = coo_array((np.ones(count), (row, places)), shape=(kinds, count + 1))
    found = linprog(goal, load, np.zeros(m), whole, many / unit, method="highs")
    return float(found.fun) * about if found.status == 0 else None


def _weighted(rows: Table, many: Table) -> float:
    """Return the best bound found by weights of devices."""
    kinds, m = rows.shape
    weight = np.full(m, 1.0 / m)
    best, steps = 0.0, int(min(STEPS, max(8, WORK // max(kinds * m, 1))))
    for step in range(steps):
        cells = np.where(np.isfinite(rows), rows * weight, INFINITY)
        chosen = cells.argmin(axis=1)
        at = np.arange(kinds)
        best = max(best, float(many @ cells[at, chosen]))
        load = np.bincount(chosen, many * rows[at, chosen], m)
        top = float(load.max())
        if top <= best:
            break
        # raise the weights of overloaded devices, lower the others
        weight *= np.exp((load / top - 1.0) * (2.0 / np.sqrt(step + 1.0)))
        weight /= weight.sum()
    return best

"""Objectives: the values by which schedules are compared; less is better.

    latency      seconds    the makespan: from the first start to the last end
    throughput   seconds    the period of a stream: the largest load of a device, because each run
                            can be on another device at a time; with exclusive links also the
                            largest load of a link
    memory       bytes      the largest memory of the tasks of one device
    energy       joules     of one run: each device's busy watts while it works, its idle watts for
                            the rest of the makespan

A mix, as {"latency": 1, "energy": 0.5}, gives each of these a weight. Seconds and joules cannot be
added, so each counts relative to the least of all candidates: the value of a mix is the weighted
mean of these ratios. 1.00 is the best in every objective; 1.20 is 20 % above that.

A new objective is a function in `OBJECTIVES` and a field of `Metrics`; auto.py then compares
policies by it, and plans of graphs use it under the same name.

Complexity: tasks + edges. Examples: tests/schedule/test_schedule_objectives.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...common.errors import PlanError
from .problem import Problem
from .simulate_tasks import TaskPlacement, Times

Measure = Callable[[Problem, TaskPlacement, Times], float]
MAX_WEIGHT = 1e100
"""Maximum weight of an objective in a mix: sums of larger weights would overflow."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The values of all objectives. None: unknown, or not requested."""

    latency_s: float
    period_s: float
    peak_bytes: float | None = None
    energy_j: float | None = None

    @property
    def values(self) -> dict[str, float]:
        """The known values, by the names of objectives."""
        known = zip(WORDS, (getattr(self, field) for field in WORDS.values()), strict=True)
        return {word: float(value) for word, value in known if value is not None}

    def as_dict(self) -> dict[str, Any]:
        """Return all values as plain data."""
        return asdict(self)


WORDS = {
    "latency": "latency_s",
    "throughput": "period_s",
    "memory": "peak_bytes",
    "energy": "energy_j",
}
"""The objectives, and the field of `Metrics` of each."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A function to minimize. weights: for each objective, a weight above 0; a single one stands
    for itself.
    """

    weights: tuple[tuple[str, float], ...]

    @staticmethod
    def of(value: str | Mapping[str, float] | Objective, where: str = "schedule") -> Objective:
        """Return an objective from a name, from weights by name, or from weights as text:
        "latency=1,energy=0.5".

        Raises
        ------
        PlanError
            A name is unknown or occurs twice, or a weight is no number from 0 to MAX_WEIGHT.
        """
        if isinstance(value, Objective):
            return value
        if isinstance(value, str):
            pairs = [part.partition("=") for part in value.split(",")]
            words = [word.strip() for word, _, _ in pairs]
            twice = [word for word in words if words.count(word) > 1]
            if twice:
                raise PlanError(f"[{where}] expected each objective once, got {twice[0]!r} twice")
            value = {word.strip(): _number(text) if sign else 1.0 for word, sign, text in pairs}
        if not isinstance(value, Mapping):
            raise PlanError(
                f"[{where}] expected an objective of {', '.join(WORDS)}, or a mapping of them to "
                f"weights, got {value!r}"
            )
        unknown = [word for word in value if word not in WORDS]
        if unknown:
            raise PlanError(
                f"[{where}] expected a known objective, got {unknown[0]!r}; try one of "
                f"{', '.join(WORDS)}"
            )
        bad = [
            w for w in value.values() if not (isinstance(w, (int, float)) and 0 <= w <= MAX_WEIGHT)
        ]
        if bad:
            raise PlanError(
                f"[{where}] expected weights from 0 to {MAX_WEIGHT:g}, got {dict(value)!r}"
            )
        weights = tuple((word, float(value[word])) for word in WORDS if value.get(word))
        if not weights:
            raise PlanError(f"[{where}] expected a weight above 0, got {dict(value)!r}")
        return Objective(weights if len(weights) > 1 else ((weights[0][0], 1.0),))

    @property
    def name(self) -> str:
        """The name, or all weights as text, which `of` converts to an equal objective."""
        if self.word:
            return self.word
        return ",".join(f"{word}={_text(weight)}" for word, weight in self.weights)

    @property
    def word(self) -> str:
        """The only name, "" for a mix."""
        return self.weights[0][0] if len(self.weights) == 1 else ""

    def asks(self, word: str) -> bool:
        """Return True if an objective has a weight."""
        return any(word == each for each, _ in self.weights)

    def value(self, found: Mapping[str, float], least: Mapping[str, float]) -> float:
        """Return the value to minimize: the seconds, bytes or joules of a single objective; for a
        mix the mean of its ratios to the least of all candidates, as `least_of` returns them.
        """
        if self.word:
            return found[self.word]
        total = sum(weight for _, weight in self.weights)
        return sum(w * found[word] / least.get(word, 1.0) for word, w in self.weights) / total


LATENCY = Objective((("latency", 1.0),))


def least_of(candidates: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the least value above 0 of each objective, without objectives that are 0 for all
    candidates.
    """
    least: dict[str, float] = {}
    for values in candidates:
        for word, value in values.items():
            if 0 < value < least.get(word, math.inf):
                least[word] = value
    return least


def _text(weight: float) -> str:
    """Return the shortest text that represents exactly this weight."""
    short = f"{weight:g}"
    return short if float(short) == weight else repr(weight)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


# -- of schedules ----------------------------------------------------------------------------------


def latency(problem: Problem, placed: TaskPlacement, times: Times) -> float:
    """Return the makespan."""
    return times.makespan


def throughput(problem: Problem, placed: TaskPlacement, times: Times) -> float:
    """Return the period of a stream."""
    load = loads(problem, placed)
    links: dict[int, float] = {}
    if problem.exclusive:
        for t, d in enumerate(placed.device):
            for p, size in problem.before[t]:
                s = placed.device[p]
                if s != d:
                    channel = problem.channel[s][d]
                    took = problem.transfer_s(size, s, d)
                    links[channel] = links.get(channel, 0.0) + took
    return max(*load, *links.values(), 0.0)


def memory(problem: Problem, placed: TaskPlacement, times: Times) -> float:
    """Return the largest memory of the tasks of one device, in bytes."""
    held = [0.0] * problem.m
    for t, d in enumerate(placed.device):
        held[d] += problem.size[t]
    return max(held)


def energy(problem: Problem, placed: TaskPlacement, times: Times) -> float:
    """Return the joules of one run, by the known watts."""
    out = 0.0
    watts = problem.where.watts
    for name, load in zip(problem.where.devices, loads(problem, placed), strict=True):
        if name in watts:
            out += watts[name].idle * times.makespan + watts[name].more * load
    return out


def loads(problem: Problem, placed: TaskPlacement) -> list[float]:
    """Return the busy seconds of each device."""
    load = [0.0] * problem.m
    for t, d in enumerate(placed.device):
        load[d] += problem.cost[t][d]
    return load


OBJECTIVES: dict[str, Measure] = {
    "latency": latency,
    "throughput": throughput,
    "memory": memory,
    "energy": energy,
}


def values_of(
    problem: Problem, placed: TaskPlacement, times: Times, words: Iterable[str]
) -> dict[str, float]:
    """Return the values of some objectives."""
    return {word: OBJECTIVES[word](problem, placed, times) for word in words}


def metrics_of(problem: Problem, placed: TaskPlacement, times: Times) -> Metrics:
    """Return all values of a schedule; without energy if the watts of a device are unknown."""
    known = all(name in problem.where.watts for name in problem.where.devices)
    return Metrics(
        latency_s=times.makespan,
        period_s=throughput(problem, placed, times),
        peak_bytes=memory(problem, placed, times),
        energy_j=energy(problem, placed, times) if known else None,
    )

"""Schedule result: a schedule with its times, its lower bound and its transfers.

Complexity: tasks + edges. Examples: tests/schedule/test_schedule_values.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .model.lower_bounds import Bounds, find_bounds
from .model.objectives import Metrics, Objective
from .model.problem import Problem
from .model.task_graph import Platform, TaskGraph


@dataclass(frozen=True, slots=True)
class Transfer:
    """Data that goes from one device to another for one edge."""

    producer: str
    consumer: str
    source: str
    target: str
    size_bytes: float
    start_s: float
    finish_s: float


@dataclass(frozen=True)
class ScheduleValue:
    """The device and the times of each task; `Schedule` adds checks and a picture.

    Attributes
    ----------
    policy
        The policy; for `auto` the one that it started from, as "heft" or "heft, improved".
    objective
        A name, or weights as "latency=1,energy=0.5".
    makespan_s
        The last end.
    period_s
        The least seconds between two runs of a stream: the largest load of a device.
    metrics
        The values of all objectives.
    least
        The reference of a mix: the least value of each objective over all candidates.
    """

    tasks: TaskGraph = field(repr=False)
    where: Platform = field(repr=False)
    links: str
    policy: str
    objective: str
    device: Mapping[str, str] = field(repr=False)
    start_s: Mapping[str, float] = field(repr=False)
    finish_s: Mapping[str, float] = field(repr=False)
    transfers: tuple[Transfer, ...] = field(repr=False)
    makespan_s: float
    period_s: float
    metrics: Metrics = field(repr=False)
    least: Mapping[str, float] = field(repr=False)
    _problem: Problem = field(repr=False, compare=False)

    @cached_property
    def bounds(self) -> Bounds:
        """The lower bounds, computed on first access."""
        return find_bounds(self._problem, self.objective)

    @cached_property
    def goal(self) -> Objective:
        """The objective, as a value."""
        return Objective.of(self.objective)

    @property
    def value(self) -> float:
        """The value of the objective: seconds, bytes or joules; for a mix the mean of its ratios to
        the least of all candidates.
        """
        return self.goal.value(self.metrics.values, self.least)

    @property
    def lower_bound(self) -> float:
        """A lower bound on the value, in its unit; 0 for a mix, which has no known bound."""
        bounds = {
            "latency": self.bounds.value_s,
            "throughput": self.bounds.value_s,
            "memory": self.bounds.peak_bytes,
            "energy": self.bounds.energy_j,
        }
        return bounds.get(self.goal.word, 0.0)

    @property
    def value_s(self) -> float:
        """The seconds of the objective: the period for throughput, otherwise the makespan."""
        return self.period_s if self.goal.word == "throughput" else self.makespan_s

    @property
    def lower_bound_s(self) -> float:
        """A lower bound on `value_s`."""
        return self.bounds.value_s

    @property
    def ratio(self) -> float:
        """The ratio of the value to its lower bound: 1.0 is optimal. It is 1.0 without a bound as
        well.
        """
        return self.value / self.lower_bound if self.lower_bound > 0 else 1.0

    @property
    def busy_s(self) -> dict[str, float]:
        """Busy seconds by device."""
        out = dict.fromkeys(self.where.devices, 0.0)
        for task in self.tasks:
            name = self.device[task.name]
            out[name] += task.cost_s[name]
        return out

    def as_dict(self) -> dict[str, Any]:
        """Return the schedule as plain data for `json.dumps`."""
        return {
            "policy": self.policy,
            "objective": self.objective,
            "links": self.links,
            "makespan_s": self.makespan_s,
            "period_s": self.period_s,
            "lower_bound_s": self.lower_bound_s,
            "metrics": self.metrics.as_dict(),
            "bounds_s": self.bounds.as_dict(),
            "busy_s": self.busy_s,
            "tasks": [
                {
                    "name": task.name,
                    "device": self.device[task.name],
                    "start_s": self.start_s[task.name],
                    "finish_s": self.finish_s[task.name],
                }
                for task in self.tasks
            ],
            "transfers": [
                {
                    "producer": t.producer,
                    "consumer": t.consumer,
                    "source": t.source,
                    "target": t.target,
                    "size_bytes": t.size_bytes,
                    "start_s": t.start_s,
                    "finish_s": t.finish_s,
                }
                for t in self.transfers
            ],
        }

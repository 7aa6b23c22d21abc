"""Decision: the candidates of a plan by cost, and the objective that chose one.

    single:gpu:0   12 ms      won, or lost by the margin
    single:gpu:1    9 ms      the best single device
    heft            6 ms  <-- won: 1.5 times as good, more than the margin of 5 %

A decision is frozen, part of the plan, and small: one line for each candidate. Examples:
tests/planner/test_plan_objectives.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...common.formatting import format_bytes, format_joules, format_seconds
from ...schedule import Metrics, Objective

SINGLE = "single:"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate plan of a graph.

    name: "single:" and a device that runs all supported nodes, or the policy that found the
    placement. devices: the devices with work. copies: the number of concurrent runs. metrics: by
    simulation.
    """

    name: str
    devices: tuple[str, ...]
    copies: int
    metrics: Metrics

    @property
    def single(self) -> str:
        """The device that runs all nodes it supports, or "" if several devices share the work."""
        return self.name[len(SINGLE) :] if self.name.startswith(SINGLE) else ""

    @property
    def label(self) -> str:
        """The name for people, without a device that has no work."""
        return "as placed" if self.single and self.single not in self.devices else self.name

    def as_dict(self) -> dict[str, Any]:
        """Return the candidate as plain data."""
        return {
            "name": self.name,
            "devices": list(self.devices),
            "copies": self.copies,
            **self.metrics.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice among candidates.

    chosen: the candidate that became the plan. best_single_device: the best candidate with one
    device. value, best_single_device_value: the objective's values of both; for a mix relative to
    the best candidates. margin: the share by which a less simple candidate has to be better.
    measured: True if costs of devices were measured, or declared for another machine; estimates
    need the wider margin. watts_assumed: True if the watts of a device were assumed. devices: the
    competing devices. costs: the origin of the seconds, as text.
    """

    objective: Objective
    chosen: Candidate
    best_single_device: Candidate
    value: float
    best_single_device_value: float
    candidates: tuple[Candidate, ...]
    required_gain: float
    measured: bool
    watts_assumed: bool
    devices: tuple[str, ...]
    costs: str = ""

    @property
    def gain(self) -> float:
        """The ratio of the best single device's value to the chosen one. It is below 1 if a device
        of higher priority was retained because others are better by less than the margin.
        """
        return self.best_single_device_value / self.value if self.value > 0 else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return the decision as plain data."""
        return {
            "objective": self.objective.name,
            "chosen": self.chosen.as_dict(),
            "best_single_device": self.best_single_device.as_dict(),
            "value": self.value,
            "best_single_device_value": self.best_single_device_value,
            "gain": self.gain,
            "required_gain": self.required_gain,
            "measured": self.measured,
            "watts_assumed": self.watts_assumed,
            "devices": list(self.devices),
            "candidates": [candidate.as_dict() for candidate in self.candidates],
        }


@dataclass(frozen=True, slots=True)
class Tradeoffs:
    """The candidates of all objectives.

    candidates: the Pareto front first, which are `front` many. picks: for each objective, the
    number of the candidate that a plan would use, margins included. decisions: for each objective,
    the decision with these margins.
    """

    candidates: tuple[Candidate, ...]
    front: int
    picks: Mapping[str, int]
    decisions: Mapping[str, Decision]

    @staticmethod
    def of(candidates: Sequence[Candidate], decisions: Mapping[str, Decision]) -> Tradeoffs:
        """Return candidates in the order of a table. Dominated candidates are sorted by time as
        well.
        """
        beaten = {id(c): any(dominates(o, c) for o in candidates) for c in candidates}
        ordered = sorted(candidates, key=lambda c: (beaten[id(c)], c.metrics.latency_s, c.copies))
        picks = {
            word: next(at for at, c in enumerate(ordered) if c is decision.chosen)
            for word, decision in decisions.items()
        }
        front = len(ordered) - sum(beaten.values())
        return Tradeoffs(tuple(ordered), front, picks, dict(decisions))

    def as_dict(self) -> dict[str, Any]:
        """Return the candidates and decisions as plain data."""
        picked: dict[int, list[str]] = {}
        for word, number in self.picks.items():
            picked.setdefault(number, []).append(word)
        any_decision = next(iter(self.decisions.values()))
        return {
            "devices": list(any_decision.devices),
            "measured": any_decision.measured,
            "watts_assumed": any_decision.watts_assumed,
            "candidates": [
                {**c.as_dict(), "dominated": at >= self.front, "picked_by": picked.get(at, [])}
                for at, c in enumerate(self.candidates)
            ],
        }


def dominates(one: Candidate, other: Candidate) -> bool:
    """Return True if a candidate dominates another: no metric is worse and one is better."""
    pairs = [(one.metrics.values[w], other.metrics.values[w]) for w in one.metrics.values]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def value_text(objective: Objective, value: float) -> str:
    """Return the value of an objective with its unit."""
    if objective.word in ("latency", "throughput"):
        return format_seconds(value)
    if objective.word == "memory":
        return format_bytes(round(value))
    if objective.word == "energy":
        return format_joules(value)
    text = f"{value:.3g}"
    return "the best of each metric" if text == "1" else f"{text} times the best of each metric"


def times_text(factor: float) -> str:
    """Return a ratio as text."""
    text = f"{factor:.3g}"
    return "as much" if text == "1" else f"{text} times as much"

"""Decision: what a plan by cost was chosen from, and by what.

    single:gpu:0   12 ms      won, or lost by the margin
    single:gpu:1    9 ms      the best single device
    heft            6 ms  <-- won: 1.5 times as good, more than the margin of 5 %

Frozen, part of the plan, and small: one line for each candidate. Examples:
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
    """One way to carry out a graph. name: "single:" and a device that takes all that it can, or the
    policy that found it. devices: those that have work. copies: runs under way at once. metrics: by
    simulation.
    """

    name: str
    devices: tuple[str, ...]
    copies: int
    metrics: Metrics

    @property
    def single(self) -> str:
        """The device that has all that it can, "" where several share the work."""
        return self.name[len(SINGLE) :] if self.name.startswith(SINGLE) else ""

    @property
    def label(self) -> str:
        """The name for people; that of a device which has no work would only confuse."""
        return "as placed" if self.single and self.single not in self.devices else self.name

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "name": self.name,
            "devices": list(self.devices),
            "copies": self.copies,
            **self.metrics.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """chosen: the candidate that became the plan. best_single_device: the best of those with one
    device. value, best_single_device_value: what the objective asks for of both; of a mix relative
    to the best candidates. margin: the share by which a less simple candidate has to be better.
    measured: whether costs of devices were measured, or written down for a machine that is not
    here; estimates need the wider margin. watts_assumed: whether watts of a device were. devices:
    those that competed. costs: how the seconds are known, as text.
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
        """How many times as good as the best single device what won is; below 1 where a device
        that stands first was kept, as others are better by less than the margin.
        """
        return self.best_single_device_value / self.value if self.value > 0 else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
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

    candidates: those first that no other one beats in one metric without losing in another, which
    are `front` many. picks: for each objective by its word the number of the candidate that a plan
    would be made of, margins counted. decisions: by word, with these margins.
    """

    candidates: tuple[Candidate, ...]
    front: int
    picks: Mapping[str, int]
    decisions: Mapping[str, Decision]

    @staticmethod
    def of(candidates: Sequence[Candidate], decisions: Mapping[str, Decision]) -> Tradeoffs:
        """Return candidates in the order of a table; of the dominated ones, too, the faster ones
        come first.
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
        """Return it as plain data."""
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
    """Whether a candidate is nowhere worse than another one, and somewhere better."""
    pairs = [(one.metrics.values[w], other.metrics.values[w]) for w in one.metrics.values]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def value_text(objective: Objective, value: float) -> str:
    """Returns what an objective asks for with its unit."""
    if objective.word in ("latency", "throughput"):
        return format_seconds(value)
    if objective.word == "memory":
        return format_bytes(round(value))
    if objective.word == "energy":
        return format_joules(value)
    text = f"{value:.3g}"
    return "the best of each metric" if text == "1" else f"{text} times the best of each metric"


def times_text(factor: float) -> str:
    """Return how many times as much something is."""
    text = f"{factor:.3g}"
    return "as much" if text == "1" else f"{text} times as much"

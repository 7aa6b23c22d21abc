"""Objective formatter: the number that an objective makes small, of plans beside each other, and
its words.

Problem: "is that other plan better?" is asked of devices that come or go, in reports, and when a
device changes its pace. The answer depends on what plans are for. Method: one gauge for all who
ask. It takes the metrics of a plan, and tells the number and how much it differs.

    objective     number                      how a difference is told
    latency       seconds of one run          a run takes 48 % longer
    throughput    seconds between results     a run in a stream takes 48 % longer
    memory        bytes                       the fullest device holds 48 % more
    energy        joules of one run           a run takes 48 % more energy
    a mix         mean of ratios to a plan    the mix is 48 % larger

Complexity: O(1). Examples: tests/plan/test_objective_format.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...schedule import Metrics, Objective
from ...schedule.model.objectives import LATENCY, least_of
from .decision import value_text
from .plan_types import PlanValue


@dataclass(frozen=True, slots=True)
class Phrases:
    """How a number is told, as in "[what] [does] as [large]", "[what] would [do] 5 % [less]" and
    "makes [made] 5 % [smaller]". head: of a column.
    """

    head: str
    what: str
    does: str
    do: str
    made: str
    large: str
    larger: str
    smaller: str
    less: str


_PHRASES = {
    "latency": Phrases(
        *("one run", "a run", "takes", "take", "a run"), *("long", "longer", "shorter", "less")
    ),
    "throughput": Phrases(
        *("in a stream", "a run in a stream", "takes", "take", "a run in a stream"),
        *("long", "longer", "shorter", "less"),
    ),
    "memory": Phrases(
        *("peak", "the fullest device", "holds", "hold", "the fullest device hold"),
        *("much", "more", "less", "less"),
    ),
    "energy": Phrases(
        *("energy", "a run", "takes", "take", "a run take"),
        *("much energy", "more energy", "less energy", "less energy"),
    ),
}
_MIX = Phrases(
    *("mix", "the mix", "is", "be", "the mix"), *("large", "larger", "smaller", "smaller")
)


@dataclass(frozen=True, slots=True)
class ObjectiveFormatter:
    """Compares plans by an objective. base: the values by word of the plan that the others of a mix
    are compared with: its own mix is 1.
    """

    objective: Objective
    base: Mapping[str, float]

    @staticmethod
    def of(objective: Objective, base: Metrics | None) -> ObjectiveFormatter:
        """Return the gauge of plans beside one. base: that one; None where it does not fit."""
        return ObjectiveFormatter(objective, least_of([base.values if base is not None else {}]))

    @property
    def phrases(self) -> Phrases:
        """How its numbers are told."""
        return _PHRASES.get(self.objective.word, _MIX)

    def value(self, metrics: Metrics) -> float:
        """Returns what the objective makes small: seconds, bytes, joules, or the mean of a mix."""
        return self.objective.value(metrics.values, self.base)

    def factor(self, metrics: Metrics) -> float | None:
        """Return how many times as large that is as of the base; None where there is none."""
        values = self.base
        if not all(word in values for word, _ in self.objective.weights):
            return None
        return self.value(metrics) / self.objective.value(values, values)

    def text(self, value: float) -> str:
        """Return a value with its unit."""
        return value_text(self.objective, value) if self.objective.word else f"{value:.3g}"

    def times(self, factor: float) -> str:
        """Return a factor in words: "5 % shorter", "5 % longer", "3 times as long"."""
        phrases = self.phrases
        if factor < 1:
            return f"{less(factor)} {phrases.smaller}"
        if factor < 2:
            return f"{percent(factor - 1)} {phrases.larger}"
        return f"{factor:.3g} times as {phrases.large}"


def objective_of(plan: PlanValue | None) -> Objective:
    """Returns what a plan was made for; of one that weighs nothing the time of a run counts."""
    return plan.decision.objective if plan is not None and plan.decision else LATENCY


def less(factor: float) -> str:
    """Return by how much something gets smaller, which is never all of it."""
    return "over 99 %" if 0 < factor < 0.005 else percent(1 - factor)


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"

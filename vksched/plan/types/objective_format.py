"""Objective formatter: the value that an objective minimizes, and texts that compare plans by it.

Problem: the question whether another plan is better arises when devices come or go, in reports, and
when a device changes its pace. The answer depends on the objective. Method: one formatter for all.
It takes the metrics of a plan, and returns the value and the difference as text.

    objective     value                       difference as text
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
class ObjectivePhrases:
    """The phrases for a value, as in "[what] [does] as [large]", "[what] would [do] 5 % [less]" and
    "makes [result] 5 % [smaller]". head: the heading of a column.
    """

    head: str
    what: str
    does: str
    do: str
    result: str
    large: str
    larger: str
    smaller: str
    less: str


_PHRASES = {
    "latency": ObjectivePhrases(
        *("one run", "a run", "takes", "take", "a run"), *("long", "longer", "shorter", "less")
    ),
    "throughput": ObjectivePhrases(
        *("in a stream", "a run in a stream", "takes", "take", "a run in a stream"),
        *("long", "longer", "shorter", "less"),
    ),
    "memory": ObjectivePhrases(
        *("peak", "the fullest device", "holds", "hold", "the fullest device hold"),
        *("much", "more", "less", "less"),
    ),
    "energy": ObjectivePhrases(
        *("energy", "a run", "takes", "take", "a run take"),
        *("much energy", "more energy", "less energy", "less energy"),
    ),
}
_MIX = ObjectivePhrases(
    *("mix", "the mix", "is", "be", "the mix"), *("large", "larger", "smaller", "smaller")
)


@dataclass(frozen=True, slots=True)
class ObjectiveFormatter:
    """Compares plans by an objective.

    base: the values, by objective, of the reference plan of a mix, whose own mix is 1.
    """

    objective: Objective
    base: Mapping[str, float]

    @staticmethod
    def of(objective: Objective, base: Metrics | None) -> ObjectiveFormatter:
        """Return the formatter of plans relative to a base plan, or None as base if it does not
        fit.
        """
        return ObjectiveFormatter(objective, least_of([base.values if base is not None else {}]))

    @property
    def phrases(self) -> ObjectivePhrases:
        """The phrases for its values."""
        return _PHRASES.get(self.objective.word, _MIX)

    def value(self, metrics: Metrics) -> float:
        """Return the value that the objective minimizes: seconds, bytes, joules, or the mean of a
        mix.
        """
        return self.objective.value(metrics.values, self.base)

    def factor(self, metrics: Metrics) -> float | None:
        """Return the ratio of the value to the base's; None without a base."""
        values = self.base
        if not all(word in values for word, _ in self.objective.weights):
            return None
        return self.value(metrics) / self.objective.value(values, values)

    def text(self, value: float) -> str:
        """Return a value with its unit."""
        return value_text(self.objective, value) if self.objective.word else f"{value:.3g}"

    def times(self, factor: float) -> str:
        """Return a ratio as text: "5 % shorter", "5 % longer", "3 times as long"."""
        phrases = self.phrases
        if factor < 1:
            return f"{less(factor)} {phrases.smaller}"
        if factor < 2:
            return f"{percent(factor - 1)} {phrases.larger}"
        return f"{factor:.3g} times as {phrases.large}"


def objective_of(plan: PlanValue | None) -> Objective:
    """Return the objective of a plan; latency for a plan without costs."""
    return plan.decision.objective if plan is not None and plan.decision else LATENCY


def less(factor: float) -> str:
    """Return the text for a reduction, which is always less than 100 %."""
    return "over 99 %" if 0 < factor < 0.005 else percent(1 - factor)


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"

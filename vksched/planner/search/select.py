"""Select: choose the candidate with the best objective, latency by default.

Problem: the order of the devices does not reflect their speeds, and a second device helps only if
it saves more than its transfers and waits. Method: compare candidates by simulated runs of their
splits: each device with all of the work, then schedules of node groups. Several devices have to win
by a margin. If costs are estimates the margin is wider, and another single device has to win by it
over the first one.

    candidates.py -> hints -> evaluate.py -> metrics of each --objective--> the best, by a margin

Every candidate has all metrics, and an objective only compares them. Only latency is evaluated
without memory at first: a hint for a full device falls back to the next device, as in place.py,
which respects pins and states. The winner is drafted in full. If its memory is short, it is
compared with its new time, and may lose. So the plan is never worse than one device alone.

A submission to a GPU takes tens of microseconds even if it does nothing. So the CPU wins for less
work than that, also by estimates; a note says so.

Complexity: O(edges * candidates). Examples: tests/planner/test_select.py,
tests/planner/test_plan_objectives.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...common.errors import OutOfMemory
from ...common.formatting import count_of, format_seconds
from ...plan.costs.node_cost import estimated_text, submission_seconds, written_down
from ...plan.costs.op_support import OpSupport
from ...plan.types.decision import Decision, Tradeoffs, value_text
from ...plan.types.placement_overrides import Overrides
from ...schedule import Objective
from ...schedule.model.objectives import LATENCY, WORDS, least_of
from ...topology.power import watts_of
from ...topology.topology import Topology
from .candidates import Candidates
from .evaluate import Evaluated, Evaluator, Fitted
from .improve import improve
from .replicas import Replicated, replicate

DIGITS = 9
"""Significant digits of a value in comparisons; of equal candidates the first one wins."""
MARGIN_MEASURED = 0.05
"""Required relative gain of a plan over a simpler one."""
MARGIN_ESTIMATED = 0.25
"""Required relative gain if costs of a device are rough estimates."""
SUBMISSION_SHARE = 0.5
"""A graph is too small for a device if submissions take this fraction of its time there."""


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """The chosen plan.

    `fitted` is its draft; None: devices in their order. `copies` is the number of runs in flight if
    the user has not requested one; None: the default. `decision` is None if there was no choice.
    `notes` are for the user. `replicas` are drafts of the whole graph on other devices that also
    take runs, with their numbers of copies.
    """

    fitted: Fitted | None = None
    copies: int | None = None
    decision: Decision | None = None
    notes: tuple[str, ...] = ()
    replicas: tuple[tuple[Fitted, int], ...] = ()


NO_CHOICE = ChosenPlan()
"""No choice: the user has placed every node."""


def choose(
    support: OpSupport,
    overrides: Overrides,
    with_cpu: bool,
    objective: Objective = LATENCY,
    copies: int | str = 1,
) -> ChosenPlan:
    """Return the best draft.

    with_cpu: the CPU competes; else it runs only nodes that no other device supports. copies: as in
    `plan_graph`.

    Raises
    ------
    OutOfMemory
        No candidate fits.
    """
    devices = _competing(support.topology, with_cpu)
    quick = objective == LATENCY
    if not support.computed:
        return NO_CHOICE
    evaluator = Evaluator(support, overrides, copies, not quick)
    if quick and len(devices) < 2:
        return ChosenPlan(evaluator.fit_in_order())
    strategies = Candidates(support, overrides, devices)
    if quick and strategies.bound:
        return NO_CHOICE
    found = _evaluate_all(strategies, evaluator, objective)
    if quick and strategies.few:
        found += improve(found, strategies, evaluator)
    while True:
        chosen, decision = judge(found, objective, support.topology, strategies.devices)
        if chosen.fitted is not None:
            break
        at = found.index(chosen)
        try:  # short of memory it may be slower, so that another one wins
            found[at] = evaluator.fit(chosen)
        except OutOfMemory:
            del found[at]
            if not any(each.strategy.device is not None for each in found):
                raise
    notes = _note(decision), *_too_small(decision, support)
    if isinstance(chosen, Replicated):
        others = [(each.fitted, each.candidate.copies) for each in chosen.replicas]
        own = chosen.candidate.copies - sum(count for _, count in others)
        replicas = tuple((fitted, count) for fitted, count in others if fitted is not None)
        return ChosenPlan(chosen.fitted, own, decision, notes, replicas)
    return ChosenPlan(chosen.fitted, None if quick else chosen.candidate.copies, decision, notes)


def _evaluate_all(
    strategies: Candidates, evaluator: Evaluator, objective: Objective
) -> list[Evaluated]:
    """Return all evaluated candidates, single devices first."""
    singles = evaluator.evaluate_singles(strategies)
    replicas = replicate(singles, evaluator) if objective.asks("throughput") else []
    return [*singles, *evaluator.evaluate(strategies.spread(objective)), *replicas]


def compare(
    support: OpSupport, overrides: Overrides, with_cpu: bool, copies: int | str = "auto"
) -> Tradeoffs:
    """Return the candidates of all objectives, the Pareto front first, and the choice of each."""
    devices = _competing(support.topology, with_cpu)
    strategies = Candidates(support, overrides, devices)
    evaluator = Evaluator(support, overrides, copies, True)
    every = Objective.of(dict.fromkeys(WORDS, 1.0))
    found = _evaluate_all(strategies, evaluator, every)
    once: dict[object, Evaluated] = {}
    for each in found:
        candidate = each.candidate
        once.setdefault((candidate.devices, candidate.copies, candidate.metrics), each)
    found = list(once.values())
    decisions = {
        word: judge(found, Objective.of(word), support.topology, strategies.devices)[1]
        for word in WORDS
    }
    return Tradeoffs.of([each.candidate for each in found], decisions)


def judge(
    found: Sequence[Evaluated], objective: Objective, topology: Topology, devices: Sequence[int]
) -> tuple[Evaluated, Decision]:
    """Return the candidate that wins by the margin, and the decision."""
    least = least_of(each.candidate.metrics.values for each in found)

    def value(each: Evaluated) -> float:
        return _rounded(objective.value(each.candidate.metrics.values, least))

    measured = known(topology, devices)
    assumed = any(watts_of(topology.devices[d]).assumed for d in range(len(topology.devices)))
    margin = margin_of(objective, measured, assumed)
    sure = margin == MARGIN_MEASURED
    singles = [each for each in found if each.strategy.device is not None]
    best = min(singles, key=value)
    first = [each for each in singles if each.strategy.device == singles[0].strategy.device]
    by_order = min(first, key=value)
    # close estimates are not significant: the first device stays
    chosen = best if sure or value(best) <= (1 - margin) * value(by_order) else by_order
    several = [each for each in found if each.strategy.device is None]
    spread = min(several, key=lambda each: value(each) * _handicap(each), default=None)
    if spread is not None and value(spread) <= (1 - margin) * value(chosen):
        chosen = spread
    by_name: dict[tuple[str, int], Evaluated] = {}  # the best one of each name
    for each in sorted(found, key=value):
        by_name.setdefault((each.candidate.name, each.candidate.copies), each)
    return chosen, Decision(
        objective=objective,
        chosen=chosen.candidate,
        best_single_device=best.candidate,
        value=value(chosen),
        best_single_device_value=value(best),
        candidates=tuple(each.candidate for each in found if each in by_name.values()),
        required_gain=margin,
        measured=measured,
        watts_assumed=assumed,
        devices=tuple(topology.devices[d].name for d in devices),
        costs=_costs(topology, devices),
    )


def _handicap(each: Evaluated) -> float:
    """Return the factor on the value of a candidate: replicas hold all weights on each device."""
    return 1 / (1 - MARGIN_MEASURED) if isinstance(each, Replicated) else 1.0


def is_better(other: Decision, decision: Decision, clearly: bool = False) -> bool:
    """Return True if the decision on another version of a graph should replace this one, by the
    same margins: several devices have to win by one over a single device, and estimates by a wide
    one in any case. clearly: require a margin in all cases.
    """
    objective, margin = decision.objective, decision.required_gain
    both = decision.chosen, other.chosen
    least = least_of(each.metrics.values for each in both)
    now, then = (_rounded(objective.value(each.metrics.values, least)) for each in both)
    if clearly or margin != MARGIN_MEASURED:
        return then <= (1 - margin) * now
    if bool(decision.chosen.single) == bool(other.chosen.single):
        return then < now
    return (1 - margin) * then < now if other.chosen.single else then <= (1 - margin) * now


def _rounded(value: float) -> float:
    """Return a value without its last digits, which differ between Python versions."""
    return float(f"{value:.{DIGITS}g}")


def _costs(topology: Topology, devices: Sequence[int]) -> str:
    """Return how the costs of devices are known, as text."""
    measured = [d for d in devices if topology.devices[d].costs]
    if not measured:
        return estimated_text(topology)
    part = f"measured of {count_of(len(measured), 'device')}, else {estimated_text(topology)}"
    return "measured of every device" if len(measured) == len(devices) else part


def margin_of(objective: Objective, measured: bool, assumed: bool) -> float:
    """Return the required relative gain; bytes are exact. measured: the costs of the devices are.
    assumed: the power of a device is assumed.
    """
    sure = objective.word == "memory" or (measured and not (objective.asks("energy") and assumed))
    return MARGIN_MEASURED if sure else MARGIN_ESTIMATED


def known(topology: Topology, devices: Sequence[int]) -> bool:
    """Return True if the costs were measured, or specified for a machine that is not present."""
    return written_down(topology) or all(topology.devices[d].costs for d in devices)


def _competing(topology: Topology, with_cpu: bool) -> tuple[int, ...]:
    others = (d for d in topology.order[:-1] if not topology.devices[d].disabled_reason)
    gpus = tuple(others)
    return (*gpus, topology.cpu) if with_cpu or not gpus else gpus


def _too_small(decision: Decision, support: OpSupport) -> list[str]:
    """Return why a graph is on the CPU if submissions to other devices would dominate its time."""
    topology, chosen = support.topology, decision.chosen
    others = [c for c in decision.candidates if c.single and c.single != chosen.single]
    on_cpu = len(chosen.devices) == 1 and topology.is_cpu(topology.index(chosen.devices[0]))
    if not on_cpu or chosen.single not in chosen.devices:
        return []
    for best in sorted(others, key=lambda each: each.metrics.latency_s)[:1]:
        spec, there_s = topology.devices[topology.index(best.single)], best.metrics.latency_s
        submit_s = submission_seconds(spec) + len(support.computed) * spec.costs.launch_s
        if submit_s >= SUBMISSION_SHARE * there_s:
            return [
                f"auto: too small for {spec.name}: of about {format_seconds(there_s)} there, "
                f"{format_seconds(submit_s)} are its submission; on {chosen.single} unless a "
                "placement names another device"
            ]
    return []


def _note(decision: Decision) -> str:
    """Return the note on the choice for the user."""
    chosen, objective = decision.chosen, decision.objective
    goal = "" if objective == LATENCY else f" for {objective.name}"
    takes = value_text(objective, decision.value)
    text = f"auto: {chosen.label}{goal} takes about {takes} by simulation"
    if decision.value < decision.best_single_device_value:
        how = "fast" if objective.word in ("latency", "throughput") else "good"
        return (
            f"{text}, {decision.gain:.3g} times as {how} as {decision.best_single_device.single} "
            "alone"
        )
    others = len(decision.devices) - 1
    if not others:
        return text
    worse = "faster" if objective.word in ("latency", "throughput") else "better"
    more = f"{count_of(others, 'other device')} would not make it {worse}"
    return f"{text}; {more} by {100 * decision.required_gain:.3g} %"

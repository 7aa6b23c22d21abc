"""By cost: where nodes shall run so that the objective is best, least time by default.

Problem: the order of the devices says nothing about their speeds, and a second device helps only
where what it saves is more than its copies and waits. Method: candidates are compared by what a
simulated run of their splits takes. Each device with all of the work first, then what `schedule`
finds for groups of nodes. Several devices have to win by a margin. Where costs are estimates it is
a wider one, and a single device has to win by it over the first one.

    candidates.py -> hints -> weigh.py -> metrics of each --objective--> the best, by a margin

Every candidate has all metrics, and an objective is no more than a way to compare them: latency has
no path of its own. But only latency does without memory at first: a wish that a device has no room
for goes to the next one, as in placement.py, which keeps pins and states as well. What wins is
drafted to the end. Where its memory is short, it counts with the time that it takes then, and may
lose. So the plan is never worse than one device alone.

A submission to a GPU takes tens of microseconds, whatever it does. So the CPU wins where the work
is less than that, also by estimates; a note says so.

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
"""Of a value that count where candidates are compared; of equal ones the first wins."""
MARGIN_MEASURED = 0.05
"""By this share a plan has to be better to win over a simpler one."""
MARGIN_ESTIMATED = 0.25
"""The same where a device's costs are estimates, which are right to a factor."""
SMALL = 0.5
"""A graph is too small for a device where so much of its time there is the submission."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What won. fitted: its draft; None: the order of the devices decides. copies: runs under way
    at once, where the caller leaves that open; None: as without a choice. decision: None where
    there was nothing to weigh. notes: for the user. replicas: drafts of the whole graph on other
    devices that take runs, too, with the copies of each.
    """

    fitted: Fitted | None = None
    copies: int | None = None
    decision: Decision | None = None
    notes: tuple[str, ...] = ()
    replicas: tuple[tuple[Fitted, int], ...] = ()


NO_CHOICE = Chosen()
"""Nothing to evaluate: a place given for every node."""


def choose(
    support: OpSupport,
    overrides: Overrides,
    with_cpu: bool,
    objective: Objective = LATENCY,
    copies: int | str = 1,
) -> Chosen:
    """Return the best draft. with_cpu: the CPU competes; else it only takes what no other device
    can. copies: as `plan_graph` takes them.

    Raises:
        OutOfMemory: no candidate fits.
    """
    devices = _competing(support.topology, with_cpu)
    quick = objective == LATENCY
    if not support.computed:
        return NO_CHOICE
    evaluator = Evaluator(support, overrides, copies, not quick)
    if quick and len(devices) < 2:
        return Chosen(evaluator.fit_in_order())
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
        try:  # where memory is short it may take longer, and another one wins
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
        return Chosen(chosen.fitted, own, decision, notes, replicas)
    return Chosen(chosen.fitted, None if quick else chosen.candidate.copies, decision, notes)


def _evaluate_all(
    strategies: Candidates, evaluator: Evaluator, objective: Objective
) -> list[Evaluated]:
    """Returns what all candidates take, single devices first."""
    singles = evaluator.evaluate_singles(strategies)
    replicas = replicate(singles, evaluator) if objective.asks("throughput") else []
    return [*singles, *evaluator.evaluate(strategies.spread(objective)), *replicas]


def compare(
    support: OpSupport, overrides: Overrides, with_cpu: bool, copies: int | str = "auto"
) -> Tradeoffs:
    """Return the candidates of all objectives, those first that no other one beats in everything,
    and which of them each objective would take.
    """
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
    """Return the candidate that wins, by the margin, and what was weighed."""
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
    # estimates that are near each other say nothing: then the first device stays
    chosen = best if sure or value(best) <= (1 - margin) * value(by_order) else by_order
    several = [each for each in found if each.strategy.device is None]
    spread = min(several, key=lambda each: value(each) * _handicap(each), default=None)
    if spread is not None and value(spread) <= (1 - margin) * value(chosen):
        chosen = spread
    told: dict[tuple[str, int], Evaluated] = {}  # of what has one name the better one
    for each in sorted(found, key=value):
        told.setdefault((each.candidate.name, each.candidate.copies), each)
    return chosen, Decision(
        objective=objective,
        chosen=chosen.candidate,
        best_single_device=best.candidate,
        value=value(chosen),
        best_single_device_value=value(best),
        candidates=tuple(each.candidate for each in found if each in told.values()),
        required_gain=margin,
        measured=measured,
        watts_assumed=assumed,
        devices=tuple(topology.devices[d].name for d in devices),
        costs=_costs(topology, devices),
    )


def _handicap(each: Evaluated) -> float:
    """Returns what a value counts times of a candidate over several devices: replicas have all
    weights on each of them.
    """
    return 1 / (1 - MARGIN_MEASURED) if isinstance(each, Replicated) else 1.0


def is_better(other: Decision, decision: Decision, clearly: bool = False) -> bool:
    """Whether what won on another version of a graph is to be taken instead, by the same margins:
    several devices have to win by one over a single one, and estimates by a wide one in any case.
    clearly: so has everything.
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
    """Return a value without its last digits, as sums of floats differ between Pythons."""
    return float(f"{value:.{DIGITS}g}")


def _costs(topology: Topology, devices: Sequence[int]) -> str:
    """Return how the seconds of devices are known."""
    measured = [d for d in devices if topology.devices[d].costs]
    if not measured:
        return estimated_text(topology)
    part = f"measured of {count_of(len(measured), 'device')}, else {estimated_text(topology)}"
    return "measured of every device" if len(measured) == len(devices) else part


def margin_of(objective: Objective, measured: bool, assumed: bool) -> float:
    """Return the share by which a plan has to be better; bytes are no estimates. measured: whether
    the costs of the devices were. assumed: whether watts of one of them are.
    """
    sure = objective.word == "memory" or (measured and not (objective.asks("energy") and assumed))
    return MARGIN_MEASURED if sure else MARGIN_ESTIMATED


def known(topology: Topology, devices: Sequence[int]) -> bool:
    """Whether the costs were measured, or written down for a machine that is not here."""
    return written_down(topology) or all(topology.devices[d].costs for d in devices)


def _competing(topology: Topology, with_cpu: bool) -> tuple[int, ...]:
    others = (d for d in topology.order[:-1] if not topology.devices[d].disabled_reason)
    gpus = tuple(others)
    return (*gpus, topology.cpu) if with_cpu or not gpus else gpus


def _too_small(decision: Decision, support: OpSupport) -> list[str]:
    """Return why a graph is on the CPU, where submissions to other devices take most of what it
    would take there.
    """
    topology, chosen = support.topology, decision.chosen
    others = [c for c in decision.candidates if c.single and c.single != chosen.single]
    on_cpu = len(chosen.devices) == 1 and topology.is_cpu(topology.index(chosen.devices[0]))
    if not on_cpu or chosen.single not in chosen.devices:
        return []
    for best in sorted(others, key=lambda each: each.metrics.latency_s)[:1]:
        spec, there_s = topology.devices[topology.index(best.single)], best.metrics.latency_s
        submit_s = submission_seconds(spec) + len(support.computed) * spec.costs.launch_s
        if submit_s >= SMALL * there_s:
            return [
                f"auto: too small for {spec.name}: of about {format_seconds(there_s)} there, "
                f"{format_seconds(submit_s)} are its submission; on {chosen.single} unless a "
                "placement names another device"
            ]
    return []


def _note(decision: Decision) -> str:
    """Returns what a user should know of the choice."""
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

"""Decision text: the reasons for a plan by cost, as text and as plain data.

    won     heft on gpu:0, gpu:1: 6 ms
    alone   gpu:1, the best single device, takes 9 ms: 1.5 times as much; 5 % were needed
    takes   one run 6 ms, 4 ms each in a stream of 2 copies, by simulation
    bound   4.5 ms by area: no placement on gpu:0, gpu:1 takes less; 75 % of what this plan takes
    costs   80 % of the devices' seconds measured, the rest estimated

Complexity: that of a prediction and of the bound, O(edges * devices). Examples:
tests/planner/test_decision_text.py.
"""

from __future__ import annotations

from typing import Any

from ...common.formatting import format_bytes, format_joules, format_seconds
from ...schedule import Metrics, Objective
from ...topology.power import watts_of
from ..costs.lower_bound import Bound, find_bound
from ..costs.node_cost import estimated_text
from ..simulation.plan_metrics import plan_metrics
from ..simulation.predict import predict
from ..types.decision import Decision, Tradeoffs, times_text, value_text
from ..types.objective_format import objective_of
from ..types.plan_types import PlanValue

ASSUMED = "watts assumed by kind of device"
MAX_NAMES = 4
"""Maximum number of devices that are named."""


def choice_lines(plan: PlanValue) -> list[str]:
    """Return the explanation of the choice as lines; [] for a plan without costs."""
    if plan.policy == "priority":
        return []
    metrics, bound, objective = plan_metrics(plan), find_bound(plan), objective_of(plan)
    takes = _takes(plan, metrics)
    rows = [*_chosen_rows(plan), *takes, ("bound", _bound(plan, metrics, bound))]
    rows.append(("costs", _costs(plan)))
    return [f"by cost, for {objective.name}:", *(f"  {word:9}  {text}" for word, text in rows)]


def choice_as_dict(plan: PlanValue) -> dict[str, Any] | None:
    """Return the explanation of the choice as plain data; None for a plan without costs."""
    if plan.policy == "priority":
        return None
    metrics, bound, decision = plan_metrics(plan), find_bound(plan), plan.decision
    objective = objective_of(plan)
    least = bound.of(objective.word)
    share = _share(objective, metrics, bound)
    return {
        "objective": objective.name,
        "metrics": metrics.as_dict(),
        "lower_bound": least,
        "lower_bound_by": bound.by if least is not None else None,
        "share_of_bound": share,
        "bounds": bound.as_dict(),
        "measured_share": measured_share(plan),
        "watts_assumed": _assumed(plan),
        "decision": decision.as_dict() if decision else None,
    }


def _chosen_rows(plan: PlanValue) -> list[tuple[str, str]]:
    """Return the chosen candidate, and the cost of the best single device or of the best several
    devices.
    """
    decision = plan.decision
    if decision is None and plan.policy in ("earliest-finish", "work-stealing"):
        return [("chosen", "no plan: each run decides again where its pieces go")]
    if decision is None:
        return [("chosen", "nothing to weigh: each node has one device")]
    chosen, single, objective = decision.chosen, decision.best_single_device, decision.objective
    won_text = (
        f"{chosen.label} on {', '.join(chosen.devices)}: {value_text(objective, decision.value)}"
    )
    rest = [name for name in single.devices if name != single.single]
    then = f" with the rest on {', '.join(rest)}" if rest else ""
    named = f"{single.single}, the best single device{then},"
    if single.single not in single.devices:  # other devices have all work
        named = f"{', '.join(rest)}, as placed,"
    alone = f"{named} takes {value_text(objective, decision.best_single_device_value)}"
    needed = f"{_percent(decision.required_gain)} were needed"
    if chosen == single:
        why = "no single device is better" if len(decision.devices) > 1 else "no other competes"
        return [("chosen", f"{won_text}; {why}"), *_runner_up_rows(decision, needed)]
    if chosen.single:
        alone += f": {times_text(decision.gain)}; {needed} to leave the first device"
    else:
        alone += f": {times_text(decision.gain)}; {needed}"
    return [("chosen", won_text), ("runner-up", alone)]


def _runner_up_rows(decision: Decision, needed: str) -> list[tuple[str, str]]:
    """Return the cost of the best plan over several devices if a single device was chosen."""
    several = [c for c in decision.candidates if not c.single]
    if len(decision.devices) < 2:
        return []
    if not several:
        return [("runner-up", "no plan over several devices was found")]
    if not decision.objective.word:
        margin = _percent(decision.required_gain)
        return [("runner-up", f"no plan over several devices is better by {margin}, as needed")]
    word = decision.objective.word
    best = min(several, key=lambda c: c.metrics.values[word])  # copies of one name differ
    text = value_text(decision.objective, best.metrics.values[word])
    return [("runner-up", f"{best.name}, the best over several devices, takes {text}; {needed}")]


def _takes(plan: PlanValue, metrics: Metrics) -> list[tuple[str, str]]:
    peak = max(plan.memory, key=lambda memory: memory.peak_bytes)
    name = plan.topology.devices[plan.memory.index(peak)].name
    flow = f"a stream of {plan.copies} copies"
    if plan.replicas:
        flow = f"a stream over {1 + len(plan.replicas)} devices"
    stream = f", {format_seconds(metrics.period_s)} each in {flow}"
    flows = plan.copies > 1 or plan.replicas
    assumed = f", {ASSUMED}" if _assumed(plan) else ""
    one = f"one run {format_seconds(metrics.latency_s)}{stream if flows else ''}"
    return [
        ("cost", f"{one}, by simulation"),
        ("memory", f"{format_bytes(peak.peak_bytes)} on {name}, the fullest device"),
        ("energy", f"{format_joules(metrics.energy_j or 0.0)} a run{assumed}"),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _bound(plan: PlanValue, metrics: Metrics, bound: Bound) -> str:
    objective, decision = objective_of(plan), plan.decision
    least, share = bound.of(objective.word), _share(objective, metrics, bound)
    if least is None or share is None:
        what = objective.word or "a mix"
        return f"none is known for {what}; one run is at least {format_seconds(bound.latency_s)}"
    by = {"latency": bound.by, "throughput": "area"}.get(objective.word, "work")
    return (
        f"{value_text(objective, least)} by {by}: no placement{_competitors(decision)} takes less; "
        f"{_percent(round(share, 3))} of what this plan takes"
    )


def _competitors(decision: Decision | None) -> str:
    """Return the devices that were compared; a device that did not compete may take less."""
    names = decision.devices if decision else ()
    few = f" on {', '.join(names)}" if names else " of these nodes"
    return few if len(names) <= MAX_NAMES else f" on the {len(names)} devices that competed"


def _share(objective: Objective, metrics: Metrics, bound: Bound) -> float | None:
    least = bound.of(objective.word)
    value = metrics.values.get(objective.word, 0.0)
    if least is None:
        return None
    return least / value if value > 0 else 1.0


def _costs(plan: PlanValue) -> str:
    share = measured_share(plan)
    if share >= 1:
        return "measured"
    if share <= 0:
        return estimated_text(plan.topology)
    return f"{_percent(round(share, 3))} of the devices' seconds measured, the rest estimated"


def measured_share(plan: PlanValue) -> float:
    """Return the share of the devices' seconds in a run that rests on measurements."""
    splits = predict(plan).splits
    total_s = sum(split.device_s for split in splits)
    return sum(split.measured_s for split in splits) / total_s if total_s > 0 else 0.0


def _assumed(plan: PlanValue) -> bool:
    return any(watts_of(spec).assumed for spec in plan.topology.devices)


# -- all objectives --------------------------------------------------------------------------------


def comparison_as_text(comparison: Tradeoffs) -> str:
    """Return a table of candidates, the non-dominated ones first."""
    decision = next(iter(comparison.decisions.values()))
    energy = "energy*" if decision.watts_assumed else "energy"
    rows = [["candidate", "works on", "copies", "one run", "stream", "peak", energy, "best for"]]
    picked: dict[int, list[str]] = {}
    for word, number in comparison.picks.items():
        picked.setdefault(number, []).append(word)
    for number, each in enumerate(comparison.candidates):
        metrics = each.metrics
        rows.append(
            [
                each.label,
                ", ".join(each.devices),
                str(each.copies),
                format_seconds(metrics.latency_s),
                format_seconds(metrics.period_s),
                format_bytes(round(metrics.peak_bytes or 0)),
                format_joules(metrics.energy_j or 0.0),
                ", ".join(picked.get(number, [])),
            ]
        )
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_cells(row, wide)).rstrip() for row in rows]
    at = 1 + comparison.front
    if at < len(lines):
        lines.insert(at, "beaten in everything by one above:")
    margins = sorted({each.required_gain for each in comparison.decisions.values()})
    lines += [
        "",
        "stream: the time between two results. peak: bytes on the fullest device, of all copies.",
        f"Costs are {decision.costs}; what is less simple has to be better by "
        f"{' or '.join(map(_percent, margins))}.",
    ]
    if decision.watts_assumed:
        lines.append(f"* {ASSUMED}: give busy_watts and idle_watts in a topology file.")
    return "\n".join(lines)


def _cells(row: list[str], wide: list[int]) -> list[str]:
    left = (0, 1, 7)
    return [
        cell.ljust(width) if at in left else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(row, wide, strict=True))
    ]

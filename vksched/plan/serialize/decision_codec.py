"""Decisions as plain data, and back: the candidates of a plan by cost.

Examples: tests/plan/test_serialize.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...common.errors import PlanError
from ...common.serialize import number_of, plain
from ...schedule import Metrics, Objective
from ..types.decision import Candidate, Decision


def encode_decision(decision: Decision | None) -> dict[str, Any] | None:
    """Return a decision in the form of `DecisionDocument`, or None if costs did not decide."""
    if decision is None:
        return None
    candidates = [*decision.candidates]
    for one in (decision.chosen, decision.best_single_device):
        if one not in candidates:
            candidates.append(one)
    return {
        "objective": decision.objective.name,
        "chosen": candidates.index(decision.chosen),
        "best_single_device": candidates.index(decision.best_single_device),
        "weighed": len(decision.candidates),
        "value": plain(decision.value),
        "best_single_device_value": plain(decision.best_single_device_value),
        "candidates": [
            {
                "name": each.name,
                "devices": list(each.devices),
                "copies": each.copies,
                "metrics": plain(asdict(each.metrics)),
            }
            for each in candidates
        ],
        "required_gain": decision.required_gain,
        "measured": decision.measured,
        "watts_assumed": decision.watts_assumed,
        "devices": list(decision.devices),
        "costs": decision.costs,
    }


def decode_decision(data: Mapping[str, Any] | None) -> Decision | None:
    """Return a decision from plain data.

    Raises
    ------
    PlanError, TypeError, IndexError
        The data is no decision.
    """
    if data is None:
        return None
    candidates = [_candidate(each) for each in data["candidates"]]
    if len({frozenset(each.metrics.values) for each in candidates}) > 1:
        raise PlanError("expected the same metrics of all candidates")
    return Decision(
        Objective.of(data["objective"]),
        candidates[data["chosen"]],
        candidates[data["best_single_device"]],
        number_of(data["value"]),
        number_of(data["best_single_device_value"]),
        tuple(candidates[: data["weighed"]]),
        data["required_gain"],
        data["measured"],
        data["watts_assumed"],
        tuple(data["devices"]),
        data["costs"],
    )


def _candidate(data: Mapping[str, Any]) -> Candidate:
    metrics = Metrics(**{name: number_of(value) for name, value in data["metrics"].items()})
    return Candidate(data["name"], tuple(data["devices"]), data["copies"], metrics)

"""Plan request: all inputs of planning except graph and topology, as one value.

    PlanRequest + Graph + Topology --planner.answer--> an equal plan each time

Examples: tests/plan/test_serialize.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...common.schema import check


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The arguments of `plan_graph`. objective: in the form of `Objective.name`. observed: for each
    node, the number of functions that see its value.
    """

    policy: str
    objective: str
    overrides: tuple[tuple[str | int, str], ...] = ()
    copies: int | str | None = None
    resident: Mapping[int, frozenset[int]] = field(default_factory=dict)
    observed: Mapping[int, int] = field(default_factory=dict)
    with_cpu: bool = False
    pipeline_order: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the request in the form of `trace.format.RequestDocument`."""
        return {
            "policy": self.policy,
            "objective": self.objective,
            "overrides": [list(pair) for pair in self.overrides],
            "copies": self.copies,
            "resident": {str(d): sorted(nodes) for d, nodes in self.resident.items() if nodes},
            "observed": {str(node): count for node, count in self.observed.items()},
            "with_cpu": self.with_cpu,
            "pipeline_order": dict(self.pipeline_order),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> PlanRequest:
        """Return a request from plain data.

        Raises
        ------
        ValueError
            The data is no request.
        """
        request: PlanRequest = check(data, PlanRequest, "the request")
        return request

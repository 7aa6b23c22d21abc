"""Kept: a plan on disk beside its graph, for a later program that asks the same of a machine like
that one.

    plan, question --serialize_cached_plan--> document        the first program
    document, graph, question, machine --> plan       later ones, and nothing is planned

A plan is the planner's answer as long as all that it was asked is the same, but for two things that
differ each time: how much memory is free, and what lies on devices already. They decide nothing
where one device does all, without another one that might, and has twice the memory that this takes:
only such plans are kept and taken. What lies there is counted anew. Only the words on why a state
and the nodes around it are there may be those of then. A document is what a file has: its types are
checked, and a plan that is taken is verified, as one of a stranger is.

Complexity: O(nodes). Examples: tests/planner/test_plan_cache.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..common.errors import PlanError
from ..common.schema import Either, check
from ..common.serialize import plain
from ..ir.graph import Graph
from ..plan.plan import Plan
from ..plan.serialize.decision_codec import decode_decision, encode_decision
from ..plan.serialize.graph_codec import NONSENSE
from ..plan.serialize.plan_codec import decode_plan, encode_plan
from ..plan.serialize.plan_request import PlanRequest
from ..plan.types.offsets import aligned
from ..plan.types.plan_types import DeviceMemory, PlanValue
from ..schedule.model.objectives import LATENCY
from ..topology.topology import Topology
from ..trace.format import CARRIED, DECISION
from .planner import STATIC

CACHED_PLAN = {
    **{key: schema for key, schema in CARRIED.items() if key not in ("topology", "default_link")},
    "topology": list,
    "asked": dict,
    "decision": Either((None, DECISION)),
}
ROOM = 2
"""Times what a plan takes that devices have free at least."""
DIFFERS = "memory_bytes"
"""Of a device, from program to program."""


def serialize_cached_plan(plan: Plan, request: PlanRequest) -> dict[str, Any] | None:
    """Return a plan and what it was asked as plain data; None where it may be another one when
    that is asked again.
    """
    if request.policy not in STATIC or not _is_alone(plan, request):
        return None
    carried = encode_plan(plan)
    del carried["default_link"]
    return {
        **carried,
        "topology": _topology_key(plan.topology, request),
        "asked": _asked(request),
        "decision": encode_decision(plan.decision),
    }


class DamagedPlan(PlanError):
    """A document is no plan of its graph: whoever wrote it did not plan it."""


@dataclass(eq=False)
class CachedPlan:
    """A graph and its plan, as `serialize_cached_plan` made it; None where it was not kept. taken:
    whether it was the answer to what was asked last.
    """

    graph: Graph
    document: Mapping[str, Any] | None
    taken: bool = False

    def answer(self, request: PlanRequest, topology: Topology) -> Plan | None:
        """Returns what `PlanRequest.answer` would, of this graph; None where it may be another
        plan.

        Raises:
            DamagedPlan: the document makes no sense, which is told once.
        """
        document, found = self.document, None
        try:
            if document is not None:
                found = self._answer(document, request, topology)
        except NONSENSE as error:
            self.document = None
            raise DamagedPlan(f"[kept] expected a plan of the graph, {error}") from error
        finally:
            self.taken = found is not None
        return found

    def _answer(
        self, document: Mapping[str, Any], request: PlanRequest, topology: Topology
    ) -> Plan | None:
        check(document, CACHED_PLAN, "the plan")
        same = document["asked"] == _asked(request)
        if not (same and document["topology"] == _topology_key(topology, request)):
            return None
        plan = decode_plan(self.graph, topology, document)
        if any(split.device for split in plan.splits):
            raise PlanError("got one of several devices")
        memory = tuple(
            replace(each, resident_bytes=self._resident_bytes(each, request, device))
            if device != topology.cpu
            else each  # its weights are the caller's
            for device, each in enumerate(plan.memory)
        )
        decision = decode_decision(document["decision"])
        found = replace(plan, memory=memory, decision=decision)
        return found.verify() if _is_alone(found, request) else None

    def _resident_bytes(self, memory: DeviceMemory, request: PlanRequest, device: int) -> int:
        there = request.resident.get(device, frozenset()).intersection
        words = (self.graph.words[leaf] for leaf in there((*memory.weights, *memory.states)))
        return sum(4 * aligned(count) for count in words)


def _is_alone(plan: PlanValue, request: PlanRequest) -> bool:
    """Whether the first device does all, no other one could, and it has room for more."""
    devices = plan.topology.devices
    competing = len(devices) - 1 + request.with_cpu
    elsewhere = any(there for device, there in request.resident.items() if device)
    if competing > 1 or elsewhere or any(split.device for split in plan.splits):
        return False
    need = sum(memory.needed_bytes for memory in plan.memory)
    used = (spec for spec, m in zip(devices, plan.memory, strict=True) if m.peak_bytes)
    return all(ROOM * need <= spec.memory_bytes for spec in used)


def _asked(request: PlanRequest) -> Any:
    data = {key: value for key, value in request.as_dict().items() if key != "resident"}
    return json.loads(json.dumps(data))


def _topology_key(topology: Topology, request: PlanRequest) -> Any:
    """Returns what plans depend on of a machine, but for its free memory. Where the CPU is alone
    there is nothing to choose for latency, whatever runs have taught of its costs.
    """
    data = topology.as_dict()
    no_choice = len(topology.devices) == 1 and request.objective == LATENCY.name
    for spec in data["devices"]:
        spec.pop(DIFFERS, None)
        if no_choice:
            spec.pop("costs", None)
    return json.loads(json.dumps([data, plain(asdict(topology.links.default))]))

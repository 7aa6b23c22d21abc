"""Plan cache: plans on disk next to their graph, for later programs with an equal request and
machine.

    plan, request --serialize_cached_plan--> document          the first program
    document, graph, request, machine --> plan                 later ones, without planning

A plan is reused if the request is equal except for free memory and resident weights, which differ
between programs. These do not change the plan if one device runs everything, no other device
competes, and it has twice the memory that the plan needs; only plans of this kind are cached.
Resident bytes are computed anew. Only explanations of the placement of states may be outdated.
Documents come from files, so their types are checked and the plan is verified.

Complexity: O(nodes). Examples: tests/planner/test_plan_cache.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..common.errors import DECODE_ERRORS, PlanError
from ..common.schema import check
from ..common.serialize import plain
from ..ir.graph import Graph
from ..plan.costs.op_support import OpSupport
from ..plan.plan import Plan
from ..plan.serialize.decision_codec import decode_decision, encode_decision
from ..plan.serialize.plan_codec import decode_plan, encode_plan
from ..plan.serialize.plan_request import PlanRequest
from ..plan.types.offsets import aligned
from ..plan.types.plan_types import DeviceMemory, PlanValue
from ..plan.types.split_draft import SUBMISSION_S
from ..schedule.model.objectives import LATENCY
from ..topology.topology import Topology
from ..trace.format import DecisionDocument, PlacedGraph, SplitDocument
from .planner import STATIC

ROOM = 2
"""Required free memory of a device as a multiple of the needs of the plan."""
VARIABLE_FIELD = "memory_bytes"
"""The field of a device that differs between programs."""


def serialize_cached_plan(plan: Plan, request: PlanRequest) -> dict[str, Any] | None:
    """Return a plan and its request as plain data; None if a later plan may differ."""
    if request.policy not in STATIC or not _is_alone(plan, request):
        return None
    carried = encode_plan(plan)
    del carried["default_link"]
    return {
        **carried,
        "topology": _topology_key(plan.topology, request, len(plan.splits)),
        "asked": _asked(request),
        "decision": encode_decision(plan.decision),
    }


class CachedPlanDocument(PlacedGraph):
    topology: list[Any]
    asked: dict[str, Any]
    decision: DecisionDocument | None
    splits: list[SplitDocument]


class DamagedPlan(PlanError):
    """Raised if a document is not a plan of its graph."""


@dataclass(eq=False)
class CachedPlan:
    """A graph and its serialized plan, or None if it was not cached.

    `taken` is True if the cached plan answered the last request.
    """

    graph: Graph
    document: Mapping[str, Any] | None
    taken: bool = False

    def answer(self, request: PlanRequest, topology: Topology) -> Plan | None:
        """Return the plan that the planner would return for this graph; None if it may differ.

        Raises
        ------
        DamagedPlan
            The document is invalid; later calls return None.
        """
        document, found = self.document, None
        try:
            if document is not None:
                found = self._answer(document, request, topology)
        except DECODE_ERRORS as error:
            self.document = None
            raise DamagedPlan(f"[plan cache] expected a plan of the graph, {error}") from error
        finally:
            self.taken = found is not None
        return found

    def _answer(
        self, document: Mapping[str, Any], request: PlanRequest, topology: Topology
    ) -> Plan | None:
        document = check(document, CachedPlanDocument, "the plan")
        same = document["asked"] == _asked(request)
        key = _topology_key(topology, request, len(document["splits"]))
        if not same or document["topology"] != key:
            return None
        plan = decode_plan(self.graph, topology, document)
        if any(split.device for split in plan.splits):
            raise PlanError("got one of several devices")
        memory = tuple(
            replace(each, resident_bytes=self._resident_bytes(each, request, device))
            if device != topology.cpu
            else each  # its weights are the user's
            for device, each in enumerate(plan.memory)
        )
        decision = decode_decision(document["decision"])
        found = replace(plan, memory=memory, decision=decision)
        return found.verify() if _is_alone(found, request) and _is_short(found) else None

    def _resident_bytes(self, memory: DeviceMemory, request: PlanRequest, device: int) -> int:
        there = request.resident.get(device, frozenset()).intersection
        words = (self.graph.words[leaf] for leaf in there((*memory.weights, *memory.states)))
        return sum(4 * aligned(count) for count in words)


def _is_alone(plan: PlanValue, request: PlanRequest) -> bool:
    """Return True if one device runs everything without competition, with enough memory."""
    devices = plan.topology.devices
    elsewhere = any(there for device, there in request.resident.items() if device)
    if not _without_choice(plan.topology, request) or elsewhere:
        return False
    if any(split.device for split in plan.splits):
        return False
    need = sum(memory.needed_bytes for memory in plan.memory)
    used = (spec for spec, m in zip(devices, plan.memory, strict=True) if m.peak_bytes)
    return all(ROOM * need <= spec.memory_bytes for spec in used)


def _is_short(plan: PlanValue) -> bool:
    """Return True unless the single split of a device takes longer than a submission may by the
    costs that are known now: it would be cut.
    """
    if len(plan.splits) != 1 or plan.topology.is_cpu(0) or len(plan.splits[0].nodes) == 1:
        return True
    support = OpSupport(plan.graph, plan.topology)
    seconds = [support.longest_seconds(node, 0) for node in plan.splits[0].nodes]
    return sum(seconds) <= SUBMISSION_S


def _without_choice(topology: Topology, request: PlanRequest) -> bool:
    """Return True if at most one device competes for the nodes that it supports."""
    return len(topology.devices) - 1 + request.with_cpu <= 1


def _asked(request: PlanRequest) -> Any:
    data = {key: value for key, value in request.as_dict().items() if key != "resident"}
    return json.loads(json.dumps(data))


def _topology_key(topology: Topology, request: PlanRequest, splits: int) -> Any:
    """Return the properties of a machine that plans depend on, except its free memory.

    Plans for latency do not depend on measured costs either, which each run changes, if one device
    runs everything as one split: without a choice they have no decision. splits: the number of
    splits of the plan.
    """
    data = topology.as_dict()
    is_one = len(topology.devices) == 1 or (splits <= 1 and _without_choice(topology, request))
    is_free_of_costs = is_one and request.objective == LATENCY.name
    for spec in data["devices"]:
        spec.pop(VARIABLE_FIELD, None)
        if is_free_of_costs:
            spec.pop("costs", None)
    return json.loads(json.dumps([data, plain(asdict(topology.links.default))]))

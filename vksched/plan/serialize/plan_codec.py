"""Plans as plain data, with all inputs of planning, and plans from plain data.

    PlanRecord(plan, request, cause) --as_document--> graph, plan --decode_plan_record--> PlanRecord

A decoded plan gives the results of the original: explain, draw, verify, simulate. Of a dynamic plan
only the expected run is stored.

Complexity: O(nodes + splits). Examples: tests/plan/test_serialize.py.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, get_type_hints

from ...common.errors import DECODE_ERRORS, PlanError
from ...common.schema import check
from ...common.serialize import number_of, plain
from ...ir.graph import Graph
from ...topology.device_spec import MIN_PER_S
from ...topology.links import Link
from ...topology.topology import Topology
from ...trace.format import SplitOptions
from ..costs.node_cost import Cost, node_cost
from ..plan import Plan
from ..simulation.simulate_plan import simulate, split_overhead_seconds
from ..types.plan_types import DeviceMemory, Placement, PlanValue, Span, Split
from .decision_codec import decode_decision, encode_decision
from .graph_codec import decode_graph, encode_graph
from .plan_request import PlanRequest

_OPTIONS = get_type_hints(SplitOptions)


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A plan and the inputs of planning.

    cause: the reason for planning, as text. decides: True if each run chooses the devices of its
    pieces anew. replica: 0 for the plan itself, n for its n-th replica.
    """

    plan: Plan
    request: PlanRequest
    cause: str
    decides: bool = False
    replica: int = 0

    def as_document(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the graph and the plan in the forms of `GraphDocument` and `PlanDocument`."""
        return encode_graph(self.plan.graph), self._encode()

    def as_reference(self) -> Callable[[], PlanRecord | None]:
        """Return a weak reference: a function that returns this record, or None after the plan."""
        plan = weakref.ref(self.plan)
        rest = self.request, self.cause, self.decides, self.replica

        def living() -> PlanRecord | None:
            found = plan()
            return None if found is None else PlanRecord(found, *rest)

        return living

    def _encode(self) -> dict[str, Any]:
        plan = self.plan
        expected, carried = simulate(plan), encode_plan(plan)
        splits = [
            {**work, **_encode_costs(plan, split)}
            for work, split in zip(carried["splits"], plan.splits, strict=True)
        ]
        return {
            **carried,
            "cause": self.cause,
            "asked": self.request.as_dict(),
            "decides": self.decides,
            "splits": splits,
            "decision": encode_decision(plan.decision),
            "seconds": expected.seconds,
            "spans": tuple(
                (b.kind, b.device, b.split, b.start_s, b.finish_s) for b in expected.spans
            ),
            **({"replica": self.replica} if self.replica else {}),
        }


def encode_plan(plan: PlanValue) -> dict[str, Any]:
    """Return the part of a plan for the devices, in the form of `DevicePlan`."""
    reasons = {placement.reason: 0 for placement in plan.placements}
    reasons = {reason: number for number, reason in enumerate(reasons)}
    return {
        "topology": plan.topology.as_dict(),
        "default_link": plain(asdict(plan.topology.links.default)),
        "policy": plan.policy,
        "copies": plan.copies,
        "reasons": tuple(reasons),
        "placements": tuple((p.device, reasons[p.reason]) for p in plan.placements),
        "splits": tuple(map(_encode_split, plan.splits)),
        "final_waits": plan.final_waits,
        "memory": tuple(map(asdict, plan.memory)),
        "locations": tuple((d, node, span) for (d, node), span in plan.locations.items()),
        "notes": plan.notes,
    }


def _encode_split(split: Split) -> dict[str, Any]:
    """Return the fields of a split, without empty options."""
    rows = ((each.name, getattr(split, each.name)) for each in fields(split) if each.name != "id")
    return {name: value for name, value in rows if value or name not in _OPTIONS}


def _encode_costs(plan: PlanValue, split: Split) -> dict[str, Any]:
    """Return the expected times of a split."""
    graph, spec = plan.graph, plan.topology.devices[split.device]
    asked: dict[int, Cost] = {}
    for node in (graph.nodes[n] for n in split.nodes):
        call = graph.signatures[node.id]
        if call not in asked:
            asked[call] = node_cost(spec, graph, node)
    costs = [asked[graph.signatures[n]] for n in split.nodes]
    return {
        "fixed_s": split_overhead_seconds(plan, split),
        "seconds": tuple(cost.seconds for cost in costs),
        "measured": tuple(cost.measured for cost in costs),
    }


# -- back ------------------------------------------------------------------------------------------


PlanInputs = tuple[PlanRequest, Graph, Topology]
"""All inputs of planning."""


def decode_plan_inputs(graph: Mapping[str, Any], document: Mapping[str, Any]) -> PlanInputs:
    """Return the inputs of planning, from documents checked by `trace.load_tape`.

    Raises
    ------
    PlanError
        The data is no graph, topology or request; the text gives the reason.
    """
    decoded = decode_graph(graph)
    try:
        return PlanRequest.from_dict(document["asked"]), decoded, topology_of(document)
    except DECODE_ERRORS as error:
        raise PlanError(f"[trace] the plan of a tape cannot be made again: {error}") from error


def decode_plan_record(graph: Mapping[str, Any], document: Mapping[str, Any]) -> PlanRecord:
    """Return a plan and its inputs, from documents checked by `trace.load_tape`.

    Raises
    ------
    PlanError
        The data is no valid plan; the text gives the reason.
    """
    request, decoded, topology = decode_plan_inputs(graph, document)
    try:
        plan = replace(
            decode_plan(decoded, topology, document), decision=decode_decision(document["decision"])
        )
        cause, decides, replica = document["cause"], document["decides"], replica_of(document)
        return PlanRecord(plan.verify(), request, cause, decides, replica)
    except DECODE_ERRORS as error:
        raise PlanError(f"[trace] the plan of a tape cannot be read: {error}") from error


def decode_plan(graph: Graph, topology: Topology, document: Mapping[str, Any]) -> Plan:
    """Return a plan from its document, which matches `trace.format`, without verification."""
    reasons = document["reasons"]
    return Plan(
        graph=graph,
        topology=topology,
        policy=document["policy"],
        copies=document["copies"],
        placements=tuple(
            Placement(device, reasons[reason]) for device, reason in document["placements"]
        ),
        splits=tuple(
            check({**each, "id": at}, Split, f"splits[{at}]")
            for at, each in enumerate(document["splits"])
        ),
        final_waits=tuple(document["final_waits"]),
        memory=check(document["memory"], tuple[DeviceMemory, ...], "memory"),
        locations=MappingProxyType(
            {(device, node): Span(*span) for device, node, span in document["locations"]}
        ),
        notes=tuple(document["notes"]),
    )


def replica_of(document: Mapping[str, Any]) -> int:
    """Return the number of a replica from its document, or 0 for a plan that is no replica."""
    return int(document.get("replica", 0))


def topology_of(document: Mapping[str, Any]) -> Topology:
    """Return the topology of a plan's document.

    Raises
    ------
    PlanError
        The data is no topology, or its links are inconsistent.
    """
    topology = Topology.from_dict(document["topology"])
    default = Link(**{key: number_of(value) for key, value in document["default_link"].items()})
    if not (default.bytes_per_s >= MIN_PER_S and 0 <= default.latency_s < math.inf):
        raise PlanError(
            f"[topology] expected at least {MIN_PER_S:g} byte a second and a latency of 0 s or "
            f"more for links, got {default}"
        )
    return replace(topology, links=replace(topology.links, default=default))

"""Plans as plain data, with all that they were made of, and plans of plain data.

    Planned(plan, question, cause) --as_document--> graph, plan --plan_of_document--> Plan

A plan that is read back says what the first one said: explain, draw, verify, simulate. Of one that
decides while it runs only what it expected is kept.

Complexity: O(nodes + splits). Examples: tests/plan/test_serialize.py.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from ...common.errors import PlanError
from ...common.serialize import number_of, plain
from ...ir.graph import Graph
from ...topology.device_spec import LEAST_PER_S
from ...topology.links import Link
from ...topology.topology import Machine
from ..costs.node_cost import Cost, node_cost
from ..plan import Plan
from ..simulation.simulate_plan import simulate, split_beside_seconds
from ..types.plan_types import (
    CopyIn,
    CopyOut,
    DeviceMemory,
    Order,
    Placement,
    PlanValue,
    Span,
    Split,
)
from .decision_codec import decision_document, decision_of
from .graph_codec import NONSENSE, graph_document, graph_of
from .plan_request import Question


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and what it was made of. cause: why it was made, in words. decides: whether each of
    its runs decides anew where its pieces go. replica: 0 for the plan itself; n for its n-th
    replica.
    """

    plan: Plan
    question: Question
    cause: str
    decides: bool = False
    replica: int = 0

    def as_document(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the graph and the plan as `trace.schema.GRAPH` and `PLAN` say."""
        return graph_document(self.plan.graph), self._plan_document()

    def as_reference(self) -> Callable[[], Planned | None]:
        """Return a function that gives this again while the plan lives, and None afterwards."""
        plan = weakref.ref(self.plan)
        rest = self.question, self.cause, self.decides, self.replica

        def living() -> Planned | None:
            found = plan()
            return None if found is None else Planned(found, *rest)

        return living

    def _plan_document(self) -> dict[str, Any]:
        plan = self.plan
        expected, carried = simulate(plan), carried_document(plan)
        splits = [
            {**work, **_expected_of(plan, split)}
            for work, split in zip(carried["splits"], plan.splits, strict=True)
        ]
        return {
            **carried,
            "cause": self.cause,
            "asked": self.question.as_dict(),
            "decides": self.decides,
            "splits": splits,
            "decision": decision_document(plan.decision),
            "seconds": expected.seconds,
            "spans": [[b.kind, b.device, b.split, b.start_s, b.finish_s] for b in expected.spans],
            **({"replica": self.replica} if self.replica else {}),
        }


def carried_document(plan: PlanValue) -> dict[str, Any]:
    """Returns what devices need to carry a plan out, as `trace.schema.CARRIED` says."""
    rules = {placement.rule: 0 for placement in plan.placements}
    rules = {rule: number for number, rule in enumerate(rules)}
    return {
        "machine": plan.machine.as_dict(),
        "default_link": plain(asdict(plan.machine.links.default)),
        "policy": plan.policy,
        "copies": plan.copies,
        "rules": [*rules],
        "placements": [[p.device, rules[p.rule]] for p in plan.placements],
        "splits": list(map(_work_of, plan.splits)),
        "final_waits": list(plan.final_waits),
        "memory": [_lists(asdict(memory)) for memory in plan.memory],
        "locations": [[d, node, _span(s)] for (d, node), s in plan.locations.items()],
        "notes": list(plan.notes),
    }


def _work_of(split: Split) -> dict[str, Any]:
    return {
        "device": split.device,
        "nodes": list(split.nodes),
        "copies_in": [[c.node, c.source, _span(c.inbox), _span(c.target)] for c in split.copies_in],
        "copies_out": [[c.node, _span(c.outbox)] for c in split.copies_out],
        "waits": list(split.waits),
        "barriers": list(split.barriers),
        "levels": split.levels,
        "inner_barriers": split.inner_barriers,
        "observed": list(split.observed),
        "in_place": [list(pair) for pair in split.in_place],
        **_aside_document(split),
        **({"refills": True} if split.refills else {}),
    }


def _expected_of(plan: PlanValue, split: Split) -> dict[str, Any]:
    """Returns what a split is expected to take."""
    graph, spec = plan.graph, plan.machine.devices[split.device]
    asked: dict[int, Cost] = {}
    for node in (graph.nodes[n] for n in split.nodes):
        call = graph.signatures[node.id]
        if call not in asked:
            asked[call] = node_cost(spec, graph, node)
    costs = [asked[graph.signatures[n]] for n in split.nodes]
    return {
        "fixed_s": split_beside_seconds(plan, split),
        "seconds": [cost.seconds for cost in costs],
        "measured": [cost.measured for cost in costs],
    }


def _aside_document(split: Split) -> dict[str, Any]:
    """Returns what a split has beside its work, which most have not."""
    if not split.aside:
        return {"hands_over": [*split.hands_over]} if split.hands_over else {}
    return {
        "aside": [*split.aside],
        "orders": [list(order) for order in split.orders],
        "hands_over": [*split.hands_over],
    }


def _span(span: Span) -> list[int]:
    return [span.page, span.offset, span.words]


def _lists(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in fields.items()}


# -- back ------------------------------------------------------------------------------------------


Asked = tuple[Question, Graph, Machine]
"""All that a plan was made of."""


def asked_of(graph: Mapping[str, Any], document: Mapping[str, Any]) -> Asked:
    """Returns what a plan was made of, from documents that `trace.load_tape` has checked.

    Raises:
        PlanError: it is no graph, machine or question; the text says why.
    """
    made = graph_of(graph)
    try:
        return Question.from_dict(document["asked"]), made, machine_of(document)
    except NONSENSE as error:
        raise PlanError(f"[trace] the plan of a tape cannot be made again: {error}") from error


def planned_of(graph: Mapping[str, Any], document: Mapping[str, Any]) -> Planned:
    """Returns a plan and what it was made of, from documents that `trace.load_tape` has checked.

    Raises:
        PlanError: they make no sound plan; the text says why.
    """
    question, made, machine = asked_of(graph, document)
    try:
        plan = replace(
            carried_of(made, machine, document), decision=decision_of(document["decision"])
        )
        cause, decides, replica = document["cause"], document["decides"], replica_of(document)
        return Planned(plan.verify(), question, cause, decides, replica)
    except NONSENSE as error:
        raise PlanError(f"[trace] the plan of a tape cannot be read: {error}") from error


def carried_of(graph: Graph, machine: Machine, document: Mapping[str, Any]) -> Plan:
    """Returns a plan of its document, which `trace.schema` has checked; nobody has verified it."""
    rules = document["rules"]
    return Plan(
        graph=graph,
        machine=machine,
        policy=document["policy"],
        copies=document["copies"],
        placements=tuple(Placement(device, rules[rule]) for device, rule in document["placements"]),
        splits=tuple(_split_of(at, each) for at, each in enumerate(document["splits"])),
        final_waits=tuple(document["final_waits"]),
        memory=tuple(DeviceMemory(**_tuples(each)) for each in document["memory"]),
        locations=MappingProxyType(
            {(device, node): Span(*span) for device, node, span in document["locations"]}
        ),
        notes=tuple(document["notes"]),
    )


def replica_of(document: Mapping[str, Any]) -> int:
    """Returns the number of a replica by its document; 0 for a plan that is none."""
    return int(document.get("replica", 0))


def machine_of(document: Mapping[str, Any]) -> Machine:
    """Returns the machine of a plan's document.

    Raises:
        PlanError: it is none, or its links make no sense.
    """
    machine = Machine.from_dict(document["machine"])
    default = Link(**{key: number_of(value) for key, value in document["default_link"].items()})
    if not (default.bytes_per_s >= LEAST_PER_S and 0 <= default.latency_s < math.inf):
        raise PlanError(
            f"[machine] expected at least {LEAST_PER_S:g} byte a second and a latency of 0 s or "
            f"more for links, got {default}"
        )
    return replace(machine, links=replace(machine.links, default=default))


def _split_of(at: int, data: Mapping[str, Any]) -> Split:
    return Split(
        id=at,
        device=data["device"],
        nodes=tuple(data["nodes"]),
        copies_in=tuple(
            CopyIn(node, source, Span(*inbox), Span(*target))
            for node, source, inbox, target in data["copies_in"]
        ),
        copies_out=tuple(CopyOut(node, Span(*outbox)) for node, outbox in data["copies_out"]),
        waits=tuple(data["waits"]),
        barriers=tuple(data["barriers"]),
        levels=data["levels"],
        inner_barriers=data["inner_barriers"],
        observed=tuple(data["observed"]),
        in_place=tuple((value, state) for value, state in data["in_place"]),
        aside=tuple(data.get("aside", ())),
        orders=tuple(Order(*each) for each in data.get("orders", ())),
        hands_over=tuple(data.get("hands_over", ())),
        refills=data.get("refills", False),
    )


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}

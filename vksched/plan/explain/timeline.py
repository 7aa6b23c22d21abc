"""Plan view: an expected run as timelines show it: splits over time, ops, memory and texts.

    plan --simulate--> spans; --describe--> texts of nodes; live values of each split --> bytes

Complexity: nodes. Examples: tests/plan/test_timelines.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ...viz.timeline.build import plan_timeline
from ...viz.timeline.timeline import Timeline
from ...viz.timeline.timeline_types import Lane, NodeView, PlanView, PredictedSpan, SplitView
from ..costs import node_cost
from ..simulation.simulate_plan import simulate
from ..types.plan_types import PlanValue, Split
from ..types.query import buffers
from .explain_plan import explain_plan
from .node_info import explain_nodes

MAX_TEXTS = 3000
"""Number of nodes of a plan beyond which nodes have only names, types and times."""


def timeline_of(plan: PlanValue) -> Timeline:
    """Return the timeline of one expected run of a plan."""
    lanes = lanes_of([plan])
    return plan_timeline(make_plan_view(plan, lanes), lanes)


def lanes_of(plans: Iterable[PlanValue]) -> list[Lane]:
    """Return the lane of the host and a lane for each device of some plans, the CPU's last."""
    specs = {spec.name: spec for plan in plans for spec in plan.topology.devices}
    order = sorted(specs.values(), key=lambda spec: spec.kind == "cpu")
    return [Lane("host"), *(Lane(spec.name, spec.label) for spec in order)]


def make_plan_view(
    plan: PlanValue,
    lanes: Sequence[Lane],
    name: str = "plan",
    texts: int = MAX_TEXTS,
    decides: bool = False,
) -> PlanView:
    """Return a plan as timelines show it.

    lanes: the lanes of all its devices. texts: the maximum number of nodes with texts. decides:
    True if its runs have splits of their own.
    """
    simulated = simulate(plan)
    number = {lane.name: at for at, lane in enumerate(lanes)}
    lane_of = [number[spec.name] for spec in plan.topology.devices]
    capacity_bytes = [0] * len(lanes)
    for spec, size in zip(plan.topology.devices, buffers(plan).values(), strict=True):
        capacity_bytes[number[spec.name]] = size.capacity_bytes
    predicted = [
        PredictedSpan(
            span.kind,
            lane_of[span.device],
            -1 if span.split is None else span.split,
            span.start_s,
            span.finish_s,
        )
        for span in simulated.spans
    ]
    return PlanView(
        name,
        explain_plan(plan),
        _nodes(plan, len(plan.graph.nodes) <= texts),
        [_split(plan, split, lane_of[split.device]) for split in plan.splits],
        predicted,
        simulated.seconds,
        alive_bytes(plan),
        capacity_bytes,
        decides,
    )


def _nodes(plan: PlanValue, texts: bool) -> list[NodeView]:
    graph, devices = plan.graph, plan.topology.devices
    runs_on = {n: split.device for split in plan.splits for n in split.nodes}
    return [
        NodeView(
            node.name,
            node.op,
            str(node.type),
            tuple(f"{graph.nodes[i].name} {graph.nodes[i].type}" for i in node.inputs),
            node_cost.node_seconds(devices[runs_on[node.id]], graph, node)
            if node.id in runs_on
            else 0,
            explain_nodes(plan, (node.id,)) if texts else plan.placements[node.id].reason,
        )
        for node in graph.nodes
    ]


def _split(plan: PlanValue, split: Split, lane: int) -> SplitView:
    nodes = plan.graph.nodes
    sources = tuple(
        (c.source, nodes[c.node].name, nodes[c.node].type.device_bytes) for c in split.uploads
    )
    return SplitView(lane, split.nodes, split.waits, sources)


def alive_bytes(plan: PlanValue) -> list[int]:
    """Return, for each split, the bytes of its device that are in use while it runs: weights,
    states, and the values of this run that exist by then and are still read.
    """
    last: dict[tuple[int, int], int] = defaultdict(int)
    first: dict[tuple[int, int], int] = {}
    for split in plan.splits:
        touched = [c.node for c in split.uploads] + [c.node for c in split.downloads]
        for n in split.nodes:
            touched += [n, *(plan.graph.view_base(i) for i in plan.graph.nodes[n].inputs)]
        for value in touched:
            first.setdefault((split.device, value), split.id)
            last[split.device, value] = split.id
    states = {s for memory in plan.memory for s in memory.states}
    change = [[0] * (len(plan.splits) + 1) for _ in plan.topology.devices]
    for (device, value), span in plan.locations.items():
        key = (device, value)
        if key in first and value not in states and plan.state_at(device, span) is None:
            change[device][first[key]] += 4 * span.words
            change[device][last[key] + 1] -= 4 * span.words
    alive = [memory.weight_bytes + memory.state_bytes for memory in plan.memory]
    out: list[int] = []
    for split in plan.splits:
        for device, by_split in enumerate(change):
            alive[device] += by_split[split.id]
        out.append(alive[split.device])
    return out

"""Plan of a run: the record of a dynamic run as an ordinary plan.

Problem: a dynamic run must be explained, drawn, checked and compared as any plan. Method: each
piece becomes a split, in the order of submission, with its uploads and the waits of the host before
it. Memory and barriers are the recorded ones. `verify` and the happens-before checker then check
the run.

    sent 0 -> gpu:0, brought x | sent 1 -> gpu:1, brought x | ended 0 | sent 2 -> gpu:1, brought h
    split 0                      split 1                      split 2 waits for 0, copies in h

Complexity: O(nodes). Examples: tests/planner/test_dynamic.py.
"""

from __future__ import annotations

from types import MappingProxyType

from ..types.plan_types import HOST, DeviceMemory, Placement, Span, Split, scratch_of
from ..types.split_draft import SplitDraft, critical_path_length
from .dispatcher import DynamicRunRecord
from .options import DynamicPlan, Options

RULES = {
    "earliest-finish": "it was ready, and would be done first here",
    "work-stealing": "it stood in this device's queue, or was taken by it",
}


def plan_of(
    options: Options, tape: DynamicRunRecord, policy: str, notes: tuple[str, ...] = ()
) -> DynamicPlan:
    """Return the plan of a recorded run."""
    graph, topology, number = options.graph, options.topology, dict[int, int]()
    splits: list[Split] = []
    locations: dict[tuple[int, int], Span] = {}
    for sent in tape.sent:
        number[sent.piece] = len(splits)
        there, device = options.on[sent.device], sent.device
        copies = [
            there.copies[value]._replace(source=number.get(source, HOST))
            for value, source in sent.brought
        ]
        own = there.plan.splits[there.pieces[sent.piece]]
        shift = len(copies)
        barriers = {shift} if shift else set()
        live_in = tuple((copy.node, copy.source) for copy in copies)
        live_out = tuple(copy.node for copy in own.downloads)
        splits.append(
            Split(
                id=len(splits),
                device=device,
                nodes=own.nodes,
                uploads=tuple(copies),
                downloads=own.downloads,
                waits=tuple(sorted(number[piece] for piece in sent.waits)),
                barriers=tuple(sorted(barriers | {shift + b for b in own.barriers})),
                depth=critical_path_length(
                    graph, SplitDraft(device, own.nodes, live_in, live_out, ())
                ),
                inner_barriers=own.inner_barriers,
            )
        )
        present = [n for node in own.nodes for n in (node, scratch_of(node))]
        for value in (*present, *(value for value, _ in sent.brought)):
            span = there.plan.locations.get((device, value))
            if span is not None:
                locations[device, value] = span
    none = DeviceMemory((), 0, (), (), (), 0)
    return DynamicPlan(
        graph=graph,
        topology=topology,
        policy=policy,
        copies=1,
        placements=_placements(options, splits, policy),
        splits=tuple(splits),
        final_waits=tuple(sorted(number[piece] for piece in tape.waits)),
        memory=tuple(
            options.on[d].plan.memory[d] if d in options.on else none
            for d in range(len(topology.devices))
        ),
        locations=MappingProxyType(locations),
        notes=(*notes, *options.notes),
        options=options,
    )


def _placements(options: Options, splits: list[Split], policy: str) -> tuple[Placement, ...]:
    graph, cpu = options.graph, options.topology.cpu
    rule = RULES[policy]
    found = {
        n: Placement(split.device, options.rules.get(n, rule))
        for split in splits
        for n in split.nodes
    }
    for device in sorted(options.on, reverse=True):
        for weight in options.on[device].plan.memory[device].weights:
            found[weight] = Placement(device, "a device that may run what reads it has it")
    out: list[Placement] = []
    for node in graph.nodes:
        root = graph.view_base(node.id)
        if root != node.id and root in found:
            out.append(Placement(found[root].device, "a view of what it reads"))
        else:
            out.append(found.get(node.id, Placement(cpu, "the caller gives it")))
    return tuple(out)

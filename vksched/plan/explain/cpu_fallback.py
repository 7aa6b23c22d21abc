"""CPU fallback: the ops that run on numpy because no device supports them, with one warning per op.

Problem: an unsupported op costs two waits without a visible sign. Method: for each node on the CPU,
every device in use gives its reason. Exempt are nodes that the user placed on the CPU, nodes that a
weight or a neighbour on the CPU attracted, and arithmetic on a few elements before any device has
started.

    x -> exp @ gpu -> gather @ cpu (gpu: 4 buffers, 3 allowed) -> neg @ gpu     one warning: gather

Complexity: O(nodes on the CPU * devices); equal calls are computed once. Examples:
tests/plan/test_fallback.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...common.formatting import count_of
from ...common.user_warning import warn_user
from ...ir.graph import Node
from ..costs.op_support import OpSupport
from ..types.plan_types import PlanValue
from ..types.query import FULL, ON_HOST

FEW_ELEMENTS = 16
"""Maximum number of elements for which a fallback before any device's work is not reported."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """One op that runs on numpy because no device supports it. reasons: (device, reason) pairs of
    the first node.
    """

    op: str
    nodes: tuple[str, ...]
    reasons: tuple[tuple[str, str], ...]


def find_fallbacks(plan: PlanValue, few: bool = False) -> tuple[Fallback, ...]:
    """Return the ops that run on numpy because no device supports them, in the order of the graph.

    few: True to include arithmetic on a few elements.
    """
    devices, is_cpu = plan.topology.devices, plan.topology.is_cpu
    in_use = [d for d, spec in enumerate(devices) if not (is_cpu(d) or spec.disabled_reason)]
    if not in_use:
        return ()
    support = OpSupport(plan.graph, plan.topology)
    found: dict[str, list[Node]] = {}
    reasons: dict[str, tuple[tuple[str, str], ...]] = {}
    for node in support.computed:
        if not is_cpu(plan.placements[node.id].device) or _is_placed_by_user(plan, node):
            continue
        whys = [(devices[d].name, support.unsupported_reason(node, d)) for d in in_use]
        if any(why is None for _, why in whys) or (not few and _is_small(plan, node)):
            continue
        found.setdefault(node.op, []).append(node)
        reasons.setdefault(node.op, tuple((name, str(why)) for name, why in whys))
    return tuple(Fallback(op, tuple(n.name for n in v), reasons[op]) for op, v in found.items())


def find_full_gpu(plan: PlanValue) -> str:
    """Return the note of a full GPU because of which the CPU computes, or weights stay in host
    memory; "" if there is none.
    """
    by_cpu = plan.topology.cpu in plan.working
    notes = [note for note in plan.notes if FULL in note and (by_cpu or ON_HOST in note)]
    if by_cpu and not notes:  # an op alone takes more
        whys = (why for found in find_fallbacks(plan) for _, why in found.reasons)
        notes = [why for why in whys if FULL in why]
    return notes[0] if notes else ""


def _is_placed_by_user(plan: PlanValue, node: Node) -> bool:
    """Return True if the user placed the node on the CPU. An override to a device that cannot run
    it does not count.
    """
    rule = plan.placements[node.id].reason
    return rule.startswith("override: ") and ", which cannot: " not in rule


def _is_small(plan: PlanValue, node: Node) -> bool:
    """Return True for a few elements, as sizes or positions, that no device has worked on yet."""
    graph = plan.graph
    if any(graph.nodes[v].type.size > FEW_ELEMENTS for v in (*node.inputs, node.id)):
        return False
    roots = (graph.nodes[graph.view_base(i)] for i in node.inputs)
    return all(
        r.declaration.leaf or plan.topology.is_cpu(plan.placements[r.id].device) for r in roots
    )


def warn_of_fallbacks(plan: PlanValue, warned: set[str]) -> None:
    """Warn of each op that falls back to numpy and is not yet in `warned`, and add it.

    Ops with equal reasons share a warning.
    """
    groups: dict[tuple[str, ...], list[Fallback]] = {}
    for fallback in find_fallbacks(plan):
        if fallback.op not in warned:
            warned.add(fallback.op)
            whys = tuple(why for _, why in fallback.reasons)
            groups.setdefault(whys, []).append(fallback)
    for group in groups.values():
        warn_user(f"[fallback] {_text(group)}")


def _text(group: list[Fallback]) -> str:
    ops = ", ".join(
        f"{f.op} ({f.nodes[0]}{_more(len(f.nodes) - 1)})" if f.nodes != (f.op,) else f.op
        for f in group
    )
    return (
        f"numpy runs {ops}, as {join_reasons(group[0].reasons)}; try "
        f"print(run.plan.explain({group[0].nodes[0]!r})), or a placement on cpu if that is meant"
    )


def _more(count: int) -> str:
    return f" and {count} more" if count else ""


def join_reasons(reasons: Sequence[tuple[str, str]]) -> str:
    """Return reasons as text, grouped by reason."""
    devices: dict[str, list[str]] = {}
    for device, why in reasons:
        devices.setdefault(why, []).append(device)
    return "; ".join(f"{' and '.join(names)} cannot: {why}" for why, names in devices.items())


def fallback_lines(plan: PlanValue) -> list[str]:
    """Return a line for each op that falls back to numpy."""
    return [
        f"numpy runs {count_of(len(f.nodes), 'node')} of {f.op} ({f.nodes[0]}"
        f"{', ...' if len(f.nodes) > 1 else ''}), as {join_reasons(f.reasons)}"
        for f in find_fallbacks(plan)
    ]

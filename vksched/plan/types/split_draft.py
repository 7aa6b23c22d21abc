"""The draft of a split, before memory is planned."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.graph import Graph
from .plan_types import COMING, LEAVING


def count_levels(graph: Graph, outline: Outline) -> int:
    """Returns how many items of a split, one after the other, need what the one before made: no
    order of the items does with fewer barriers.
    """
    roots, nodes = graph.view_bases, graph.nodes
    # what comes in, or goes out, beside the work is no step of it
    level = {value: -(COMING in outline.aside) for value, _ in outline.entering}
    most = 0

    def above(value: int) -> int:
        found = level.get(value)
        return 1 + (level.get(roots[value], -1) if found is None else found)

    for node_id in outline.nodes:
        if nodes[node_id].op == "state":
            continue
        level[node_id] = max([above(i) for i in nodes[node_id].inputs], default=0)
        most = max(most, level[node_id])
    return max([most, *map(above, () if LEAVING in outline.aside else outline.leaving)])


SUBMISSION_S = 0.5
"""Estimated seconds of one submission: drivers kill one after about two; estimates are rough."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A split before memory is known. entering: (value, source split or HOST). leaving: values.
    observed: values that the user asked to see once it has run. in_place, aside, hands_over and
    refills: see `Split`. free_at: the position, among the splits of the device, of the first one
    that may write over what is copied out beside the work.
    """

    device: int
    nodes: tuple[int, ...]
    entering: tuple[tuple[int, int], ...]
    leaving: tuple[int, ...]
    waits: tuple[int, ...]
    observed: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    aside: tuple[str, ...] = ()
    hands_over: tuple[int, ...] = ()
    refills: bool = False
    free_at: int = 0

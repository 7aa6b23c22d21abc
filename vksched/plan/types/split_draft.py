"""The draft of a split, before memory planning."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.graph import Graph
from .plan_types import DOWNLOAD, UPLOAD


def critical_path_length(graph: Graph, split_draft: SplitDraft) -> int:
    """Return the length of the longest dependency chain in a split, a lower bound on its number of
    barriers under any order.
    """
    roots, nodes = graph.view_bases, graph.nodes
    # asynchronous uploads and downloads are no items of it
    level = {value: -(UPLOAD in split_draft.async_transfers) for value, _ in split_draft.live_in}
    most = 0

    def above(value: int) -> int:
        found = level.get(value)
        return 1 + (level.get(roots[value], -1) if found is None else found)

    for node_id in split_draft.nodes:
        if nodes[node_id].op == "state":
            continue
        level[node_id] = max([above(i) for i in nodes[node_id].inputs], default=0)
        most = max(most, level[node_id])
    return max(
        [most, *map(above, () if DOWNLOAD in split_draft.async_transfers else split_draft.live_out)]
    )


SUBMISSION_S = 0.5
"""Estimated seconds of one submission: drivers end one after about two; estimates are rough."""


@dataclass(frozen=True, slots=True)
class SplitDraft:
    """A split before memory planning.

    live_in: (value, source split or HOST) pairs. live_out: values. observed: values that the user
    sees after it. in_place, async_transfers, deferred_downloads, refills: as in `Split`. free_at:
    the position, among the splits of the device, of the first one that may overwrite the memory of
    its asynchronous downloads.
    """

    device: int
    nodes: tuple[int, ...]
    live_in: tuple[tuple[int, int], ...]
    live_out: tuple[int, ...]
    waits: tuple[int, ...]
    observed: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    async_transfers: tuple[str, ...] = ()
    deferred_downloads: tuple[int, ...] = ()
    refills: bool = False
    free_at: int = 0

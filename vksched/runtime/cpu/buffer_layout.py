"""Buffer layout of a CPU split program: its intermediate values have fixed memory for all runs.

    fixed   x y z     written and read in one split: the prepared plan's memory, reused when dead
    fresh   result    values that leave the split, or may: new memory in each run

A value is live from the step that computes it to the last one that reads it, inclusive: no result
shares memory with an operand. The result of a numpy reference may be a view of its operands. Then
they stay live as long as it, and leave the split if it does. Method: as in
planner/memory/allocate.py. Complexity: O(values * log(values)). Examples:
tests/runtime/test_host_program.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from ...common.dtypes import WORD_BYTES, NDArray, numpy_dtype
from ...ir.graph import Graph
from ...plan.types.interval_set import PAGE
from ...plan.types.offsets import Lifetime, assign_spans
from ...plan.types.plan_types import PlanValue, Span, Split


@dataclass(frozen=True)
class Layout:
    """lifetimes: the live range of each fixed value, in positions of the split's nodes. spans:
    memory ranges by value. pages: words of each page. scratch: the scratch values of nodes that
    need memory while they run, numbered after all nodes.
    """

    lifetimes: tuple[Lifetime, ...]
    spans: Mapping[int, Span]
    pages: tuple[int, ...]
    scratch: Mapping[int, tuple[int, ...]]


def overlapping(layout: Layout) -> list[tuple[int, int]]:
    """Return the pairs of values that are live together and share words; a correct layout
    has none.
    """
    found = []
    lives = sorted(layout.lifetimes, key=lambda life: life.first)
    for at, one in enumerate(lives):
        a = layout.spans[one.value]
        for other in lives[at + 1 :]:
            if other.first > one.last:
                break
            b = layout.spans[other.value]
            apart = a.offset + a.words <= b.offset or b.offset + b.words <= a.offset
            if a.page == b.page and not apart:
                found.append((one.value, other.value))
    return found


def live_out(plan: PlanValue, device: int) -> set[int]:
    """Return the view bases of the values that leave a device's split: downloaded, or read by
    another of its splits.
    """
    roots, nodes = plan.graph.view_bases, plan.graph.nodes
    own = [split for split in plan.splits if split.device == device]
    out = {roots[copy.node] for split in own for copy in split.downloads}
    maker = {node_id: split.id for split in own for node_id in split.nodes}
    for split in own:
        for node_id in split.nodes:
            for value in nodes[node_id].inputs:
                root = roots[value]
                if maker.get(root, split.id) != split.id:
                    out.add(root)
    return out


def lay_out(
    plan: PlanValue,
    split: Split,
    leaves: Collection[int],
    written: Collection[int],
    scratch: Mapping[int, Sequence[int]],
) -> Layout:
    """Return the layout of a split.

    Parameters
    ----------
    leaves
        View bases of the values that leave it.
    written
        Nodes that write their result into a buffer they receive; other results may be views of
        their operands.
    scratch
        Sizes in words of each scratch buffer that a node needs.
    """
    graph = plan.graph
    position = {node_id: at for at, node_id in enumerate(split.nodes)}
    last, out = dict(position), set(leaves) | set(plan.in_place)
    for node_id in reversed(split.nodes):  # readers first
        node = graph.nodes[node_id]
        for value in node.inputs:
            root = graph.view_bases[value]
            if root not in position:
                continue
            last[root] = max(last[root], position[node_id])
            if node_id not in written and node.op != "assign":
                last[root] = max(last[root], last[node_id])
                if node_id in out:
                    out.add(root)
    lives = [
        Lifetime(node_id, _words(graph, node_id), position[node_id], last[node_id])
        for node_id in split.nodes
        if node_id in written and node_id not in out
    ]
    numbers, numbered = count(len(graph.nodes)), dict[int, tuple[int, ...]]()
    for node_id, sizes in scratch.items():
        numbered[node_id] = tuple(next(numbers) for _ in sizes)
        at = position[node_id], position[node_id]
        lives += [Lifetime(*e, *at) for e in zip(numbered[node_id], sizes, strict=True)]
    spans, pages = assign_spans(lives, PAGE, enough=PAGE)
    return Layout(tuple(lives), spans, pages, numbered)


def _words(graph: Graph, node_id: int) -> int:
    return -(-graph.nodes[node_id].type.host_bytes // WORD_BYTES)


class Memory:
    """Memory that the programs of a prepared plan share: one of them runs at a time."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        page_words: dict[int, int] = {}
        for layout in layouts:
            for page, words in enumerate(layout.pages):
                page_words[page] = max(words, page_words.get(page, 0))
        self._pages = {page: np.empty(words, np.uint32) for page, words in page_words.items()}

    def arrays(self, graph: Graph, layout: Layout) -> dict[int, NDArray]:
        """Return the array of each fixed value: fixed memory with any content."""
        arrays: dict[int, NDArray] = {}
        for value, span in layout.spans.items():
            words = self._pages[span.page][span.offset : span.offset + span.words]
            if value < len(graph.nodes):
                type_ = graph.nodes[value].type
                line = words.view(numpy_dtype(type_.dtype))[: type_.size]
                arrays[value] = line.reshape(type_.shape)
            else:
                arrays[value] = words
        return arrays

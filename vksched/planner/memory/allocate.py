"""Memory allocation: the page and offset of each value on its device, by lifetime.

Problem: dynamic storage allocation with known lifetimes, into pages of bounded size, close to the
largest live set. Items that could run concurrently must not share memory, because this would
require a barrier between them. Method: independent neighbours form a step, as long as its values
fit into the live set plus 10 %; lifetimes are counted in steps. Each value in order of birth gets
the smallest free block that holds it. If the result is too large, other orders are tried, in which
each value gets the lowest place that is free during its lifetime, and then shorter steps.

    words |  [ b      ][ d    ]
          |  [ a  ]  [ c        ]      c reuses the memory of a, d that of b
          +----------------------> steps of the device's program

Complexity: O(values * log(values)), and O(pairs that live together) if other orders are tried.
Lower bound: the largest live set. Examples: tests/plan/test_plan.py,
tests/planner/test_plan_levels.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ...common.dtypes import WORD_BYTES
from ...ir.graph import Graph
from ...plan.costs.op_support import OpSupport
from ...plan.types.offsets import Lifetime, aligned, assign_spans
from ...plan.types.plan_types import DOWNLOAD, UPLOAD, Span, scratch_of
from ...plan.types.split_draft import SplitDraft

SLACK = 0.1
"""Fraction of the largest live set that may be spent on fewer barriers."""


class MemoryUse:
    """The memory use of a device, item by item, over all its splits in order.

    `first` and `last` hold the first and the last item that touches each value, both included;
    `words` its size; `parts` for each item the first one that it could share a step with: the items
    from there on are independent.
    """

    def __init__(self, support: OpSupport, split_drafts: Sequence[SplitDraft], device: int) -> None:
        graph = support.graph
        roots, nodes = graph.view_bases, graph.nodes
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        parts: list[int] = []
        scratch: dict[int, int] = {}
        item = start = 0
        own = [split_draft for split_draft in split_drafts if split_draft.device == device]
        begins: list[int] = []
        """The first item of each split."""
        for split_draft in own:
            start = item
            begins.append(item)
            for value, _ in split_draft.live_in:
                first[value] = last[value] = item
                parts.append(start)
                item += 1
            in_place = dict(split_draft.in_place)
            for node_id in split_draft.nodes:
                for operand in nodes[node_id].inputs:
                    value = operand if operand in first else roots[operand]
                    if value in first:
                        start = max(start, first[value] + 1)
                        last[value] = item
                if (
                    node_id not in graph.states and node_id not in in_place
                ):  # states have memory of their own
                    first[node_id] = last[node_id] = item
                if support.scratch_words(nodes[node_id], device):
                    scratch[node_id] = item
                parts.append(start)
                item += 1
            for value in split_draft.live_out:
                value = value if value in first else roots[value]
                if value in first:
                    start = max(start, first[value] + 1)
                    last[value] = item
                parts.append(start)
                item += 1
        _extend_for_transfers(graph, own, [*begins, item], first, last)
        on_host = support.topology.devices[device].kind == "cpu"
        self.parts = parts
        self.words = {
            v: -(-nodes[v].type.host_bytes // WORD_BYTES) if on_host else graph.words[v]
            for v in first
        }
        for node_id, item in scratch.items():
            scratch_id = scratch_of(node_id)
            first[scratch_id] = last[scratch_id] = item
            self.words[scratch_id] = support.scratch_words(nodes[node_id], device)
        self.first, self.last = first, last
        self._born, self._dying = [0] * len(parts), [0] * len(parts)
        for value, words in self.words.items():
            size = aligned(max(words, 1))
            self._born[first[value]] += size
            self._dying[last[value]] += size

    @cached_property
    def least(self) -> int:
        """The words of the largest live set, a lower bound of any allocation."""
        return max(self.live(), default=0)

    def live(self) -> list[int]:
        """Return the words that are live at each item."""
        live, out = 0, []
        for more, less in zip(self._born, self._dying, strict=True):
            live += more
            out.append(live)
            live -= less
        return out

    def lifetimes(self, slack: float | None = None) -> list[Lifetime]:
        """Return the lifetimes of all values, in steps.

        slack: None makes each item a step of its own. Otherwise independent neighbours share a step
        and no memory, so that no barrier is needed between them, unless this exceeds the largest
        live set by more than this fraction.
        """
        steps = range(len(self.parts)) if slack is None else self._steps(slack)
        return [
            Lifetime(value, words, steps[self.first[value]], steps[self.last[value]])
            for value, words in self.words.items()
        ]

    def _steps(self, slack: float) -> list[int]:
        """Return for each item the first item of its step."""
        allowed = self.least * (1 + slack)
        out: list[int] = []
        begin = live = ended = 0
        for item, (start, more, less) in enumerate(
            zip(self.parts, self._born, self._dying, strict=True)
        ):
            if start > begin or live + more > allowed:
                begin, live, ended = item, live - ended, 0
            live += more
            ended += less
            out.append(begin)
        return out


def _extend_for_transfers(
    graph: Graph,
    own: Sequence[SplitDraft],
    begins: Sequence[int],
    first: dict[int, int],
    last: dict[int, int],
) -> None:
    """Extend lifetimes of values in the transfer queue: uploads from the start of the previous
    split, downloads until the host has waited for them.

    own: the splits of the device. begins: the first item of each split, and the number of items.
    """
    for at, split_draft in enumerate(own):
        if UPLOAD in split_draft.async_transfers and at:
            for value, _ in split_draft.live_in:
                first[value] = begins[at - 1]
        if DOWNLOAD in split_draft.async_transfers:
            for value in (v if v in first else graph.view_bases[v] for v in split_draft.live_out):
                if value in last:
                    last[value] = max(last[value], begins[split_draft.free_at] - 1)


def assign_memory(
    program: MemoryUse, page_words: int, disable_aliasing: bool = False, tight: bool = False
) -> tuple[dict[int, Span], tuple[int, ...]]:
    """Return the span of each value, and the page sizes in words.

    Items that could run concurrently share no memory if that costs little. tight: they may share.
    """
    most = int(program.least * (1 + SLACK))
    best: tuple[dict[int, Span], tuple[int, ...]] | None = None
    for slack in (None,) if tight else (SLACK, 0.0, None):
        enough = program.least if slack is None else most
        found = assign_spans(program.lifetimes(slack), page_words, disable_aliasing, enough)
        if best is None or sum(found[1]) < sum(best[1]):
            best = found
        if sum(best[1]) <= enough:
            break
    assert best is not None
    return best


def weights_of(graph: Graph, here: Sequence[SplitDraft]) -> tuple[int, ...]:
    """Return the weights and constants that splits of a device read without streaming."""
    roots, nodes = graph.view_bases, graph.nodes
    streamed = {value for split_draft in here for value, _ in split_draft.live_in}
    read = {roots[i] for split_draft in here for n in split_draft.nodes for i in nodes[n].inputs}
    return tuple(sorted((read & graph.data.keys()) - streamed))


def states_of(graph: Graph, here: Sequence[SplitDraft]) -> tuple[int, ...]:
    """Return the states that live on the device of some splits."""
    if not graph.states:
        return ()
    nodes = (n for split_draft in here for n in split_draft.nodes)
    return tuple(n for n in nodes if graph.nodes[n].op == "state")

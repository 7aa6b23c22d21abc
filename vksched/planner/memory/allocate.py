"""Memory: where each value lies on its device, page and word, for as long as it lives.

Problem: dynamic storage allocation with known lifetimes, into pages of bounded size, so that little
more is taken than what must live at once, and items that could run beside each other share no
words: each such pair would need a barrier. Method: neighbours that need nothing of each other form
a step, as long as its values fit beside what lives, and a tenth; lifetimes are counted in steps.
Each value in order of birth takes the smallest free block that holds it. Where that takes too much,
other orders are tried, each value at the lowest place free for as long as it lives, and then
shorter steps.

    words |  [ b      ][ d    ]
          |  [ a  ]  [ c        ]      c takes the place of a, d that of b
          +----------------------> steps of the device's program

Complexity: O(values * log(values)), and O(pairs that live together) where other orders are tried.
Lower bound: the largest live set.
Examples: tests/plan/test_plan.py, tests/planner/test_plan_levels.py.
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
"""The share of the largest live set that may be spent on fewer barriers."""


class MemoryUse:
    """What a device does with its memory, item by item, over all its splits in order.

    first, last: for each value the first and the last item that touches it, both included. words:
    what it takes. parts: for each item, the first one with which it could share a step: the items
    between need nothing of each other.
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
        """Of each split its first item."""
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
                if node_id not in graph.states and node_id not in in_place:  # which lie apart
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
        _keep_aside(graph, own, [*begins, item], first, last)
        on_host = support.topology.devices[device].kind == "cpu"
        self.parts = parts
        self.words = {
            v: -(-nodes[v].type.host_bytes // WORD_BYTES) if on_host else graph.words[v]
            for v in first
        }
        for node_id, item in scratch.items():
            beside = scratch_of(node_id)
            first[beside] = last[beside] = item
            self.words[beside] = support.scratch_words(nodes[node_id], device)
        self.first, self.last = first, last
        self._born, self._dying = [0] * len(parts), [0] * len(parts)
        for value, words in self.words.items():
            size = aligned(max(words, 1))
            self._born[first[value]] += size
            self._dying[last[value]] += size

    @cached_property
    def least(self) -> int:
        """The words of the largest live set: no assignment needs less."""
        return max(self.live(), default=0)

    def live(self) -> list[int]:
        """Return the words that live at each item."""
        live, out = 0, []
        for more, less in zip(self._born, self._dying, strict=True):
            live += more
            out.append(live)
            live -= less
        return out

    def lifetimes(self, slack: float | None = None) -> list[Lifetime]:
        """Return the lifetimes of all values, in steps.

        slack: None makes each item a step of its own. Otherwise neighbours that do not depend on
        each other share a step, and no words, so that no barrier is needed between them, unless
        this takes more than the largest live set and that share of it.
        """
        steps = range(len(self.parts)) if slack is None else self._steps(slack)
        return [
            Lifetime(value, words, steps[self.first[value]], steps[self.last[value]])
            for value, words in self.words.items()
        ]

    def _steps(self, slack: float) -> list[int]:
        """Return for each item the first one of its step."""
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


def _keep_aside(
    graph: Graph,
    own: Sequence[SplitDraft],
    begins: Sequence[int],
    first: dict[int, int],
    last: dict[int, int],
) -> None:
    """Let what the copy queue brings live from the start of the split before, and what it takes
    away until the host has waited for that.

    own: the splits of the device. begins: the first item of each, and how many items there are.
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
    """Return a span for each value of a program and the page sizes in words.

    Items that could run beside each other share no words where that costs little, and if not tight.
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
    """Return the weights and constants that a device's nodes read and that are not streamed in.

    here: its splits.
    """
    roots, nodes = graph.view_bases, graph.nodes
    streamed = {value for split_draft in here for value, _ in split_draft.live_in}
    read = {roots[i] for split_draft in here for n in split_draft.nodes for i in nodes[n].inputs}
    return tuple(sorted((read & graph.data.keys()) - streamed))


def states_of(graph: Graph, here: Sequence[SplitDraft]) -> tuple[int, ...]:
    """Return the states that live on a device. here: its splits."""
    if not graph.states:
        return ()
    nodes = (n for split_draft in here for n in split_draft.nodes)
    return tuple(n for n in nodes if graph.nodes[n].op == "state")

"""Stage dependencies: which stage of a split waits for which, where copies go to a queue of their
own.

Problem: two queues of one device share its memory. Method: the work of a split waits for its copies
in. Copies in wait for the last work that uses their memory for something else, which is found by
the words that splits use, unless the host or the copy queue has waited for it before. Copies out
wait for their work; nothing waits for them but the host, as what they read keeps its memory until
then.

Complexity: O(values * SEARCHED * log(values)). Examples: tests/planner/test_transfers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir.graph import Graph
from ...plan.types.interval_set import IntervalSet
from ...plan.types.plan_types import COMPUTE, DOWNLOAD, HOST, UPLOAD, Span, StageDependency
from ...plan.types.split_draft import SplitDraft
from ...topology.topology import Topology
from .barriers import split_items

SEARCHED = 8
"""How many earlier splits are asked whether they use the memory of a copy in. The one before these
is waited for unasked; it mostly ended long ago.
"""


class StageDependencies:
    """The orders of a plan's splits, asked for one after the other."""

    def __init__(
        self, graph: Graph, topology: Topology, spans: Sequence[Mapping[int, Span]]
    ) -> None:
        """spans: for each device where values are."""
        self._graph = graph
        self._devices = topology.devices
        self._spans = spans
        self._device_of: list[int] = []
        self._used: list[list[tuple[int, IntervalSet]]] = [[] for _ in topology.devices]
        """Of each device the words that its last splits used."""
        self._known = [HOST] * len(topology.devices)
        """Of each device the last split whose work is complete for all that its copy queue gets
        now: the host has waited for it, or that queue itself.
        """

    def of(self, number: int, split_draft: SplitDraft) -> tuple[StageDependency, ...]:
        """Return the orders of the next split."""
        here, known = split_draft.device, self._known
        for waited in split_draft.waits:
            there = self._device_of[waited]
            known[there] = max(known[there], waited)
        self._device_of.append(here)
        if not self._devices[here].limits.copy_queue:
            return ()
        found: list[StageDependency] = []
        if UPLOAD in split_draft.async_transfers:
            last = self._last_user(split_draft)
            if last > known[here]:
                found.append(StageDependency(UPLOAD, COMPUTE, last))
                known[here] = last
            found.append(StageDependency(COMPUTE, UPLOAD, number))
        if DOWNLOAD in split_draft.async_transfers:
            found.append(StageDependency(DOWNLOAD, COMPUTE, number))
        known[here] = max(known[here], *split_draft.deferred_downloads, HOST)
        self._used[here].append((number, self._words(split_draft)))
        del self._used[here][: -SEARCHED - 1]
        return tuple(found)

    def _words(self, split_draft: SplitDraft) -> IntervalSet:
        used, whole = IntervalSet(), self._devices[split_draft.device].disable_aliasing
        spans = self._spans[split_draft.device]
        for reads, writes in split_items(self._graph, split_draft, spans, whole):
            used.add(*reads, *writes)
        return used

    def _last_user(self, split_draft: SplitDraft) -> int:
        """Return the last split that uses memory that a split's copies in write, or HOST."""
        used, spans = self._used[split_draft.device], self._spans[split_draft.device]
        targets = [spans[value] for value, _ in split_draft.live_in]
        for number, words in reversed(used[-SEARCHED:]):
            if words.meets(*targets):
                return number
        return used[0][0] if len(used) > SEARCHED else HOST

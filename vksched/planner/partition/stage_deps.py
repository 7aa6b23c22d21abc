"""Stage dependencies: order the stages of splits on devices with a transfer queue.

Problem: two queues of one device share its memory. Method: the compute stage of a split waits for
its uploads. Uploads wait for the last compute stage that uses their memory for another value,
unless the host or the transfer queue has waited for it before. Downloads wait for their compute
stage. Only the host waits for downloads, because their source memory stays allocated until then.

Complexity: O(values * MAX_SEARCHED * log(values)). Examples: tests/planner/test_transfers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir.graph import Graph
from ...plan.types.interval_set import IntervalSet
from ...plan.types.plan_types import COMPUTE, DOWNLOAD, HOST, UPLOAD, Span, StageDependency
from ...plan.types.split_draft import SplitDraft
from ...topology.topology import Topology
from .barriers import split_items

MAX_SEARCHED = 8
"""Number of earlier splits that are checked for the memory of an upload. The split before these is
waited for without a check; it has usually completed.
"""


class StageDependencies:
    """The stage dependencies of the splits of a plan, queried in order."""

    def __init__(
        self, graph: Graph, topology: Topology, spans: Sequence[Mapping[int, Span]]
    ) -> None:
        """spans: by device, the places of values."""
        self._graph = graph
        self._devices = topology.devices
        self._spans = spans
        self._device_of: list[int] = []
        self._used: list[list[tuple[int, IntervalSet]]] = [[] for _ in topology.devices]
        """By device, the memory that its last splits used."""
        self._known = [HOST] * len(topology.devices)
        """By device, the last split whose compute stage is complete before any new transfer: the
        host or the transfer queue has waited for it.
        """

    def of(self, number: int, split_draft: SplitDraft) -> tuple[StageDependency, ...]:
        """Return the stage dependencies of the next split."""
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
        del self._used[here][: -MAX_SEARCHED - 1]
        return tuple(found)

    def _words(self, split_draft: SplitDraft) -> IntervalSet:
        used, whole = IntervalSet(), self._devices[split_draft.device].disable_aliasing
        spans = self._spans[split_draft.device]
        for reads, writes in split_items(self._graph, split_draft, spans, whole):
            used.add(*reads, *writes)
        return used

    def _last_user(self, split_draft: SplitDraft) -> int:
        """Return the last split that uses the memory of a split's uploads, or HOST."""
        used, spans = self._used[split_draft.device], self._spans[split_draft.device]
        targets = [spans[value] for value, _ in split_draft.live_in]
        for number, words in reversed(used[-MAX_SEARCHED:]):
            if words.meets(*targets):
                return number
        return used[0][0] if len(used) > MAX_SEARCHED else HOST

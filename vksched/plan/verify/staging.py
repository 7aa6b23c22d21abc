"""Staging buffers: checks of the memory of a plan that the host sees.

    staging buffer   | w0 for split 0 | w2 for split 2 |     split 2 starts once split 0 is complete

A value has a staging buffer of its own, except for weights that the host writes in each run.
Complexity: O(values * log(values)). Examples: tests/planner/test_streaming_windows.py,
tests/plan/test_plan_verify.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...common.errors import PlanError
from ...ir.graph import Node
from ..types.interval_set import IntervalSet, Owners
from ..types.plan_types import PlanValue, Span, Split


class StagingOwners:
    """The owners of staging buffers while splits start one after the other."""

    def __init__(self, plan: PlanValue) -> None:
        self._plan = plan
        self._owners = [Owners() for _ in plan.topology.devices]

    def take(self, split: Split, is_complete: Callable[[int], bool]) -> None:
        """Give a split the staging buffers of the weights that the host writes for it."""
        graph, owners = self._plan.graph, self._owners[split.device]
        for copy in split.uploads if split.refills else ():
            if copy.node not in graph.data:
                continue
            for other in owners.take(copy.staging, split.id):
                name = graph.nodes[copy.node].name
                if other == split.id:
                    raise _fail(f"two values share words of the upload buffer, one of them {name}")
                if not is_complete(other):
                    raise _fail(
                        f"{name} is written for split {split.id} over a staging buffer that split "
                        f"{other} may still read"
                    )


def check_staging(plan: PlanValue, device: int, splits: Sequence[Split]) -> None:
    """Check the staging spans of the values that enter and leave a device. splits: its own."""
    graph, memory = plan.graph, plan.memory[device]
    shared, upload_staging, download_staging = IntervalSet(), IntervalSet(), IntervalSet()
    for split in splits:
        for copy in split.uploads:
            node = graph.nodes[copy.node]
            check_span(node, node.type.words, copy.staging, memory.upload_pages, "upload buffer")
            if copy.target != plan.locations.get((device, copy.node)):
                raise _fail(f"{node.name} is copied to another place than it is read")
            if split.refills and copy.node in graph.data:
                shared.add(copy.staging)
            else:
                _take(upload_staging, copy.staging, "upload buffer")
        for out in split.downloads:
            node = graph.nodes[out.node]
            check_span(node, node.type.words, out.staging, memory.download_pages, "download buffer")
            _take(download_staging, out.staging, "download buffer")
    for split in splits:
        for copy in split.uploads:
            if not (split.refills and copy.node in graph.data) and shared.meets(copy.staging):
                name = graph.nodes[copy.node].name
                raise _fail(f"two values share words of the upload buffer, one of them {name}")


def _take(taken: IntervalSet, span: Span, kind: str) -> None:
    if taken.meets(span):
        raise _fail(f"two values share words of the {kind}")
    taken.add(span)


def check_span(node: Node, words: int, span: Span, pages: tuple[int, ...], kind: str) -> None:
    """Check that a span has the expected number of words and is within one of some pages."""
    if span.words != words:
        raise _fail(f"{kind} span {span} of {node.name} is not of its {words} words")
    if not 0 <= span.page < len(pages) or not 0 <= span.offset <= pages[span.page] - words:
        raise _fail(f"{kind} span {span} lies outside the pages {pages}")
    if span.offset % 4:
        raise _fail(f"{kind} span {span} is not aligned to 16 bytes")


def _fail(message: str) -> PlanError:
    return PlanError(f"[plan] {message}")

"""Asynchronous transfers: checks of copies that run concurrently with the work of a device.

    copies in of split 3     may overlap the work of 1 and 2 if they only wait for that of 0
    copies out of split 0    may run until the host has waited for it

The checks go through the splits of one device. Concurrent operations must share no word that one of
them writes.
Complexity: O(concurrent splits * log(values)). Examples: tests/planner/test_transfers.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from ...common.errors import PlanError
from ..types.interval_set import IntervalSet
from ..types.plan_types import COMPUTE, DOWNLOAD, HOST, UPLOAD, PlanValue, Span, Split

Used = Mapping[int, tuple[IntervalSet, IntervalSet]]
"""For each split, the words of its device that its work reads, and the words that it writes."""


def check_async_transfers(
    plan: PlanValue, splits: Sequence[Split], spans: Mapping[int, Span], used: Used
) -> None:
    """Check one device. splits: its own. spans: the spans of values.

    Raises
    ------
    PlanError
        The first broken invariant.
    """
    spec = plan.topology.devices[splits[0].device]
    has_queue = spec.limits.copy_queue and spec.kind != "cpu"
    if not any(
        split.async_transfers or split.stage_deps or split.deferred_downloads for split in splits
    ):
        return
    waits = _Waits(plan, splits[0].device)
    numbers = [split.id for split in splits]
    left: set[int] = set()  # splits whose downloads are not submitted yet
    # the last split whose work is complete for all later submissions to the copy queue
    known = HOST
    for at, split in enumerate(splits):
        if not (split.async_transfers or split.stage_deps or split.deferred_downloads):
            continue
        if not has_queue:
            raise _fail(
                f"split {split.id} has asynchronous copies, but {spec.name} has no copy queue"
            )
        _check_stages(plan, split)
        for number in split.deferred_downloads:
            if number not in left or waits.seen(number) <= split.id:
                raise _fail(f"split {split.id} hands over copies out of {number}, which has none")
            left.remove(number)
        if UPLOAD in split.async_transfers:
            known = max(known, waits.waited(split.id), *(n for _, n in split.after(UPLOAD)))
            unknown = splits[min(bisect_right(numbers, known), at) : at]
            _check_uploads(unknown, split, used)
        for number in split.deferred_downloads:
            known = max(known, *(n for _, n in plan.splits[number].after(DOWNLOAD)), HOST)
        if DOWNLOAD in split.async_transfers:
            left.add(split.id)
            later = splits[at + 1 : bisect_left(numbers, waits.seen(split.id))]
            _check_downloads(plan, later, split, spans, used)


def _check_stages(plan: PlanValue, split: Split) -> None:
    """Check that the stages exist, and that each waits for earlier submissions of the device: the
    work of its own split or an earlier one, or the uploads of its own split.
    """
    if not set(split.async_transfers) <= {UPLOAD, DOWNLOAD} or len(
        set(split.async_transfers)
    ) != len(split.async_transfers):
        raise _fail(f"split {split.id} has invalid asynchronous stages {split.async_transfers}")
    own = (COMPUTE, UPLOAD, split.id), (DOWNLOAD, COMPUTE, split.id)
    for order in split.stage_deps:
        same = plan.splits[order.split] if 0 <= order.split <= split.id else None
        if same is None or same.device != split.device:
            raise _fail(f"split {split.id} waits for split {order.split}, not before it there")
        earlier = order.split < split.id and order[:2] == (UPLOAD, COMPUTE)
        if not (earlier or order in own) or not {*order[:2]} <= {COMPUTE, *split.async_transfers}:
            what = f"{order.after} of split {order.split}"
            raise _fail(f"{order.stage} of split {split.id} cannot wait for {what}")


class _Waits:
    """The waits of the host for the splits of one device."""

    def __init__(self, plan: PlanValue, device: int) -> None:
        self._count = len(plan.splits)
        self._before: list[int] = []
        self._latest: list[int] = []
        """With `_before`, parallel lists: a split before which the host waits for a later split of
        the device than before, and this later split.
        """
        for split in plan.splits:
            waited = max((w for w in split.waits if plan.splits[w].device == device), default=HOST)
            if waited > (self._latest[-1] if self._latest else HOST):
                self._before.append(split.id)
                self._latest.append(waited)

    def waited(self, split: int) -> int:
        """Return the last split that the host has waited for when it begins a split."""
        at = bisect_right(self._before, split)
        return self._latest[at - 1] if at else HOST

    def seen(self, split: int) -> int:
        """Return the first split before which the host has waited for a split, or the number of
        splits if that is at the end of the run.
        """
        at = bisect_left(self._latest, split)
        return self._before[at] if at < len(self._before) else self._count


def _check_uploads(before: Sequence[Split], split: Split, used: Used) -> None:
    """Check asynchronous uploads. before: splits of the device whose work may still be under way
    when the uploads begin.
    """
    if (UPLOAD, split.id) not in split.after(COMPUTE):
        raise _fail(f"split {split.id} does not wait for its copies in")
    targets = [copy.target for copy in split.uploads]
    for other in before:
        if any(words.meets(*targets) for words in used[other.id]):
            raise _fail(
                f"copies in of split {split.id} write over memory of split {other.id}, which they "
                "do not wait for"
            )


def _check_downloads(
    plan: PlanValue,
    later: Sequence[Split],
    split: Split,
    spans: Mapping[int, Span],
    used: Used,
) -> None:
    """Check asynchronous downloads. later: splits of the device that begin before the host has seen
    the downloads.
    """
    if (COMPUTE, split.id) not in split.after(DOWNLOAD):
        raise _fail(f"copies out of split {split.id} do not wait for its work")
    roots = plan.graph.view_bases
    sources = [spans.get(c.node, spans.get(roots[c.node])) for c in split.downloads]
    for other in later:
        written = [c.target for c in other.uploads] if UPLOAD in other.async_transfers else []
        taken = IntervalSet()
        taken.add(*written)
        for source in (s for s in sources if s is not None):
            if taken.meets(source) or used[other.id][1].meets(source):
                raise _fail(
                    f"split {other.id} writes over what split {split.id} copies out, before the "
                    "host has waited for that"
                )


def _fail(message: str) -> PlanError:
    return PlanError(f"[plan] {message}")

"""Memory counters: bytes in use on each device over time, by the spans of plans.

While a split runs, the weights and states of its device and the alive values are in memory.
Complexity: splits. Examples: tests/viz/test_view_make.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from .timeline_types import Counter, PlanView, Span


def memory_counters(spans: Sequence[Span], plans: Sequence[PlanView]) -> Iterator[Counter]:
    """Yield a counter for each device with a split: from measured splits, if there are some."""
    splits = [s for s in spans if s.kind == "split" and s.plan >= 0 and s.split >= 0]
    row = "work" if any(s.row == "work" for s in splits) else "predicted"
    by_lane: dict[int, list[Span]] = defaultdict(list)
    for span in splits:
        if span.row == row and plans[span.plan].alive_bytes:
            by_lane[span.lane].append(span)
    for lane, here in sorted(by_lane.items()):
        here.sort(key=lambda span: span.start_s)
        values = [float(plans[s.plan].alive_bytes[s.split]) for s in here]
        most = max(plan.capacity_bytes[lane] for plan in plans if plan.capacity_bytes)
        yield Counter(lane, "memory in use", [s.start_s for s in here], values, float(most))

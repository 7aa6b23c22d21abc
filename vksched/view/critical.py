"""Critical path: the spans of a run that no other span hides, from its end back to its start.

    host   [copy x][ wait for 0      ][copy h][ wait for 1 ]     back from the end: a wait ends with
    gpu:0          [ split 0        ]                            its split; a split begins when the
    gpu:1                                     [ split 1   ]      one before it on its device ends,
           ======= =================  ========  ==========       or when the host has submitted it

Complexity: spans, sorted. Examples: tests/view/test_critical.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from ..trace.lines import LEAST_S
from .value import HOST, Span

CLOSE = 0.02
"""A split that begins this part of its own time after the one before it began with its end."""


def critical_spans(spans: Sequence[Span]) -> frozenset[int]:
    """Returns the numbers of the spans on the critical path of each run, measured and predicted
    ones for themselves.
    """
    groups: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for number, span in enumerate(spans):
        if span.run >= 0 and span.row in ("host", "work", "predicted"):
            groups[span.run, span.plan, span.row == "predicted"].append(number)
    found: set[int] = set()
    for group in groups.values():
        found.update(_walk(spans, group))
    return frozenset(found)


def _walk(spans: Sequence[Span], group: Iterable[int]) -> list[int]:
    by_lane: dict[int, list[int]] = defaultdict(list)
    for number in sorted(group, key=lambda n: (spans[n].end_s, spans[n].start_s)):
        by_lane[spans[number].lane].append(number)
    splits = {spans[n].split: n for ns in by_lane.values() for n in ns if spans[n].kind == "split"}
    lanes = {lane: _Lane([spans[n].end_s for n in ns], ns) for lane, ns in by_lane.items()}
    at = max(
        (numbers[-1] for numbers in by_lane.values()),
        key=lambda n: (spans[n].end_s, spans[n].lane == HOST),
        default=None,
    )
    path: list[int] = []
    seen: set[int] = set()
    while at is not None and at not in seen:
        seen.add(at)
        span = spans[at]
        waited = splits.get(span.split) if span.kind == "wait" else None
        if waited is not None and spans[waited].end_s > span.start_s:
            at = waited
            continue
        if span.kind != "wait":
            path.append(at)
        at = _before(spans, at, lanes, seen)
    return path


class _Lane:
    """The spans of a lane in the order of their ends."""

    def __init__(self, ends_s: list[float], numbers: list[int]) -> None:
        self.ends_s, self.numbers = ends_s, numbers

    def until(self, time_s: float, seen: Collection[int]) -> int | None:
        """Returns the last span that is over by a time, of those not seen."""
        at = bisect_right(self.ends_s, time_s + LEAST_S)
        while at and self.numbers[at - 1] in seen:
            at -= 1
        return self.numbers[at - 1] if at else None


def _before(
    spans: Sequence[Span], number: int, lanes: Mapping[int, _Lane], seen: Collection[int]
) -> int | None:
    """Returns what a span had to wait for last."""
    span = spans[number]
    slack_s = LEAST_S + CLOSE * span.seconds
    before = lanes[span.lane].until(span.start_s, seen)
    if before is not None and span.kind == "split":
        if span.start_s - spans[before].end_s <= slack_s:
            return before
    if span.lane == HOST or HOST not in lanes:
        return before
    return lanes[HOST].until(span.start_s, seen)

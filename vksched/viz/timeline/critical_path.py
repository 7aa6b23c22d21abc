"""Critical path: the spans that determine the time of a run, from its end back to its start.

    host   [copy x][ wait for 0      ][copy h][ wait for 1 ]     back from the end: a wait ends with
    gpu:0          [ split 0        ]                            its split; a split begins when the
    gpu:1                                     [ split 1   ]      one before it on its device ends,
           ======= =================  ========  ==========       or when the host has submitted it

If a copy queue uploads the operands of a split, the split begins when these copies end; if it
downloads the results of a split, a wait ends with these copies. A receive ends with the send of
another host.

Complexity: spans, sorted. Examples: tests/viz/test_critical.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from ...trace.lane_packing import MIN_S
from .timeline_types import HOST, PREDICTED_ROWS, Span, comes_before

CLOSE_SHARE = 0.02
"""A split that begins within this share of its own time after the end of the previous one follows
it directly.
"""
ROWS = frozenset(("host", "work", "transfer_queue", "predicted", "transfer_queue predicted"))
QUEUES = frozenset(("split", "transfer_queue"))
"""Kinds of spans on devices; others are on a host."""


def critical_spans(spans: Sequence[Span]) -> frozenset[int]:
    """Return the numbers of the spans on the critical path of each run, for measured and predicted
    spans separately.
    """
    groups: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for number, span in enumerate(spans):
        if span.run >= 0 and span.row in ROWS:
            groups[span.run, span.plan, span.row in PREDICTED_ROWS].append(number)
    found: set[int] = set()
    for group in groups.values():
        found.update(_Walk(spans, group).path())
    return frozenset(found)


class _Walk:
    """The walk back through the measured or the predicted spans of a run."""

    def __init__(self, spans: Sequence[Span], group: Iterable[int]) -> None:
        self._spans = spans
        self._seen: set[int] = set()
        order = sorted(group, key=lambda n: (spans[n].end_s, spans[n].start_s))
        by_line: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for number in order:
            by_line[spans[number].lane, spans[number].kind == "transfer_queue"].append(number)
        self._lines = {key: _Line([spans[n].end_s for n in ns], ns) for key, ns in by_line.items()}
        self._splits = {spans[n].split: n for n in order if spans[n].kind == "split"}
        self._sends = {spans[n].between: n for n in order if spans[n].kind == "send"}
        self._submits = {spans[n].split: n for n in order if spans[n].kind == "submit"}
        self._async_copies: dict[tuple[int, bool], int] = {}
        """For each split, and a flag for uploads, its asynchronous copies."""
        for number in order:
            split = self._splits.get(spans[number].split)
            if spans[number].kind == "transfer_queue" and split is not None:
                comes = comes_before(spans[number], spans[split])
                self._async_copies[spans[number].split, comes] = number

    def path(self) -> list[int]:
        """Return the numbers of the spans on the path, the last one first."""
        at = max(
            (line.numbers[-1] for line in self._lines.values()),
            key=lambda n: (self._spans[n].end_s, self._spans[n].lane == HOST),
            default=None,
        )
        path: list[int] = []
        while at is not None and at not in self._seen:
            self._seen.add(at)
            span = self._spans[at]
            if span.kind != "wait":
                path.append(at)
            waited = self._awaited(span)
            at = waited if waited is not None else self._before(span)
        return path

    def _awaited(self, span: Span) -> int | None:
        """Return the span that ended a wait or a receive of a host."""
        if span.kind == "recv":
            return self._ends_after(span.start_s, self._sends.get(span.between))
        if span.kind != "wait":
            return None
        leaves = self._ends_after(span.start_s, self._async_copies.get((span.split, False)))
        if leaves is not None and self._ends_s(leaves) <= span.end_s + _slack_s(span):
            return leaves
        return self._ends_after(span.start_s, self._splits.get(span.split))

    def _ends_after(self, time_s: float, number: int | None) -> int | None:
        return number if number is not None and self._ends_s(number) > time_s else None

    def _before(self, span: Span) -> int | None:
        """Return the last span that a span had to wait for."""
        before = self._last(span.lane, span.start_s)
        if span.kind not in QUEUES:
            if before is None and span.lane != HOST:
                return self._last(HOST, span.start_s)  # which has started this host
            return before
        own = self._needed(span)
        queued = [before, own]
        if span.kind == "transfer_queue":
            queued.append(self._last(span.lane, span.start_s, aside=True))
        close = [n for n in queued if n is not None and self._is_close(n, span)]
        if close:
            return max(close, key=self._ends_s)
        submit = self._submits.get(span.split)
        if own is not None and (submit is None or self._ends_s(own) >= self._ends_s(submit)):
            return own
        host = HOST if submit is None else self._spans[submit].lane
        return self._last(host, span.start_s) if (host, False) in self._lines else before

    def _needed(self, span: Span) -> int | None:
        """Return the span that a span depends on: the asynchronous uploads of a split, or the split
        of asynchronous copies.
        """
        split = self._splits.get(span.split)
        if span.kind == "split":
            own = self._async_copies.get((span.split, True))
        else:
            own = None if split is None or comes_before(span, self._spans[split]) else split
        return own if own not in self._seen else None

    def _is_close(self, number: int, span: Span) -> bool:
        return abs(span.start_s - self._ends_s(number)) <= _slack_s(span)

    def _ends_s(self, number: int) -> float:
        return self._spans[number].end_s

    def _last(self, lane: int, time_s: float, aside: bool = False) -> int | None:
        """Return the last unvisited span of a lane that ends by a time."""
        line = self._lines.get((lane, aside))
        return line.until(time_s, self._seen) if line is not None else None


def _slack_s(span: Span) -> float:
    return MIN_S + CLOSE_SHARE * span.seconds


class _Line:
    """Spans in the order of their ends."""

    def __init__(self, ends_s: list[float], numbers: list[int]) -> None:
        self.ends_s, self.numbers = ends_s, numbers

    def until(self, time_s: float, seen: Collection[int]) -> int | None:
        """Return the last unvisited span that ends by a time."""
        at = bisect_right(self.ends_s, time_s + MIN_S)
        while at and self.numbers[at - 1] in seen:
            at -= 1
        return self.numbers[at - 1] if at else None
